"""What tests of the storage folder share."""

from __future__ import annotations

import pytest

from magmadnn.storage.disk import calls


@pytest.fixture
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: the order of calls is tested elsewhere, only time would be lost."""
    monkeypatch.setattr(calls, "sync", lambda descriptor: None)
