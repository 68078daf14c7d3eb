"""Going on with other ends: what counts stays, what was done beyond an end may go."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.search.study_folder import StudyFolder, read_study
from magmadnn.search.study_plan import Ends
from magmadnn.search.trials.training import Task
from tests.mistakes import error_of
from tests.search.problems import SPACE, S, build, table, untimed

X, Y = table()


def run(**options: Any) -> Any:
    options = {"method": "random", "trials": 8, "epochs": 2, "seed": 3, **options}
    return S.run(build, SPACE, X, Y, **options)


def said_anew(out: Path, ends: Ends) -> None:
    """The log as a search with these ends leaves it."""
    StudyFolder(out, read_study(out)[0], ends.plain(), True).close()


@pytest.fixture
def beyond(tmp_path: Path) -> tuple[Path, Any]:
    """A study of eight trials that ended before the last, as workers leave it, and its end."""
    out = tmp_path / "study"
    losses = [trial.metrics["loss"] for trial in run(out=out).trials]
    until = S.reaches("loss", min(losses[:4]))
    said_anew(out, Ends(40, None, until))
    assert len(S.load(out).trials) <= 4
    return out, until


def test_trials_that_do_not_count_may_be_left_out(beyond: tuple[Path, Any]) -> None:
    out, until = beyond
    count = len(S.load(out).trials)
    kind, text = error_of(lambda: run(out=out, resume=True, trials=count - 1, until=until))
    assert kind is ArgumentError
    assert text.startswith(f"search: trials={count - 1}: ")
    assert f"holds {count} trials, and what is done stays; give trials={count} or more" in text
    fewer = run(out=out, resume=True, trials=count, until=until)
    assert [t.number for t in fewer.trials] == list(range(count))
    assert untimed(run(out=out, resume=True, trials=10)) == untimed(run(trials=10))  # none again


def test_trials_that_do_not_count_may_be_left_out_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [",".join(map(str, [*x, "ab"[y]])) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    Path("data.csv").write_text("p,q,r,s,t,target\n" + "\n".join(rows) + "\n")
    Path("space.toml").write_text("lr = {log_uniform = [1e-3, 1.0]}\n")
    options = ["--space", "space.toml", "--trials", "8", "--epochs", "2", "--out", "s", "--quiet"]
    assert main(["search", "--data", "data.csv", *options]) == 0
    losses = [trial.metrics["loss"] for trial in S.load("s").trials]
    said_anew(Path("s"), Ends(40, None, S.reaches("loss", min(losses[:4]))))
    count = len(S.load("s").trials)
    assert main(["search", "--resume", "s", "--trials", str(count - 1)]) == 2
    assert f"--trials {count - 1}: s holds {count} trials" in capsys.readouterr().err
    assert main(["search", "--resume", "s", "--trials", str(count)]) == 0
    assert len(S.load("s").trials) == count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"total_epochs": 7}, "search: total_epochs=7: the search would end before trainings that"),
        ({"until": S.reaches("accuracy", 0.0)}, "until=reaches('accuracy', 0.0): the search would end"),
        ({"until": S.reaches("acuracy", 0.9)}, "search: until: metric 'acuracy' is not known: did you"),
        ({"until": S.reaches("train_loss", 0.9)}, "search: until: whether 'train_loss' is good when it"),
    ],
)  # fmt: skip
def test_ends_that_leave_out_what_counts_are_refused(
    options: Any, words: str, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    whole = run(out=out)
    before = (out / "trials.log").read_bytes()
    kind, text = error_of(lambda: run(out=out, resume=True, **options))
    assert kind in (ArgumentError, UnknownNameError)
    assert words in text and "\n" not in text
    assert (out / "trials.log").read_bytes() == before
    assert untimed(S.load(out)) == untimed(whole)


@pytest.mark.parametrize(("method", "few"), [("asha", 5), ("asha", 7), ("median", 5), ("cem", 7)])
def test_more_trials_are_taken_where_they_change_who_goes_on(
    method: str, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last cohort that becomes whole decides anew, so that fewer trainings count until it has."""
    out = tmp_path / "study"
    options: Any = {"method": method, "epochs": 9, "objective": "accuracy"}
    run(trials=few, out=out, **options)
    whole = run(trials=12, **options)
    assert untimed(run(trials=12, out=out, resume=True, **options)) == untimed(whole)


def test_an_end_in_a_gap_is_refused(tmp_path: Path) -> None:
    """A training is missing, and those behind it are left out all the same."""
    out = tmp_path / "study"
    run(out=out)
    identity, logged = read_study(out)
    del logged.results[1, 0]
    (out / "trials.log").unlink()
    folder = StudyFolder(out, identity, Ends(8).plain(), True)
    folder.add_results(logged.results.values())
    folder.close()
    kind, text = error_of(lambda: run(out=out, resume=True, total_epochs=8))
    assert kind is ArgumentError and "total_epochs=8: the search would end before" in text
    assert len(run(out=out, resume=True).trials) == 8


# --- another study with the same folder -------------------------------------------------------------


def others(learning_rate: float, units: int, seed: int) -> Any:
    """Other networks of the same parameters."""
    return build(learning_rate, units + 2, seed)


def steeper(learning_rate: float, units: int, seed: int) -> Any:
    """The same networks, trained otherwise."""
    return build(2 * learning_rate, units, seed)


def broken(learning_rate: float, units: int, seed: int) -> Any:
    raise RuntimeError(f"no such layer: {learning_rate} {units}")


@pytest.mark.parametrize("changed", [others, steeper, broken])
def test_another_build_is_refused(changed: Any, tmp_path: Path) -> None:
    """Its trials would stand in one table with those of the first."""
    out = tmp_path / "study"
    run(trials=3, out=out)
    before = (out / "trials.log").read_bytes()
    kind, text = error_of(
        lambda: S.run(changed, SPACE, X, Y, trials=5, epochs=2, seed=3, out=out, resume=True)
    )
    assert kind is ArgumentError
    assert text.startswith("search: build gives another network for trial 0 than the one that ")
    assert (out / "trials.log").read_bytes() == before
    assert len(run(trials=5, out=out, resume=True).trials) == 5


def test_another_objective_of_the_same_name_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "study"
    first = run(trials=3, out=out, objective=lambda m: m["accuracy"] - 1e-3 * m["seconds"])
    loss = first.trials[0].metrics["loss"]
    for other, words in [
        (lambda m: -m["loss"], f"search: objective: it gives {-loss:.6g} for trial 0"),
        (lambda m: m["nothing"], "metric 'nothing' is not known"),
        (lambda m: 1 / 0, "it gives no value (objective: ZeroDivisionError: division by zero) for trial 0"),
    ]:  # fmt: skip
        _, text = error_of(lambda other=other: run(trials=5, out=out, resume=True, objective=other))
        assert words in text
    again = run(
        trials=4, out=out, resume=True, objective=lambda m: m["accuracy"] - 0.001 * m["seconds"]
    )
    assert again.trials[:3] == first.trials


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"class_weight": "balanced"}),
        ({"class_weight": {0: 1.0, 1: 2.0}}, {"class_weight": {0: 1.0, 1: 3.0}}),
        ({"sample_weight": np.ones(97)}, {"sample_weight": np.full(97, 2.0)}),
        ({"shuffle": False}, {}),
    ],
)
def test_other_arguments_of_fit_are_refused(first: Any, then: Any, tmp_path: Path) -> None:
    out = tmp_path / "study"
    run(trials=2, out=out, fit_options=first)
    kind, text = error_of(lambda: run(trials=3, out=out, resume=True, fit_options=then))
    assert kind is ArgumentError
    changed = "of other rows: x, y, weights" if "sample_weight" in first else "its fit options is"
    assert f"holds another study{',' if 'rows' in changed else ':'} {changed}" in text
    assert len(run(trials=3, out=out, resume=True, fit_options=first).trials) == 3
    assert len(S.load(out).trials) == 3


def test_other_callbacks_are_refused(tmp_path: Path) -> None:
    def stopping(patience: int) -> Any:
        return lambda: [md.callbacks.EarlyStopping(patience=patience)]

    out = tmp_path / "study"
    run(trials=2, out=out, callbacks=stopping(1))
    for then in (stopping(2), tuple, lambda: [md.callbacks.TimeLimit(9)]):
        kind, text = error_of(lambda: run(trials=3, out=out, resume=True, callbacks=then))  # noqa: B023 - called at once
        assert kind is ArgumentError
        assert "holds another study: its callbacks is" in text

    numbers = itertools.count()

    def logging() -> list[md.callbacks.Callback]:
        """What only looks on may come."""
        path = tmp_path / f"{next(numbers)}.csv"
        return [*stopping(1)(), md.callbacks.CSVLogger(path)]

    assert len(run(trials=3, out=out, resume=True, callbacks=logging).trials) == 3


def test_a_network_that_cannot_be_written_down_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "study"
    monkeypatch.setattr(
        "magmadnn.search.trials.training.model_record", lambda model: {"a": object()}
    )
    run(trials=2, out=out)
    monkeypatch.setattr(Task, "built", None)  # is not asked
    assert len(run(trials=3, out=out, resume=True).trials) == 3
