"""magmadnn tune: what is shown, and what is removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magmadnn.runtime.cuda.measured import Record, RecordsOf
from tests.runtime.cuda.emulator import emulated_device, needs_compiler


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MAGMADNN_TUNE_SECONDS", raising=False)


@pytest.fixture
def records() -> Iterator[RecordsOf]:
    """Those of an emulated device, which is there meanwhile."""
    with emulated_device() as engine:
        yield RecordsOf(engine.library)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magmadnn.cli.tune.device_count", lambda: 0)


@pytest.mark.parametrize("action", ["show", "clear"])
def test_without_a_gpu(no_device: None, command: Any, action: str) -> None:
    done = command("tune", action)
    assert (done.code, done.out, done.err) == (0, "no GPU is there: nothing is measured\n", "")


@needs_compiler
def test_nothing_measured(records: RecordsOf, command: Any) -> None:
    done = command("tune", "show")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "device    emulated",
        f"file      {records.path}",
        "measured  0 products",
    ]


@needs_compiler
def test_show_and_clear(records: RecordsOf, command: Any) -> None:
    records.settle("emulated: 5 x 7 x 3 nn of tf32", Record("00", {"0": 20.0, "1": 15.0}))
    records.settle("emulated: 2 x 7 x 3 nn of tf32", Record("01", {"0": 4.04, "1": 5.0}))
    assert command("tune", "show").out.splitlines() == [
        "device    emulated",
        f"file      {records.path}",
        "measured  2 products",
        "  2 x 7 x 3 nn of tf32: 4.0 us, the first proposal 4.0",
        "  5 x 7 x 3 nn of tf32: 15.0 us, the first proposal 20.0",
    ]
    assert records.path is not None
    done = command("tune", "clear")
    assert done.out == f"removed the measurements of 2 products: {records.path}\n"
    assert not records.path.exists()
    assert command("tune", "clear").out.startswith("removed the measurements of 0 products")


@needs_compiler
def test_that_measuring_is_off_is_said(
    records: RecordsOf, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", "0")
    first, *rest = command("tune", "show").out.splitlines()
    assert first == "MAGMADNN_TUNE_SECONDS is 0: nothing is measured, and this is not used"
    assert len(rest) == 3
    monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", "much")
    done = command("tune", "show")
    assert done.code == 2
    assert "MAGMADNN_TUNE_SECONDS must be a number of at least 0, got 'much'" in done.err


def test_mistakes(command: Any) -> None:
    done = command("tune")
    assert (done.code, done.out) == (2, "")
    assert "show|clear" in done.err
    done = command("tune", "run")
    assert done.code == 2
    assert "known are clear, show" in done.err
    done = command("tune", "shwo")
    assert done.code == 2
    assert "did you mean 'show'?" in done.err


@needs_compiler
def test_a_file_that_cannot_be_removed(records: RecordsOf, command: Any) -> None:
    assert records.path is not None
    records.path.mkdir(parents=True)
    done = command("tune", "clear")
    assert done.code == 2
    assert f"tune: cannot remove {records.path}" in done.err


def test_help(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command("tune", "--help")
    assert end.value.code == 0
    assert "MAGMADNN_TUNE_SECONDS" in capsys.readouterr().out
