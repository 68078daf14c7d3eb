"""The rows of a run: its data read as it was for the training, and which of them it kept for what."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.cli.arguments import as_typed
from magmadnn.data import Dataset, load, split_rows
from magmadnn.data.images.reading import Decode, row_digest
from magmadnn.errors import ArgumentError, CheckpointError, DataError
from magmadnn.memory.on_demand import OnDemand, choose_rows
from magmadnn.storage.disk import is_there
from magmadnn.storage.places import expanded
from magmadnn.storage.run_folder import RUN, read_run

from .results import RESULT
from .settings import Settings

Array = np.ndarray[Any, np.dtype[Any]]

_IMAGES = 4  # axes of an array of images
SPLITS = ("test", "validation", "train")


@dataclass(frozen=True, eq=False)
class RunRows:
    """Rows of a run, as they were read.

    Attributes:
        description: which they are.
        x: inputs.
        y: targets.
        files: of images in files, the path of each row; None for other data.
    """

    description: str
    x: Array
    y: Array
    files: tuple[str, ...] | None


@dataclass(frozen=True)
class Loader:
    """How files of images are decoded; no result depends on it.

    Attributes:
        workers: threads; None: as many as compiled programs run on.
        decode: "memory", "stream" or None; see `magmadnn.data.image_folder`.
    """

    workers: int | None = None
    decode: Decode | None = None


def loader_of(arguments: argparse.Namespace) -> Loader:
    """How a command decodes files of images; a search keeps them in memory, for all of its trials."""
    return Loader(arguments.loader_workers, getattr(arguments, "decode", "memory"))


def read_dataset(settings: Settings, source: str, loader: Loader) -> Dataset:
    """The data of a run, split as the settings say.

    Raises:
        MagmaDNNError: it cannot be read or trained on.
    """
    try:
        return load(
            source,
            target=settings.target,
            ignore=settings.ignore,
            features=settings.features,
            categories=settings.categories,
            decimal=settings.decimal,
            missing=settings.missing,
            test_split=settings.test_split,
            seed=settings.seed,
            task=settings.task,
            image_size=settings.image_size,
            loader_workers=loader.workers,
            decode=loader.decode,
            bad_images=settings.bad_images,
            pca=settings.pca,
        )
    except (ArgumentError, DataError) as error:
        raise type(error)(as_typed(str(error))) from error


def fingerprint(data: Dataset) -> str:
    """SHA-256 of the rows that training and validation take; of images of the digest of each."""
    digest = hashlib.sha256()
    for array in (data.x_train, data.y_train):
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        known = array.row_digests() if isinstance(array, OnDemand) else None
        if known is not None:
            digest.update(b"".join(known))
            continue
        for block in _blocks(array):
            if array.ndim == _IMAGES:
                digest.update(b"".join(map(row_digest, block)))
            else:
                digest.update(np.ascontiguousarray(block).view(np.uint8).data)
    return digest.hexdigest()


def _blocks(array: Array) -> Iterator[Array]:
    """The array, or rows on demand some megabytes at a time."""
    step = array.rows_at_once if isinstance(array, OnDemand) else max(len(array), 1)
    for low in range(0, len(array), step):
        yield array[low : low + step]


def check_same_rows(
    data: Dataset, settings: Settings, source: str, folder: str, way_out: str
) -> None:
    """Look whether data is what a run was started with.

    Raises:
        DataError: if not.
    """
    if fingerprint(data) != settings.data_sha256:
        raise DataError(
            f"{source}: the training rows are not those that the run in {folder} was started with; {way_out}"
        )


def rows_of_run(folder: str, split: str, source: str | None, loader: Loader) -> RunRows:
    """The rows that a run kept for testing, validation or training.

    Args:
        folder: of the run.
        split: one of `SPLITS`.
        source: the run's data, if it lies elsewhere by now.
        loader: how images are decoded.

    Raises:
        CheckpointError: the folder holds no run.
        DataError: the data is other data by now, or the run kept no rows back to validate, or trained on
            them in the end.
    """
    if not (expanded(folder) / RUN).is_file():
        raise CheckpointError(
            f"--split {split}: {folder} holds no {RUN}, which says how the rows were split; give the output "
            "folder of magmadnn train, or leave --split out"
        )
    settings = Settings.from_record(read_run(expanded(folder)), folder)
    source = source or settings.data_folder or settings.data
    data = read_dataset(settings, source, loader)
    check_same_rows(data, settings, source, folder, "restore it, or leave --split out")
    if split == "test":
        x, y, files = data.x_test, data.y_test, data.test_files
    else:
        x, y, files = data.x_train, data.y_train, data.train_files
        share = settings.validation_split
        if settings.refit and split == "validation":
            raise DataError(
                f"--split validation: the run in {folder} trained on its validation rows too (--refit); what "
                f"its first training had there is in {folder}/{RESULT}; choose test or train"
            )
        if share and not settings.refit:  # as `fit` splits them
            kept, held = split_rows(len(x), share, settings.seed)
            chosen = kept if split == "train" else held
            x, y = choose_rows(x, chosen), y[chosen]
            files = files and tuple(files[k] for k in chosen.tolist())
        elif split == "validation":
            raise DataError(
                f"--split validation: the run in {folder} kept no rows back (--validation-split 0); "
                "choose train or test"
            )
    return RunRows(f"{source}: the {len(x):,} {split} rows of the run in {folder}", x, y, files)


def note_on_rows(folder: str, source: str) -> str | None:
    """What is said where `source` is what the run, or search, was trained on; a copy of it is not found."""
    if not (expanded(folder) / RUN).is_file():
        return None
    record = read_run(expanded(folder))
    settings = Settings.from_record(record.get("training", record), folder)
    own = expanded(settings.data_folder or settings.data)
    if not is_there(own) or own.resolve() != expanded(source).resolve():
        return None
    note = f"the network was trained on rows of {source}, so these figures are too good"
    if "training" in record:  # of a search, whose rows --split does not know
        return note
    return f"{note}; --split test has those of the rows that it did not see"
