"""Shared by the tests of this folder: both ways in which steps run on a device."""

from __future__ import annotations

import pytest

from magmadnn.runtime.cuda.schedule import small


@pytest.fixture(params=["graphs", "one kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How steps run."""
    if request.param == "graphs":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    return str(request.param)
