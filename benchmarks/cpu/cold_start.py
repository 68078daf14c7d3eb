"""From the start of the import to the end of one training step of ResNet-50, new processes, empty caches.

    python -m benchmarks.cpu.cold_start [--runs 5] [--size 224] [--batch 2]

Shown are seconds since the start: after the import, after the network was built, after `fit` of one step;
what a second `fit` of one step takes; and seconds of processors up to the end of the first. A hash of the
parameters after both tells whether two commits compute the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

CLASSES = 1000


def measured(size: int, batch: int) -> dict[str, Any]:
    """The times of this process, which has not imported magmadnn yet."""
    begin = time.perf_counter()
    import numpy as np

    import magmadnn as md
    from magmadnn.storage.checkpoint import parameters_sha256

    found: dict[str, Any] = {"import": time.perf_counter() - begin}
    model = md.models.resnet50(
        (size, size, 3), CLASSES, seed=0, loss="cross_entropy", optimizer="sgd", device="cpu"
    )
    found["network"] = time.perf_counter() - begin
    x = np.random.default_rng(0).standard_normal((batch, size, size, 3), np.float32)
    y = np.arange(batch)
    model.fit(x, y, epochs=1, batch_size=batch, verbose=False)
    found["first step"] = time.perf_counter() - begin
    found["processors"] = time.process_time()
    model.fit(x, y, epochs=1, batch_size=batch, verbose=False)
    found["second fit alone"] = time.perf_counter() - begin - found["first step"]
    found["parameters"] = parameters_sha256(model.values().items())[:16]
    return found


def main() -> None:
    """Print a line for each process, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=224, help="of images")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measured(given.size, given.batch)))
        return
    how = ["--here", "--size", str(given.size), "--batch", str(given.batch)]
    rows = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [sys.executable, "-m", "benchmarks.cpu.cold_start", *how],
                env={**os.environ, "XDG_CACHE_HOME": folder}, check=True, capture_output=True,
            )  # fmt: skip
        rows.append(json.loads(made.stdout))
        print(_line(rows[-1]), flush=True)
    times = [name for name, value in rows[0].items() if isinstance(value, float)]
    print("median:", _line({name: statistics.median(r[name] for r in rows) for name in times}))


def _line(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.2f} s" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )


if __name__ == "__main__":
    main()
