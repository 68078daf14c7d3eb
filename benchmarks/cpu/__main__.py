"""Run all benchmarks of the CPU, print one table at the end, and keep the results.

scripts/bench [--threads 1,2] [--quick] [--only papers_network,predict]
"""

from __future__ import annotations

import importlib
from functools import partial

from benchmarks.harness.cases import Claim, Settings
from benchmarks.harness.command import main

FILES = (
    "papers_network",
    "tiny_network",
    "optimizers",
    "wide_network",
    "predict",
    "memory_bound",
    "products",
    "convolutions",
    "image_networks",
    "first_step",
    "peak_memory",
)


def claim_of(file: str, settings: Settings) -> Claim:
    """The claim of one file."""
    found: Claim = importlib.import_module(f"benchmarks.cpu.{file}").claim(settings)
    return found


if __name__ == "__main__":
    main({name: partial(claim_of, name) for name in FILES}, save=True)
