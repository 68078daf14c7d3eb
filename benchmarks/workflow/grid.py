"""Points handed out as ranks become free beside batches: python benchmarks/workflow/grid.py

320 trials on 8 ranks, one in a call and as many as is the default, each of a time drawn from a log-normal
distribution (sigma 0.5, median 0.5 s) that it sleeps, so that two cores do for eight ranks. Of eight such
numbers the largest is on average 1.89 times the mean, which bounds the gain of endless many trials. What
these times alone would take either way is printed too.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import magmadnn as md

TRIALS, WORKERS = 320, 8
WAYS: dict[str, dict[str, Any]] = {
    "batches": {"batches": True, "together": 1},
    "as ranks become free, one a call": {"together": 1},
    "as ranks become free, the default": {},
}
SECONDS = 0.5 * np.exp(0.5 * np.random.default_rng(7).standard_normal(TRIALS))


def build(index: int, seed: int) -> Any:
    """A network that trains at once, after the time of its trial."""
    time.sleep(SECONDS[index])
    return md.Model(
        [md.layers.Input((3,)), md.layers.Dense(2)],
        loss="cross_entropy",
        optimizer="sgd",
        seed=seed,
    )


def run(ctx: Any) -> None:
    """All ways, one after the other."""
    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    space = {"index": md.search.choice(list(range(TRIALS)))}
    took = {}
    for way in WAYS:
        ctx.comm.Barrier()
        begun = time.perf_counter()
        md.workflow.grid(ctx, build, space, x, y, method="grid", epochs=1, **WAYS[way])
        took[way] = time.perf_counter() - begun
    if ctx.rank == 0:
        slowest = SECONDS.reshape(-1, WORKERS).max(axis=1).sum()
        free = [0.0] * WORKERS
        for seconds in SECONDS:
            heapq.heapreplace(free, free[0] + seconds)
        for way, seconds in took.items():
            print(
                f"{way}: {seconds:.2f} s, {took['batches'] / seconds:.2f} times the batches' rate"
            )
        most = slowest / max(free)
        print(f"sleeping alone {slowest:.2f} s and {max(free):.2f} s: {most:.2f} times")


if __name__ == "__main__":
    work = md.workflow.Workflow("grid")
    work.add_module(run, "g", ranks=WORKERS + 1)
    with tempfile.TemporaryDirectory() as folder:
        work.run(Path(folder) / "out")
        print((Path(folder) / "out/modules/g.0/rank-0.log").read_text(), end="")
