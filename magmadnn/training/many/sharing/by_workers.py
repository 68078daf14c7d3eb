"""A set of models that the workers of `with md.workers(4):` train: each whole models, the client gets all.

Models travel as their records and arrays, as to a folder; nothing is pickled. Each worker is sent its own
ones and the data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from magmadnn.errors import ArgumentError
from magmadnn.training.callbacks import Callback, Checkpoint
from magmadnn.training.callbacks.made_again import made_from, told_of
from magmadnn.training.loop.history import History
from magmadnn.training.many.asked import Asked
from magmadnn.training.many.in_client import Arrays, settings_from, settings_record
from magmadnn.training.many.running.room import devices_of, sharing_memory
from magmadnn.training.many.told import Told
from magmadnn.training.model.loading import model_sent
from magmadnn.training.model.model import Model
from magmadnn.training.model.parts import trained_of
from magmadnn.training.model.saving import sent_record
from magmadnn.training.model.training_step import Carried, carried_from, names_of
from magmadnn.workers import Answer, Worker, Workers, handler

from .results import Result, owners_of, result_of, take_over

HANDLER: Final = "training.fit_many"


def fit_by_workers(
    workers: Workers, models: Sequence[Model], asked: Asked, costs: Sequence[float], told: Told
) -> list[History]:
    """What `fit_many` does in `with md.workers(...)`.

    Raises:
        ArgumentError: for what cannot travel to workers.
        MagmaDNNError: as `fit_many`, with the worker's number.
    """
    _refuse(models, asked)
    owners = owners_of(costs, workers.size)
    data = Arrays()
    weight = asked.options["class_weight"]
    common: dict[str, Any] = {
        "x": data.numbered(asked.x), "y": data.numbered(asked.y),
        "sample_weight": data.numbered(asked.sample_weight),
        "validation_data": data.numbered(asked.validation_data),
        "memory_limit": asked.memory_limit,
        "options": {**asked.options, "class_weight": None},
        "class_weight": weight if weight in (None, "balanced") else list(weight.items()),
    }  # fmt: skip
    sent, arrays = [], []
    for worker in range(workers.size):
        held = Arrays(data.all)
        own = [number for number, owner in enumerate(owners) if owner == worker]
        sent.append({**common, "models": [_sent(k, models[k], asked, held) for k in own]})
        arrays.append(held.all)
    shared = f"; on {workers.size} worker{'s' if workers.size > 1 else ''}"
    told.begin(models, (), list(asked.batch_sizes.values()), 0, (), shared)
    found: dict[int, History] = {}
    for answer in workers.scatter(HANDLER, sent, arrays):
        back = Arrays(answer.arrays)
        for record in answer.value:
            number = record["number"]
            result = Result(record["record"], back.value(record["tensors"]))
            found[number] = take_over(models[number], result)
    members = asked.members(dict(enumerate(models)))
    for member in members:
        member.history, member.is_done = found[member.number], True
    told.end(members)
    return [member.history for member in members]


def _sent(number: int, model: Model, asked: Asked, held: Arrays) -> dict[str, Any]:
    """A model, and what it is trained with, as JSON data."""
    carried = carried_from(model)
    rows, kept = asked.rows[number], asked.held[number]
    return {
        "number": number,
        "model": sent_record(model),
        "executor": model.executor,
        "origin": model._origin,
        "values": held.numbered(model.values()),
        "state": None if carried is None else held.numbered(carried.state),
        "settings": {} if carried is None else settings_record(carried.settings),
        "batch_size": asked.batch_sizes[number],
        "epochs": asked.epochs[number],
        "rows": held.numbered(rows),
        "held": held.numbered(kept),
        "callbacks": [told_of(callback) for callback in asked.callbacks[number]],
    }


@handler(HANDLER)
def fit_many(worker: Worker, arguments: dict[str, Any], arrays: list[Any]) -> Answer:
    """Build the models that are this worker's, train them, and tell what came of it."""
    given = Arrays(arrays)
    weight = arguments["class_weight"]
    options = {
        **arguments["options"],
        "class_weight": dict(weight) if isinstance(weight, list) else weight,
    }
    sent = {one["number"]: one for one in arguments["models"]}
    models = {number: _built(one, given) for number, one in sent.items()}
    asked = Asked(
        given.value(arguments["x"]),
        given.value(arguments["y"]),
        given.value(arguments["sample_weight"]),
        given.value(arguments["validation_data"]),
        {number: one["batch_size"] for number, one in sent.items()},
        {number: one["epochs"] for number, one in sent.items()},
        {number: given.value(one["rows"]) for number, one in sent.items()},
        {number: given.value(one["held"]) for number, one in sent.items()},
        {number: _callbacks(one["callbacks"]) for number, one in sent.items()},
        options,
        arguments["memory_limit"],
    )
    members = asked.members(models)
    with sharing_memory(worker.communicator, devices_of(members)):
        asked.train(members, models, Told(False))
    back, told = Arrays(), []
    for member in members:
        result = result_of(member.number, models[member.number], member.history)
        told.append(
            {
                "number": member.number,
                "record": result.record,
                "tensors": back.numbered(result.tensors),
            }
        )
    return Answer(told, back.all)


def _built(record: Mapping[str, Any], given: Arrays) -> Model:
    """A model that a client has sent."""
    model = model_sent(record["model"])
    model.executor = record["executor"]
    model.assign(given.value(record["values"]))
    model._origin = record["origin"]
    if record["state"] is not None:
        nodes = tuple(p.node for p in trained_of(model.variables()))
        state, settings = given.value(record["state"]), settings_from(record["settings"])
        model._carried = Carried(nodes, state, settings, names_of(model))
    return model


def _callbacks(records: Sequence[Mapping[str, Any]]) -> list[Callback]:
    found = [made_from(record) for record in records]
    for callback in found:
        if isinstance(callback, Checkpoint):
            callback.signals = False  # the client ends its workers
    return found


def _refuse(models: Sequence[Model], asked: Asked) -> None:
    """Look whether all of the set can travel.

    Raises:
        ArgumentError: naming what cannot.
    """
    for number, callbacks in asked.callbacks.items():
        for callback in callbacks:
            if told_of(callback) is None:
                raise ArgumentError(
                    f"fit_many: {type(callback).__name__} of models[{number}] cannot travel to the workers "
                    "of md.workers, only callbacks of md.callbacks without functions can: leave it out, give "
                    "parallel=False, or run the script by magmadnn launch"
                )
    for number, model in enumerate(models):
        reason = (
            f"device={model.device!r}" if model.device != "cpu"
            else "a preparation of raw data" if model.preparation is not None
            else None
        )  # fmt: skip
        if reason is not None:
            raise ArgumentError(
                f"fit_many: {reason} of models[{number}] cannot travel to the workers of md.workers: give "
                "parallel=False, or run the script by magmadnn launch"
            )
    if not (asked.options["augment"] is None or isinstance(asked.options["augment"], str)):
        raise ArgumentError(
            "fit_many: a list for augment cannot travel to the workers of md.workers: give parallel=False, "
            "or run the script by magmadnn launch"
        )
