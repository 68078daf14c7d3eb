"""From building a small model to the end of its fit, many models in one process.

python -m benchmarks.cpu.fit_start [--models 30] [--first 20] [--device cuda]

Three rows: models whose width is new in the process, models that are built like one before, and further fits
of one model. Milliseconds by the clock, and of the calling thread's processor time, which other programs
disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import magmadnn as md

FEATURES, CLASSES, ROWS, EPOCHS = 13, 2, 1000, 5
Times = tuple[float, float]  # seconds by the clock, and of this thread


def timed(run: Callable[[], object]) -> Times:
    """How long a run takes."""
    clock, own = time.perf_counter(), time.thread_time()
    run()
    return time.perf_counter() - clock, time.thread_time() - own


def row(name: str, times: list[Times]) -> str:
    """Minimum and median of both times."""
    columns = [
        f"{min(t) * 1e3:8.1f} {statistics.median(t) * 1e3:8.1f}" for t in zip(*times, strict=True)
    ]
    return f"{name:36} {' '.join(columns)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The start of a fit of small models.")
    parser.add_argument("--models", type=int, default=30, help="models of each row")
    parser.add_argument("--first", type=int, default=20, help="width of the first")
    parser.add_argument("--device", default="cpu", help="where the models are trained")
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, FEATURES)).astype(np.float32)
    y = draw.integers(0, CLASSES, ROWS)

    def fit(model: md.Model) -> md.Model:
        model.fit(x, y, epochs=EPOCHS, verbose=0)
        return model

    def once(width: int) -> md.Model:
        layers = [
            md.layers.Input((FEATURES,)),
            md.layers.Dense(width, activation="relu"),
            md.layers.Dense(CLASSES),
        ]
        return fit(md.Model(layers, loss="cross_entropy", optimizer="adam", device=given.device))

    model = once(given.first - 1)  # loads the compiler
    print(f"{'':36} {'clock: min, median':>17} {'thread: min, median':>17}")
    widths = range(given.first, given.first + given.models)
    print(row("a width that is new in the process", [timed(partial(once, w)) for w in widths]))
    print(row("built like one before", [timed(lambda: once(given.first)) for _ in widths]))
    print(row("a further fit of one model", [timed(lambda: fit(model)) for _ in widths]))


if __name__ == "__main__":
    main()
