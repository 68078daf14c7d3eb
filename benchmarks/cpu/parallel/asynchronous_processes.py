"""Asynchronous against synchronous SGD on real processes (MPI): time to an accuracy, and speed-up.

    python benchmarks/cpu/parallel/asynchronous_processes.py --picture docs/images/asynchronous.png

Each worker is a process that `magmadnn launch` starts; gradients, parameters and all messages are real. A
gradient of a batch is made to take `--unit` seconds (the process sleeps), a quarter of a batch a quarter of
that, so that workers may outnumber cores as GPUs would not mind. Two tables are printed:

1. Four workers, one of which takes twice as long: seconds until the validation accuracy is reached, at the
   best of some learning rates, each the mean of seeds. `asynchronous.py` has the same on virtual clocks, and
   says why 1.75 is the most that can be.
2. Samples a second on 1, 2 and 4 workers, relative to one worker that computes alone: all equally fast, and
   with one that takes twice as long. `--picture` draws it.

The server of asynchronous training is one process more, which computes no gradients.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from asynchronous import WORKERS, data

import magmadnn as md

KINDS = {"synchronous": "SGD", "asynchronous": "ASGD"}
COUNTS = (1, 2, 4)
BATCH = 32


class Reaches(md.callbacks.Callback):
    """Notes how long it took until the validation accuracy was reached, and stops there."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy, self.seconds = accuracy, float("nan")
        self.begun = time.perf_counter()

    def on_epoch_end(self, fit: Any) -> None:
        """Look at the accuracy."""
        if fit.row["val_accuracy"] >= self.accuracy:
            self.seconds = time.perf_counter() - self.begun
            fit.stop("reached")


def trained(job: dict[str, Any]) -> Any:
    """One training, by all ranks of this job: seconds and epochs, or samples a second."""
    comm = md.comm.world()
    kind, slow, unit = job["kind"], job["slow"], job["unit"]
    is_async = kind == "asynchronous"
    workers = comm.size - 1 if is_async else comm.size
    part = 1.0 if is_async else 1.0 / workers
    wait = unit * part * (2.0 if slow and comm.rank == comm.size - 1 else 1.0)

    def computed(_: Any) -> None:
        time.sleep(wait)

    way: Any = (
        md.parallel.AsyncSGD(comm, staleness=8, computed=computed)
        if is_async
        else md.parallel.DataParallel(comm, shards=workers, computed=computed)
    )
    layers = [md.layers.Input((16,)), md.layers.Dense(64, activation="relu"), md.layers.Dense(10)]
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.SGD(job["rate"]), metrics=["accuracy"],
        seed=job["seed"],
    )  # fmt: skip
    x, y = data(job["rows"])
    options: dict[str, Any] = {"batch_size": BATCH, "parallel": way, "verbose": False}
    if job["accuracy"] is None:
        rows = model.fit(x, y, epochs=3, **options).rows[1:]
        return len(rows) * len(x) / sum(row["seconds"] for row in rows)
    comm.barrier()
    reaches = Reaches(job["accuracy"])
    history = model.fit(x, y, epochs=30, validation_split=0.2, callbacks=[reaches], **options)
    return reaches.seconds, len(history)


def launched(kind: str, workers: int, jobs: list[dict[str, Any]]) -> list[Any]:
    """What each job gave, one after the other on the same processes."""
    ranks = workers + (kind == "asynchronous")
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(ranks), __file__]
    told = json.dumps([{"kind": kind, **job} for job in jobs])
    found = subprocess.run([*command, "--jobs", told], capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(found.stderr)
    return next(json.loads(line) for line in found.stdout.splitlines() if line.startswith("["))


def to_accuracy(options: argparse.Namespace) -> None:
    """Print the first table."""
    print(f"seconds to an accuracy of {options.accuracy} (epochs), four workers, one half as fast")
    best: dict[str, float] = {}
    for kind in KINDS:
        rates = getattr(options, kind)
        jobs = [
            {"slow": True, "rate": rate, "seed": seed, "rows": 6000, "unit": options.unit,
             "accuracy": options.accuracy}
            for rate in rates for seed in range(options.seeds)
        ]  # fmt: skip
        found = launched(kind, WORKERS, jobs)
        for k, rate in enumerate(rates):
            own = found[k * options.seeds : (k + 1) * options.seeds]
            mean = float(np.mean([seconds for seconds, _ in own]))
            told = "  ".join(f"{seconds:7.2f} ({epochs:2})" for seconds, epochs in own)
            each = np.mean([seconds / epochs for seconds, epochs in own])
            print(f"{kind:12}  rate {rate:4.2g}  {told}  mean {mean:7.2f}  an epoch {each:6.2f}")
            if not mean >= best.get(kind, mean + 1):
                best[kind] = mean
    ratio = best["synchronous"] / best["asynchronous"]
    print(
        f"each at its best rate: asynchronous is {ratio:.2f} times as fast (goal 1.4, ceiling 1.75)"
    )


def speed_up(options: argparse.Namespace) -> dict[tuple[str, bool], list[float]]:
    """Print the second table, and give it."""
    job = {"rate": 0.2, "seed": 0, "rows": 1600, "unit": options.unit, "accuracy": None}
    rates: dict[tuple[str, bool], list[float]] = {}
    for kind in KINDS:
        for workers in COUNTS:
            cases = [False] if workers == 1 else [False, True]
            found = launched(kind, workers, [{**job, "slow": slow} for slow in cases])
            for slow in (False, True):
                rates.setdefault((kind, slow), []).append(found[slow if len(found) > 1 else 0])
    alone = rates["synchronous", False][0]
    print("speed-up over one worker that computes alone")
    print(f"{'':36}" + "".join(f"{n:>6}" for n in COUNTS) + "  workers")
    ups = {}
    for (kind, slow), found in rates.items():
        ups[kind, slow] = [rate / alone for rate in found]
        name = f"{KINDS[kind]}, {'one takes twice as long' if slow else 'all equally fast'}"
        print(f"{name:36}" + "".join(f"{up:6.2f}" for up in ups[kind, slow]))
    return ups


def draw(ups: dict[tuple[str, bool], list[float]], path: Path) -> None:
    """The second table as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    panel = figure.subplots()
    panel.plot(COUNTS, COUNTS, color="#bbbbbb", linestyle=":", label="as many times as workers")
    for (kind, slow), found in ups.items():
        panel.plot(
            COUNTS, found, marker="o", linestyle="--" if slow else "-",
            color="#4e79a7" if kind == "synchronous" else "#f28e2b",
            label=f"{KINDS[kind]}{', one worker half as fast' if slow else ''}",
        )  # fmt: skip
    panel.set(xlabel="workers", ylabel="speed-up", xticks=COUNTS)
    panel.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", type=float, default=0.93)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--synchronous", type=float, nargs="+", default=[0.4, 0.8], help="rates")
    parser.add_argument("--asynchronous", type=float, nargs="+", default=[0.4, 0.8], help="rates")
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 2], help="which")
    parser.add_argument("--unit", type=float, default=0.04, help="seconds of a gradient of a batch")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--jobs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs is not None:
        found = [trained(job) for job in json.loads(options.jobs)]
        if md.comm.world().rank == 0:
            print(json.dumps(found))
        return
    if 1 in options.tables:
        to_accuracy(options)
    if 2 in options.tables:
        ups = speed_up(options)
        if options.picture is not None:
            draw(ups, options.picture)


if __name__ == "__main__":
    main()
