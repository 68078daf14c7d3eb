"""A training from the command line: its folder, its data and model, and how it goes on."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from magmadnn.backends import cuda
from magmadnn.cli.arguments import as_typed
from magmadnn.cli.console import Console
from magmadnn.data import Dataset
from magmadnn.errors import ArgumentError, DeviceError, FileError, MagmaDNNError
from magmadnn.storage import printing
from magmadnn.storage.places import expanded
from magmadnn.storage.run_folder import check_links, create_run, read_run

from .fitting import Run, Training, train
from .outputs import check_new, check_place, write_json
from .results import RESULT, read_result, say_result
from .run_rows import Loader, check_same_rows, fingerprint, loader_of, read_dataset
from .settings import Settings, mnist_folder


def start_run(arguments: argparse.Namespace, say: Console) -> int:
    """A new run; returns the exit code.

    Raises:
        MagmaDNNError: if something is wrong with settings, data or the folder.
    """
    settings = Settings.of(arguments)
    out = None if arguments.out is None else expanded(arguments.out)
    check_device(settings.device)
    check_place("--json", settings.json)
    if out is not None:
        check_new("--out", out, "another --out, or go on with the run there by --resume")
    data = load_data(settings, settings.data, say, loader_of(arguments))
    settings = replace(
        Settings.of(arguments, data.preparation.prepared_shape, len(data.x_train)),
        data_sha256=fingerprint(data),
        data_folder=mnist_folder() if settings.data == "mnist" else None,
    )
    if settings.refit and not settings.validation_split:
        raise ArgumentError(
            "--refit: no rows are kept back to choose the number of epochs by; give --validation-split 0.1 "
            "too, or leave --refit out"
        )
    first = Training.of(settings, data)
    folder = _create(settings, out)
    return train(_run_of(arguments, folder, settings, data, say), first)


def resume_run(arguments: argparse.Namespace, say: Console) -> int:
    """Go on with the run in a folder; returns the exit code. A finished one only gives its result again.

    Raises:
        MagmaDNNError: if there is no such run, arguments contradict its own, or it cannot go on.
    """
    folder = expanded(arguments.resume)
    settings = Settings.from_record(read_run(folder), arguments.resume)
    settings.check_same(arguments)
    if arguments.out is not None and Path(arguments.out).resolve() != folder.resolve():
        raise ArgumentError(
            f"--out {arguments.out} contradicts --resume {arguments.resume}: a run stays in its folder; "
            "leave --out out"
        )
    check_links(folder)
    settings = replace(settings, json=_json_of(arguments, settings))
    result = read_result(folder)
    if result is not None:
        say(f"{folder}: this run is finished; nothing is trained")
        say_result(result, say)
        if settings.json is not None:
            write_json(settings.json, result)
        return 0
    check_device(settings.device)
    source = settings.data_folder or settings.data
    data = load_data(settings, source, say, loader_of(arguments))
    check_same_rows(data, settings, source, str(folder), "restore the data, or start a new run")
    run = _run_of(arguments, folder, settings, data, say)
    return train(run, Training.of(settings, data))


def _run_of(
    arguments: argparse.Namespace, folder: Path, settings: Settings, data: Dataset, say: Console
) -> Run:
    workers = arguments.loader_workers or 1
    return Run(folder, settings, data, say, workers, arguments.parallel, arguments.memory_limit)


def follow(arguments: argparse.Namespace) -> int:
    """Take part in a run of which rank 0 keeps the folder; what this rank would keep goes away.

    What is wrong is told of rank 0's folder, which all see.
    """
    given = arguments.resume or arguments.out or "the run"
    with tempfile.TemporaryDirectory(prefix="magmadnn-rank-") as place:
        own = Path(place) / "run"
        try:
            return _follow(arguments, own)
        except MagmaDNNError as error:
            error.args = (str(error).replace(str(own), str(given)), *error.args[1:])
            raise


def _follow(arguments: argparse.Namespace, own: Path) -> int:
    """Take part in a run, with what this rank keeps in a folder of its own; returns the exit code."""
    arguments.json, say = None, Console(True)
    if arguments.resume is None:
        arguments.out = str(own)
        return start_run(arguments, say)
    own.mkdir()
    for path in expanded(arguments.resume).iterdir():
        if path.is_file():  # no checkpoints: rank 0 tells what is in them
            shutil.copy(path, own)
    arguments.resume, arguments.out = str(own), None
    return resume_run(arguments, say)


def _json_of(arguments: argparse.Namespace, settings: Settings) -> str | None:
    """Where the result is written too: where this command says, and not where a file in a folder says.

    The folder may come from somebody else, or be a copy of another one.
    """
    check_place("--json", arguments.json)
    if settings.json is not None and arguments.json is None:
        printing.note(
            f"the run was started with --json {settings.json}, which --resume does not write by itself: give "
            f"--json again; the result is in {Path(arguments.resume) / RESULT} too"
        )
    return None if arguments.json is None else str(expanded(arguments.json).absolute())


def check_device(device: str) -> None:
    """Refuse a device that is not there before data is read, which may take long."""
    found, reason = cuda.available()
    if device == "cuda" and not found:
        raise DeviceError(f"--device cuda: {reason}; use --device cpu")


def _create(settings: Settings, out: Path | None) -> Path:
    """The folder, with its arguments inside."""
    if out is not None:
        create_run(out, settings.record())
        return out
    base = f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}-{Path(settings.model).stem}"
    number = 1
    while True:  # another run may have begun in this second
        folder = Path(base if number == 1 else f"{base}-{number}")
        try:
            create_run(folder, settings.record())
            return folder
        except FileError:
            if not folder.exists():
                raise
            number += 1


def load_data(settings: Settings, source: str, say: Console, loader: Loader) -> Dataset:
    """The data of a run, with lines that say what it is."""
    data = read_dataset(settings, source, loader)
    say(data.description)
    for remark in data.notes:
        say(f"note: {as_typed(remark)}")
    say(f"{data.preparation.task}, since {_reason(settings, data)} (--task chooses)")
    return data


def _reason(settings: Settings, data: Dataset) -> str:
    """Why the target is taken for classes or for quantities."""
    preparation = data.preparation
    if settings.task is not None:
        return "--task says so"
    if preparation.schema is not None and preparation.schema.target_is_text:
        return "the target is text"
    if settings.data == "mnist" or Path(settings.data).is_dir():
        return "such data has classes"
    target = np.concatenate([data.y_train, data.y_test])
    distinct = len(np.unique(target))
    if preparation.task == "classification":
        return f"the target has {distinct} whole values in {len(target):,} rows"
    if target.ndim > 1:
        return f"the target has {target.shape[1]} columns"
    if (target == np.floor(target)).all():
        return f"the target has {distinct:,} different values in {len(target):,} rows"
    return "the target has values that are not whole"
