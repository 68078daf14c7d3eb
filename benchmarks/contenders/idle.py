"""A process that has imported a library and read the data: what training adds to."""

from __future__ import annotations

import importlib

from benchmarks.networks import loaded


class Idle:
    """A run does nothing."""

    def __init__(self, module: str, file: str) -> None:
        self._kept = (importlib.import_module(module), loaded(file))

    def run(self) -> None:
        """Nothing."""
