"""A search of 1,000 grid points on the heart-disease table: trials per second, asking, reading the log again.

python -m benchmarks.cpu.search [--points 1000] [--epochs 10] [--workers 2] [--logged 100000]

Networks are 13-16-2 with Adam, batches of 32 of 242 rows, each point a training of its own. "here" is one
process on all cores, "workers" as many processes; both begin with kernels that are on the disk. Shown are the
clock and the processor time of all processes. Peers are in `search_peers.py`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import magmadnn as md
from magmadnn.search.study_folder import StudyFolder, read_study

DATA = Path(__file__).resolve().parents[2] / "data/heart-disease/processed.cleveland.data"


def table() -> tuple[np.ndarray, np.ndarray]:
    """303 patients; missing values are 0."""
    lines = DATA.read_text().split()
    rows = np.array([[0.0 if v == "?" else float(v) for v in line.split(",")] for line in lines])
    return rows[:, :13].astype(np.float32), (rows[:, 13] > 0).astype(np.int64)


def build(learning_rate: float, beta: float, seed: int) -> md.Model:
    """13-16-2."""
    return md.Model(
        [md.layers.Input(13), md.layers.Dense(16, activation="relu"), md.layers.Dense(2)],
        loss="cross_entropy",
        optimizer=md.optim.Adam(learning_rate, beta1=beta),
        metrics=["accuracy"],
        preparation=md.data.Standardize(),
        seed=seed,
    )


def search(points: int, epochs: int, workers: int | None, out: str | None) -> tuple[float, float]:
    """Seconds of the clock and of all processors."""
    x, y = table()
    side = max(2, round(points**0.5))
    space = {
        "learning_rate": md.search.grid(0.0005, 0.0005 * side, step=0.0005),
        "beta": md.search.choice([0.5 + 0.49 * k / side for k in range(-(-points // side))]),
    }
    begun, before = time.perf_counter(), sum(os.times()[:4])
    study = md.search.run(
        build, space, x, y, method="grid", trials=points, epochs=epochs, workers=workers, out=out
    )  # fmt: skip
    assert len(study.trials) == points
    return time.perf_counter() - begun, sum(os.times()[:4]) - before


def lengthen(folder: Path, count: int) -> None:
    """Add trials like the first to a study."""
    identity, logged = read_study(folder)
    job, outcome = logged.results[0, 0]
    study = StudyFolder(folder, identity, {**logged.ends, "trials": count}, True)
    known = {trial for trial, _ in logged.results}
    study.add_results(
        (replace(job, trial=k, cohort=k // 64), outcome) for k in range(count) if k not in known
    )
    study.close()


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--logged", type=int, default=100_000)
    given = parser.parse_args()
    search(4, 1, None, None)  # kernels come to the disk
    with tempfile.TemporaryDirectory() as place:
        for name, workers in (("here", None), (f"{given.workers} workers", given.workers)):
            out = str(Path(place) / name)
            clock, processors = search(given.points, given.epochs, workers, out)
            print(
                f"{name}: {given.points / clock:.1f} trials a second, "
                f"{1000 * processors / given.points:.1f} ms of "
                f"processors each ({clock:.1f} s)"
            )
        lengthen(Path(place) / "here", given.logged)
        begun = time.process_time()
        count = len(md.search.load(Path(place) / "here").trials)
        print(f"a log of {count:,} trials is read in {time.process_time() - begun:.2f} s")


if __name__ == "__main__":
    main()
