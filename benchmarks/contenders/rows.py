"""Work that memory bounds, as programs of magmadnn whose results go into variables.

On a GPU a few rows come from the host and all matrices are made of them there: gigabytes of random numbers
would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.contenders.row_data import DISTINCT_ROWS, HELD, Array, labels, matrices
from magmadnn.backends.cuda import device_engine
from magmadnn.losses import CrossEntropy
from magmadnn.memory import DEVICE
from magmadnn.optim.parts import AdamMoments
from magmadnn.runtime import Executable


@dataclass
class Work:
    """A graph, what it reads, and what it leaves: on the host, where operands are fed."""

    feeds: dict[Any, Array] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    updates: list[tuple[Any, Any]] = field(default_factory=list)

    def matrices(self, rows: int, columns: int, count: int) -> list[Any]:
        """Random matrices; of the last one magnitudes only, if there are four."""
        found: list[Any] = list(matrices(rows, columns, count))
        return [*found[:3], *map(np.abs, found[3:])]

    def operand(self, name: str, value: Any) -> Any:
        """What the work reads only."""
        given = md.placeholder(name, value.shape, value.dtype.name)
        self.feeds[given.node] = value
        return given

    def result(self, name: str, rows: int, columns: int) -> Any:
        """A variable that the work writes."""
        return md.variable(name, np.zeros((rows, columns), np.float32))

    def store(self, variable: Any, value: Any) -> None:
        """Give a variable a new value."""
        self.updates.append((variable.node, value.node))

    def give(self, name: str, value: Any) -> None:
        """A number that the work finds."""
        self.outputs.append(value.node)

    def values(self) -> dict[str, Array]:
        """What the variables hold."""
        return {v.name: np.array(v.value.read()) for v, _ in self.updates}


class WorkOnGpu(Work):
    """The same where operands are variables that lie on a GPU. Few rows come from the host."""

    def matrices(self, rows: int, columns: int, count: int) -> list[Any]:
        own = min(rows, DISTINCT_ROWS)
        return [_repeated(block, rows) for block in _blocks(own, columns, count)]

    def operand(self, name: str, value: Any) -> Any:
        return md.variable(name, value, kind=DEVICE)

    def result(self, name: str, rows: int, columns: int) -> Any:
        return md.variable(name, (rows, columns), kind=DEVICE)

    def give(self, name: str, value: Any) -> None:
        """Into a variable: nobody waits for it."""
        self.store(md.variable(name, (), kind=DEVICE), value)


@cache
def _blocks(rows: int, columns: int, count: int) -> list[md.Tensor]:
    return [md.asarray(a, kind=DEVICE) for a in Work().matrices(rows, columns, count)]


def _repeated(block: md.Tensor, rows: int) -> md.Tensor:
    """A matrix on the device whose rows are those of the block again and again."""
    made = md.Tensor((rows, *block.shape[1:]), dtype=block.dtype, kind=DEVICE)
    for at in range(0, made.size, block.size):
        made.memory.copy_from(block.memory, size=min(block.size, made.size - at), to=at)
    return made


class Native:
    """One run does the work on the next set of buffers."""

    def __init__(self, work: str, rows: int, columns: int, total_bytes: int) -> None:
        self._sets = [
            _made(Work(), work, rows, columns)
            for _ in range(_sets(work, rows, columns, total_bytes))
        ]
        self._programs = [
            Executable(one.outputs, one.updates, training=True, executor="native")
            for one in self._sets
        ]
        self.first_runs = len(self._programs)
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
        self._program = ProgramOnGpu(
            [_made(WorkOnGpu(), work, rows, columns) for _ in range(self.runs)]
        )

    def run(self) -> None:
        self._program.run()
        device_engine(0).wait()

    def check(self) -> dict[str, Any]:
        self.run()
        return self._program.sets[0].values()


class CallsOnGpu:
    """One run does the work on the next set of buffers and waits for it."""

    def __init__(self, work: str, rows: int, columns: int, total_bytes: int) -> None:
        count = _sets(work, rows, columns, total_bytes)
        made = [_made(WorkOnGpu(), work, rows, columns) for _ in range(count)]
        self._programs = [ProgramOnGpu([one]) for one in made]
        self.first_runs = len(self._programs)
        self._next = 0

    def run(self) -> None:
        self._programs[self._next % len(self._programs)].run()
        self._next += 1
        device_engine(0).wait()

    def check(self) -> dict[str, Any]:
        self.run()
        return self._programs[0].sets[0].values()


class ProgramOnGpu:
    """The work on several sets as one program."""

    def __init__(self, sets: Sequence[WorkOnGpu]) -> None:
        self.sets = sets
        updates = [pair for one in sets for pair in one.updates]
        self.executable = Executable([], updates, training=True, executor="native", device="cuda")

    def run(self) -> None:
        self.executable.run({})


def _sets(work: str, rows: int, columns: int, total_bytes: int) -> int:
    return max(2, -(-total_bytes // (rows * columns * 4 * HELD[work])))


def _made(work: Work, name: str, rows: int, columns: int) -> Work:
    _WORK[name](work, rows, columns)
    return work


def _stored(formula: Callable[[Any], Any]) -> Callable[[Work, int, int], None]:
    """Stores a function of a matrix."""

    def make(work: Work, rows: int, columns: int) -> None:
        (x,) = work.matrices(rows, columns, 1)
        work.store(work.result("y", rows, columns), formula(work.operand("x", x)))

    return make


def _adam(work: Work, rows: int, columns: int) -> None:
    w, g, m, v = work.matrices(rows, columns, 4)
    own = {k: md.variable(k, x) for k, x in {"w": w, "m": m, "v": v}.items()}
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    slots = {name: own[name] for name in "mv"}
    step, after = AdamMoments().update(work.operand("g", g), own["w"], slots, settings, 7.0)
    work.store(own["w"], own["w"] - 0.001 * step)
    for name, value in after.items():
        work.store(own[name], value)


def _cross_entropy(work: Work, rows: int, columns: int) -> None:
    (x,) = work.matrices(rows, columns, 1)
    logits, target = work.operand("x", x), work.operand("t", labels(rows, columns))
    work.give("loss", CrossEntropy()(logits, target))


def _cross_entropy_gradient(work: Work, rows: int, columns: int) -> None:
    (x,) = work.matrices(rows, columns, 1)
    logits, target = work.operand("x", x), work.operand("t", labels(rows, columns))
    loss = CrossEntropy()(logits, target)
    # into a variable as well: an output has to be known before any variable is written
    work.store(md.variable("loss", np.zeros((), np.float32)), loss)
    work.store(work.result("y", rows, columns), md.grad(loss, [logits])[0])


def _batch_norm(work: Work, rows: int, columns: int) -> None:
    """A training step's forward and backward pass over pixels: statistics and gradients too."""
    x, g, *_ = work.matrices(rows, columns, 2)
    data, seed = work.operand("x", x), work.operand("g", g)
    gamma, beta = (
        md.variable(name, np.full(columns, value, np.float32))
        for name, value in (("gamma", 1.0), ("beta", 0.0))
    )
    mean, variance = md.ops.mean(data, 0), md.ops.var(data, 0)
    y = (data - mean) * (gamma / md.ops.sqrt(variance + 1e-5)) + beta
    slopes = md.grad(y, [data, gamma, beta], seed)
    work.store(work.result("y", rows, columns), y)
    work.store(work.result("dx", rows, columns), slopes[0])
    for name, value in zip(("dgamma", "dbeta"), slopes[1:], strict=True):
        work.store(work.result(name, 1, columns), md.ops.reshape(value, (1, columns)))


_WORK: dict[str, Callable[[Work, int, int], None]] = {
    "softmax": _stored(lambda x: md.ops.softmax(x)),
    "layer_norm": _stored(lambda x: md.layers.LayerNorm()(x)),
    "adam": _adam,
    "cross_entropy": _cross_entropy,
    "cross_entropy_gradient": _cross_entropy_gradient,
    "batch_norm": _batch_norm,
}
