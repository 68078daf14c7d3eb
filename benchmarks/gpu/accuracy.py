"""Accuracy on MNIST's test set by precision: the default training, by `magmadnn train`.

    python -m benchmarks.gpu.accuracy [--device cpu] [--seeds 3]

The goal: every precision is within 0.3 % of float32, by the means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from magmadnn.cli import main as magmadnn
from magmadnn.compiler.passes.precision import PRECISIONS

GOAL = 0.003


def accuracy(precision: str, device: str, seed: int) -> float:
    """The test accuracy of one training."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        chosen = ["--precision", precision, "--device", device, "--seed", str(seed)]
        files = ["--out", str(Path(folder) / "run"), "--json", str(out), "--quiet"]
        if code := magmadnn(["train", *chosen, *files]):
            raise SystemExit(code)
        found: float = json.loads(out.read_text())["test_accuracy"]
        return found


def run() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        "| precision | accuracy, seed by seed | mean | against float32 | |\n|---|---|---|---|---|"
    )
    base = 0.0
    for precision in PRECISIONS:
        found = [accuracy(precision, options.device, seed) for seed in range(options.seeds)]
        mean = statistics.mean(found)
        base = base or mean
        shown = ", ".join(f"{a:.2%}" for a in found)
        verdict = "reached" if base - mean <= GOAL else "**not reached**"
        print(
            f"| {precision} | {shown} | {mean:.2%} | {mean - base:+.2%} | {verdict} |", flush=True
        )


if __name__ == "__main__":
    run()
