"""Which process trains which model of a set, and what a training leaves of a model, to be taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.tables.schema import Schema
from magmadnn.graph.op import Array
from magmadnn.optim.records import Record, Setting
from magmadnn.storage.printing import note
from magmadnn.training.loop.history import History
from magmadnn.training.loop.resuming import part_of
from magmadnn.training.many.in_client import settings_from, settings_record
from magmadnn.training.model.model import Model
from magmadnn.training.model.parts import trained_of
from magmadnn.training.model.training_step import Carried, carried_from, names_of

_VALUES, _STATE = "model/", "optimizer/"


@dataclass(frozen=True)
class Result:
    """What a training has left.

    Attributes:
        record: all but arrays, as JSON data.
        tensors: parameters, states, and what the optimiser goes on from.
    """

    record: dict[str, Any]
    tensors: Mapping[str, Array]


def owners_of(costs: Sequence[float], size: int) -> list[int]:
    """Who trains each model: the heaviest first, each goes to whom the least has been given.

    Args:
        costs: of each model, for instance parameters * rows * epochs.
        size: how many share them.
    """
    owners, given = [0] * len(costs), [0.0] * size
    for number in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        owners[number] = owner = min(range(size), key=lambda one: (given[one], one))
        given[owner] += costs[number] + 1.0  # so that those without an epoch are shared out too
    return owners


def result_of(number: int, model: Model, history: History) -> Result:
    """What the training of a model has left."""
    carried = carried_from(model)
    tensors = {f"{_VALUES}{name}": value for name, value in model.values().items()}
    settings: dict[str, Any] = {}
    if carried is not None:
        tensors |= {f"{_STATE}{name}": np.asarray(one) for name, one in carried.state.items()}
        settings = _plain(number, carried.settings)
    made = model.preparation
    record = {
        "rows": history.rows,
        "stopped": history.stopped,
        "failed": history.failed,
        "epochs_done": model.epochs_done,
        "carries": carried is not None,
        "settings": settings,
        "origin": model._origin,
        "columns": {name: schema.to_json() for name, schema in model.columns.items()},
        "preparation": made.to_json() if isinstance(made, Preparation) else None,
    }
    return Result(record, tensors)


def _plain(number: int, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """What was set over the optimiser's settings, as JSON data."""
    functions = {k for k, v in settings.items() if callable(v) and not isinstance(v, Record)}
    for name in functions:
        note(
            f"fit_many: models[{number}]: {name} was set to a function, which other processes cannot get: a "
            "further fit there begins with the optimiser's own"
        )
    return settings_record({k: v for k, v in settings.items() if k not in functions})


def take_over(model: Model, result: Result) -> History:
    """Let a model be what its training elsewhere has made of it; the history of that."""
    record = result.record
    model.columns = {name: Schema.from_json(one) for name, one in record["columns"].items()}
    if record["preparation"] is not None:
        model.preparation = Preparation.from_json(record["preparation"])
    model.assign(part_of(result.tensors, _VALUES))
    model.epochs_done, model._origin = record["epochs_done"], record["origin"]
    model._step = model._carried = None
    if record["carries"]:
        trained = tuple(p.node for p in trained_of(model.variables()))
        model._carried = Carried(
            trained,
            part_of(result.tensors, _STATE),
            settings_from(record["settings"]),
            names_of(model),
        )
    history = History(record["rows"])
    history.stopped, history.failed = record["stopped"], record["failed"]
    return history
