"""A tiny, a wide and a huge perceptron on a GPU."""

from __future__ import annotations

from benchmarks.harness.cases import Case, Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.gpu_cases import COMPILED, COMPILED_GRAPH, JAX, training
from benchmarks.networks import HUGE, TINY, WIDE, Network

AHEAD = (Goal("ratio", 1.0, COMPILED),)


def claim(settings: Settings) -> Claim:
    third = (Goal("ratio", 1 / 3, (JAX,)), Goal("ratio", 1.0, (COMPILED_GRAPH,)))
    rate = (*AHEAD, Goal("share", 0.8))

    def case(
        network: Network, batches: int, goals: tuple[Goal, ...], precision: str, quick: int = 10
    ) -> Case:
        rows = (quick if settings.quick else batches) * network.batch
        name = f"{network}, batch {network.batch}, {precision}"
        return training(name, network, rows, goals, precision)

    return Claim(
        "perceptrons, one epoch",
        [
            case(TINY, 1_000, third, "float32"),
            case(WIDE, 100, AHEAD, "tf32"),
            case(WIDE, 100, AHEAD, "mixed_bf16"),
            case(HUGE, 8, rate, "mixed_bf16", quick=5),
        ],
    )


if __name__ == "__main__":
    main({"perceptrons": claim}, device="cuda")
