"""Products of stacks of matrices with a bias and ReLU: one launch beside a library's product for each pair.

python -m benchmarks.gpu.stacks

Microseconds of a run of several products in a row, the least of several: by our own launch, and by the
library, one product after the other, with a kernel for what follows.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from unittest import mock

import numpy as np

import magmadnn as md
from magmadnn import ops
from magmadnn.runtime.cuda.schedule import launches

CASES = [
    (4, 64, 64, 64),
    (16, 100, 528, 528),
    (64, 32, 64, 64),
    (64, 128, 128, 128),
    (256, 16, 64, 64),
    (16, 512, 512, 512),
]
_DEPTH, _ROUNDS = 8, 30


def seconds(case: tuple[int, int, int, int], own: bool) -> float:
    """The least time of a run of a chain of products."""
    count, m, n, k = case
    rng = np.random.default_rng(0)
    w = [
        md.variable(
            f"w{i}",
            rng.normal(size=(count, k if i % 2 == 0 else n, n if i % 2 == 0 else k)).astype(
                "float32"
            )
            / 25,
        )
        for i in range(_DEPTH)
    ]
    h = md.variable("x", rng.normal(size=(count, m, k)).astype("float32"))
    made = h
    for one in w:
        made = ops.relu(ops.matmul(made, one) + 0.1)
    library = mock.patch.object(launches, "choose_stacked", lambda *_: None)
    with nullcontext() if own else library:
        run = md.runtime.Executable([ops.sum(made).node], executor="native", device="cuda")
        run.run({})
        found = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            run.run({})
            found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Measure and print."""
    print(f"{'stack':>24} {'one launch':>12} {'library':>12}   microseconds of {_DEPTH} products")
    for case in CASES:
        own, other = (seconds(case, way) * 1e6 for way in (True, False))
        print(f"{case!s:>24} {own:12.1f} {other:12.1f}")


if __name__ == "__main__":
    main()
