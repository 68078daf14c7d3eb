"""The most memory that a process has while it trains the papers' network for an epoch.

The whole process counts, libraries and data included. A second row has the processes before they train.
"""

from __future__ import annotations

from benchmarks.harness.cases import OURS, Case, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import EAGER, JAX, MAKERS, PEERS
from benchmarks.networks import PAPERS, stored


def claim(settings: Settings) -> Claim:
    arguments = {
        "file": stored(PAPERS, 1_000 if settings.quick else 12_000),
        "activation": PAPERS.activation, "batch": PAPERS.batch, "optimizer": "sgd",
    }  # fmt: skip
    makers = {**MAKERS, JAX: (MAKERS[JAX][0], {"unroll": 1})}
    training = tuple(
        Entry(n, make, {**arguments, **more}, "warm") for n, (make, more) in makers.items()
    )
    modules = {OURS: "magmadnn", JAX: "jax", EAGER: "torch"}
    idle = tuple(
        Entry(
            n, "benchmarks.contenders.idle:Idle", {"module": m, "file": arguments["file"]}, "warm"
        )
        for n, m in modules.items()
    )
    return Claim(
        "memory of the process",
        [
            Case(
                "training the papers' network", training, (Goal("ratio", 1.0, PEERS),), unit="bytes"
            ),
            Case("with the library and the data loaded", idle, unit="bytes"),
        ],
    )


if __name__ == "__main__":
    main({"peak_memory": claim})
