"""What all tests share: the option --all, and drawing without a screen."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from magmadnn.backends.cuda.simulated import SimulatedDevice

os.environ.setdefault("MPLBACKEND", "Agg")  # curves are drawn to files


@pytest.fixture(autouse=True)
def names_of_this_test_only() -> Iterator[None]:
    """Ops, optimisers, losses and metrics of a test are forgotten after it: texts list known names."""
    places = (
        ("magmadnn.graph.op", "REGISTRY"),
        ("magmadnn.graph.op", "FUNCTIONS"),
        ("magmadnn.optim.records", "_RECORDS"),
        ("magmadnn.losses.loss", "Loss.known"),
        ("magmadnn.metrics.metric", "Metric.known"),
    )
    registries = [
        attrgetter(name)(sys.modules[module]) for module, name in places if module in sys.modules
    ]
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


@pytest.fixture
def devices() -> Iterator[list[SimulatedDevice]]:
    """Two devices made of host memory."""
    from magmadnn import memory
    from magmadnn.backends.cuda.simulated import simulated_devices

    with simulated_devices(2) as machine:
        yield machine
        memory.trim()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked long as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: the order of calls is tested elsewhere, only time would be lost."""
    from magmadnn.storage.disk import calls

    monkeypatch.setattr(calls, "sync", lambda descriptor: None)
