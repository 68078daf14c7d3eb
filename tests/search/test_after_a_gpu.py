"""Workers of a process that has used a GPU: they are begun anew, since CUDA does not work in its forks."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from magmadnn.backends import cuda
from magmadnn.search.workers.worker import shares
from magmadnn.training.many.running import room
from tests.search.problems import S, build, table, untimed

X, Y = table()
SPACE = {"units": S.integer(3, 6)}


def build_there(units: int, seed: int) -> Any:
    """A model, refused where training on a GPU would be."""
    cuda.check_process()
    return build(units=units, seed=seed)


def build_killed(units: int, seed: int) -> Any:
    """A model; one of them ends its process."""
    if units == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    if units == 5:
        os._exit(7)
    return build_there(units, seed)


def run(build: Any, **options: Any) -> Any:
    return S.run(build, SPACE, X, Y, method="grid", epochs=2, seed=1, **options)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has opened a GPU, as far as it knows."""
    monkeypatch.setattr(cuda, "_opened_by", [os.getpid()])


@pytest.mark.long
def test_tables_are_the_same_after_a_gpu_was_used(used: None, tmp_path: Any) -> None:
    here = run(build_there)
    assert [t.state for t in here.trials] == ["done"] * 4
    for workers in (1, 3):
        there = run(build_there, workers=workers, out=tmp_path / f"{workers}")
        assert untimed(there) == untimed(here)


@pytest.mark.long
def test_workers_begun_anew_are_replaced(used: None, capfd: Any) -> None:
    study = run(build_killed, workers=2)
    assert [t.state for t in study.trials] == ["done", "failed", "failed", "done"]
    assert "by signal 11" in study.trials[1].reason
    assert study.trials[2].reason == "its process ended with exit code 7"


def test_a_function_that_no_module_has_trains_on_the_cpu_and_says_so(
    used: None, capsys: Any
) -> None:
    def local(units: int, seed: int) -> Any:
        return build(units=units, seed=seed)

    study = run(local, workers=2)
    assert untimed(study) == untimed(run(build))
    said = capsys.readouterr()
    assert "this process has used a GPU, and its workers can train on the CPU only" in (
        said.out + said.err
    )


def test_workers_plan_on_their_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,1")
    assert [(s.device, s.on_host, s.on_device) for s in shares(3)] == [
        ("4", 3, 2), ("1", 3, 1), ("4", 3, 2)
    ]  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    assert [(s.device, s.on_host, s.on_device) for s in shares(2)] == [(None, 2, 2)] * 2
    monkeypatch.setattr(room, "available_bytes", lambda: 9_001)
    monkeypatch.setattr(room, "_sharers", {"host": 1, "device": 1})
    assert room._free(None) == 9_001
    room.share_memory(3, 2)
    assert room._free(None) == 3_000


def test_each_worker_shares_the_memory(tmp_path: Any) -> None:
    def seeing(units: int) -> Any:
        (tmp_path / f"{units}").write_text(str(room._sharers["host"]))
        return build(units=units)

    run(seeing, workers=3)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"3"}
    assert room._sharers["host"] == 1
