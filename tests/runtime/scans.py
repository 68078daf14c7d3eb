"""Loops for tests: cells, and the same loops unrolled or in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import magmadnn as md
from magmadnn import Operation
from magmadnn.graph import Node
from magmadnn.runtime import Executable

Array = NDArray[Any]
STEPS, BATCH, FEATURES, UNITS = 4, 3, 4, 5
Body = Callable[[Any, Any], tuple[Any, Any]]


class Lstm:
    """An LSTM: Hochreiter and Schmidhuber, Neural Computation 9 (1997), with the gates of Gers et al."""

    def __init__(
        self, dtype: str = "float64", features: int = FEATURES, units: int = UNITS
    ) -> None:
        draw = np.random.default_rng(5)

        def drawn(name: str, *shape: int) -> md.Variable:
            return md.variable(name, (draw.normal(size=shape) * 0.4).astype(dtype))

        self.w, self.u = drawn("w", features, 4 * units), drawn("u", units, 4 * units)
        self.b = drawn("b", 4 * units)

    def __call__(self, cell: Any, x: Operation) -> tuple[Any, Operation]:
        """One step: the cell is (h, c), the output h."""
        h, c = cell
        z = x @ self.w + h @ self.u + self.b
        i, f, g, o = md.ops.split(z, 4, axis=-1)
        c = md.ops.sigmoid(f) * c + md.ops.sigmoid(i) * md.ops.tanh(g)
        h = md.ops.sigmoid(o) * md.ops.tanh(c)
        return (h, c), h

    @property
    def weights(self) -> list[md.Variable]:
        """All parameters."""
        return [self.w, self.u, self.b]


def lstm_numpy(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> tuple[Array, ...]:
    """The same in plain NumPy: h of all steps, and the last h and c."""
    kept = []
    for slice_ in x:
        i, f, g, o = np.split(slice_ @ w + h @ u + b, 4, axis=-1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        kept.append(h)
    return np.stack(kept), h, c


def unrolled(
    body: Body, carried: Any, xs: Any, steps: int, reverse: bool = False
) -> tuple[Any, Any]:
    """What `md.scan` gives, as a Python loop; outputs are one Operation, or several in a tuple."""
    kept: list[Any] = [None] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        slices = tuple(x[t] for x in xs) if isinstance(xs, tuple) else xs[t]
        carried, kept[t] = body(carried, slices)
    if isinstance(kept[0], tuple):
        return carried, tuple(md.ops.stack(list(column)) for column in zip(*kept, strict=True))
    return carried, md.ops.stack(kept)


def executable(
    nodes: Sequence[Node],
    executor: str,
    updates: Sequence[tuple[Node, Node]] = (),
    training: bool = False,
) -> Executable:
    """A program with everything checked; the executor may be "cuda" too."""
    where = ("native", "cuda") if executor == "cuda" else (executor, "cpu")
    return Executable(
        nodes, updates, executor=where[0], device=where[1], training=training, check=True
    )


def run(
    outputs: Sequence[Operation],
    feeds: dict[Operation, Array] | None = None,
    executor: str = "native",
    training: bool = False,
) -> list[Array]:
    """The values of Operations, with everything checked."""
    made = executable([y.node for y in outputs], executor, training=training)
    return made.run({x.node: array for x, array in (feeds or {}).items()})


def assert_close(found: Sequence[Array], expected: Sequence[Array], scale: float = 1e4) -> None:
    """Equal but for rounding: sums of up to `scale` terms, each as large as the largest element."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        size = max(float(np.max(np.abs(other), initial=0)), 1.0)
        limit = scale * float(np.finfo(other.dtype).eps) * size if other.dtype.kind == "f" else 0.0
        assert np.max(np.abs(one - other), initial=0) <= limit
