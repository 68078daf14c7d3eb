"""A network of 13-64-64-64-2 with ReLU, batch 16, SGD: what a step costs when there is hardly any work."""

from __future__ import annotations

from benchmarks.harness.cases import Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import COMPILED, EAGER, JAX, either, training
from benchmarks.networks import TINY


def claim(settings: Settings) -> Claim:
    rows = 800 if settings.quick else 32_000
    goals = (
        Goal("ratio", 0.6, either(settings, JAX)),
        Goal("ratio", 1 / 25, either(settings, EAGER)),
        Goal("ratio", 1.0, either(settings, COMPILED)),
    )
    case = training(f"{TINY}, batch 16, SGD", TINY, rows, goals, settings)
    return Claim("tiny network, one epoch", [case])


if __name__ == "__main__":
    main({"tiny_network": claim})
