"""Many models in one call on a GPU, beside JAX's vmap of a jitted scan over the same batches.

python -m benchmarks.gpu.many_models [--cases small,digits,papers] [--models 64,1024,4096] [--steps 1024]
    [--epochs 4] [--turns 3] [--check] [--without jax]

Each model has its own seed and its own order of rows. Shown are microseconds for a step of a model: of
`fit_many` by what the histories say ("steps": launches and copies, without Python between them), of the
whole further call with the same models ("call"), and of JAX, whose orders are drawn beforehand and lie on
the device.
`--check` trains some of the models alone too and compares the digests of their parameters.

"small" is 13-64-64-64-2 with batches of 16 in float32, "digits" 784-128-10 with 128 in tf32 and 256 models,
"papers" 784-1000-1000-1000-10 with 100 in tf32 and 32 models; `--models` is for the first only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256

RATE = 0.01


@dataclass(frozen=True)
class Case:
    """A network and its batches."""

    widths: tuple[int, ...]
    batch: int
    precision: str
    models: tuple[int, ...]


CASES = {
    "small": Case((13, 64, 64, 64, 2), 16, "float32", (64, 1024, 4096)),
    "digits": Case((784, 128, 10), 128, "tf32", (256,)),
    "papers": Case((784, 1000, 1000, 1000, 10), 100, "tf32", (32,)),
}


def network(case: Case, seed: int) -> md.Model:
    """A perceptron with SGD."""
    first, *hidden, last = case.widths
    between = [md.layers.Dense(width, activation="relu") for width in hidden]
    return md.Model(
        [md.layers.Input((first,)), *between, md.layers.Dense(last)],
        loss="cross_entropy",
        optimizer=md.optim.SGD(RATE),
        seed=seed,
        device="cuda",
        precision=case.precision,
    )


def samples(case: Case, steps: int) -> tuple[Any, Any]:
    """Rows of one epoch."""
    rng, rows = np.random.default_rng(0), steps * case.batch
    x = rng.standard_normal((rows, case.widths[0]), dtype=np.float32)
    return x, rng.integers(0, case.widths[-1], rows)


def ours(case: Case, count: int, steps: int, epochs: int, turns: int, check: bool) -> list[float]:
    """Least microseconds of a model's step: in launches, and in a whole further call."""
    x, y = samples(case, steps)
    how: dict[str, Any] = {"batch_size": case.batch, "epochs": epochs, "verbose": False}
    began = time.perf_counter()
    models = [network(case, seed) for seed in range(count)]
    histories = md.fit_many(models, x, y, **how)
    print(f"  built, and a first call: {time.perf_counter() - began:.2f} s", flush=True)
    if check:
        for seed in sorted({0, count // 2, count - 1}):
            alone = network(case, seed)
            own = alone.fit(x, y, **(how | {"verbose": 0}))
            digests = [parameters_sha256(m.values().items())[:12] for m in (alone, models[seed])]
            same = digests[0] == digests[1] and own["loss"] == histories[seed]["loss"]
            far = max(
                float(np.abs(a - b).max())
                for a, b in zip(
                    alone.values().values(), models[seed].values().values(), strict=True
                )
            )
            print(
                f"  model {seed} alone: {'the same bits' if same else f'differs by {far:.1e}'}",
                flush=True,
            )
    all_steps, found = count * steps * epochs, []
    for _ in range(turns):
        began = time.perf_counter()
        histories = md.fit_many(models, x, y, **how)
        call = time.perf_counter() - began
        launches = sum(sum(history["seconds"][-epochs:]) for history in histories)
        found.append((launches / all_steps * 1e6, call / all_steps * 1e6))
    return [min(times) for times in zip(*found, strict=True)]


def jax_peer(case: Case, count: int, steps: int, epochs: int, turns: int) -> float:
    """Least microseconds of a model's step in JAX: vmap of a scan over an epoch."""
    import jax
    import jax.numpy as jnp

    tf32 = "tensorfloat32" if case.precision == "tf32" else "highest"
    x, y = (jnp.asarray(a) for a in samples(case, steps))
    key = jax.random.key(0)

    def initial(key: Any) -> Any:
        keys = jax.random.split(key, len(case.widths) - 1)
        pairs = zip(case.widths[:-1], case.widths[1:], keys, strict=True)
        return [(jax.random.normal(k, (a, b)) / np.sqrt(a), jnp.zeros(b)) for a, b, k in pairs]

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        for w, b in parameters[:-1]:
            inputs = jax.nn.relu(jnp.dot(inputs, w, precision=tf32) + b)
        w, b = parameters[-1]
        logits = jnp.dot(inputs, w, precision=tf32) + b
        log = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(log, targets[:, None], axis=1))

    def step(parameters: Any, rows: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(parameters, x[rows], y[rows])
        return jax.tree.map(lambda p, g: p - RATE * g, parameters, slopes), value

    def epoch(parameters: Any, order: Any) -> Any:
        return jax.lax.scan(step, parameters, order.reshape(steps, case.batch))

    run: Callable[..., Any] = jax.jit(jax.vmap(epoch), donate_argnums=0)
    keys = jax.random.split(key, count)
    orders = jax.vmap(lambda k: jax.random.permutation(k, len(x)))(keys)
    parameters = jax.vmap(initial)(keys)
    parameters, _ = jax.block_until_ready(run(parameters, orders))
    found = []
    for _ in range(turns):
        began = time.perf_counter()
        for _ in range(epochs):
            parameters, values = run(parameters, orders)
        jax.block_until_ready(values)
        found.append(time.perf_counter() - began)
    return min(found) / (count * steps * epochs) * 1e6


def main() -> None:
    """Print a row for each case and number of models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="small,digits,papers")
    parser.add_argument("--models")
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--without", default="")
    given = parser.parse_args()
    rows = []
    for name in given.cases.split(","):
        case = CASES[name]
        counts = case.models
        if name == "small" and given.models:
            counts = tuple(map(int, given.models.split(",")))
        for count in counts:
            print(f"{name}, {count} models", flush=True)
            size = (case, count, given.steps, given.epochs, given.turns)
            launches, call = ours(*size, given.check)
            cells = [f"{launches:.4f}", f"{call:.4f}"]
            if "jax" not in given.without:
                peer = jax_peer(*size)
                cells += [f"{peer:.4f}", f"{launches / peer:.3f}", f"{call / peer:.3f}"]
            rows.append([name, str(count), *cells])
            print("  " + ", ".join(cells), flush=True)
    head = ["case", "models", "steps, us", "call, us", "JAX, us", "steps / JAX", "call / JAX"]
    for row in [head[: len(rows[0])], ["-"] * len(rows[0]), *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
