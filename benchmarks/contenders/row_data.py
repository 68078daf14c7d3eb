"""Buffers of the work that memory bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Matrices that one set of buffers holds.
HELD = {
    "softmax": 2, "layer_norm": 2, "adam": 4, "cross_entropy": 1, "cross_entropy_gradient": 2,
    "batch_norm": 4,
}  # fmt: skip


DISTINCT_ROWS = 1024  # on a GPU, of a matrix: further rows are the same again


def matrices(rows: int, columns: int, count: int) -> list[Array]:
    """Random matrices in float32, each in fresh pages: nothing is allocated between that goes again."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal((rows, columns), np.float32) for _ in range(count)]


def labels(rows: int, columns: int) -> Array:
    """A class for each row."""
    return np.random.default_rng(5).integers(0, columns, rows)
