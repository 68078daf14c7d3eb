"""Matrices at random for comparisons: sizes, dtypes, stacks, strides and conditions of all kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128", "int64")
STACKS: tuple[tuple[int, ...], ...] = ((), (), (3,), (2, 1), (0,), (9,))
KINDS = ("random", "graded", "rank", "large", "small", "equal")


@dataclass(frozen=True)
class Drawn:
    """Operands of one case.

    Attributes:
        a: [..., m, n], any; square [..., n, n] where the case needs it.
        b: [..., m, k].
        kind: of numbers, one of `KINDS`.
    """

    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    kind: str


def draw(rng: np.random.Generator, square: bool, positive: bool, full_rank: bool) -> Drawn:
    """One case, in an order of axes and with strides at random."""
    dtype, stack = rng.choice(DTYPES), STACKS[rng.integers(len(STACKS))]
    m, k = int(rng.integers(1, 11)), int(rng.integers(1, 4))
    n = m if square or positive else int(rng.integers(1, 11))
    kinds = [x for x in KINDS if not (full_rank and x in ("rank", "graded")) and x != "equal"]
    kind = str(rng.choice(kinds if dtype != "int64" else ["random"]))
    a, b = numbers(rng, dtype, *stack, m, n), numbers(rng, dtype, *stack, m, k)
    if kind == "rank" and min(m, n) > 1:
        a = a[..., :, :1] @ a[..., :1, :]
    if kind == "graded":
        a = a * np.geomspace(1, 1e-3, m)[:, None]
    if positive:
        a = a @ np.swapaxes(a, -1, -2).conj() + (m if dtype == "int64" else 1) * np.eye(m)
    elif square and full_rank:
        a = a + (12 * m * np.eye(m)).astype(int)
    scale = {"large": 1e12, "small": 1e-12}.get(kind, 1)
    a, b = (a * scale).astype(dtype), b.astype(dtype)
    return Drawn(laid_out(rng, a), laid_out(rng, b), kind)


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    """Of size 1; small integers for integers."""
    if dtype == "int64":
        return rng.integers(-5, 6, shape)
    x = rng.normal(size=shape)
    return x + 1j * rng.normal(size=shape) if dtype.startswith("complex") else x


def laid_out(rng: np.random.Generator, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values with other strides: of columns, every other element, backwards, read only."""
    way = rng.integers(5)
    if way == 1:
        return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    if way == 2:
        wide = np.empty((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        wide[..., ::2, 1::3] = x
        return wide[..., ::2, 1::3]
    if way == 3:
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if way == 4:
        x = x.copy()
        x.flags.writeable = False
    return x
