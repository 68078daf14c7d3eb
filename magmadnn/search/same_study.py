"""Whether a search that goes on is the one that began: arguments of `fit`, objectives, what `build` makes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, shown
from magmadnn.training.callbacks import Callback

from .judging import Judge
from .study_folder import Logged
from .trials.records import DONE, Outcome
from .trials.training import Task

_LOOKED_AT = 1000  # results of which objectives are computed again


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Further arguments of `fit` as JSON data, as far as they can be compared: arrays by their digests, other
    objects by their kinds.
    """
    return {name: _plain(value) for name, value in sorted(options.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype} {value.shape} {digest}"
    return type(value).__name__


def plain_callbacks(made: Sequence[Callback]) -> list[dict[str, Any]]:
    """The callbacks of a training as JSON data, as far as they can be compared: of each that does not only
    look on its class, and what it was made with where that is known.
    """
    return [
        {"kind": type(callback).__name__, "arguments": callback.arguments()}
        for callback in made
        if not callback.is_aside
    ]


def check_same(task: Task, judge: Judge, logged: Logged, folder: Path) -> None:
    """Look whether `build` and objectives are those of the results that there are.

    Functions cannot be compared, but what they give: objectives that are functions are computed again of the
    first thousand results, and the network of trial 0 is built again.

    Args:
        task: how trials are trained.
        judge: of their worth.
        logged: what the log holds.
        folder: of the study.

    Raises:
        ArgumentError: one gives something else now.
    """
    judge.learn(outcome for _, outcome in logged.results.values())
    valued = [(j, o) for j, o in logged.results.values() if o.state == DONE and o.values]
    for job, outcome in valued[:_LOOKED_AT] if judge.has_functions else ():
        again = judge.valued(replace(outcome, values=()))
        if again.values != outcome.values:
            raise ArgumentError(
                f"search: objective: it gives {_worth(again)} for trial {job.trial}, of which the log in "
                f"{shown(folder)} says {_worth(outcome)}, so the study was searched for another objective; "
                "give that one, or another out"
            )
    if (0, 0) not in logged.results:
        return
    job, outcome = logged.results[0, 0]
    if not outcome.built:
        return
    try:
        now = task.built(job)
    except Exception as error:
        now = f"{type(error).__name__}: {error}"
    if now != outcome.built:
        raise ArgumentError(
            f"search: build gives another network for trial 0 than the one that {shown(folder)} has the "
            "metrics of, so their trials could not be compared; give the function that the study began with, "
            "or another out"
        )


def _worth(outcome: Outcome) -> str:
    return ", ".join(f"{value:.6g}" for value in outcome.values) or f"no value ({outcome.reason})"
