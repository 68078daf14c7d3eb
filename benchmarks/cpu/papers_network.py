"""The papers' network, 784-528-528-528-10 with sigmoids, batch 100, SGD: a whole call of `fit` on MNIST."""

from __future__ import annotations

from benchmarks.harness.cases import Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import COMPILED, EAGER, JAX, either, training
from benchmarks.networks import PAPERS


def claim(settings: Settings) -> Claim:
    rows = 1_000 if settings.quick else 12_000
    goals = (
        Goal("share", 0.85),
        Goal("ratio", 0.7, either(settings, JAX)),
        Goal("ratio", 0.3, either(settings, EAGER)),
        Goal("ratio", 0.35, either(settings, COMPILED)),
    )
    return Claim(
        "papers' network, one epoch",
        [training(f"{PAPERS}, batch 100, SGD", PAPERS, rows, goals, settings)],
    )


if __name__ == "__main__":
    main({"papers_network": claim})
