"""A search of 1,000 grid points on the heart-disease table: trials per second, asking, reading the log again.

python -m benchmarks.cpu.search [--points 1000] [--epochs 10] [--workers 2] [--logged 100000] [--single]
python -m benchmarks.cpu.search --asked 100000 [--methods grid,random,cem,asha,median]

Networks are 13-16-2 with Adam, batches of 32 of 242 rows, each point a training of its own. "here" is one
process on all cores, "workers" as many processes; both begin with kernels that are on the disk. Shown are the
clock and the processor time of all processes. With `--single` trials are not trained together, as with
`until=` or an objective that is a function. Peers are in `search_peers.py`.

With `--asked` nothing is trained: shown is what asking a method for a trial and telling it the result take of
a processor once so many have finished, the mean and the longest of 1,000 of each. The longest decides on a
whole cohort. For ASHA with several objectives the finished trials are told at once, then 1,000 more.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import magmadnn as md
from magmadnn.search.methods.choosing import method_of
from magmadnn.search.methods.method import Arrived, Method
from magmadnn.search.methods.stopping import Asha
from magmadnn.search.spaces.space import Space
from magmadnn.search.study_folder import StudyFolder, read_study
from magmadnn.search.trials.records import DONE, Outcome
from magmadnn.search.trials.schedule import Limits, Schedule

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


def search(
    points: int, epochs: int, workers: int | None, out: str | None, single: bool = False
) -> tuple[float, float]:
    """Seconds of the clock and of all processors."""
    ends = {"total_seconds": 1e9} if single else {}
    x, y = table()
    side = max(2, round(points**0.5))
    space = {
        "learning_rate": md.search.grid(0.0005, 0.0005 * side, step=0.0005),
        "beta": md.search.choice([0.5 + 0.49 * k / side for k in range(-(-points // side))]),
    }
    begun, before = time.perf_counter(), sum(os.times()[:4])
    study = md.search.run(
        build, space, x, y, method="grid", trials=points, epochs=epochs, workers=workers, out=out,
        **ends,
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


def score(drawn: random.Random, objectives: int) -> tuple[float, ...]:
    """What a trial is worth, at random."""
    return tuple(drawn.random() for _ in range(objectives))


class Filled(Asha):
    """ASHA to which trials with negative numbers were told beforehand; they do not go on."""

    def promoted(self, cohort: int, rung: int, trials: Sequence[Arrived]) -> list[int]:
        """Those with other numbers."""
        return [number for number in super().promoted(cohort, rung, trials) if number >= 0]


def asked(name: str, count: int, objectives: int) -> tuple[list[float], list[float]]:
    """Seconds of a processor that asking and telling take after `count` trials."""
    space = {
        "a": md.search.grid(0.0, 1.0, step=0.001),
        "b": md.search.integer(1, 1000),
        "c": md.search.choice(["p", "q", "r"]),
    }
    drawn, fronts = random.Random(5), name == "asha" and objectives > 1
    method: Method
    if fronts:
        method = Filled(Space.of(space), 4)
        scores = [score(drawn, objectives) for _ in range(count)]
        method.promoted(0, 0, [Arrived(-1 - k, {}, own) for k, own in enumerate(scores)])
    else:
        method = method_of(name, Space.of(space), 4, None, {})
    schedule = Schedule(
        method,
        lambda point: method.rungs(27 if name == "asha" else 9),
        Limits(1000 if fronts else count + 1000),
        lambda outcome: outcome.values,
    )
    times: tuple[list[float], list[float]] = ([], [])
    while True:
        begun = time.thread_time()
        job = schedule.next_job()
        times[0].append(time.thread_time() - begun)
        if job is None:
            return times[0][-1000:], times[1][-1000:]
        outcome = Outcome(DONE, values=score(drawn, objectives))
        begun = time.thread_time()
        schedule.arrive(job, outcome)
        times[1].append(time.thread_time() - begun)


def print_asked(count: int, methods: str) -> None:
    """A row for each method."""
    print("| method | objectives | ask, ms | longest | tell, ms | longest |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, objectives in (
        ("grid", 1), ("random", 1), ("cem", 1), ("cem", 2), ("asha", 1), ("asha", 2), ("asha", 3),
        ("median", 1), ("median", 2),
    ):  # fmt: skip
        if name not in methods.split(","):
            continue
        cells = [name, str(objectives)]
        for times in asked(name, count, objectives):
            cells += [f"{1e3 * sum(times) / len(times):.3f}", f"{1e3 * max(times):.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--logged", type=int, default=100_000)
    parser.add_argument("--asked", type=int)
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--methods", default="grid,random,cem,asha,median")
    given = parser.parse_args()
    if given.asked is not None:
        print_asked(given.asked, given.methods)
        return
    search(4, 1, None, None)  # kernels come to the disk
    with tempfile.TemporaryDirectory() as place:
        for name, workers in (("here", None), (f"{given.workers} workers", given.workers)):
            out = str(Path(place) / name)
            clock, processors = search(given.points, given.epochs, workers, out, given.single)
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
