"""A network of 784-2048-2048-10 with ReLU, batch 512: how near large products come to the FMA peak."""

from __future__ import annotations

from benchmarks.harness.cases import Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import training
from benchmarks.networks import WIDE

GOALS = (Goal("share", 0.9),)


def claim(settings: Settings) -> Claim:
    rows = 1_024 if settings.quick else 5_120
    return Claim(
        "wide network, one epoch",
        [training(f"{WIDE}, batch 512, SGD", WIDE, rows, GOALS, settings)],
    )


if __name__ == "__main__":
    main({"wide_network": claim})
