"""Data parallel training on the CPU: 2 ranks of one thread beside 1 rank of two threads, and what shards
cost.

    python benchmarks/cpu/parallel/data_parallel.py

The network is the small one of CIFAR-10 (`md.models.cifar_cnn`). Rows: `fit` alone on one and on two threads,
`DataParallel` on one rank of one and of two threads, and on two ranks of one thread each, started by
`magmadnn launch`. All of the last three end with the same parameters, which is checked. Images a second are
those of the best epoch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256

ROWS = [  # title, how, ranks, threads
    ("fit", "alone", 1, 1),
    ("fit", "alone", 1, 2),
    ("DataParallel", "shared", 1, 1),
    ("DataParallel", "shared", 1, 2),
    ("DataParallel", "shared", 2, 1),
]


def train(batch_size: int, epochs: int, parallel: Any) -> dict[str, Any]:
    """Train, and tell images a second and a digest of the parameters."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(1024, 32, 32, 3)).astype(np.float32), draw.integers(0, 10, 1024)
    model = md.models.cifar_cnn(
        (32, 32, 3), 10, loss="cross_entropy", optimizer=md.optim.SGD(0.01), seed=1
    )
    history = model.fit(
        x, y, batch_size=batch_size, epochs=epochs, verbose=False, parallel=parallel
    )
    rate = max(row["samples_per_second"] for row in history.rows[1:])
    return {"rate": rate, "sha": parameters_sha256(model.values().items())}


def main() -> None:
    """Print a table, or in a process of its own one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--row", choices=["alone", "shared"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.row is not None:
        md.set_threads(options.threads)
        found = train(
            options.batch,
            options.epochs,
            False if options.row == "alone" else md.parallel.DataParallel(),
        )
        if md.comm.world().rank == 0:
            print(json.dumps(found))
        return
    print(
        f"batch {options.batch}: ranks x threads, images a second, best and median of {options.rounds}"
    )
    shas: set[str] = set()
    rates: dict[Any, list[float]] = {row: [] for row in ROWS}
    for title, row, ranks, threads in ROWS * options.rounds:
        own = [__file__, "--row", row, "--threads", str(threads)]
        own += ["--batch", str(options.batch), "--epochs", str(options.epochs)]
        launch = ["-m", "magmadnn", "launch", "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run(
            [sys.executable, *launch, *own], capture_output=True, text=True, check=True, timeout=600
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        if row == "shared":
            shas.add(found["sha"])
        rates[title, row, ranks, threads].append(found["rate"])
    for (title, _, ranks, threads), all_of in rates.items():
        print(
            f"{title:13} {ranks} x {threads}  {max(all_of):8,.0f} {statistics.median(all_of):8,.0f}"
        )
    print("the same parameters:", len(shas) == 1)


if __name__ == "__main__":
    main()
