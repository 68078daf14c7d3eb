"""Asynchronous against synchronous SGD: virtual time to the same accuracy, four workers, one twice as slow.

    python benchmarks/cpu/parallel/asynchronous.py

Ranks are simulated, with a clock of their own: a gradient of a batch takes one second on three workers and
two on the fourth, a quarter of a batch a quarter of that; messages take 1 ms and 10 GB/s. So figures do not
depend on the machine. In a second three workers compute three batches and the slow one half of one, together
3.5; of batches that are shared evenly, the slow one's part takes half a second, so two are done: at most
1.75 times as fast. Both are given several learning rates, and are compared at the best of each, since the
asynchronous one divides its own.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.comm import Network, simulate

WORKERS = 4


def data(rows: int) -> tuple[Any, Any]:
    """Points of ten classes, each a cloud around three centres, so that no plane divides them."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(30, 16))
    kinds = draw.integers(0, 30, rows)
    return (centres[kinds] + 0.8 * draw.normal(size=(rows, 16))).astype(np.float32), kinds % 10


class Reaches(md.callbacks.Callback):
    """Notes the clock of rank 0 when the validation accuracy is reached, and stops there."""

    def __init__(self, comm: Any, accuracy: float) -> None:
        self.comm, self.accuracy, self.seconds = comm, accuracy, float("nan")

    def on_epoch_end(self, fit: Any) -> None:
        """Look at the accuracy."""
        if fit.row["val_accuracy"] >= self.accuracy:
            self.seconds = self.comm.clock
            fit.stop("reached")


def run(comm: Any, kind: str, accuracy: float, rate: float, seed: int) -> tuple[float, int]:
    """Seconds to the accuracy, and epochs."""
    layers = [md.layers.Input((16,)), md.layers.Dense(64, activation="relu"), md.layers.Dense(10)]
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.SGD(rate), metrics=["accuracy"], seed=seed
    )
    x, y = data(6000)
    slow = comm.size - 1
    part = 1.0 if kind == "asynchronous" else 1.0 / WORKERS
    wait = (2.0 if comm.rank == slow else 1.0) * part
    way: Any = (
        md.parallel.AsyncSGD(comm, staleness=8, computed=lambda c: c.advance(wait))
        if kind == "asynchronous"
        else md.parallel.DataParallel(comm, shards=WORKERS, computed=lambda c: c.advance(wait))
    )
    reaches = Reaches(comm, accuracy)
    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=30,
        validation_split=0.2,
        callbacks=[reaches],
        parallel=way,
        verbose=False,
    )
    return reaches.seconds, len(history)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", type=float, default=0.93)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.2, 0.4, 0.8])
    options = parser.parse_args()
    network = Network(latency=1e-3, bandwidth=1e10)
    best = {}
    print(f"virtual seconds to an accuracy of {options.accuracy} (epochs), for each seed")
    for kind, ranks in (("synchronous", WORKERS), ("asynchronous", WORKERS + 1)):
        for rate in options.rates:
            found = [
                simulate(ranks, run, kind, options.accuracy, rate, seed, network=network)[0]
                for seed in range(options.seeds)
            ]
            told = "  ".join(f"{seconds:8.1f} ({epochs:2})" for seconds, epochs in found)
            mean = float(np.mean([seconds for seconds, _ in found]))
            print(f"{kind:12}  rate {rate:5.3g}  {told}  mean {mean:8.1f}")
            if not mean >= best.get(kind, mean + 1):
                best[kind] = mean
    ratio = best["synchronous"] / best["asynchronous"]
    print(
        f"each at its best rate: asynchronous is {ratio:.2f} times as fast (goal 1.4, ceiling 1.75)"
    )


if __name__ == "__main__":
    main()
