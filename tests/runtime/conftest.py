"""What tests of executors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magmadnn.runtime import threads


@pytest.fixture(autouse=True)
def own_number() -> Iterator[None]:
    """The number of threads that a test chooses is forgotten after it."""
    before = list(threads._chosen)
    yield
    threads._chosen[:] = before
