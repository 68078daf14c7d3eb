"""Work that memory bounds, by JAX: each one jitted function; Adam's state is donated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders.jax_peer import loss_of_logits
from benchmarks.contenders.row_data import DISTINCT_ROWS, HELD, labels, matrices


class Rows:
    """One run does the work on all sets of buffers, or on the next one with `single`."""

    def __init__(
        self, work: str, rows: int, columns: int, total_bytes: int, single: bool = False
    ) -> None:
        count = max(2, -(-total_bytes // (rows * columns * 4 * HELD[work])))
        own, self._adam = min(rows, DISTINCT_ROWS), work == "adam"
        blocks = [jnp.asarray(a) for a in matrices(own, columns, 4 if self._adam else 1)]
        blocks[3:] = [jnp.abs(b) for b in blocks[3:]]  # Adam's mean of squares
        self._sets = [
            [jnp.tile(b, (-(-rows // own), 1))[:rows] for b in blocks] for _ in range(count)
        ]
        if work.startswith("cross_entropy"):
            own_labels = jnp.asarray(labels(rows, columns))
            self._sets = [[*buffers, own_labels] for buffers in self._sets]
        self._work = jax.jit(_WORK[work], donate_argnums=(0, 2, 3) if self._adam else ())
        self.runs = 1 if single else count
        self._next = 0

    def run(self) -> None:
        for _ in range(self.runs):
            found = self._one()
        jax.block_until_ready(found)

    def _one(self) -> Any:
        number = self._next % len(self._sets)
        self._next += 1
        found = self._work(*self._sets[number])
        if self._adam:
            self._sets[number] = [found["w"], self._sets[number][1], found["m"], found["v"]]
        return found

    def check(self) -> dict[str, Any]:
        return {name: np.array(value) for name, value in self._one().items()}


def _softmax(x: Any) -> dict[str, Any]:
    return {"y": jax.nn.softmax(x, axis=1)}


def _layer_norm(x: Any) -> dict[str, Any]:
    centred = x - x.mean(axis=1, keepdims=True)
    return {"y": centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=1, keepdims=True) + 1e-5)}


def _updated(w: Any, g: Any, m: Any, v: Any) -> dict[str, Any]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    corrected = jnp.sqrt(v / (1 - 0.999**7)) + 1e-8
    return {"w": w - 0.001 * (m / (1 - 0.9**7)) / corrected, "m": m, "v": v}


def _gradient(x: Any, y: Any) -> dict[str, Any]:
    loss, gradient = jax.value_and_grad(loss_of_logits)(x, y)
    return {"loss": loss, "y": gradient}


_WORK = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "adam": _updated,
    "cross_entropy": lambda x, y: {"loss": loss_of_logits(x, y)},
    "cross_entropy_gradient": _gradient,
}
