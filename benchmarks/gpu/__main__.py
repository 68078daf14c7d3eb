"""Run all benchmarks of the GPU, print one table at the end, and keep the results.

python -m benchmarks.gpu [--quick] [--only papers_network,depth]
"""

from __future__ import annotations

import importlib
from functools import partial

from benchmarks.harness.cases import Claim, Settings
from benchmarks.harness.command import main

FILES = (
    "papers_network", "depth", "perceptrons", "memory_bound", "first_step", "fit_overhead", "accuracy",
)  # fmt: skip


def claim_of(file: str, settings: Settings) -> Claim:
    """The claim of one file."""
    found: Claim = importlib.import_module(f"benchmarks.gpu.{file}").claim(settings)
    return found


if __name__ == "__main__":
    main({name: partial(claim_of, name) for name in FILES}, save=True, device="cuda")
