"""magmadnn tune: what is shown, and what is removed."""

from __future__ import annotations

import pytest

from magmadnn.compiler.llvm.gemm.cuts import RULE
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.tune.file import Record, Records, RecordsOf
from tests.runtime.cuda.emulator import emulated_device, needs_compiler


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MAGMADNN_TUNE_SECONDS", raising=False)


def test_nothing_measured(command) -> None:
    done = command("tune", "show")
    assert (done.code, done.err) == (0, "")
    machine, file, limit, single, double, measured = done.out.splitlines()
    assert host().cpu in machine
    assert str(Records(host()).path) in file
    assert limit == "limit     10 seconds for each process"
    assert single.startswith("by rule   float32: tile ") and " vectors of " in single
    assert double.startswith("by rule   float64: tile ")
    assert measured == "measured  0 products"


def test_show_and_clear(command) -> None:
    records = Records(host())
    records.add({"float32 5 x 7 x 3 NN": Record("copy B", {RULE: 100.0, "copy B": 80.0})})
    records.add({"float32 11 x 7 x 3 NN": Record(RULE, {RULE: 110.0})})
    records.add({"float32 3 x 7 x 3 NN": Record(RULE, {})})
    lines = command("tune", "show").out.splitlines()
    assert lines[5:] == [
        "measured  2 products",
        "  float32 11 x 7 x 3 NN     110.0 us  by rule",
        "  float32 3 x 7 x 3 NN   not measured yet: magmadnn tune run",
        "  float32 5 x 7 x 3 NN       80.0 us  copy B, 20% less than by rule",
    ]
    done = command("tune", "clear")
    assert done.out == f"removed the measurements of 3 products: {records.path}\n"
    assert not records.path.exists()
    assert command("tune", "clear").out.startswith("removed the measurements of 0 products")


def test_run_measures_what_programs_noted(command) -> None:
    assert command("tune", "run").out.startswith("trying the ways of 0 products")
    words = "float32 48 x 47 x 46 NN, rows 47 46 46 apart"
    Records(host()).add({words: Record(RULE, {})})
    done = command("tune", "run", "--seconds", "30")
    assert (done.code, done.err) == (0, "")
    first, product = done.out.splitlines()
    assert first == "trying the ways of 1 product for 30 seconds at most"
    assert product.startswith(f"  {words}  ") and " us  " in product
    record = Records(host()).read()[words]
    assert record.choice in record.microseconds and len(record.microseconds) >= 8
    assert "its share of the time" in command("tune", "run", "--seconds", "1e-6").out
    assert Records(host()).read()[words] == record


@needs_compiler
def test_what_was_measured_on_a_gpu(command) -> None:
    with emulated_device() as engine:
        records = RecordsOf("emulated", engine.library, engine.library)
        records.add({"emulated: 5 x 7 x 3 nn of tf32": Record("00", {"0": 20.0, "1": 15.0})})
        lines = command("tune", "show").out.splitlines()
        assert lines[6:] == [
            "device    emulated",
            f"file      {records.path}",
            "measured  1 product",
            "  5 x 7 x 3 nn of tf32: 15.0 us, the first proposal 20.0",
        ]
        command("tune", "clear")
        assert not records.path.exists()


def test_mistakes(command) -> None:
    done = command("tune")
    assert (done.code, done.out) == (2, "")
    assert "show|run|clear" in done.err
    done = command("tune", "run", "--seconds", "0")
    assert (done.code, "must be a number above 0" in done.err) == (2, True)
    done = command("tune", "shwo")
    assert done.code == 2
    assert "did you mean 'show'?" in done.err


def test_a_file_that_cannot_be_removed(command) -> None:
    records = Records(host())
    records.path.mkdir(parents=True)
    done = command("tune", "clear")
    assert done.code == 2
    assert f"tune: cannot remove {records.path}" in done.err


def test_help(command, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        command("tune", "--help")
    assert end.value.code == 0
    assert "MAGMADNN_TUNE_SECONDS" in capsys.readouterr().out
