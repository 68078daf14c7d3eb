"""The cases of `data_parallel.py` by JAX: shard_map over the GPUs of one process, many steps in a scan.

    python benchmarks/gpu/parallel/data_parallel_jax.py [--gpus 1,2] [--cases papers,alexnet256]

Gradients are summed by psum within the compiled step, parameters are whole on each GPU, all steps of a call
have the same batch. Seconds of the best of four calls.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from data_parallel import CASES, rows_of
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

CONVOLUTIONS = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1)]
CONVOLUTIONS.append((256, 256, 3, 1, 1))
POOLED = (0, 1, 4)


def parameters(name: str) -> list[tuple[Any, Any]]:
    """Kernels and biases, in the order of layers."""
    draw = np.random.default_rng(0)
    shapes = [(784, 528), (528, 528), (528, 528), (528, 10)]
    if name != "papers":
        shapes = [(k, k, a, b) for a, b, k, _, _ in CONVOLUTIONS]
        shapes += list(pairwise((9216, 4096, 4096, 1000)))
    scaled = ((draw.standard_normal(s) / np.sqrt(np.prod(s[:-1])), s[-1]) for s in shapes)
    return [(jnp.asarray(w, jnp.float32), jnp.zeros(n, jnp.float32)) for w, n in scaled]


def logits(name: str, layers: Any, x: Any) -> Any:
    """Of the papers' network in its own precision, of AlexNet in bfloat16."""
    if name == "papers":
        for w, b in layers[:-1]:
            x = jax.nn.sigmoid(x @ w + b)
        return x @ layers[-1][0] + layers[-1][1]
    narrow = [(w.astype(jnp.bfloat16), b.astype(jnp.bfloat16)) for w, b in layers]
    x = x.astype(jnp.bfloat16)
    for number, ((w, b), (_, _, _, stride, pad)) in enumerate(
        zip(narrow, CONVOLUTIONS, strict=False)
    ):
        pads = [(pad, pad)] * 2
        x = lax.conv_general_dilated(
            x, w, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + b)
        if number in POOLED:
            window = (1, 3, 3, 1), (1, 2, 2, 1)
            x = lax.reduce_window(x, -jnp.inf, lax.max, *window, "VALID")
    x = x.reshape(len(x), -1)
    for w, b in narrow[len(CONVOLUTIONS) : -1]:
        x = jax.nn.relu(x @ w + b)
    return (x @ narrow[-1][0] + narrow[-1][1]).astype(jnp.float32)


def images_a_second(name: str, gpus: int) -> float:
    """Of a case, on so many GPUs."""
    case = CASES[name]
    mesh = Mesh(np.array(jax.devices()[:gpus]), ("rows",))
    rows = rows_of(case, gpus) * gpus

    def loss(layers: Any, x: Any, y: Any) -> Any:
        chosen = jax.nn.log_softmax(logits(name, layers, x))[jnp.arange(len(y)), y]
        return -chosen.sum() / rows

    @partial(jax.jit, donate_argnums=0)
    @partial(shard_map, mesh=mesh, in_specs=(P(), P("rows"), P("rows")), out_specs=P())
    def steps(layers: Any, x: Any, y: Any) -> Any:
        def step(layers: Any, _: Any) -> Any:
            # the gradient of what is the same on all devices is summed over them by shard_map
            slopes = jax.grad(loss)(layers, x, y)
            return jax.tree.map(lambda w, g: w - 0.01 * g, layers, slopes), None

        return lax.scan(step, layers, None, length=case["steps"])[0]

    draw = np.random.default_rng(0)
    place = NamedSharding(mesh, P("rows"))
    x = jax.device_put(draw.standard_normal((rows, *case["shape"]), np.float32), place)
    y = jax.device_put(draw.integers(0, case["classes"], rows), place)
    layers = jax.device_put(parameters(name), NamedSharding(mesh, P()))
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        layers = jax.block_until_ready(steps(layers, x, y))
        best = min(best, time.perf_counter() - begun)
    return float(rows * case["steps"] / best)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--cases", default="papers,alexnet256,alexnet1024")
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    print(f"JAX {jax.__version__}, shard_map")
    for name in options.cases.split(","):
        for gpus in map(int, options.gpus.split(",")):
            found = images_a_second(name, gpus)
            print(f"  {name:12} {gpus} GPU {found:12,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
