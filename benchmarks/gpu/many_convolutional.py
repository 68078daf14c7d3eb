"""Many networks with convolutions in one call on a GPU: in turns, as one program, and JAX's vmap.

python -m benchmarks.gpu.many_convolutional [--cases lenet5,cifar,resnet20] [--models 8,32] [--steps 32]
    [--epochs 2] [--turns 2] [--ways turns,calls,library,groups,jax] [--check] [--precision tf32]

Ways are `turns` (each model an epoch, as before networks with convolutions became one program), `calls` (one
program, a call of the library for each model, and kernels of our own where there are few channels), `library`
(the same without these kernels), `groups` (one call for all models, with as many groups), and `jax` (vmap of
a jitted scan over an epoch, convolutions in TF32 likewise; orders are drawn beforehand).

Shown are microseconds for a step of a model: of `fit_many` by what the histories say ("steps"), and of the
whole further call with the same models ("call"). `--check` trains two of the models alone too, and prints how
far their parameters are from those that were trained together, as a part of how far training moved them.

All have a batch of 128, SGD with momentum 0.9, random images, TF32 and their own order of rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.ops.images import _models
from magmadnn.runtime.cuda.many import course
from magmadnn.runtime.cuda.many.stacks import Stack

BATCH, CLASSES = 128, 10
RATE, MOMENTUM = 0.01, 0.9
OURS = ("turns", "calls", "library", "groups")
_FEW, _CAN_STACK, _RUN = few_channels.MOST_INPUTS, course.can_stack, Stack.run


@dataclass(frozen=True)
class Case:
    """A network; for JAX its layers: (filters, size, padding), "pool", or units of dense ones."""

    build: Callable[..., md.Model]
    shape: tuple[int, int, int]
    layers: tuple[Any, ...] = ()


CASES = {
    "lenet5": Case(
        md.models.lenet5, (28, 28, 1), ((6, 5, 2), "pool", (16, 5, 0), "pool", 120, 84, CLASSES)
    ),
    "cifar": Case(
        md.models.cifar_cnn,
        (32, 32, 3),
        ((32, 3, 1), (32, 3, 1), "pool", (64, 3, 1), (64, 3, 1), "pool", 256, CLASSES),
    ),
    "resnet20": Case(md.models.resnet20, (32, 32, 3)),
}


def network(case: Case, seed: int, precision: str) -> md.Model:
    """One of the models."""
    return case.build(
        case.shape, CLASSES, loss="cross_entropy", optimizer=md.optim.SGD(RATE, momentum=MOMENTUM),
        seed=seed, device="cuda", precision=precision,
    )  # fmt: skip


def samples(case: Case, steps: int) -> tuple[Any, Any]:
    """Rows of one epoch."""
    rng, rows = np.random.default_rng(0), steps * BATCH
    x = rng.standard_normal((rows, *case.shape), dtype=np.float32)
    return x, rng.integers(0, CLASSES, rows)


def take(way: str, used: list[int]) -> None:
    """Have models trained that way from now on; `used` gets how many each program had."""

    def noted(self: Stack, *given: Any) -> Any:
        used.append(self.count)
        return _RUN(self, *given)

    course._groups.clear()
    course.can_stack = (lambda wanted: False) if way == "turns" else _CAN_STACK
    few_channels.MOST_INPUTS = 0 if way == "library" else _FEW
    _models.way = "groups" if way == "groups" else "calls"
    Stack.run = noted  # type: ignore[method-assign]


def distance(case: Case, model: md.Model, alone: md.Model, seed: int) -> float:
    """How far parameters are apart, as a part of how far training moved them."""
    first = network(case, seed, model.precision).values()
    each = zip(model.values().values(), alone.values().values(), first.values(), strict=True)
    arrays = [[np.asarray(a, np.float64) for a in three] for three in each]
    apart = sum(float(((a - b) ** 2).sum()) for a, b, _ in arrays)
    moved = sum(float(((b - c) ** 2).sum()) for _, b, c in arrays)
    return float(np.sqrt(apart / moved))


def ours(way: str, case: Case, count: int, given: Any) -> tuple[float, float]:
    """Least microseconds of a model's step: in launches, and in a whole further call."""
    used: list[int] = []
    take(way, used)
    x, y = samples(case, given.steps)
    how: dict[str, Any] = {"batch_size": BATCH, "epochs": given.epochs}
    began = time.perf_counter()
    models = [network(case, seed, given.precision) for seed in range(count)]
    md.fit_many(models, x, y, verbose=False, **how)
    spent = time.perf_counter() - began
    print(
        f"  {way}: built, and a first call: {spent:.2f} s; programs of {sorted(set(used))}",
        flush=True,
    )
    if given.check:
        for seed in (0, count - 1):
            alone = network(case, seed, given.precision)
            alone.fit(x, y, verbose=0, **how)
            print(
                f"  model {seed} alone: {distance(case, models[seed], alone, seed):.1e}", flush=True
            )
    all_steps, found = count * given.steps * given.epochs, []
    for _ in range(given.turns):
        began = time.perf_counter()
        histories = md.fit_many(models, x, y, verbose=False, **how)
        call = time.perf_counter() - began
        launches = sum(sum(history["seconds"][-given.epochs :]) for history in histories)
        found.append((launches / all_steps * 1e6, call / all_steps * 1e6))
    return min(launches for launches, _ in found), min(call for _, call in found)


def jax_peer(case: Case, count: int, given: Any) -> float:
    """Least microseconds of a model's step in JAX: vmap of a scan over an epoch."""
    import jax
    import jax.numpy as jnp

    precise: Any = "tensorfloat32"
    x, y = (jnp.asarray(a) for a in samples(case, given.steps))

    def initial(key: Any) -> Any:
        shape, made = case.shape, []
        for layer in case.layers:
            key, own = jax.random.split(key)
            if layer == "pool":
                shape = (shape[0] // 2, shape[1] // 2, shape[2])
                continue
            if isinstance(layer, tuple):
                o, size, pad = layer
                taps = (size, size, shape[2], o)
                shape = (*(n + 2 * pad - size + 1 for n in shape[:2]), o)
            else:
                taps = (int(np.prod(shape)), layer)
                shape = (layer,)
            scale = np.sqrt(2 / np.prod(taps[:-1]))
            made.append((jax.random.normal(own, taps) * scale, jnp.zeros(taps[-1])))
        return made

    def loss(parameters: Any, h: Any, targets: Any) -> Any:
        left = list(parameters)
        for layer in case.layers:
            if layer == "pool":
                window = (1, 2, 2, 1)
                h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, window, window, "VALID")
                continue
            w, b = left.pop(0)
            if isinstance(layer, tuple):
                pads = [(layer[2], layer[2])] * 2
                names = ("NHWC", "HWIO", "NHWC")
                h = jax.lax.conv_general_dilated(
                    h, w, (1, 1), pads, dimension_numbers=names, precision=precise
                )
            else:
                h = jnp.dot(h.reshape(len(h), -1), w, precision=precise)
            h = jax.nn.relu(h + b) if left else h + b
        log = jax.nn.log_softmax(h)
        return -jnp.mean(jnp.take_along_axis(log, targets[:, None], axis=1))

    def step(state: Any, rows: Any) -> tuple[Any, Any]:
        parameters, speeds = state
        value, slopes = jax.value_and_grad(loss)(parameters, x[rows], y[rows])
        speeds = jax.tree.map(lambda v, g: MOMENTUM * v + g, speeds, slopes)
        return (jax.tree.map(lambda p, v: p - RATE * v, parameters, speeds), speeds), value

    def epoch(state: Any, order: Any) -> Any:
        return jax.lax.scan(step, state, order.reshape(given.steps, BATCH))

    run: Callable[..., Any] = jax.jit(jax.vmap(epoch), donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), count)
    orders = jax.vmap(lambda k: jax.random.permutation(k, len(x)))(keys)
    parameters = jax.vmap(initial)(keys)
    state = (parameters, jax.tree.map(jnp.zeros_like, parameters))
    began = time.perf_counter()
    state, _ = jax.block_until_ready(run(state, orders))
    print(f"  jax: a first call: {time.perf_counter() - began:.2f} s", flush=True)
    found = []
    for _ in range(given.turns):
        began = time.perf_counter()
        for _ in range(given.epochs):
            state, values = run(state, orders)
        jax.block_until_ready(values)
        found.append(time.perf_counter() - began)
    return min(found) / (count * given.steps * given.epochs) * 1e6


def main() -> None:
    """Print a row for each case, number of models and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="lenet5,cifar")
    parser.add_argument("--models", default="8,32")
    parser.add_argument("--ways", default="turns,calls,library,groups,jax")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--precision", default="tf32", help="of ours; JAX has TF32")
    given = parser.parse_args()
    rows = []
    for name in given.cases.split(","):
        case = CASES[name]
        for count in map(int, given.models.split(",")):
            print(f"{name}, {count} models", flush=True)
            for way in given.ways.split(","):
                if way == "jax" and not case.layers:
                    continue
                times = (
                    (jax_peer(case, count, given),) * 2
                    if way == "jax"
                    else ours(way, case, count, given)
                )
                rows.append([name, str(count), way, *(f"{t:.2f}" for t in times)])
                print("  " + ", ".join(rows[-1]), flush=True)
    head = ["network", "models", "way", "steps, us", "call, us"]
    for row in [head, ["-"] * len(head), *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
