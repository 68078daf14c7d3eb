"""Programs of random operations on arrays, views and copies that stay alive, against those of NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from magmadnn import dmath as dm
from tests.dmath.drawn import drawn_layout
from tests.dmath.test_client import alone

MOST = 1 << 18  # so that float64 is exact


class Program:
    """Arrays on workers beside NumPy's, with elements in common alike."""

    def __init__(self, seed: int) -> None:
        self.rng, self.w, self.size = random.Random(seed), alone(), 2 + seed % 5
        self.numpys = np.random.default_rng(seed)
        self.w.keep_blocks((0, 300, 1 << 16)[seed % 3])
        self.pairs: list[tuple[dm.Matrix, np.ndarray]] = []
        self.replicas: list[tuple[dm.Matrix, np.ndarray]] = []
        for _ in range(2):
            self.new()

    def one(self) -> tuple[Any, Any]:
        return self.rng.choice(self.pairs)

    def key(self, x: np.ndarray) -> tuple[Any, ...]:
        ends = [None, *range(-self.size, self.size + 1)]
        steps = (None, 1, 2, -1, -2)
        drawn = (slice(*(self.rng.choice(one) for one in (ends, ends, steps))) for _ in x.shape)
        return (*drawn, ...)

    def new(self) -> None:
        x = self.numpys.integers(-3, 4, (self.size, self.size)).astype(float)
        layout = drawn_layout(self.rng, (self.size, self.size), 1)
        self.pairs.append((self.w.array(x, layout=layout), x.copy()))

    def view(self) -> None:
        A, a = self.one()
        key = self.key(a)
        self.pairs += [(A[key], a[key]), (A.T, a.T)]

    def in_place(self) -> None:
        (A, a), (B, b) = self.one(), self.one()
        name = self.rng.choice(["__iadd__", "__isub__", "__imul__"])
        if a.shape == b.shape and np.abs(a).max(initial=0) * np.abs(b).max(initial=0) < MOST:
            getattr(a, name)(b.copy())
            getattr(A, name)(B)

    def assign(self) -> None:
        (A, a), (B, b) = self.one(), self.one()
        key = self.key(a)
        if a[key].shape == b.shape:
            a[key] = b.copy()
            A[key] = B
        else:
            a[key] = A[key] = self.rng.randint(-3, 3)

    def product(self) -> None:
        (A, a), (B, b) = self.one(), self.one()
        if a.shape[1] == b.shape[0] and np.abs(made := a @ b).max(initial=0) < MOST:
            self.pairs.append((dm.matmul(A, B, keep=self.rng.random() < 0.5), made))

    def copies(self) -> None:
        A, a = self.one()
        self.pairs.append((dm.flip(A), np.flip(a).copy()))
        R = A.replica()
        self.replicas += [(R, a), (R.T[:1], a.T[:1])]

    def check(self) -> None:
        for found, expected in (*self.pairs, *self.replicas):
            np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    program = Program(seed)
    steps = (
        Program.new, Program.view, Program.in_place, Program.in_place, Program.assign,
        Program.product, Program.copies, Program.check,
    )  # fmt: skip
    for _ in range(20):
        program.rng.choice(steps)(program)
    program.check()
    program.pairs.clear()
    program.replicas.clear()
    assert program.w.counters()["array_bytes"] == 0
