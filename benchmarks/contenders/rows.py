"""Work that memory bounds, as programs of magmadnn whose results go into variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.contenders.row_data import HELD, Array, labels, matrices
from magmadnn.executor import Executable
from magmadnn.losses import CrossEntropy
from magmadnn.optim.parts import AdamMoments


@dataclass
class Work:
    """A graph, what it reads, and what it leaves.

    Attributes:
        fed: whether operands are fed; otherwise they are variables, which stay on the device.
    """

    fed: bool
    feeds: dict[Any, Array] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    updates: list[tuple[Any, Any]] = field(default_factory=list)

    def operand(self, name: str, value: Array) -> Any:
        """What the work reads only."""
        if not self.fed:
            return md.variable(name, value)
        given = md.placeholder(name, value.shape, value.dtype.name)
        self.feeds[given.node] = value
        return given

    def store(self, variable: Any, value: Any) -> None:
        """Give a variable a new value."""
        self.updates.append((variable.node, value.node))

    def values(self) -> dict[str, Array]:
        """What the variables hold."""
        return {v.name: np.array(v.value.read()) for v, _ in self.updates}


class Native:
    """One run does the work on the next set of buffers."""

    def __init__(self, work: str, rows: int, columns: int, total_bytes: int) -> None:
        self._sets = [
            _made(work, rows, columns, fed=True)
            for _ in range(_sets(work, rows, columns, total_bytes))
        ]
        self._programs = [
            Executable(one.outputs, one.updates, training=True, executor="native")
            for one in self._sets
        ]
        self._next = 0

    def run(self) -> Any:
        number = self._next % len(self._sets)
        self._next += 1
        return self._programs[number].run(self._sets[number].feeds)

    def check(self) -> dict[str, Any]:
        outputs = self._programs[0].run(self._sets[0].feeds)
        return {**self._sets[0].values(), **({"loss": outputs[0]} if outputs else {})}


class OnGpu:
    """One run does the work on all sets of buffers, which lie on a GPU, in one program."""

    def __init__(self, work: str, rows: int, columns: int, total_bytes: int) -> None:
        self.runs = _sets(work, rows, columns, total_bytes)
        self._sets = [_made(work, rows, columns, fed=False) for _ in range(self.runs)]
        outputs = [node for one in self._sets for node in one.outputs]
        updates = [pair for one in self._sets for pair in one.updates]
        self._program = Executable(
            outputs, updates, training=True, executor="native", device="cuda"
        )

    def run(self) -> Any:
        found = self._program.run({})
        _wait()
        return found

    def check(self) -> dict[str, Any]:
        outputs = self.run()
        return {**self._sets[0].values(), **({"loss": outputs[0]} if outputs else {})}


def _wait() -> None:
    import cupy

    cupy.cuda.Device().synchronize()


def _sets(work: str, rows: int, columns: int, total_bytes: int) -> int:
    return max(2, -(-total_bytes // (rows * columns * 4 * HELD[work])))


def _made(name: str, rows: int, columns: int, *, fed: bool) -> Work:
    work = Work(fed)
    _WORK[name](work, rows, columns)
    return work


def _stored(formula: Callable[[Any], Any]) -> Callable[[Work, int, int], None]:
    """Stores a function of a matrix."""

    def make(work: Work, rows: int, columns: int) -> None:
        (x,) = matrices(rows, columns, 1)
        work.store(md.variable("y", np.zeros_like(x)), formula(work.operand("x", x)))

    return make


def _adam(work: Work, rows: int, columns: int) -> None:
    w, g, m, v = matrices(rows, columns, 4)
    own = {k: md.variable(k, x) for k, x in {"w": w, "m": m, "v": np.abs(v)}.items()}
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    slots = {name: own[name] for name in "mv"}
    step, after = AdamMoments().update(work.operand("g", g), own["w"], slots, settings, 7.0)
    work.store(own["w"], own["w"] - 0.001 * step)
    for name, value in after.items():
        work.store(own[name], value)


def _cross_entropy(work: Work, rows: int, columns: int) -> None:
    (x,) = matrices(rows, columns, 1)
    logits, target = work.operand("x", x), work.operand("t", labels(rows, columns))
    work.outputs.append(CrossEntropy()(logits, target).node)


def _cross_entropy_gradient(work: Work, rows: int, columns: int) -> None:
    (x,) = matrices(rows, columns, 1)
    logits, target = work.operand("x", x), work.operand("t", labels(rows, columns))
    loss = CrossEntropy()(logits, target)
    # into a variable as well: an output has to be known before any variable is written
    work.store(md.variable("loss", np.zeros((), x.dtype)), loss)
    work.store(md.variable("y", np.zeros_like(x)), md.grad(loss, [logits])[0])


_WORK: dict[str, Callable[[Work, int, int], None]] = {
    "softmax": _stored(lambda x: md.ops.softmax(x)),
    "layer_norm": _stored(lambda x: md.layers.LayerNorm()(x)),
    "adam": _adam,
    "cross_entropy": _cross_entropy,
    "cross_entropy_gradient": _cross_entropy_gradient,
}
