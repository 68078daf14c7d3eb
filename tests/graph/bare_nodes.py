"""Placeholders and variables as bare nodes, for tests below the folder `tensor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.graph import Node, Spec
from magmadnn.graph import node as nodes

F32 = np.dtype(np.float32)


class Cell:
    """Storage of a variable."""

    def __init__(self, value: Any) -> None:
        self.value = np.array(value)

    def read(self) -> NDArray[Any]:
        return self.value

    def write(self, value: NDArray[Any]) -> None:
        self.value = value


def placed(name: str, *shape: Any, dtype: Any = F32) -> Node:
    return nodes.placeholder(name, Spec(shape, np.dtype(dtype)))


def variable(name: str, value: Any) -> Node:
    cell = Cell(value)
    return nodes.variable(name, Spec(cell.value.shape, cell.value.dtype), cell)
