"""magmadnn train: what it prints, and what it leaves."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli.arguments import in_bytes
from magmadnn.cli.runs import training_run
from magmadnn.cli.train import parser
from magmadnn.errors import ArgumentError
from magmadnn.storage.run_folder import read_run

SMALL = ("--hidden", "7", "--epochs", "2", "--batch-size", "16")


def result_of(path) -> dict:
    return json.loads(path.read_text())


def rows_of(run) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "history.csv").read_text().splitlines()))


def test_everything_that_a_run_leaves(command, images, tmp_path, draw) -> None:
    done = command("train", "--data", images, *SMALL, "--out", "run", "--json", "r.json")
    assert (done.code, done.err) == (0, "")
    run = tmp_path / "run"
    assert sorted(p.name for p in run.iterdir()) == [
        "checkpoints", "curves.png", "history.csv", "history.json", "model", "result.json",
        "run.json",
    ]  # fmt: skip
    assert (run / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = rows_of(run)
    assert [row["epoch"] for row in rows] == ["1.0", "2.0"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "samples_per_second"} <= set(rows[0])
    assert [row["epoch"] for row in result_of(run / "history.json")["rows"]] == [1.0, 2.0]
    result = result_of(tmp_path / "r.json")
    assert result == result_of(run / "result.json")
    assert list(result) == [
        "test_loss", "test_accuracy", "validation_loss", "validation_accuracy", "trained_on",
        "trained_rows", "kept_back_rows", "best_epoch", "validated_epochs",
        "train_seconds", "samples_per_second", "epochs",
        "parameters", "seed", "device", "precision", "parameters_sha256",
    ]  # fmt: skip
    assert (result["epochs"], result["seed"], result["device"]) == (2, 0, "cpu")
    assert result["parameters"] == 35 * 7 + 7 + 7 * 4 + 4
    assert result["train_seconds"] > 0 and len(result["parameters_sha256"]) == 64
    again = md.load(run)
    assert again.predict(np.zeros((3, 5, 7, 1), np.float32)).shape == (3, 4)


def test_skipped_steps_are_counted(command, images, tmp_path) -> None:
    command("train", "--data", images, *SMALL, "--precision", "mixed_fp16", "--out", "run")
    rows = rows_of(tmp_path / "run")
    assert all(row["skipped_steps"] in ("0.0", "1.0", "2.0") for row in rows)
    result = result_of(tmp_path / "run" / "result.json")
    assert float(rows[-1]["skipped_steps"]) == result["skipped_steps"]


def test_what_is_printed(command, images) -> None:
    lines = command("train", "--data", images, *SMALL, "--out", "run").out.splitlines()
    assert "307 training and 61 test rows of 5 x 7 x 1 inputs" in lines[0]
    assert lines[1] == "classification, since such data has classes (--task chooses)"
    assert "mlp, preset image, seed 0, on cpu" in lines
    assert any(line.startswith("dense_1") and "(batch, 7)" in line for line in lines)
    header = next(line for line in lines if line.split()[:1] == ["epoch"])
    assert header.split()[1:] == [
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "learning_rate",
        "samples_per_second",
    ]
    assert lines[-3].startswith("test_loss ") and "test_accuracy" in lines[-3]
    assert lines[-2].startswith("trained on 276 training rows up to epoch ")
    assert ", the best of 2 on 31 validation rows: validation_loss " in lines[-2]


def test_quiet_prints_nothing(command, images) -> None:
    done = command("train", "--data", images, *SMALL, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_run_json_holds_all_arguments_resolved(command, images, tmp_path) -> None:
    command("train", "--data", "images", *SMALL, "--out", "run", "--json", "r.json", "--lr", "0.01")
    arguments = read_run(tmp_path / "run")
    assert len(arguments.pop("data_sha256")) == 64
    assert arguments == {
        "model": "mlp", "data": str(images), "target": ["-1"], "task": None, "missing": None,
        "categories": [],
        "decimal": ".", "features": None, "pca": None, "ignore": [],
        "test_split": 0.2, "device": "auto", "precision": "float32", "seed": 0,
        "checkpoint_every": None,
        "json": str(tmp_path / "r.json"), "preset": "image", "hidden": [7], "activation": "relu",
        "optimizer": "adam", "lr": 0.01, "weight_decay": None, "batch_size": 16, "epochs": 2,
        "validation_split": 0.1, "dropout": 0.2, "cosine": True, "refit": False,
        "data_folder": None, "image_size": None, "bad_images": "error", "augment": "none",
    }  # fmt: skip


def test_the_folder_is_there_before_the_first_step(command, images, tmp_path, monkeypatch) -> None:
    seen = []

    def look(*args: object, **options: object) -> None:
        seen.append(sorted(p.name for p in (tmp_path / "run").iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(md.Model, "fit", look)
    assert command("train", "--data", images, *SMALL, "--out", "run").code == 130
    assert seen == [["run.json"]]


def test_two_runs_in_one_second_get_two_folders(command, images, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training_run.time, "strftime", lambda form: "2026-01-02_03-04-05")
    for _ in range(3):
        assert command("train", "--data", images, *SMALL, "--quiet").code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "2026-01-02_03-04-05-mlp", "2026-01-02_03-04-05-mlp-2", "2026-01-02_03-04-05-mlp-3",
    ]  # fmt: skip


def test_the_same_arguments_give_the_same_parameters(command, images, tmp_path) -> None:
    hashes = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        command("train", "--data", images, *SMALL, "--out", name, "--seed", seed, "--quiet")
        hashes.append(result_of(tmp_path / name / "result.json")["parameters_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_regression_is_reported_in_its_own_units(command, prices, tmp_path) -> None:
    done = command("train", "--data", prices, "--out", "run", "--epochs", "30", "--lr", "0.01")
    assert "regression, since the target has values that are not whole" in done.out
    result = result_of(tmp_path / "run" / "result.json")
    assert {"test_rmse", "test_r2"} <= set(result)
    assert "test_accuracy" not in result
    # The same once more by hand, from the library's parts.
    data = md.data.load(prices)
    model = md.load(tmp_path / "run")
    predicted = model.predict(data.test()[0], prepared=True)
    residual = predicted - data.y_test
    rmse = math.sqrt(np.mean(residual**2))
    r2 = 1 - np.sum(residual**2) / np.sum((data.y_test - data.y_test.mean()) ** 2)
    assert result["test_rmse"] == pytest.approx(rmse, rel=1e-12)
    # The r2 of training is computed on float32 values: sums of n = 31 squares, then a difference from 1.
    assert result["test_r2"] == pytest.approx(r2, abs=31 * 2.0**-23)
    assert r2 > 0.9
    assert "simple methods on the same rows: mean_rmse" in done.out
    assert result["baseline_ridge_r2"] > 0.99  # the target is linear
    spread = data.y_test - data.y_train.mean()
    assert result["baseline_mean_rmse"] == pytest.approx(math.sqrt(np.mean(spread**2)), rel=1e-9)
    # In the table, one standard deviation of the target is about 300.
    last = rows_of(tmp_path / "run")[-1]
    unit = data.preparation.target_std[0]
    assert float(last["rmse"]) == pytest.approx(math.sqrt(float(last["loss"])) * unit, rel=1e-5)


def test_a_table_with_texts_as_classes(command, soils, tmp_path) -> None:
    done = command("train", "--data", soils, "--target", "soil", "--epochs", "3", "--out", "run")
    assert "classification, since the target is text" in done.out
    assert "simple methods on the same rows: majority_accuracy" in done.out
    assert "preset table" in done.out
    assert "test_accuracy" in result_of(tmp_path / "run" / "result.json")


def test_whole_numbers_are_classes_unless_told_otherwise(command, tmp_path) -> None:
    lines = ["a,b,grade", *(f"{k * 0.37 % 1:.3f},{k * 0.71 % 2:.3f},{k % 3}" for k in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    classes = command("train", "--data", "t.csv", "--epochs", "1", "--out", "a")
    assert "classification, since the target has 3 whole values in 60 rows" in classes.out
    numbers = command(
        "train", "--data", "t.csv", "--epochs", "1", "--out", "b", "--task", "regression"
    )
    assert "regression, since --task says so" in numbers.out


def test_without_validation(command, images) -> None:
    done = command("train", "--data", images, *SMALL, "--out", "run", "--validation-split", "0")
    assert done.code == 0
    assert "val_loss" not in done.out
    assert done.out.splitlines()[-2] == "trained on 307 training rows"


def test_the_preset_of_the_papers_says_what_it_is(command, images, tmp_path) -> None:
    done = command("train", "--data", images, "--preset", "paper", "--epochs", "1", "--out", "run")
    assert (
        "note: preset paper is the timing test of the MagmaDNN papers and hardly learns" in done.out
    )
    arguments = read_run(tmp_path / "run")
    assert arguments["hidden"] == [528, 528, 528]
    assert (arguments["activation"], arguments["optimizer"]) == ("sigmoid", "sgd")
    assert (arguments["lr"], arguments["weight_decay"], arguments["batch_size"]) == (
        0.05,
        0.001,
        100,
    )


def test_another_optimiser_does_not_get_the_presets_weight_decay(command, images, tmp_path) -> None:
    options = ("--preset", "paper", "--hidden", "5", "--epochs", "1", "--out", "run")
    command("train", "--data", images, *options, "--optimizer", "AdamW")
    arguments = read_run(tmp_path / "run")
    assert (arguments["optimizer"], arguments["weight_decay"]) == ("adamw", None)


def test_without_matplotlib_one_line_says_so(command, images, tmp_path) -> None:
    done = command("train", "--data", images, *SMALL, "--out", "run")
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if "curves.png" in line]
    assert len(lines) == 1
    assert lines[0] == (
        "no curves.png: history.plot needs matplotlib, which is not installed: "
        'pip install -e ".[plot]" in the clone, or pip install "magmadnn[plot]"'
    )
    assert not (tmp_path / "run" / "curves.png").exists()
    assert (tmp_path / "run" / "result.json").exists()


def test_missing_values_are_filled_or_left_out(command, prices, tmp_path) -> None:
    lines = prices.read_text().splitlines()
    lines[4] = "?," + lines[4].partition(",")[2]
    prices.write_text("\n".join(lines))
    assert command("train", "--data", prices, "--epochs", "1").code == 2
    filled = command("train", "--data", prices, "--epochs", "1", "--missing", "mean")
    dropped = command("train", "--data", prices, "--epochs", "1", "--missing", "drop")
    assert "126 training and 31 test rows" in filled.out
    assert "125 training and 31 test rows" in dropped.out


def test_a_pipe_is_written_to_and_not_replaced(command, images, tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(
        pipe, os.O_RDWR | os.O_NONBLOCK
    )  # both ways, so that nobody waits for the other
    try:
        done = command("train", "--data", images, *SMALL, "--json", pipe, "--quiet")
        assert (done.code, done.err) == (0, "")
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert json.loads(os.read(reader, 65536))["epochs"] == 2
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("output", "code"),
    [
        (">&-", 1),
        pytest.param(">/dev/full", 1, marks=pytest.mark.long),
        ("| true", 141),
        ("2>&-", 0),
        (">/dev/full 2>/dev/full", 1),
    ],
)
def test_a_training_whose_output_cannot_be_written_keeps_its_results(
    images: Path, tmp_path: Path, without_curves: str, output: str, code: int
) -> None:
    program = (
        f"{sys.executable} -m magmadnn train --data images --hidden 5 --epochs 1 --out run {output}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{program}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": without_curves},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (tmp_path / "run" / "result.json").exists()
    told = code == 1 and "2>" not in output
    assert ("magmadnn: note: standard output cannot be written any more" in done.stderr) == told
    assert done.stderr.count("\n") == told


def test_a_step_beyond_the_memory_limit_is_refused_in_words_of_the_command(
    command, images, tmp_path
) -> None:
    given = ("train", "--data", images, "--hidden", "7", "--epochs", "1", "--batch-size", "16")
    refused = command(*given, "--out", "first", "--memory-limit", "1.5KB")
    assert refused.code == 2
    start = "magmadnn: error: fit: a step with --batch-size 16 takes "
    end = ", or share the network out over more workers: --workers 2 --parallel auto\n"
    assert refused.err.startswith(start) and refused.err.endswith(end)
    assert " bytes, --memory-limit is 1,500; not even one row fits" in refused.err
    needed = int(refused.err.removeprefix(start).split()[0].replace(",", ""))
    refused = command(*given, "--out", "run", "--memory-limit", f"{needed - 1}")
    assert (
        f"--memory-limit is {needed - 1:,}; the largest that fits is --batch-size " in refused.err
    )
    assert not (tmp_path / "run" / "history.csv").exists()
    done = command("train", "--resume", "run", "--memory-limit", f"{needed}B")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("7", 7), ("7B", 7), ("3KB", 3000), ("1.5KiB", 1536), ("2GB", 2 * 10**9), ("1TiB", 2**40)],
)
def test_amounts_of_memory_have_units(text: str, bytes_: int) -> None:
    assert in_bytes(text) == bytes_


def test_other_ranks_tell_of_the_folder_that_all_see(command, images, tmp_path) -> None:
    """What they keep themselves is in a folder of their own, which is gone when the message is read."""
    assert command("train", "--data", images, *SMALL, "--out", "run").code == 0
    arguments = parser().parse_args(["--resume", str(tmp_path / "run"), "--epochs", "5"])
    with pytest.raises(ArgumentError) as raised:
        training_run.follow(arguments)
    assert f"of the run in {tmp_path / 'run'}; " in str(raised.value)
    assert "magmadnn-rank-" not in str(raised.value)
