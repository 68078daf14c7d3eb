"""Work that memory bounds, as programs of magmadnn whose results go into variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.contenders.row_data import HELD, Array, labels, matrices
from magmadnn.executor import Executable
from magmadnn.losses import CrossEntropy
from magmadnn.optim.parts import AdamMoments

Made = tuple[Executable, dict[Any, Array], Callable[[], dict[str, Any]]]


class Native:
    """One run does the work on the next set of buffers."""

    def __init__(self, work: str, rows: int, columns: int, total_bytes: int) -> None:
        one = _PROGRAMS[work](rows, columns)
        held = rows * columns * 4 * HELD[work]
        more = max(1, -(-total_bytes // held) - 1)
        self._sets = [one, *(_PROGRAMS[work](rows, columns) for _ in range(more))]
        self._next = 0

    def run(self) -> Any:
        program, feeds, _ = self._sets[self._next % len(self._sets)]
        self._next += 1
        return program.run(feeds)

    def check(self) -> dict[str, Any]:
        program, feeds, values = self._sets[0]
        outputs = program.run(feeds)
        return {**values(), **({"loss": outputs[0]} if outputs else {})}


def _stored(formula: Callable[[Any], Any]) -> Callable[[int, int], Made]:
    """A program that stores a function of a matrix."""

    def made(rows: int, columns: int) -> Made:
        (x,) = matrices(rows, columns, 1)
        fed = md.placeholder("x", x.shape)
        out = md.variable("y", np.zeros_like(x))
        program = Executable([], [(out.node, formula(fed).node)], training=True, executor="native")
        return program, {fed.node: x}, lambda: {"y": np.array(out.value.read())}

    return made


def _layer_norm(x: Any) -> Any:
    return md.layers.LayerNorm()(x)


def _adam(rows: int, columns: int) -> Made:
    w, g, m, v = matrices(rows, columns, 4)
    fed = md.placeholder("g", g.shape)
    held = {"w": w, "m": m, "v": np.abs(v)}
    own = {name: md.variable(name, value) for name, value in held.items()}
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    step, after = AdamMoments().update(fed, own["w"], {"m": own["m"], "v": own["v"]}, settings, 7.0)
    new = {"w": own["w"] - 0.001 * step, **after}
    updates = [(own[name].node, new[name].node) for name in own]
    program = Executable([], updates, training=True, executor="native")
    return program, {fed.node: g}, lambda: {k: np.array(x.value.read()) for k, x in own.items()}


def _cross_entropy(gradient: bool) -> Callable[[int, int], Made]:
    def made(rows: int, columns: int) -> Made:
        (x,), y = matrices(rows, columns, 1), labels(rows, columns)
        logits = md.placeholder("x", x.shape)
        target = md.placeholder("y", y.shape, "int64")
        loss = CrossEntropy()(logits, target)
        feeds = {logits.node: x, target.node: y}
        if not gradient:
            return Executable([loss.node], training=True, executor="native"), feeds, dict
        out = md.variable("g", np.zeros_like(x))
        slope = md.grad(loss, [logits])[0]
        updates = [(out.node, slope.node)]
        program = Executable([loss.node], updates, training=True, executor="native")
        return program, feeds, lambda: {"y": np.array(out.value.read())}

    return made


_PROGRAMS: dict[str, Callable[[int, int], Made]] = {
    "softmax": _stored(lambda x: md.ops.softmax(x)),
    "layer_norm": _stored(_layer_norm),
    "adam": _adam,
    "cross_entropy": _cross_entropy(False),
    "cross_entropy_gradient": _cross_entropy(True),
}
