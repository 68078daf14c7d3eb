"""How long a rank that waits for messages tests, and when its thread does."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from magmadnn.comm import mpi


class Counting:
    """An engine whose call ends when told; counts looks by the thread."""

    def __init__(self) -> None:
        self.looks, self.is_over = 0, False

    def advance(self, running: Any) -> None:
        self.looks += 1
        running.ended = self.is_over


@pytest.mark.parametrize(("cores", "ranks", "tests"), [(8, 2, True), (7, 2, False), (2, 2, False)])
def test_ranks_with_cores_to_spare_test_for_longer(
    cores: int, ranks: int, tests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    ledger: Any = SimpleNamespace(size=ranks)
    assert bool(mpi._testing_seconds(ledger)) is tests
    assert not mpi._testing_seconds(None)  # ranks of several machines, or of an mpiexec


def test_the_thread_leaves_calls_alone_that_their_rank_tests() -> None:
    progress, engine = mpi._Progress(), Counting()
    running: Any = SimpleNamespace(engine=engine, ended=False)
    progress.polled = time.monotonic() + 60
    progress.add(running)
    time.sleep(0.05)
    assert 1 <= engine.looks <= 60  # once a millisecond
    engine.is_over = True
    progress.polled = 0.0
    for _ in range(500):
        if running.ended:
            break
        time.sleep(0.01)
    assert running.ended and not progress.running


def test_the_thread_is_quick_where_nobody_tests() -> None:
    progress, engine = mpi._Progress(), Counting()
    running: Any = SimpleNamespace(engine=engine, ended=False)
    progress.add(running)
    time.sleep(0.05)
    engine.is_over = True
    assert engine.looks >= 2
