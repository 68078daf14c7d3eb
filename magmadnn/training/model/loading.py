"""Loading a model from a folder: data only, nothing that is loaded can run code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.tables.schema import Schema
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    DeviceError,
    MagmaDNNError,
    quoted,
    shown,
)
from magmadnn.graph.op import Array
from magmadnn.runtime import placed
from magmadnn.storage.checkpoint import CHECKPOINTS, State, load_state
from magmadnn.storage.disk import as_path, is_folder, is_there
from magmadnn.storage.durable import MANIFEST
from magmadnn.storage.formats.plain_schema import Anything, Fields, Many, Table, Text, Whole, check
from magmadnn.training.loop.resuming import part_of

from .model import Model
from .plain.architecture import build
from .plain.codec import Custom, decode
from .plain.elsewhere import imported

MODEL = Fields(
    {
        "graph": Fields(
            {
                "entries": Many(Table(Anything()), most=20_000),
                "inputs": Many(Whole()),
                "outputs": Many(Whole()),
            }
        ),
        "loss": Anything(),
        "optimizer": Anything(),
        "metrics": Anything(),
        "seed": Whole(0, 2**64 - 1),
        "precision": Text(40),
        "frozen": Many(Text()),
    },
    {"epochs_done": Whole(), "columns": Table(Table(Anything()))},
    others=Anything(),
)
_SAVED = Fields({"model": MODEL, "extra": Table(Anything())}, others=Anything())


def model_from(record: dict[str, Any], custom: Iterable[Any] = (), device: str = "cpu") -> Model:
    """The model of a record, with initial parameters.

    Raises:
        CheckpointError: if the record is damaged, or needs something that is not in `custom`.
    """
    own = Custom(custom)
    placed(device, "native")  # what is wrong with the device is not the file's fault
    check(MODEL, record, "the model's description")
    try:
        inputs, outputs = build(record["graph"], own)
        model = Model(
            inputs=inputs,
            outputs=outputs,
            loss=decode(record["loss"], own),
            loss_weights=decode(record.get("loss_weights"), own),
            optimizer=decode(record["optimizer"], own),
            metrics=decode(record["metrics"], own),
            seed=record["seed"],
            precision=record["precision"],
            device=device,
        )
        model.epochs_done = record.get("epochs_done", 0)
        if record["frozen"]:
            model.freeze(*record["frozen"])
        _give_columns(model, record)
    except DeviceError:
        raise
    except CheckpointError as error:
        raise CheckpointError(shown(error, 2000)) from error
    except Exception as error:  # whatever classes and rules make of settings that nobody wrote
        reason = shown(error if isinstance(error, MagmaDNNError) else repr(error), 500)
        raise CheckpointError(f"the model's description is damaged: {reason}") from error
    return model


def model_sent(record: dict[str, Any]) -> Model:
    """The model that a client has sent, with initial parameters.

    Raises:
        ArgumentError: if something that the model is made of is not found by these workers.
        CheckpointError: as `model_from`.
    """
    return model_from(record["model"], imported(record["others"]))


_GOES_ON = (
    ": fit goes on with a training by md.callbacks.Checkpoint(folder); model.save writes models"
)


def load_model(
    folder: str | Path, custom: Iterable[Any] = (), device: str = "cpu"
) -> tuple[Model, dict[str, Any]]:
    """A saved model and what was saved with it.

    Raises:
        CheckpointError: if the folder holds something else, or is damaged.
        FileError: if it cannot be read.
    """
    return model_of(folder, saved_state(folder), custom, device)


def saved_state(folder: str | Path, others: Sequence[str] = ()) -> State:
    """What a folder holds: a model, or one of the `others`, kinds that the caller knows.

    Raises:
        CheckpointError: if the folder holds something else, or is damaged.
        FileError: if it cannot be read.
    """
    place = as_path("load: the folder", folder)
    if is_folder(place / CHECKPOINTS) and not is_there(place / MANIFEST):
        raise CheckpointError(
            f"{shown(folder)}: holds the checkpoints of a training, not a model{_GOES_ON}"
        )
    state = load_state(folder)
    if state.record.get("kind") not in ("model", *others):
        kind = shown(state.record.get("kind", "state"), 80)
        raise CheckpointError(f"{shown(folder)}: holds a {kind}, not a model{_GOES_ON}")
    return state


def model_of(
    folder: str | Path, state: State, custom: Iterable[Any] = (), device: str = "cpu"
) -> tuple[Model, dict[str, Any]]:
    """The model of a state that was read, and what was saved with it.

    Raises:
        CheckpointError: if it is damaged.
    """
    check(_SAVED, state.record, shown(folder))
    values = part_of(state.tensors, "model/")
    _check_variables(state.record["model"], values)
    model = model_from(state.record["model"], custom, device)
    try:
        model.assign(values)
    except CheckpointError as error:  # names in it are the file's
        raise CheckpointError(f"{shown(folder)}: {shown(error)}") from error
    extra = state.record["extra"]
    if "preparation" in extra:  # where it was kept before models had one
        _give_columns(model, extra)
    return model, extra


def _give_columns(model: Model, record: dict[str, Any]) -> None:
    """Give a model the columns and the preparation that it was saved with, if it was.

    Raises:
        CheckpointError: they are damaged.
    """
    made, columns = record.get("preparation"), record.get("columns", {})
    try:
        model.columns = {str(name): Schema.from_json(plain) for name, plain in columns.items()}
        model.preparation = None if made is None else Preparation.from_json(made)
    except (ArgumentError, DataError, AttributeError) as error:
        raise CheckpointError(
            f"the model's columns or preparation are damaged: {shown(error, 500)}"
        ) from error


def _check_variables(record: dict[str, Any], values: Mapping[str, Array]) -> None:
    """Variables of no layer take memory as soon as they are made: first their shapes are compared."""
    for entry in record["graph"]["entries"]:
        if "variable" in entry:
            check(_VARIABLE, entry["variable"], "the model's description: variable")
            name, shape = entry["variable"]["name"], entry["variable"]["shape"]
            if name not in values or list(values[name].shape) != shape:
                raise CheckpointError(
                    f"the model's description is damaged: variable {quoted(name)} of shape "
                    f"{quoted(shape)} is not among the tensors"
                )


_VARIABLE = Fields({"name": Text(), "shape": Many(Whole()), "dtype": Text(40)})
