"""Operands whose values lie in the host's memory, for functions that compute with them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.graph.op import Array
from magmadnn.memory import Kind

from .tensor import Tensor

_HOST = (Kind.HOST, Kind.MANAGED)


class Known:
    """Values that are computed with as arrays: Tensors between take time.

    Attributes:
        arrays: the values.
    """

    __slots__ = ("_place", "arrays")

    def __init__(self, operands: Sequence[Any]) -> None:
        self.arrays: list[Array] = [x if type(x) is np.ndarray else x.read() for x in operands]
        first = next((x for x in operands if type(x) is Tensor), None)
        self._place = (Kind.MANAGED, 0) if first is None else (first.kind, first.device)

    def given(self, found: Any) -> Tensor:
        """A result as what the function gives; it has memory of its own."""
        return Tensor.wrap(found, *self._place)


def known(*operands: Any) -> Known | None:
    """The values of arrays and Tensors of the four usual dtypes of numbers; None if one is anything else."""
    for x in operands:
        if type(x) is np.ndarray:
            if x.dtype.char not in "fdFD" or not x.dtype.isnative:
                return None
        elif type(x) is not Tensor or x.kind not in _HOST or x.dtype.char not in "fdFD":
            return None
    return Known(operands)
