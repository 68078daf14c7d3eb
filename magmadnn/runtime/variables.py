"""What all ways of running share of variables: the Tensor that one holds, and whether values are finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory import Kind, MemoryManager


def tensor_of(node: Node) -> Any:
    """The Tensor that a variable holds."""
    held = node.value
    return (
        held.tensor if hasattr(type(held), "tensor") else held
    )  # a Tensor that is asked explains at length


def memories_of(nodes: Iterable[Node]) -> list[MemoryManager]:
    """The memory of variables, which stays theirs."""
    return [tensor_of(node).memory for node in nodes]


def variable_memory(node: Node) -> Array:
    """The memory of a variable on the host, to be written."""
    array: Array = tensor_of(node).numpy()
    return array


def is_plain(node: Node) -> bool:
    """Whether a variable lies on the host in one contiguous block, so that kernels can work on it."""
    tensor = tensor_of(node)
    on_host = getattr(tensor, "kind", None) in (Kind.HOST, Kind.MANAGED)
    return on_host and bool(tensor.is_packed)


_FEW = 4096  # elements: to look at each takes less time than to set how errors are told


def is_finite(value: Array) -> bool:
    """Whether an array of real numbers holds no NaN and no infinity; True for all others."""
    if value.dtype.kind in "biuc":
        return True
    if value.size <= _FEW:
        return bool(np.isfinite(value).all())
    with np.errstate(all="ignore"):
        total = value.sum()  # NaN and infinity stay in a sum; a sum may also overflow by itself
    return bool(np.isfinite(total)) or bool(np.isfinite(value).all())
