"""Tables on the command line: which columns are used, how cells are written, several targets."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An index without a name, a column of numbers with decimal commas, one of texts, two targets."""
    random = np.random.default_rng(5)
    rows = [["", "depth", "site", "grade", "notes", "heat", "flow"]]
    for k, v in enumerate(random.normal(size=90)):
        rows.append([k, v, "ABC"[k % 3], k % 4, f"note {k}", 40 * v + 1000, k % 3 - 5 * v])
    lines = [";".join(f"{x:.4f}".replace(".", ",") if isinstance(x, float) else str(x) for x in row)
             for row in rows]  # fmt: skip
    path = tmp_path / "holes.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


OPTIONS = ("--decimal", ",", "--ignore", "notes", "--target", "heat,flow", "--categories", "grade")


def test_columns_are_chosen_and_what_was_left_out_is_told(command: Command, table: Path) -> None:
    done = command("train", "--data", table, *OPTIONS, "--epochs", 1, "--hidden", 3, "--out", "r")
    assert done.code == 0, done.err
    assert "note: column 'column 0' only numbers the rows and is left out\n" in done.out
    assert "of 8 inputs; targets 'heat', 'flow': regression" in done.out
    done = command("predict", "r", "--data", table, "--out", "p.csv")
    assert done.code == 0, done.err
    header, *rows = csv.reader(Path("p.csv").read_text().splitlines())
    assert header == ["heat", "flow"]
    predicted = np.array(rows, float)
    assert predicted.shape == (90, 2)
    assert 900 < predicted[:, 0].mean() < 1100  # in its own units
    assert "regression of heat, flow" in command("summary", "r").out


def test_each_of_several_targets_has_figures_in_its_units(command: Command, table: Path) -> None:
    options = (*OPTIONS, "--epochs", 2, "--hidden", 3, "--validation-split", 0.2, "--out", "r")
    done = command("train", "--data", table, *options)
    assert done.code == 0, done.err
    result = json.loads(Path("r/result.json").read_text())
    for name, least, most in (("heat", 10, 4000), ("flow", 1, 40)):  # deviations are 40 and 5
        assert least < result[f"test_{name}_rmse"] < most
        assert least < result[f"validation_{name}_rmse"] < most
        assert least < result[f"baseline_{name}_mean_rmse"] < most
        assert f"baseline_{name}_ridge_r2" in result
    assert "test_rmse" not in result  # of several units
    columns = Path("r/history.csv").read_text().splitlines()[0].split(",")
    assert ["heat_rmse", "flow_rmse", "heat_r2", "flow_r2", "val_loss"] == columns[2:7]
    for part in ("test", "train"):
        assert command("evaluate", "r", "--split", part, "--json", f"{part}.json").code == 0
        found = json.loads(Path(f"{part}.json").read_text())
        assert f"{part}_heat_rmse" in found
    predicted = command("predict", "r", "--data", table, "--out", "p.csv")
    assert predicted.code == 0, predicted.err
    _, *rows = csv.reader(Path("p.csv").read_text().splitlines())
    text = gzip.decompress(table.read_bytes()).decode().replace(",", ".").splitlines()[1:]
    truth = np.array([line.split(";")[5:] for line in text], float)
    assert command("evaluate", "r", "--data", table, "--json", "all.json").code == 0
    whole = json.loads(Path("all.json").read_text())
    errors = np.sqrt(np.mean((np.array(rows, float) - truth) ** 2, axis=0))
    assert errors == pytest.approx([whole["holes_heat_rmse"], whole["holes_flow_rmse"]])


def test_ways_out_are_given_as_options(command: Command, table: Path) -> None:
    plain = Path("plain.csv")
    plain.write_text(gzip.decompress(table.read_bytes()).decode())
    for options, text in (
        ((), 'holds numbers with decimal commas, '),
        (("--decimal", ","), "leave the column out with --ignore notes\n"),
        (("--decimal", ",", "--ignore", "note"), "ignored column 'note' is not known: did you mean 'notes'?"),
        (("--features", "depht"), "feature column 'depht' is not known: did you mean 'depth'?"),
        (("--target", "heat,"), "--target: must be names of columns with commas between"),
        (("--decimal", ";"), "--decimal: decimal sign ';' is not known"),
    ):  # fmt: skip
        done = command("train", "--data", plain, *options, "--epochs", 1)
        assert done.code == 2
        assert text in done.err
    assert "give --decimal , or write" in command("train", "--data", plain).err


def test_missing_values_of_other_data_may_be_filled(command: Command, tmp_path: Path) -> None:
    rows = "".join(f"{k},{k % 7},{k * 0.5}\n" for k in range(40))
    Path("whole.csv").write_text("a,b,y\n" + rows)
    Path("gaps.csv").write_text("a,b,y\n1,NA,2\n3,4,5\n")
    train = ("train", "--data", "whole.csv", "--epochs", 1, "--hidden", 3, "--out", "r", "--quiet")
    assert command(*train).code == 0
    done = command("evaluate", "r", "--data", "gaps.csv")
    assert (done.code, "use --missing mean to fill them" in done.err) == (2, True)
    done = command("evaluate", "r", "--data", "gaps.csv", "--missing", "drop", "--json", "e.json")
    assert done.code == 0, done.err
    assert json.loads(Path("e.json").read_text())["rows"] == 1
    done = command("predict", "r", "--data", "gaps.csv", "--missing", "mean", "--out", "p.csv")
    assert done.code == 0, done.err
    assert len(Path("p.csv").read_text().splitlines()) == 3


def test_validation_rows_leave_the_statistics_alone(command: Command) -> None:
    """The rows that are kept back to validate are far from all others."""
    from magmadnn.data import split_rows

    train = split_rows(100, 0.2, 0)[0]
    kept = train[split_rows(len(train), 0.25, 0)[1]]
    x = np.linspace(-1, 1, 100)
    x[kept] = 1e6
    lines = [f"{a},{k % 7},{k * 0.5}" for k, a in enumerate(x)]
    Path("t.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    done = command(
        "train", "--data", "t.csv", "--epochs", 1, "--hidden", 3, "--validation-split", 0.25,
        "--out", "r",
    )  # fmt: skip
    assert done.code == 0, done.err
    record = json.loads(Path("r/model/record.json").read_text())["record"]
    assert abs(record["model"]["preparation"]["mean"][0]) < 1
