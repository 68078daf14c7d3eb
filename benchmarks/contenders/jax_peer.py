"""JAX: an epoch as one jitted `lax.scan` over batches with donated state; predict as one jitted call."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.networks import loaded

ACTIVATIONS = {"sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu}
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}
UNROLLS = (1, 4)  # of the loop over batches; the faster one is taken


def forward(parameters: Any, x: Any, activation: str, half: bool = False) -> Any:
    """Logits; with `half`, everything before them is in bfloat16."""
    if half:
        parameters, x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (parameters, x))
    for w, b in parameters[:-1]:
        x = ACTIVATIONS[activation](x @ w + b)
    w, b = parameters[-1]
    x = x @ w + b
    return x.astype(jnp.float32) if half else x


def loss_of(parameters: Any, x: Any, y: Any, activation: str, half: bool) -> Any:
    """Mean cross entropy of a network."""
    return loss_of_logits(forward(parameters, x, activation, half), y)


def loss_of_logits(logits: Any, y: Any) -> Any:
    """Mean cross entropy."""
    own = jnp.take_along_axis(logits, y[:, None], axis=1, mode="promise_in_bounds")[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - own).mean()


def updated(optimizer: str, state: Any, gradients: Any) -> Any:
    """Parameters, slots and count after a step."""
    (parameters, slots, count), tree = state, jax.tree.map
    count = count + 1
    if optimizer == "sgd":
        parameters = tree(lambda w, g: w - 0.05 * g, parameters, gradients)
    elif optimizer == "momentum":
        slots = [tree(lambda m, g: 0.9 * m + g, slots[0], gradients)]
        parameters = tree(lambda w, m: w - 0.01 * m, parameters, slots[0])
    else:
        slots = [
            tree(lambda m, g: 0.9 * m + 0.1 * g, slots[0], gradients),
            tree(lambda v, g: 0.999 * v + 0.001 * g * g, slots[1], gradients),
        ]
        m_scale, v_scale = 1 / (1 - 0.9**count), 1 / (1 - 0.999**count)
        parameters = tree(
            lambda w, m, v: w - 0.001 * (m * m_scale) / (jnp.sqrt(v * v_scale) + 1e-8),
            parameters,
            *slots,
        )
    return parameters, slots, count


@partial(
    jax.jit,
    static_argnames=("activation", "optimizer", "half", "unroll"),
    donate_argnames=("state",),
)
def epoch(
    state: Any,
    x: Any,
    y: Any,
    order: Any,
    *,
    activation: str,
    optimizer: str,
    half: bool,
    unroll: int,
) -> Any:
    """The state after all batches, and the mean of their losses; order is [batches, batch]."""

    def step(state: Any, rows: Any) -> Any:
        batch = x.at[rows].get(mode="promise_in_bounds")
        labels = y.at[rows].get(mode="promise_in_bounds")
        loss, gradients = jax.value_and_grad(loss_of)(state[0], batch, labels, activation, half)
        return updated(optimizer, state, gradients), loss

    state, losses = lax.scan(step, state, order, unroll=unroll)
    return state, losses.mean()


def _settle(dtype: Any, precision: str = "float32") -> None:
    """Double precision only where it is asked for; compiled code is kept on disk, as users can ask."""
    jax.config.update("jax_enable_x64", dtype == np.float64)
    products = "tensorfloat32" if precision == "tf32" else "highest"
    jax.config.update("jax_default_matmul_precision", products)
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Training:
    """One run is an epoch."""

    def __init__(
        self,
        file: str,
        activation: str,
        batch: int,
        optimizer: str,
        precision: str = "float32",
        unroll: int = 0,
    ) -> None:
        x, y, order, self._weights = loaded(file)
        _settle(x.dtype, precision)
        self._data = tuple(jnp.asarray(a) for a in (x, y, order.reshape(-1, batch)))
        self._options: dict[str, Any] = {
            "activation": activation, "optimizer": optimizer, "half": precision == "mixed_bf16",
        }  # fmt: skip
        self._unroll = unroll or self._fastest()
        self._state, self._loss = self._initial(), float("nan")

    def _initial(self) -> Any:
        pairs = zip(self._weights[::2], self._weights[1::2], strict=True)
        parameters = [(jnp.array(w), jnp.array(b)) for w, b in pairs]
        slots = SLOTS[self._options["optimizer"]]
        zeros = [jax.tree.map(jnp.zeros_like, parameters) for _ in range(slots)]
        return parameters, zeros, jnp.zeros((), parameters[0][0].dtype)

    def _epoch(self, state: Any, unroll: int) -> Any:
        state, loss = epoch(state, *self._data, **self._options, unroll=unroll)
        return state, float(loss)

    def _fastest(self) -> int:
        """The better of the unrollings, by the second epoch of each."""
        times = {}
        for unroll in UNROLLS:
            state, _ = self._epoch(self._initial(), unroll)
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                state, _ = self._epoch(state, unroll)
                best = min(best, time.perf_counter() - start)
            times[unroll] = best
        return min(times, key=lambda unroll: times[unroll])

    def run(self) -> None:
        self._state, self._loss = self._epoch(self._state, self._unroll)
        jax.block_until_ready(self._state)

    def check(self) -> dict[str, Any]:
        self.run()
        values = jax.tree.leaves(self._state[0])
        return {"loss": self._loss, **{f"weights {k}": np.array(v) for k, v in enumerate(values)}}


class Predict:
    """One run predicts the first rows: NumPy array in, NumPy array out."""

    def __init__(self, file: str, activation: str, rows: int) -> None:
        x, _, _, weights = loaded(file)
        _settle(x.dtype)
        self._x = x[:rows]
        pairs = zip(weights[::2], weights[1::2], strict=True)
        self._parameters = [(jnp.array(w), jnp.array(b)) for w, b in pairs]
        self._forward = jax.jit(partial(forward, activation=activation))

    def run(self) -> Any:
        return np.asarray(self._forward(self._parameters, self._x))

    def check(self) -> dict[str, Any]:
        return {"logits": self.run()}
