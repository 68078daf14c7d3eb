"""The papers' network on a GPU, products in TF32: a whole call of `fit` on MNIST."""

from __future__ import annotations

from benchmarks.harness.cases import Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.gpu_cases import COMPILED_GRAPH, EAGER, GRAPH, JAX, training
from benchmarks.networks import PAPERS


def claim(settings: Settings) -> Claim:
    goals = (
        Goal("ratio", 1 / 4, (JAX,)),
        Goal("ratio", 1 / 5, (GRAPH,)),
        Goal("ratio", 1.0, (COMPILED_GRAPH,)),
        Goal("ratio", 1 / 40, (EAGER,)),
    )
    rows = 2_000 if settings.quick else 60_000
    return Claim(
        "papers' network, one epoch",
        [
            training(f"{PAPERS}, batch 100, tf32", PAPERS, rows, goals, "tf32"),
            training(f"{PAPERS}, batch 100, float32", PAPERS, rows, (), "float32"),
        ],
    )


if __name__ == "__main__":
    main({"papers_network": claim}, device="cuda")
