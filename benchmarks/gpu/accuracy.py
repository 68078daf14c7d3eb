"""Accuracy on MNIST's test set by precision: the default training, each block with another seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness.cases import Case, Claim, Entry, Result, Settings
from benchmarks.harness.command import main
from magmadnn.compiler.program.precision import PRECISIONS

GOAL = 0.003  # of the test set: what a precision may get wrong more than float32, by the means over the seeds
BASE = "float32"


def claim(settings: Settings) -> Claim:
    make = "benchmarks.contenders.accuracy:Accuracy"
    arguments = {"device": settings.device, "epochs": 1 if settings.quick else 0}
    entries = tuple(Entry(p, make, {**arguments, "precision": p}) for p in PRECISIONS)
    return Claim(
        "the default training on MNIST",
        [Case("wrong of the test set, by seeds", entries, unit="errors", ours=BASE)],
        summary=_means,
    )


def _means(results: Sequence[Result]) -> list[str]:
    """The mean accuracy of each precision, and how far that is from float32's."""
    (result,) = results
    means = {n: 1 - statistics.mean(f.blocks) for n, f in result.figures.items() if f.blocks}
    lines = []
    for name, mean in means.items():
        line = f"{name}: {mean:.2%} of {len(result.figures[name].blocks)} seeds"
        if name != BASE and BASE in means:
            verdict = "reached" if means[BASE] - mean <= GOAL else "**not reached**"
            line += f", {mean - means[BASE]:+.2%} (goal: within {GOAL:.1%} of {BASE}): {verdict}"
        lines.append(line)
    return lines


if __name__ == "__main__":
    main({"accuracy": claim}, device="cuda")
