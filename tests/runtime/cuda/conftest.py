"""Shared by the tests of this folder: both ways in which steps run on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magmadnn.runtime.cuda.many import course
from magmadnn.runtime.cuda.many.stacks import Stack
from magmadnn.runtime.cuda.schedule import small


@pytest.fixture(params=["graphs", "one kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How steps run."""
    if request.param == "graphs":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    return str(request.param)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, bool]]]:
    """How many models each run of a stack had, and whether it went well; no program of a group is kept."""
    counts: list[tuple[int, bool]] = []
    run = Stack.run

    def noted(self: Stack, *given: Any) -> Any:
        found = run(self, *given)
        counts.append((self.count, found is not None))
        return found

    monkeypatch.setattr(Stack, "run", noted)
    course._groups.clear()
    yield counts
    course._groups.clear()
