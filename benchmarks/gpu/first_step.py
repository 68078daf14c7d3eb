"""On a GPU, from the call of `fit` to the end of the first step, in new processes.

Imports are done before the clock starts, for the peers also those that they put off until they compile, and
the device is open: the peers have put their data there.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.harness.cases import Case, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.gpu_cases import JAX, MAKERS, OURS
from benchmarks.networks import PAPERS, stored

LIMITS: tuple[tuple[Literal["cold", "warm"], float], ...] = (("cold", 3.0), ("warm", 0.5))


def claim(settings: Settings) -> Claim:
    arguments: dict[str, Any] = {
        "file": stored(PAPERS, PAPERS.batch), "activation": PAPERS.activation,
        "batch": PAPERS.batch, "optimizer": "sgd", "precision": "tf32",
    }  # fmt: skip
    makers = {name: MAKERS[name] for name in (OURS, JAX)}
    makers[JAX] = (MAKERS[JAX][0], {"unroll": 1})
    return Claim(
        "papers' network, first step of a process",
        [
            Case(
                f"first step, {state}",
                tuple(Entry(n, m, {**arguments, **more}, state) for n, (m, more) in makers.items()),
                (Goal("value", limit),),
            )
            for state, limit in LIMITS
        ],
    )


if __name__ == "__main__":
    main({"first_step": claim}, device="cuda")
