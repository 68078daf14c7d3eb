"""Opening what a training left: the model and the preparation of its data."""

from __future__ import annotations

import argparse

from magmadnn.cli.arguments import as_typed
from magmadnn.data import Preparation, Rows, load_for
from magmadnn.errors import CheckpointError, DataError, FileError, shown
from magmadnn.storage.disk import is_folder, is_there
from magmadnn.storage.places import expanded
from magmadnn.storage.run_folder import RUN
from magmadnn.training import Model
from magmadnn.training.model.loading import load_model

from .outputs import MODEL


def open_trained(name: str) -> tuple[Model, Preparation]:
    """The model of a run, or of the folder `model` inside, and its preparation, which commands apply.

    Raises:
        FileError: there is no such folder.
        CheckpointError: it holds something else, is damaged, or its training has not finished.
    """
    folder = expanded(name)
    if not is_folder(folder):
        raise FileError(
            f"{shown(name)}: expected the output folder of a training, "
            + ("got a file" if is_there(folder) else "which is not there")
        )
    inner = folder / MODEL
    if not is_folder(inner) and is_there(folder / RUN):
        raise CheckpointError(
            f"{name}: this training has not finished, so there is no model yet; go on with it: "
            f"magmadnn train --resume {name}"
        )
    model, _ = load_model(inner if is_folder(inner) else folder)
    made = model.preparation
    if not isinstance(made, Preparation):
        raise CheckpointError(
            f"{name}: holds a model without the preparation of its data, so it was not saved by "
            "magmadnn train; use it from Python: md.load"
        )
    return model, made


def rows_for(
    preparation: Preparation, arguments: argparse.Namespace, *, with_target: bool = True
) -> Rows:
    """The data that a command is given (`Parser.add_reading`), prepared.

    Raises:
        MagmaDNNError: it cannot be read, or does not fit the model.
    """
    try:
        return load_for(
            preparation,
            arguments.data,
            with_target=with_target,
            missing=arguments.missing,
            decimal=arguments.decimal,
            loader_workers=arguments.loader_workers,
            bad_images=arguments.bad_images or "error",
            decode=arguments.decode,
        )
    except DataError as error:
        raise type(error)(as_typed(str(error))) from error
