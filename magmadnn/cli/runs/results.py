"""The result of a training: its figures, and how they are printed."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.cli.console import Console
from magmadnn.data import Dataset, Preparation
from magmadnn.errors import CheckpointError, shown
from magmadnn.models.baselines import classification_baselines, regression_baselines
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import read_file
from magmadnn.storage.formats.plain_json import JSON_BYTES, decode
from magmadnn.storage.formats.plain_schema import (
    Either,
    Fields,
    Flag,
    Number,
    Text,
    Whole,
    check,
    maybe,
)
from magmadnn.training import History, Model
from magmadnn.training.objective.measured import units_of

from .selection import Selection, seconds_and_samples
from .settings import Settings, trained_rows
from .units import Array, figures

RESULT = "result.json"
_RESULT = Fields(
    {
        "epochs": Whole(),
        "train_seconds": Number(0, finite=True),
        "samples_per_second": Number(0, finite=True),
    },
    {
        "trained_on": Text(),
        "trained_rows": Whole(),
        "kept_back_rows": Whole(),
        "best_epoch": Whole(),
        "validated_epochs": Whole(),
    },
    others=Either((maybe(Number()), Text(), Flag())),
)

_TOGETHER = {  # a field, and those that it never is without
    "trained_on": ("trained_rows",),
    "best_epoch": ("validated_epochs", "kept_back_rows"),
}


def result_of(
    model: Model,
    data: Dataset,
    history: History,
    settings: Settings,
    selection: Selection | None,
) -> dict[str, Any]:
    """All figures of a finished training.

    Args:
        model: as it is kept.
        data: with the statistics that it was trained with.
        history: of the training that it comes from.
        settings: of the run.
        selection: what validation rows chose, if there are any.
    """
    found = figures(model, data.preparation, *data.test(), data.y_test)
    seconds, samples = seconds_and_samples(history)
    if settings.refit and selection is not None:
        seconds, samples = seconds + selection.seconds, samples + selection.samples
    return {
        **{f"test_{name}": value for name, value in found.items()},
        **{f"baseline_{name}": value for name, value in _baselines(data).items()},
        **_rows_of_result(len(data.x_train), settings, selection),
        "train_seconds": seconds,
        "samples_per_second": samples / seconds,
        "epochs": len(history),
        "parameters": sum(prod(p.shape) for p in model.parameters()),
        "seed": settings.seed,
        "device": model.device,
        "precision": settings.precision,
        **{name: int(history[name][-1]) for name in ("skipped_steps",) if name in history.columns},
        "parameters_sha256": parameters_sha256(
            (str(p.node.name), np.asarray(p.value.read())) for p in model.parameters()
        ),
    }


def _rows_of_result(rows: int, settings: Settings, selection: Selection | None) -> dict[str, Any]:
    """Which rows the network was trained on, and what those kept back to validate have chosen."""
    if selection is None:
        return {"trained_on": "training rows", "trained_rows": rows}
    kept = trained_rows(rows, settings.validation_split)
    return {
        **{f"validation_{name}": value for name, value in selection.figures.items()},
        "trained_on": "training and validation rows" if settings.refit else "training rows",
        "trained_rows": rows if settings.refit else kept,
        "kept_back_rows": rows - kept,
        "best_epoch": selection.best_epoch,
        "validated_epochs": selection.epochs,
    }


def _baselines(data: Dataset) -> dict[str, float]:
    """What simple methods reach on the test rows of a table; nothing for images."""
    preparation = data.preparation
    if len(preparation.input_shape) > 1:
        return {}
    (x, y), (x_test, y_test) = data.train(), data.test()
    if preparation.task == "regression":
        return _of_targets(preparation, x, data.y_train, x_test, data.y_test)
    return classification_baselines(x, y, x_test, y_test, len(preparation.classes))


def _of_targets(
    preparation: Preparation, x: Array, y: Array, x_test: Array, y_test: Array
) -> dict[str, float]:
    """What simple methods reach; of several targets for each, in its units."""
    units = units_of(preparation) or ()
    if len(units) < 2:
        return regression_baselines(x, y, x_test, y_test)
    return {
        f"{unit.name}_{name}": value
        for k, unit in enumerate(units)
        for name, value in regression_baselines(x, y[:, k], x_test, y_test[:, k]).items()
    }


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished run; None if it is not finished.

    Raises:
        CheckpointError: if it is damaged.
    """
    path = folder / RESULT
    if not is_there(path):
        return None
    try:
        result = decode(read_file(path, JSON_BYTES), shown(path))
        check(_RESULT, result, shown(path))
        _check_complete(result, shown(path))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove it, and --resume makes it anew") from error
    return result


def _check_complete(result: Mapping[str, Any], where: str) -> None:
    """Look whether what a line is printed of is there together.

    Raises:
        CheckpointError: a part of it is missing.
    """
    for name, needed in _TOGETHER.items():
        missing = [other for other in needed if name in result and other not in result]
        if missing:
            raise CheckpointError(f"{where}: has {name!r}, but {missing[0]!r} is missing")


def say_result(result: Mapping[str, Any], say: Console, evaluated: str = "test") -> None:
    """Print what was found on the rows that were evaluated."""
    begin = f"{evaluated}_"
    listed = [
        f"{shown(n, 80)} {_figure(n, value)}" for n, value in result.items() if n.startswith(begin)
    ]
    say(", ".join(listed))
    simple = [
        f"{shown(name.removeprefix('baseline_'), 80)} {_figure(name, value)}"
        for name, value in result.items()
        if name.startswith("baseline_")
    ]
    if simple:
        say(f"simple methods on the same rows: {', '.join(simple)}")
    if "trained_on" in result:
        say(_training_words(result))
    if "train_seconds" in result:
        say(
            f"{result['epochs']} epochs in {result['train_seconds']:.1f} s, "
            f"{result['samples_per_second']:,.0f} samples a second"
        )


def _training_words(result: Mapping[str, Any]) -> str:
    """Which rows the network was trained on, and what validation rows chose."""
    rows = f"trained on {result['trained_rows']:,} {shown(result['trained_on'], 80)}"
    if "best_epoch" not in result:
        return rows
    best, epochs, kept = (result[n] for n in ("best_epoch", "validated_epochs", "kept_back_rows"))
    names = [name for name in result if name.startswith("validation_")]
    listed = ", ".join(f"{shown(name, 80)} {_figure(name, result[name])}" for name in names)
    return f"{rows} up to epoch {best}, the best of {epochs} on {kept:,} validation rows: {listed}"


def _figure(name: str, value: Any) -> str:
    if isinstance(value, (str, bool)) or value is None:
        return "is not a number"
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.6g}"
