"""How workers of `magmadnn train --workers N` share a training: what `--parallel` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magmadnn.cli.console import Console
from magmadnn.comm import world
from magmadnn.parallel import DataParallel, Hybrid, ModelParallel, Pipeline, plan
from magmadnn.parallel.way import TrainingWay
from magmadnn.training import Model

_WAYS: dict[str, Callable[[], TrainingWay]] = {
    "data": DataParallel,
    "optimiser": lambda: DataParallel(shard="optimiser"),
    "parameters": lambda: DataParallel(shard="parameters"),
    "model": ModelParallel,
    "hybrid": Hybrid,
    "pipeline": Pipeline,
}
PARALLEL = (*_WAYS, "auto")
_SAMPLES = 8  # that say what data looks like


def way_of(
    name: str | None, model: Model, x: Any, y: Any, batch_size: int, say: Console,
    memory_limit: int | None = None,
) -> TrainingWay | None:  # fmt: skip
    """What `fit` is given; None for what it does by itself."""
    if name is None:
        return None
    size = world().size
    if name == "auto":
        found = plan(
            model, size, x[:_SAMPLES], y[:_SAMPLES], batch_size=batch_size,
            memory_limit=memory_limit, all_workers=True,
        )  # fmt: skip
        say(f"\npredictions for a step of {batch_size} rows on {size} workers\n{found}\n")
        return found.way
    return _WAYS[name]()
