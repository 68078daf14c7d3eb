"""The files that commands write: results, curves, the model; and files that the user names."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.data import Dataset
from magmadnn.errors import CheckpointError, FileError, MissingExtraError, shown
from magmadnn.models.baselines import classification_baselines, regression_baselines
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.storage.disk import is_folder, is_there, worded
from magmadnn.storage.durable import read_file, write_file
from magmadnn.storage.places import expanded
from magmadnn.storage.plain_json import JSON_BYTES, decode
from magmadnn.storage.plain_schema import Either, Fields, Flag, Number, Text, Whole, check, maybe
from magmadnn.training import History, Model
from magmadnn.training.model.saving import save_model

from .console import Console
from .settings import Settings
from .units import figures

RESULT = "result.json"
MODEL = "model"
_RESULT = Fields(
    {
        "epochs": Whole(),
        "train_seconds": Number(0, finite=True),
        "samples_per_second": Number(0, finite=True),
    },
    others=Either((maybe(Number()), Text(), Flag())),
)


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that the user named; a device or pipe is written to, never replaced.

    Raises:
        FileError: if it cannot be written.
    """
    target = expanded(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        with worded("cannot write", target), target.open("wb") as file:
            file.write(data)
    else:
        write_file(target, data)


def write_json(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write a result that the user asked for.

    Raises:
        FileError: if it cannot be written.
    """
    write_output(path, as_json(result))


def as_json(result: Mapping[str, Any]) -> bytes:
    """A result as JSON: one name on a line; NaN and infinities, which JSON lacks, become null."""
    plain = {
        k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in result.items()
    }
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def check_place(option: str, path: str | None) -> None:
    """See whether a file can be written, before work begins that would be lost otherwise.

    Raises:
        FileError: if it is a folder, or the nearest folder above it that exists cannot be written.
    """
    if path is None:
        return
    if is_folder(expanded(path)):
        raise FileError(f"{option} {path}: expected the name of a file, got a folder")
    check_above(option, path)


def check_above(option: str, path: str) -> None:
    """See whether the nearest folder above `path` that exists can be written.

    Raises:
        FileError: if it cannot, or is a file.
    """
    target = expanded(path).absolute()
    above = next(p for p in target.parents if p.exists() or p.is_symlink())
    if not above.is_dir():
        raise FileError(f"{option} {path}: {above} is a file, not a folder; choose another path")
    if not os.access(above, os.W_OK):
        raise FileError(
            f"{option} {path}: the folder {above} cannot be written; choose another one, or change "
            "its permissions"
        )


def write_results(
    folder: Path,
    model: Model,
    data: Dataset,
    history: History,
    settings: Settings,
    say: Console,
) -> dict[str, Any]:
    """Everything that a finished training leaves; the result comes last, so it means all is there.

    Raises:
        FileError: if a file cannot be written.
    """
    model.preparation = data.preparation
    save_model(model, folder / MODEL)
    model.preparation = None
    history.to_csv(folder / "history.csv")
    history.to_json(folder / "history.json")
    _draw(history, folder / "curves.png", say)
    result = _result(model, data, history, settings)
    write_file(folder / RESULT, as_json(result))
    return result


def _draw(history: History, path: Path, say: Console) -> None:
    """The curves, or one line that says why there are none."""
    import logging

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it announces building its font cache
    picture = io.BytesIO()
    try:
        history.plot().savefig(picture, format="png", dpi=120)
    except MissingExtraError as error:
        say(f"no {path.name}: {error}")
        return
    write_file(path, picture.getvalue())


def _result(model: Model, data: Dataset, history: History, settings: Settings) -> dict[str, Any]:
    found = figures(model, data.preparation, *data.test(), data.y_test)
    seconds = sum(row["seconds"] for row in history)
    samples = sum(row["samples_per_second"] * row["seconds"] for row in history)
    return {
        **{f"test_{name}": value for name, value in found.items()},
        **{f"baseline_{name}": value for name, value in _baselines(data).items()},
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


def _baselines(data: Dataset) -> dict[str, float]:
    """What simple methods reach on the test rows of a table; nothing for images."""
    preparation = data.preparation
    if len(preparation.input_shape) > 1:
        return {}
    (x, y), (x_test, y_test) = data.train(), data.test()
    if preparation.task == "regression":
        return regression_baselines(x, data.y_train, x_test, data.y_test)
    return classification_baselines(x, y, x_test, y_test, len(preparation.classes))


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
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove it, and --resume makes it anew") from error
    return result


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
    if "train_seconds" in result:
        say(
            f"{result['epochs']} epochs in {result['train_seconds']:.1f} s, "
            f"{result['samples_per_second']:,.0f} samples a second"
        )


def _figure(name: str, value: Any) -> str:
    if isinstance(value, (str, bool)) or value is None:
        return "is not a number"
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.6g}"
