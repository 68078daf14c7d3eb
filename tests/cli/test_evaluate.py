"""`magmadnn evaluate`: rows of the run by --split; figures are called after what was evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md

RUN = (*"--hidden 7 --epochs 2 --seed 5 --validation-split 0.3 --quiet --out run".split(),)


def table(path: Path, rows: int = 97) -> np.ndarray:
    """A table of two inputs and what is to be predicted; every row is another one."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(rows, 2))
    y = x[:, 0] - 0.5 * x[:, 1] ** 2 + 0.1 * rng.normal(size=rows)
    lines = [f"{a:.6f},{b:.6f},{c:.6f}" for (a, b), c in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,c", *lines]) + "\n")
    return np.array([[float(cell) for cell in line.split(",")] for line in lines])


def figures(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def test_each_split_is_the_rows_that_the_run_kept_for_it(command: Any, tmp_path: Path) -> None:
    values = table(tmp_path / "t.csv")
    assert command("train", "--data", "t.csv", *RUN).code == 0
    found = {}
    for split in ("test", "validation", "train"):
        done = command("evaluate", "run", "--split", split, "--json", "e.json")
        assert (done.code, done.err) == (0, "")
        assert f"{split} rows of the run in run" in done.out and f"{split}_rmse" in done.out
        found[split] = figures("e.json")
        assert found[split]["evaluated"] == split
    trained = figures("run/result.json")
    for name in ("test_loss", "test_rmse", "test_r2"):
        assert found["test"][name] == trained[name]
    # what fit measured on the rows that it kept back, after the last epoch
    row = json.loads(Path("run/history.json").read_text())["rows"][-1]
    assert found["validation"]["validation_loss"] == pytest.approx(row["val_loss"], rel=1e-5)
    # the three are all rows, each once: sums of squares add up to that of all
    assert sum(part["rows"] for part in found.values()) == len(values)
    total = sum(f["rows"] * f[f"{name}_rmse"] ** 2 for name, f in found.items())
    done = command("evaluate", "run", "--data", "./t.csv", "--json", "all.json")
    assert done.code == 0 and "note: the network was trained on rows of ./t.csv" in done.out
    whole = figures("all.json")
    assert whole["evaluated"] == "t" and whole["rows"] == len(values)
    # float64 sums of errors of float32 predictions of order 1, twice
    assert total == pytest.approx(whole["rows"] * whole["t_rmse"] ** 2, rel=1e-4)


def test_rows_of_training_are_those_that_fit_trained_on(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path / "t.csv")
    seen: dict[str, list[np.ndarray]] = {"run": [], "evaluate": []}
    now = "run"
    source, evaluated = md.training.model.fitting.ArraySource, md.Model.evaluate

    def kept(*args: Any, **options: Any) -> Any:
        made = source(*args, **options)
        if now == "run" and options.get("chosen") is not None:
            seen[now].append(args[0][0][options["chosen"]])
        return made

    def looked(model: md.Model, x: Any, *args: Any, **options: Any) -> Any:
        if now == "evaluate":
            seen[now].append(x)
        return evaluated(model, x, *args, **options)

    monkeypatch.setattr("magmadnn.training.model.fitting.ArraySource", kept)
    monkeypatch.setattr(md.Model, "evaluate", looked)
    command("train", "--data", "t.csv", *RUN)
    now = "evaluate"
    for split in ("validation", "train"):
        assert command("evaluate", "run", "--split", split, "--quiet").code == 0
    held, rest = sorted(seen["run"], key=len)
    np.testing.assert_array_equal(seen["evaluate"][0], held)
    np.testing.assert_array_equal(seen["evaluate"][1], rest)


def test_figures_are_called_after_the_file(command: Any, tmp_path: Path) -> None:
    table(tmp_path / "t.csv")
    table(tmp_path / "next year.csv", 31)
    command("train", "--data", "t.csv", *RUN)
    done = command("evaluate", "run", "--data", "next year.csv", "--json", "e.json")
    assert "next year_rmse" in done.out and "test_" not in done.out and "note" not in done.out
    assert list(figures("e.json")) == [
        "evaluated",
        "rows",
        "next year_loss",
        "next year_rmse",
        "next year_r2",
    ]


def test_splits_that_cannot_be_told_are_refused(command: Any, tmp_path: Path) -> None:
    table(tmp_path / "t.csv")
    command("train", "--data", "t.csv", *RUN)
    whole = (
        "--hidden",
        "7",
        "--epochs",
        "1",
        "--validation-split",
        "0",
        "--quiet",
        "--out",
        "whole",
    )
    command("train", "--data", "t.csv", *whole)
    (tmp_path / "copy").mkdir()
    (tmp_path / "run" / "model").rename(tmp_path / "copy" / "model")
    (tmp_path / "run" / "model").symlink_to(tmp_path / "copy" / "model")
    for arguments, text in (
        (("run",), "--data is missing: give data, or rows of the run by --split test"),
        (("run", "--split", "tset"), "did you mean 'test'?"),
        (
            ("whole", "--split", "validation"),
            "kept no rows back (--validation-split 0); choose train or test",
        ),
        (("copy", "--split", "test"), "copy holds no run.json, which says how the rows were split"),
        (("whole", "--split", "test", "--missing", "mean"), "--missing does not go with --split"),
    ):
        done = command("evaluate", *arguments)
        assert done.code == 2 and text in done.err, done.err
    table(tmp_path / "t.csv", 96)
    done = command("evaluate", "whole", "--split", "train")
    assert (
        done.code == 2
        and "the training rows are not those that the run in whole was started with" in done.err
    )
