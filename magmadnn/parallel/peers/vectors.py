"""Gradients end to end in variables on a GPU, which programs read in place of what they were fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.graph import Node
from magmadnn.graph.node import Updated, rebuild
from magmadnn.memory import Kind
from magmadnn.parallel.buckets import Buckets, size_of
from magmadnn.tensor import Tensor, Variable

Vectors = dict[np.dtype[Any], Variable]


def vectors_on(device: int, lengths: Mapping[np.dtype[Any], int]) -> Vectors:
    """A vector of zeros for each dtype, on a device."""
    return {
        dtype: Variable(f"gradients_{dtype.name}", Tensor((n,), None, dtype, Kind.DEVICE, device))
        for dtype, n in lengths.items()
    }


def reading(
    vectors: Vectors, outputs: Sequence[Node], updates: Sequence[Updated], buckets: Buckets
) -> tuple[list[Node], list[Updated]]:
    """A program that reads sums of gradients from vectors, where it was fed them."""
    parts = {}
    for node, start in buckets.places:
        flat = vectors[node.dtype][start : start + size_of(node.spec)]
        parts[node] = ops.reshape(flat, node.shape).node
    roots = rebuild([*outputs, *(value for _, value in updates)], parts)
    values = roots[len(outputs) :]
    pairs = [(target, new) for (target, _), new in zip(updates, values, strict=True)]
    return roots[: len(outputs)], pairs
