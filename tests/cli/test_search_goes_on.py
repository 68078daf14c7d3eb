"""`magmadnn search --resume`: which ends hold, what is refused, and that a finished search stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.cli.searches import search_run
from magmadnn.search.kept_studies import KeptStudy
from magmadnn.search.study_plan import Ends
from magmadnn.search.trials.training import Task

SPACE = "lr = {log_uniform = [1e-3, 1e-1]}\nunits = {choice = [5, 7]}\n"
ALONE = "1e6"  # a budget of seconds, with which trials are trained one by one


@pytest.fixture
def study(command, soils, tmp_path: Path) -> Path:
    """A search of 6 trials of 2 epochs that has ended."""
    (tmp_path / "space.toml").write_text(SPACE)
    options = ["--epochs", 2, "--seed", 5, "--trials", 6, "--total-seconds", ALONE, "--quiet"]
    done = command("search", "--data", soils, "--space", "space.toml", "--out", "s", *options)
    assert done.code == 0, done.err
    return tmp_path / "s"


def state_of(folder: Path) -> dict[str, Any]:
    """Each file: its content, when it was written, and whether it is the same one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino) for p in files}


def interrupted_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Ctrl-C while the training after this many runs."""
    outcomes, calls = Task.outcomes, []

    def few(self: Task, jobs: Any) -> Any:
        calls.append(len(jobs))
        if len(calls) > count:
            raise KeyboardInterrupt
        return outcomes(self, jobs)

    monkeypatch.setattr(Task, "outcomes", few)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--trials", 6],
        ["--workers", 2],
        ["--total-epochs", 12],
        ["--until", "loss=0.0"],
        ["--total-seconds", 3],
    ],
)
def test_a_search_that_has_ended_stays_as_it_is(command, study, monkeypatch, options) -> None:
    before = state_of(study)
    monkeypatch.setattr(search_run, "load_data", None)  # no row is looked at
    done = command("search", "--resume", "s", *options)
    assert (done.code, done.err) == (0, "")
    best = md.search.load("s").best.number
    assert done.out == (
        f"the search in s has ended: 6 trials, the best is trial {best}; nothing is left to do, and nothing "
        "was written; --trials 12 would make it longer\n"
    )
    assert state_of(study) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trials", 5], "--trials 5: s holds 6 trials, and what is done stays; give --trials 6 or more"),
        (["--total-epochs", 9], "--total-epochs 9: the search would end before trainings that s holds"),
        (["--until", "accuracy=0.0"], "--until accuracy=0.0: the search would end before trainings"),
        (["--until", "acuracy=0.9"], "--until: metric 'acuracy' is not known: did you mean 'accuracy'?"),
        (["--until", "train_loss=0.9"], "--until: whether 'train_loss' is good when it is low or high"),
        (["--until", "accuracy"], "--until must be a metric and a value"),
        (["--mpi", 2, "--workers", 2, "--trials", 9], "--mpi: trials are trained by other ranks, so leave"),
    ],
)  # fmt: skip
def test_what_is_done_stays(command, study, options, words: str) -> None:
    before = state_of(study)
    done = command("search", "--resume", "s", *options)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert state_of(study) == before


def test_an_end_that_was_said_when_it_went_on_holds_from_then_on(
    command, study, monkeypatch
) -> None:
    with monkeypatch.context() as change:
        interrupted_after(change, 1)
        assert command("search", "--resume", "s", "--trials", 9).code == 130
    assert len(md.search.load("s").trials) == 7
    fewer = command("search", "--resume", "s", "--trials", 6)
    assert fewer.code == 2 and "s holds 7 trials" in fewer.err
    done = command("search", "--resume", "s")
    assert done.code == 0, done.err
    assert "9 of 9 trials" in done.out
    assert len((study / "trials.csv").read_text().splitlines()) == 10
    # An end may be nearer than was planned, as long as nothing is lost by it.
    with monkeypatch.context() as change:
        interrupted_after(change, 1)
        assert command("search", "--resume", "s", "--trials", 30).code == 130
    done = command("search", "--resume", "s", "--trials", 11)
    assert done.code == 0, done.err
    assert json.loads((study / "result.json").read_text())["trials"] == 11


def test_a_first_end_of_another_kind_holds_too(command, soils, tmp_path, monkeypatch) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    options = ["--epochs", 2, "--trials", 9, "--until", "loss=0.0", "--total-seconds", ALONE]
    with monkeypatch.context() as change:
        interrupted_after(change, 2)
        done = command("search", "--data", soils, "--space", "space.toml", "--out", "s", *options)
    assert done.code == 130
    with monkeypatch.context() as change:
        interrupted_after(change, 1)
        assert command("search", "--resume", "s", "--total-epochs", 10).code == 130
    assert command("search", "--resume", "s").code == 0
    assert len(md.search.load("s").trials) == 5  # 2 epochs each
    assert KeptStudy("s").ends == Ends(9, 10, md.search.reaches("loss", 0.0))


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_was_not_written_is_written_when_it_goes_on(command, study, monkeypatch) -> None:
    with monkeypatch.context() as change:
        change.setattr(search_run, "save_model", interrupted)
        assert command("search", "--resume", "s", "--trials", 8).code == 130
    assert len((study / "trials.csv").read_text().splitlines()) == 7
    assert command("search", "--resume", "s").code == 0
    assert len((study / "trials.csv").read_text().splitlines()) == 9
    assert json.loads((study / "result.json").read_text())["trials"] == 8
    for name in ("result.json", "trials.csv"):
        whole = state_of(study)
        (study / name).unlink()
        assert command("search", "--resume", "s").code == 0
        assert {k: v[0] for k, v in state_of(study).items()} == {k: v[0] for k, v in whole.items()}


def test_halving_has_as_many_trials_as_it_began_with(command, soils, tmp_path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    options = ["--epochs", 3, "--trials", 4, "--method", "halving", "--quiet"]
    command("search", "--data", soils, "--space", "space.toml", "--out", "s", *options)
    before = state_of(tmp_path / "s")
    done = command("search", "--resume", "s", "--trials", 8)
    assert done.code == 2
    assert "--trials 8: halving plans all of its 4 trials at the start" in done.err
    done = command("search", "--resume", "s", "--trials", 4)
    assert done.code == 0 and "would make it longer" not in done.out
    assert state_of(tmp_path / "s") == before


def test_a_last_cohort_that_becomes_whole_decides_anew(command, soils, tmp_path) -> None:
    """Fewer trainings count until it has, which is no reason to refuse more trials."""
    (tmp_path / "space.toml").write_text(SPACE)
    options = [
        "--data",
        soils,
        "--space",
        "space.toml",
        "--epochs",
        4,
        "--method",
        "asha",
        "--quiet",
    ]
    command("search", *options, "--trials", 5, "--eta", 2, "--cohort", 6, "--out", "s")
    done = command("search", "--resume", "s", "--trials", 9)
    assert done.code == 0, done.err
    command("search", *options, "--trials", 9, "--eta", 2, "--cohort", 6, "--out", "whole")
    tables = {md.search.load(name).table().without_times().to_csv() for name in ("s", "whole")}
    assert len(tables) == 1


def test_a_front_that_is_written_stays_as_it_is(command, soils, tmp_path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    options = ["--epochs", 1, "--trials", 4, "--objective", "accuracy,min epochs", "--quiet"]
    command("search", "--data", soils, "--space", "space.toml", "--out", "s", *options)
    before = state_of(tmp_path / "s")
    assert "has ended: 4 trials; nothing is left" in command("search", "--resume", "s").out
    assert state_of(tmp_path / "s") == before
