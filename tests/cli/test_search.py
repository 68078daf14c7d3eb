"""`magmadnn search`: a study from a file of a space, going on with it, and its report."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import magmadnn as md
from magmadnn.cli.searches.space_files import options_of, read_space

SPACE = """
lr = {log_uniform = [1e-3, 1e-1]}
units = {choice = [5, 7]}
layers = {integer = [1, 2]}
batch-size = {start = 16, stop = 48, step = 16}
"""
S = ["--space", "space.toml"]
QUICK = "--epochs 2 --seed 5 --out study --trials 6".split()


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path / "space.toml"


def test_a_search_leaves_table_network_and_result(command, soils, space, tmp_path) -> None:
    done = command("search", "mlp", "--data", soils, "--space", space, *QUICK)
    assert (done.code, done.err) == (0, "")
    assert "6 of 6 trials, best accuracy" in done.out
    assert "simple methods on the same rows: majority_accuracy" in done.out
    rows = (tmp_path / "study" / "trials.csv").read_text().splitlines()
    assert rows[0].startswith("trial,state,lr,units,layers,batch_size,accuracy,epochs,loss,")
    assert len(rows) == 7
    result = json.loads((tmp_path / "study" / "result.json").read_text())
    study = md.search.load(tmp_path / "study")
    assert result["best_trial"] == study.best.number
    assert result["parameters_sha256"] == study.best.parameters_sha256
    best = study.best.point
    dense = [
        layer for layer in md.load(tmp_path / "study" / "model").layers if "dense" in layer.label
    ]
    assert [layer.units for layer in dense[:-1]] == [best["units"]] * best["layers"]
    evaluated = command("evaluate", "study", "--data", soils)
    assert (evaluated.code, evaluated.err) == (0, "")
    assert "so these figures are too good" in evaluated.out and "--split" not in evaluated.out
    again = command("search", "mlp", "--data", soils, "--space", space, *QUICK)
    assert again.code == 2 and "give another --out, or go on with the search" in again.err


def test_a_trial_is_the_training_of_train(command, soils, tmp_path) -> None:
    """The network of a point is the one that `train` makes of the same options."""
    (tmp_path / "one.toml").write_text(
        "lr = {choice = [0.03, 0.01]}\nhidden = {choice = [[6, 5], [4]]}"
    )
    done = command(
        *("search", "--data", soils, "--space", "one.toml", "--method", "grid", "--epochs", 3),
        *("--objective", "loss", "--batch-size", 16, "--out", "s", "--validation-split", 0.3),
    )
    assert done.code == 0, done.err
    study = md.search.load("s")
    trial = study.trials[2]
    assert trial.point == {"lr": 0.01, "hidden": (6, 5)}
    seed = json.loads(Path("s/run.json").read_text())["arguments"]["training"]["seed"]
    assert seed == 0
    assert {t.state for t in study.trials} == {"done"}


def test_a_search_of_quantities_and_several_objectives(command, prices, space) -> None:
    done = command(
        *("search", "--data", prices, "--space", space, "--objective", "rmse, min epochs"),
        *("--validation-split", 0.2, *QUICK),
    )
    assert done.code == 0, done.err
    assert "trials that no other one is better than" in done.out
    assert "front" in json.loads(Path("study/result.json").read_text())


def test_a_search_goes_on_with_more_trials(command, soils, space, tmp_path) -> None:
    command("search", "--data", soils, "--space", space, *QUICK)
    before = Path("study/trials.csv").read_text()
    done = command("search", "--resume", "study", "--trials", 8)
    assert done.code == 0, done.err
    assert "8 of 8 trials" in done.out
    after = Path("study/trials.csv").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 9
    changed = command("search", "--resume", "study", "--lr", "0.5")
    assert changed.code == 2 and "--lr cannot be changed where a search goes on" in changed.err
    assert command("search", "--resume", "nothing").code == 2
    assert "not of a training" in command("train", "--resume", "study").err


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_search_that_is_ended_goes_on(start, command, soils, space, sent) -> None:
    arguments = ["search", "--data", soils, "--space", space, *QUICK[:-1], 12, "--workers", 2]
    process = start(*arguments)
    log, begun = Path("study/trials.log"), time.monotonic()
    while time.monotonic() < begun + 60 and (not log.exists() or log.read_bytes().count(b"\n") < 4):
        time.sleep(0.01)
    os.kill(process.pid, sent)
    out, _ = process.communicate()
    if sent == signal.SIGTERM and process.returncode != 0:
        assert process.returncode == 128 + sent
        assert "go on with: magmadnn search --resume study" in out
    assert command("search", "--resume", "study", "--quiet").code == 0
    ended = md.search.load("study").table().without_times().to_csv()
    whole = [*arguments[: arguments.index("--out")], "--out", "whole", "--trials", 12]
    assert command(*whole, "--quiet").code == 0
    assert ended == md.search.load("whole").table().without_times().to_csv()


def test_a_report_is_a_table_and_a_page(command, draw, soils, space, tmp_path) -> None:
    command("search", "--data", soils, "--space", space, *QUICK, "--quiet")
    done = command("search", "report", "study")
    assert done.code == 0, done.err
    assert "report in study/report/index.html" in done.out
    assert (tmp_path / "study" / "report" / "index.html").exists()
    assert command("search", "report", "study", "--csv", "t.csv", "--quiet").out == ""
    assert Path("t.csv").read_text() == Path("study/trials.csv").read_text()
    assert command("search", "report", "nothing").code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = 3 = 4", "is no TOML"),
        ("lrr = {uniform = [0, 1]}", "did you mean 'lr'?"),
        ("lr = {uniform = [1, 0]}", "space: lr: uniform: low 1 is above high 0"),
        ("lr = {uniforn = [1, 0]}", "did you mean 'uniform'?"),
        ("lr = [0.1, 0.2]", "lr: a list is not a dimension; write lr = {choice = [0.1, 0.2]}"),
        (
            "hidden = [[5], [7]]",
            "hidden: a list is not a dimension; write hidden = {choice = [[5], [7]]}",
        ),
        ("hidden = [5, 7]", "are the sizes of one network; write hidden = {choice = [[5], [7]]}"),
        ("lr = 0.1", "--space space.toml: there is nothing to search; give a parameter several"),
        ("", "there is nothing to search"),
        (
            'optimizer = {choice = ["adma", "sgd"]}',
            "optimiser 'adma' is not known: did you mean 'adam'?",
        ),
        ('optimizer = "sdg"\nlr = {choice = [1, 2]}', "did you mean 'sgd'?"),
        ('optimizer = {choice = ["sgd", 3]}', "optimizer: optimiser 3 is not known"),
        (
            'activation = {choice = ["relu", "rleu"]}',
            "activation 'rleu' is not known: did you mean 'relu'?",
        ),
        ('activation = {choice = ["relu", "none"]}', "it is called 'linear' here"),
        ('lr = {choice = [0.1, "a"]}', "lr must be a number above 0, got 'a'"),
        ("lr = {uniform = [-1, 1]}", "lr must be a number above 0, got -1.0"),
        ("lr = {choice = [0.1, true]}", "lr must be a number above 0, got True"),
        ("weight_decay = {uniform = [-1, 1]}", "weight_decay must be a number of at least 0"),
        ("units = {uniform = [1, 2]}", "units must be a whole number of at least 1, got 1.0"),
        ("layers = {integer = [-1, 2]}", "layers must be a whole number of at least 0, got -1"),
        ("batch_size = {integer = [0, 8]}", "batch_size must be a whole number of at least 1"),
        (
            "hidden = {choice = [[4, 0], [3]]}",
            "hidden must be sizes of layers, such as [64, 32], got",
        ),
        ("lr = {choice = [1, 2]}\nlearning_rate = {choice = [1]}", "lr is there twice"),
        ("hidden = {choice = [[1], [2]]}\nunits = 3", "leave one out"),
    ],
)
def test_wrong_spaces_are_refused(command, soils, tmp_path, text: str, words: str) -> None:
    (tmp_path / "space.toml").write_text(text)
    done = command("search", "--data", soils, "--space", "space.toml", *QUICK)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--space is missing"),
        (["--space", "space.toml", "--lr", "0.1"], "--lr: is in the space too"),
        (["--space", "space.toml", "--validation-split", "0"], "trials are compared on rows"),
        (["--space", "space.toml", "--method", "bayes"], "method 'bayes' is not known"),
        ([*S, "--until", "accuracy"], "such as accuracy=0.98"),
        ([*S, "--until", "acuracy=1"], "--until: metric 'acuracy' is not known: did you mean 'accuracy'?"),
        ([*S, "--objective", "acuracy"], "--objective: metric 'acuracy' is not known: did you mean"),
        ([*S, "--objective", "rmse"], "--objective: metric 'rmse' is not known"),  # of quantities
        ([*S, "--objective", "train_loss"], 'give "min train_loss" or "max train_loss"'),
        ([*S, "--objective", "loss,loss"], "--objective loss,loss: expected one metric, or several"),
        (["--space", "nothing.toml"], "--space nothing.toml: there is no such file; check the path"),
        ([*S, "--eta", "3"], "--eta 3: --method random has no such option; leave it out, or give a method"),
        ([*S, "--cohort", "3", "--method", "cem"], "that has it: asha, median, tpe"),
        ([*S, "--cohort", "3", "--method", "halving"], "--cohort 3: --method halving has no such"),
        ([*S, "--method", "grid"], "lr is a range of real numbers, uniform(0.001, 0.1), which has no points"),
        ([*S, "--mpi", "2", "--workers", "2"], "--mpi: trials are trained by other ranks, so leave"),
        (["lenet5", *S], "units: the layers of lenet5 are fixed; leave it out, or choose mlp"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(command, soils, space, options, words: str) -> None:
    """Before the folder is made, which would be in the way of the next try."""
    space.write_text(SPACE.replace("log_uniform", "uniform"))
    done = command("search", "--data", soils, *options, *QUICK)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert "RandomSearch" not in done.err
    assert not Path("study").exists()


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (SPACE, [], "--method random has no end of its own; give --trials 100, or --until, --total"),
        (SPACE, ["--method", "halving"], "--method halving compares all trials with each other"),
        (
            "epochs = {integer = [1, 3]}",
            ["--method", "asha", "--trials", 3],
            "--space space.toml: epochs: --method asha decides how many epochs a trial has",
        ),
    ],
)  # fmt: skip
def test_a_method_without_what_it_needs_is_refused(
    command, soils, tmp_path, text: str, options, words: str
) -> None:
    (tmp_path / "space.toml").write_text(text)
    done = command("search", "--data", soils, *S, *options, "--out", "study")
    assert done.code == 2
    assert words in done.err
    assert not Path("study").exists()


def test_values_that_a_training_can_have_are_taken(command, soils, tmp_path) -> None:
    (tmp_path / "space.toml").write_text(
        'optimizer = {choice = ["Adam", "sgd"]}\nactivation = {choice = ["prelu", "tanh"]}\n'
        "layers = {integer = [0, 1]}\nlr = 1\n"
    )
    done = command("search", "--data", soils, *S, "--method", "grid", "--epochs", 1, "--out", "s")
    assert done.code == 0, done.err
    assert {t.state for t in md.search.load("s").trials} == {"done"}


def test_a_point_as_options() -> None:
    assert vars(options_of({"units": 9, "layers": 2, "lr": 0.1}, (5,))) == {
        "hidden": (9, 9),
        "lr": 0.1,
    }
    assert options_of({"layers": 3}, (5, 4)).hidden == (5, 5, 5)
    assert options_of({"units": 3}, (5, 4)).hidden == (3, 3)
    assert options_of({"hidden": 3}, (5, 4)).hidden == (3,)


def test_conditions_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'optimizer = {choice = ["adam", "sgd"]}\n'
        'weight_decay = {uniform = [0.0, 0.1], when = {optimizer = "sgd"}}\n'
    )
    space = read_space(str(tmp_path / "s.toml"))
    assert space.point_at([0.2, 0.5]) == {"optimizer": "adam"}
    assert space.point_at([0.7, 0.5]) == {"optimizer": "sgd", "weight_decay": 0.05}
