"""The papers' and the tiny network with Adam, with momentum, and in float64."""

from __future__ import annotations

from benchmarks.harness.cases import Case, Claim, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import PEERS, either, training
from benchmarks.networks import PAPERS, TINY

VARIANTS = (
    ("Adam", "adam", "float32"),
    ("momentum", "momentum", "float32"),
    ("float64", "sgd", "float64"),
)


def claim(settings: Settings) -> Claim:
    cases: list[Case] = []
    for network, few, many in ((PAPERS, 500, 6_000), (TINY, 400, 16_000)):
        for label, optimizer, dtype in VARIANTS:
            cases.append(
                training(
                    f"{network}, batch {network.batch}, {label}",
                    network,
                    few if settings.quick else many,
                    (Goal("ratio", 1.0, either(settings, *PEERS)),),
                    settings,
                    optimizer=optimizer,
                    dtype=dtype,
                )
            )
    return Claim("other optimisers and float64, one epoch", cases)


if __name__ == "__main__":
    main({"optimizers": claim})
