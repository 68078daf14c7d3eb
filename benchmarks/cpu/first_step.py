"""From the call of `fit` to the end of the first step, in new processes, with empty and with kept caches.

Imports are done before the clock starts: for the peers also those that they put off until they compile.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.harness.cases import Case, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import COMPILED, EAGER, JAX, MAKERS
from benchmarks.networks import PAPERS, stored

LIMITS: tuple[tuple[Literal["cold", "warm"], float], ...] = (("cold", 1.0), ("warm", 0.15))


def claim(settings: Settings) -> Claim:
    arguments: dict[str, Any] = {
        "file": stored(PAPERS, PAPERS.batch), "activation": PAPERS.activation,
        "batch": PAPERS.batch, "optimizer": "sgd",
    }  # fmt: skip
    makers = {**MAKERS, JAX: (MAKERS[JAX][0], {"unroll": 1})}
    makers[COMPILED] = ("benchmarks.contenders.torch_peer:FirstStep", {"compiled": True})
    cases = [
        Case(
            f"first step, {state}",
            tuple(Entry(n, m, {**arguments, **more}, state) for n, (m, more) in makers.items()),
            (Goal("value", limit), Goal("ratio", 1.0, (JAX, COMPILED))),
            note=f"{EAGER} compiles nothing",
        )
        for state, limit in LIMITS
    ]
    return Claim("papers' network, first step of a process", cases)


if __name__ == "__main__":
    main({"first_step": claim})
