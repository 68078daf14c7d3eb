"""Random bodies: native and reference loops give what unrolled ones do, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import Operation, ops
from magmadnn.graph.body import is_loop
from magmadnn.graph.program import Program
from magmadnn.ops.repeated import _saved
from magmadnn.runtime import Executable
from tests.runtime.unrolling import program_without_loops

Rng = np.random.Generator
ROWS = 3
WIDTHS = (1, 2, 5)


class Draw:
    """Draws a loop over variables, from a seed; the same graph for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.steps = int(self.rng.integers(0, 5))
        self.reverse = bool(self.rng.random() < 0.5)
        self.leaves: list[md.Variable] = []

    def leaf(self, *shape: int) -> md.Variable:
        made = md.variable(f"v{len(self.leaves)}", self.rng.normal(size=shape))
        self.leaves.append(made)
        return made

    def width(self) -> int:
        return int(self.rng.choice(WIDTHS))

    def to(self, x: Operation, width: int) -> Operation:
        """A value of [rows, width] made from another."""
        if x.shape[1] == width:
            return x
        if self.rng.random() < 0.5:
            return x @ self.leaf(int(x.shape[1]), width)
        return ops.broadcast_to(ops.mean(x, axis=1, keepdims=True), (ROWS, width))

    def value(self, known: list[Operation], depth: int) -> Operation:
        """Something of [rows, any width] made from what is known."""
        x = known[int(self.rng.integers(len(known)))]
        if depth == 0:
            return x
        other = self.value(known, depth - 1)
        ways: list[Callable[[], Operation]] = [
            lambda: ops.tanh(x + self.to(other, int(x.shape[1]))),
            lambda: ops.sin(x) * self.to(other, int(x.shape[1])),
            lambda: ops.tanh(other @ self.leaf(int(other.shape[1]), 5)),
            lambda: ops.softmax(other, axis=1),
            lambda: ops.concat([other, x], axis=1)[:, : int(x.shape[1])],
            lambda: ops.flip(other, 0) - ops.sum(x, axis=0, keepdims=True).mean(),
            lambda: ops.transpose(ops.transpose(other)) * 0.5,
            lambda: ops.cumsum(ops.tanh(other), axis=1),
            lambda: ops.where(x.mean() > 0.0, other, ops.abs(other)),
            lambda: self.inner(other),
        ]
        return ways[int(self.rng.integers(len(ways)))]()

    def inner(self, x: Operation) -> Operation:
        """A loop over the rows of a value."""
        scale = self.leaf(int(x.shape[1]))
        last, kept = md.scan(lambda h, row: (ops.tanh(h * scale + row), h), x[0], x)
        return kept + last

    def outputs(self) -> list[Operation]:
        """Results of the loop, and gradients of a sum of them."""
        widths = [self.width() for _ in range(int(self.rng.integers(1, 4)))]
        begin = tuple(self.leaf(ROWS, w) for w in widths)
        xs = tuple(
            self.leaf(self.steps, ROWS, self.width()) for _ in range(int(self.rng.integers(0, 3)))
        )

        def body(carried: Any, slices: Any) -> tuple[Any, Any]:
            known = [*carried, *slices, self.leaf(ROWS, 2)]
            new = tuple(
                ops.tanh(self.to(self.value(known, 2), w)) if self.rng.random() < 0.8 else old
                for old, w in zip(carried, widths, strict=True)
            )
            if len({*widths}) == 1 and self.rng.random() < 0.3:
                new = new[::-1]
            return new, tuple(
                self.value([*known, *new], 1) for _ in range(int(self.rng.integers(0, 3)))
            )

        last, kept = md.scan(body, begin, xs, length=self.steps, reverse=self.reverse)
        results = [*last, *kept]
        taken = [y for y in results if self.rng.random() < 0.7] or results[:1]
        loss = sum((ops.sum(y * y) for y in taken), start=np.float64(0.0) * begin[0].sum())
        return [*results, *md.grad(loss, self.leaves)]


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_saved, "_LEAST_TERMS", 1 + seed % 2 * 1000)  # products are kept, or not
    nodes = [y.node for y in Draw(seed).outputs()]
    expected = Executable(program_without_loops(Program.of(nodes)), executor="reference")
    assert not any(map(is_loop, expected.program.nodes()))
    wanted = expected.run({})
    for executor in ("reference", "native"):
        found = Executable(nodes, executor=executor, check=True).run({})
        for one, other in zip(found, wanted, strict=True):
            # a few thousand roundings of values below 100, in float64
            limit = 1e-10 * max(1.0, float(np.max(np.abs(other), initial=0.0)))
            assert one.shape == other.shape, f"seed {seed}"
            assert np.max(np.abs(one - other), initial=0.0) <= limit, f"seed {seed}, {executor}"


@pytest.mark.parametrize("seed", range(3))
def test_random_bodies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(8))
def test_many_random_bodies(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3 + 12 * chunk, 15 + 12 * chunk):
        check(seed, monkeypatch)
