"""What was saved, a model or an ensemble, from its folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import CheckpointError, shown
from magmadnn.storage.checkpoint import State
from magmadnn.storage.disk import as_path, is_folder
from magmadnn.storage.durable import folder_names
from magmadnn.storage.formats.plain_schema import Anything, Fields, Many, check
from magmadnn.training.loop.resuming import part_of
from magmadnn.training.model.loading import MODEL, model_of, saved_state
from magmadnn.training.model.model import Model

from .ensemble import KIND, Ensemble

_SAVED = Fields({"models": Many(MODEL)}, others=Anything())


@checked_call
def load(folder: str | Path, custom: Iterable[Any] = (), device: str = "cpu") -> Any:
    """The model, or the `Ensemble`, that was saved to a folder.

    Args:
        folder: what `Model.save` or `Ensemble.save` wrote, or the output folder of `magmadnn train`.
        custom: own layers, ops and functions that the model is made of.
        device: where it is to run, as `Model` takes it; where it was trained does not matter.

    Returns:
        A `Model` or an `Ensemble`, as was saved.

    Raises:
        CheckpointError: if it is damaged, foreign, or needs something that is not in `custom`.
        DeviceError: if there is no such device.
        FileError: if it cannot be read.
    """
    outer = as_path("load: the folder", folder)
    inside = is_folder(outer) and "model" in folder_names(outer)
    place = outer / "model" if inside else outer
    state = saved_state(place, (KIND,))
    if state.record.get("kind") == KIND:
        return _ensemble(place, state, list(custom), device)
    return model_of(place, state, custom, device)[0]


def _ensemble(place: Path, state: State, custom: list[Any], device: str) -> Ensemble:
    check(_SAVED, state.record, shown(place))
    models: list[Model] = []
    for number, record in enumerate(state.record["models"]):
        own = State(
            tensors={
                f"model/{name}": value
                for name, value in part_of(state.tensors, f"models/{number}/").items()
            },
            record={"kind": "model", "model": record, "extra": {}},
        )
        models.append(model_of(place, own, custom, device)[0])
    if not models:
        raise CheckpointError(f"{shown(place)}: holds an ensemble of no models; it is damaged")
    return Ensemble(models)
