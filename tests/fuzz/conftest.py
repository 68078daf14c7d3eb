"""How many damaged files there are."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import FILES, Fuzz


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Damaged files for the reader that the test is about: 2,000, and 100,000 with --all."""
    files = 100_000 if request.config.getoption("--all") else FILES
    return Fuzz(request.node.name, files)
