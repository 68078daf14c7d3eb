"""Trials beyond memory: they train in waves, groups without memory in halves, and tables stay the same."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from magmadnn.search.study_folder import read_study
from magmadnn.search.trials import training
from magmadnn.search.trials.records import plain_result, result_of_plain
from tests.mistakes import error_of
from tests.search.problems import S, build, table, untimed

X, Y = table()
GIVEN: dict[str, Any] = {"method": "grid", "epochs": 2, "seed": 3}
SEVEN = {"units": S.integer(3, 9)}


def run(space: Any, build: Any = build, **options: Any) -> Any:
    return S.run(build, space, X, Y, **GIVEN | options)


@pytest.mark.parametrize("workers", [None, 2])
def test_trials_beyond_memory_train_in_waves(
    workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(SEVEN)
    limits, together = list[int](), training.fit_many

    def noted(*given: Any, memory_limit: int, **options: Any) -> Any:
        limits.append(memory_limit)
        return together(*given, memory_limit=memory_limit, **options)

    monkeypatch.setattr(training, "fit_many", noted)
    waves = run(SEVEN, memory_limit=600_000, workers=workers)
    assert untimed(waves) == untimed(whole)
    assert limits == ([600_000] if workers is None else [])  # else in other processes


def test_workers_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(models: Any, *given: Any, memory_limit: int, **options: Any) -> Any:
        raise ValueError(f"limit {memory_limit}")

    monkeypatch.setattr(training, "fit_many", told)
    _, text = error_of(lambda: run(SEVEN, memory_limit=600_001, workers=3))
    assert text == "search: all 7 trials have failed: ValueError: limit 200000"


def test_a_trial_that_has_no_room_is_out_of_memory() -> None:
    study = run({"units": S.choice([3, 4000])}, memory_limit=600_000)
    assert [t.state for t in study.trials] == ["done", "out of memory"]
    assert re.fullmatch(
        r"fit_many: the training of models\[0\] takes .* memory_limit is 585.9 KiB; train fewer models in "
        "one call, or with a smaller batch_size",
        study.trials[1].reason,
    )


def test_a_group_without_memory_is_trained_in_halves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run(SEVEN)
    sizes, together = [], training.fit_many

    def tight(models: Any, *given: Any, **options: Any) -> Any:
        sizes.append(len(models))
        if len(models) > 2:
            raise MemoryError("full")
        return together(models, *given, **options)

    monkeypatch.setattr(training, "fit_many", tight)
    halved = run(SEVEN, out=tmp_path / "study")
    assert sizes == [7, 4, 2, 2, 3, 2]  # and one by itself, which is a fit
    assert [t.retried for t in whole.trials] == [0] * 7
    assert [t.retried for t in halved.trials] == [2] * 7
    assert untimed(halved) == untimed(whole)
    kept = [outcome.retried for _, outcome in read_study(tmp_path / "study")[1].results.values()]
    assert kept == [2] * 7
    assert [t.retried for t in md.search.load(tmp_path / "study").trials] == [2] * 7


def test_a_group_whose_process_is_killed_is_trained_in_halves(tmp_path: Path) -> None:
    """As a system does that has no more memory."""
    whole = run(SEVEN)
    place = tmp_path / "killed"

    def hungry(units: int, seed: int) -> Any:
        if units == 5 and not place.exists():
            place.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return build(units=units, seed=seed)

    study = run(SEVEN, hungry, workers=1)
    assert place.exists()
    assert untimed(study) == untimed(whole)
    assert [t.retried for t in study.trials] == [1] * 7
    assert [t.metrics["sharing_seconds"] for t in study.trials] == [4.0] * 4 + [3.0] * 3


def test_a_log_says_how_often_a_trial_was_tried_again() -> None:
    study = run({"units": S.choice([3, 4])})
    job, outcome = study._results[0]
    record = json.loads(json.dumps(plain_result(job, outcome) | {"retried": 3}))
    assert result_of_plain(record)[1].retried == 3
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(ValueError, match="retried"):
            result_of_plain(record | {"retried": wrong})


def test_a_limit_that_is_none() -> None:
    with pytest.raises(ArgumentError) as caught:
        run(SEVEN, memory_limit=0)
    said = "search: memory_limit must be a number of bytes of at least 1, got 0"
    assert str(caught.value) == said


def test_a_limit_with_options_of_single_fits() -> None:
    with pytest.raises(ArgumentError) as caught:
        run(SEVEN, memory_limit=1 << 30, fit_options={"loader_workers": 2})
    assert str(caught.value) == (
        "search: memory_limit is for trials that fit_many trains: leave it out, or of fit_options all "
        "but class_weight, shuffle and augment"
    )
