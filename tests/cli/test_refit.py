"""Which epoch a training keeps by its validation rows, and `--refit`: training anew on all rows up to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.callbacks import Checkpoint
from magmadnn.training.loop.fit import Fit

from .test_resume import history, sha256

Command = Callable[..., Any]
EPOCHS, KEPT, ALL = (
    20,
    94,
    126,
)  # rows of 157: 31 are for testing, a quarter of the others validates
OPTIONS = (
    "--hidden", "16", "--lr", "0.01", "--epochs", str(EPOCHS), "--batch-size", "16",
    "--validation-split", "0.25", "--checkpoint-every", "5", "--seed", "2",
)  # fmt: skip


def noisy(folder: Path) -> Path:
    """A table whose target is mostly noise, so that late epochs are not the best."""
    random = np.random.default_rng(6)
    x = random.normal(size=(157, 3)) * (1.0, 30.0, 0.1)
    rows = [",".join(f"{v:.5f}" for v in (*row, row[0] + random.normal(0, 2))) for row in x]
    (folder / "noisy.csv").write_text("north,east,depth,price\n" + "\n".join(rows) + "\n")
    return folder / "noisy.csv"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that keeps the best epoch, `kept`, and one that trains anew, `anew`."""
    folder = tmp_path_factory.mktemp("runs")
    data = noisy(folder)
    for name, more in (("kept", ()), ("anew", ("--refit",))):
        arguments = ["--data", str(data), *OPTIONS, *more, "--out", str(folder / name), "--quiet"]
        assert main(["train", *arguments]) == 0
    return folder


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def test_the_parameters_of_the_best_epoch_are_kept(command: Command, runs: Path) -> None:
    result, losses = result_of(runs / "kept"), [row["val_loss"] for row in history(runs / "kept")]
    best = int(np.argmin(losses)) + 1
    assert 1 < best < EPOCHS
    assert (result["best_epoch"], result["validated_epochs"], result["epochs"]) == (best, 20, 20)
    assert (result["trained_on"], result["trained_rows"], result["kept_back_rows"]) == (
        "training rows", KEPT, ALL - KEPT,
    )  # fmt: skip
    done = command("evaluate", runs / "kept", "--split", "validation", "--json", "v.json")
    assert done.code == 0, done.err
    found = json.loads(Path("v.json").read_text())
    for name in ("validation_loss", "validation_rmse", "validation_r2"):
        assert found[name] == pytest.approx(result[name], rel=1e-6)
    assert result["validation_loss"] == min(losses)


def test_refit_is_a_training_on_all_rows_up_to_the_best_epoch(runs: Path) -> None:
    """The same by hand: the rate is planned for all epochs, with the steps that all rows need."""
    result, first = result_of(runs / "anew"), result_of(runs / "kept")
    assert history(runs / "anew") == history(runs / "kept")
    best = first["best_epoch"]
    assert (result["best_epoch"], result["epochs"], result["validated_epochs"]) == (best, best, 20)
    assert (result["trained_on"], result["trained_rows"], result["kept_back_rows"]) == (
        "training and validation rows", ALL, ALL - KEPT,
    )  # fmt: skip
    assert result["validation_loss"] == first["validation_loss"]
    data = md.data.load(runs / "noisy.csv", seed=2)
    decay = json.loads((runs / "anew" / "run.json").read_text())["arguments"]["weight_decay"]
    rate = md.optim.cosine(0.01, EPOCHS * -(-ALL // 16))
    model = md.models.mlp(
        (3,), 1, hidden=(16,), loss="mse",
        optimizer=md.optim.AdamW(rate, weight_decay=decay), seed=2,
    )  # fmt: skip
    model.fit(*data.train(), batch_size=16, epochs=best, verbose=False)
    expected = parameters_sha256((str(p.node.name), p.value.read()) for p in model.parameters())
    assert sha256(runs / "anew") == expected
    again = md.load(runs / "anew")
    np.testing.assert_array_equal(again.preparation.mean, data.preparation.mean)


def test_both_trainings_are_told(command: Command, runs: Path) -> None:
    data = runs / "noisy.csv"
    done = command("train", "--data", data, *OPTIONS, "--refit", "--out", "run")
    assert done.code == 0, done.err
    best = result_of(runs / "anew")["best_epoch"]
    assert (
        f"epoch {best} of 20 is the best on the validation rows: training anew up to that epoch, with "
        "these, on 126 rows"
    ) in done.out
    told = (
        f"trained on 126 training and validation rows up to epoch {best}, the best of 20 on 32 "
        "validation rows: validation_loss "
    )
    assert told in done.out
    assert told in command("train", "--resume", "run").out  # finished
    columns = (Path("run/refit/history.csv").read_text().splitlines()[0]).split(",")
    assert "rmse" in columns and "val_rmse" not in columns


@pytest.mark.parametrize("step", [3, 47])
def test_a_break_in_the_first_training(
    command: Command, runs: Path, interrupt: Any, goes_on: Any, step: int
) -> None:
    interrupt(step)
    options = (*OPTIONS, "--refit", "--out", "run")
    assert command("train", "--data", runs / "noisy.csv", *options).code == 130
    assert not Path("run/selection.json").exists()
    goes_on()
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(Path("run")) == sha256(runs / "anew")


@pytest.mark.parametrize("step", [0, 7])
def test_a_break_in_the_second_training(
    command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    on_batch_end = Checkpoint.on_batch_end

    def broken(self: Checkpoint, fit: Fit) -> None:
        on_batch_end(self, fit)
        if Path("run/selection.json").exists() and fit.steps >= step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "on_batch_end", broken)
    options = (*OPTIONS, "--refit", "--out", "run")
    assert command("train", "--data", runs / "noisy.csv", *options).code == 130
    monkeypatch.setattr(Checkpoint, "on_batch_end", on_batch_end)
    shutil.rmtree("run/checkpoints")  # the first training is not needed any more
    done = command("train", "--resume", "run", "--refit", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert sha256(Path("run")) == sha256(runs / "anew")
    assert history(Path("run/refit")) == history(runs / "anew" / "refit")


def test_what_refit_does_not_go_with(command: Command, runs: Path) -> None:
    done = command("evaluate", runs / "anew", "--split", "validation")
    assert done.code == 2
    assert "trained on its validation rows too (--refit)" in done.err
    assert "126 train rows" in command("evaluate", runs / "anew", "--split", "train").out
    done = command("train", "--resume", runs / "kept", "--refit")
    assert (done.code, "--refit was not given to the run in" in done.err) == (2, True)


def test_a_damaged_selection_is_one_line(command: Command, runs: Path) -> None:
    shutil.copytree(runs / "anew", "run")
    Path("run/result.json").unlink()
    path = Path("run/selection.json")
    path.write_text(path.read_text().replace('"best_epoch": ', '"best_epoch": -'))
    done = command("train", "--resume", "run", "--quiet")
    assert done.code == 2
    assert "selection.json: best_epoch: expected an integer from 1" in done.err
    path.unlink()  # as the line says
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(Path("run")) == sha256(runs / "anew")
