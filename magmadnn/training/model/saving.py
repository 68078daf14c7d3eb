"""Saving a model to a folder: as data only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from magmadnn.data.preparation.preparation import Preparation
from magmadnn.storage.checkpoint import State, save_state
from magmadnn.storage.disk import as_path

from .plain.architecture import describe
from .plain.codec import encode, items_of_others
from .plain.elsewhere import record_of

if TYPE_CHECKING:
    from .model import Model


def model_record(model: Model) -> dict[str, Any]:
    """Everything about a model but its parameters, as JSON data."""
    return {
        "graph": describe(model.inputs, model.outputs),
        "loss": encode(model.loss),
        "loss_weights": encode(model.loss_weights),
        "optimizer": encode(model.optimizer),
        "metrics": encode(model.metrics),
        "seed": model.seed,
        "epochs_done": model.epochs_done,
        "precision": model.precision,
        "frozen": [layer.label for layer in model.layers if not layer.trainable],
        "columns": {name: schema.to_json() for name, schema in model.columns.items()},
        "preparation": _preparation_record(model),
    }


def sent_record(model: Model) -> dict[str, Any]:
    """The same for workers, with where they find classes and functions that are not magmadnn's."""
    with items_of_others() as items:
        record = model_record(model)
    return {"model": record, "others": record_of(items.values())}


def _preparation_record(model: Model) -> dict[str, Any] | None:
    """The preparation, if it was fitted."""
    made = model.preparation
    return made.to_json() if isinstance(made, Preparation) else None


def save_model(model: Model, folder: str | Path, extra: dict[str, Any] | None = None) -> None:
    """Write a model; a model that is there already is replaced in one rename."""
    folder = as_path("save: the folder", folder)
    tensors = {f"model/{name}": value for name, value in model.values().items()}
    record = {"kind": "model", "model": model_record(model), "extra": extra or {}}
    save_state(folder, State(tensors=tensors, record=record), replace=True)
