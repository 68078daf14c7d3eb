"""What all tests share: the option --all, and drawing without a screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from operator import attrgetter

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")  # curves are drawn to files


@pytest.fixture(autouse=True)
def names_of_this_test_only() -> Iterator[None]:
    """Optimisers, losses and metrics that a test defines are forgotten after it: texts list known names."""
    places = (
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked long as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("long")]
