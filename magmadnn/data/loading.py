"""Data named by one text, as on the command line: found, read, split and prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._remarks import (
    SHOWN,
    check_folders,
    check_no_columns,
    classes_notes,
    left_out,
    notes_of,
)
from magmadnn.data._sources import Source, open_source, table_source
from magmadnn.data.batching import split_rows
from magmadnn.data.images.folders import BadImages, ImageOptions
from magmadnn.data.images.reading import Decode
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.targets import (
    Task,
    check_task,
    class_names,
    target_kind,
)
from magmadnn.data.tables.cell_grid import names_text
from magmadnn.data.tables.chosen_columns import Names
from magmadnn.data.tables.libraries import is_table
from magmadnn.data.tables.reading import (
    Missing,
    check_missing,
    frame_like,
    frame_table,
    read_table,
    read_table_like,
)
from magmadnn.errors import ArgumentError, DataError, quoted, shown
from magmadnn.memory.on_demand import choose_rows
from magmadnn.storage.input_files import input_name

Array = NDArray[Any]
Files = tuple[str, ...] | None
Split = tuple[Array, Array, Files]  # inputs, targets, and the files of images

_IMAGES = 4  # axes of images: [rows, height, width, channels]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows as they were read, and the preparation fitted on the training rows.

    Attributes:
        description: one line: format, rows, inputs, how it was split, what the target is taken for.
        x_train: inputs [rows, ...].
        y_train: targets as they were read: texts, class numbers or quantities.
        x_test: likewise.
        y_test: likewise.
        preparation: scales inputs and targets; give it to the model: `Model(..., preparation=...)`.
        notes: what somebody should know about the columns of a table, a line each.
        train_files: of images in files, the path of each training row; None for other data.
        test_files: likewise, of the test rows.
    """

    description: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    preparation: Preparation
    notes: tuple[str, ...] = ()
    train_files: Files = None
    test_files: Files = None

    def __repr__(self) -> str:
        return f"<Dataset {self.description}>"

    def train(self) -> tuple[Array, Array]:
        """The training rows prepared: float32 inputs; int64 classes or scaled float32 targets."""
        return self._prepared(self.x_train, self.y_train)

    def test(self) -> tuple[Array, Array]:
        """The test rows, prepared with the statistics of the training rows."""
        return self._prepared(self.x_test, self.y_test)

    def keeping_back(self, validation_split: float, seed: int) -> Dataset:
        """The same with statistics that leave out the rows that `fit` keeps back to validate.

        Args:
            validation_split: as `fit` is given it.
            seed: of the model.
        """
        if not validation_split:
            return self
        old, kept = self.preparation, split_rows(len(self.x_train), validation_split, seed)[0]
        new = Preparation.fit(
            self.x_train,
            self.y_train,
            task=old.task,
            classes=old.classes or None,
            missing=old.missing,
            schema=old.schema,
            rows=kept,
            pca=None if old.components is None else len(old.components.directions),
        )
        return replace(self, preparation=replace(new, image_size=old.image_size))

    def _prepared(self, x: Array, y: Array) -> tuple[Array, Array]:
        return self.preparation.apply_inputs(x), self.preparation.apply_target(y)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows for a model that is trained already.

    Attributes:
        description: one line: format, rows and which part of the data they are.
        x: prepared inputs, float32.
        y: prepared targets, or None.
        raw_target: targets as they were read, or None.
        lines: the line in its file of each row of a table; None for other data.
        is_test_set: whether these are the rows of a test set, and not all that there are.
        files: of images, the path of each row; None for other data.
        notes: what somebody should know about the data, a line each.
    """

    description: str
    x: Array
    y: Array | None
    raw_target: Array | None
    lines: NDArray[np.int64] | None
    is_test_set: bool = False
    files: Files = None
    notes: tuple[str, ...] = ()


@checked_call
def load(
    spec: Any,
    *,
    target: Names = -1,
    ignore: Names = (),
    features: Names | None = None,
    categories: Names = (),
    decimal: str = ".",
    missing: Missing | None = None,
    test_split: float = 0.2,
    seed: int = 0,
    task: Task | None = None,
    image_size: int | None = None,
    loader_workers: int | None = None,
    bad_images: BadImages = "error",
    decode: Decode | None = None,
    pca: int | None = None,
) -> Dataset:
    """Loads the data that `spec` names, for training.

    Args:
        spec: `mnist`; a folder with IDX files; a folder with CIFAR-10 or CIFAR-100 batches; a folder with
            images (see `image_folder`); a text file with a table (.csv, .tsv, .data, .dat, .txt, also
            packed: .csv.gz, .xz, .bz2); an .npz or HDF5 file (see `read_npz`, `read_hdf5`; arrays of bytes
            with three or four axes are images); or a table itself, of pandas, polars or pyarrow.
        target: of a table: name or number of the target column, or several, all numeric.
        ignore: of a table: columns that are left out.
        features: of a table: the inputs, in this order; None: all other columns.
        categories: of a table: columns whose values name categories though they are numbers.
        decimal: of a table in a text file: the decimal sign.
        missing: values of a table, or NaN in an .npz: None: an error; "mean": filled with the
            training rows' mean; "drop": the row is left out.
        test_split: the share of rows that becomes the test set, where data has none of its own.
        seed: chooses these rows.
        task: overrides what `target_kind` tells.
        image_size: of a folder of images: pixels on each side that they are scaled to; see `image_folder`.
        loader_workers: of a folder of images: threads that decode.
        bad_images: of a folder of images: "error" or "skip".
        decode: of a folder of images or an HDF5 file: "memory", "stream" or None; see `image_folder` and
            `read_hdf5`. As a stream,
            inputs are rows on demand, which `fit`, `evaluate` and `predict` take batch by batch.
        pca: how many principal components of the training rows inputs become; None: they stay.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        DataError, ShapeError, DTypeError: what is in it cannot be trained on.
        ArgumentError: an argument out of range, or a name that is not known.
    """
    check_missing(missing)
    if task is not None:
        check_task(task)
    images = ImageOptions(image_size, loader_workers, bad_images, decode)
    columns: dict[str, Any] = {"ignore": ignore, "features": features, "categories": categories}
    if is_table(spec):
        name = "table"
        source = table_source(frame_table(spec, target, missing, **columns))
    else:
        spec, name = input_name("data", spec), shown(spec)
        source = open_source(
            spec,
            lambda path: read_table(path, target, missing, decimal=decimal, **columns),
            missing,
            images=images,
        )
        if source.table is None:
            check_no_columns(name, {**columns, "target": target}, decimal)
    if source.y is None:
        raise ArgumentError(f"{name}: without a target there is nothing to train: name a column")
    chosen, classes = _task_and_classes(name, source, source.y, task)
    train, test, how = _split(source, source.y, test_split, seed)
    x, y, files = train
    x_test, y_test, test_files = test
    preparation = Preparation.fit(
        x,
        y,
        task=chosen,
        classes=classes,
        missing=missing,
        schema=source.table.schema if source.table else None,
        pca=pca,
    )
    preparation = replace(preparation, image_size=source.image_size)
    description = (
        f"{name}: {source.format}; {len(x):,} training and {len(x_test):,} test rows{how} "
        f"of {_shape(preparation.input_shape)} inputs{_components_words(preparation)}; "
        f"{_target_words(source, preparation)}"
    )
    notes = notes_of(source, preparation) + classes_notes(name, y, preparation.classes)
    return Dataset(description, x, y, x_test, y_test, preparation, notes, files, test_files)


def _task_and_classes(
    name: str, source: Source, y: Array, task: Task | None
) -> tuple[Task, tuple[str, ...] | None]:
    """What the targets `y` of a source are taken for, unless `task` says it, and the names of classes."""
    all_targets = np.concatenate([y, *([] if source.y_test is None else [source.y_test])])
    of_images = source.x.ndim == _IMAGES
    chosen = task or source.task or target_kind(all_targets, of_images=of_images)
    if chosen != "classification":
        return chosen, None
    return chosen, source.classes or _classes(name, all_targets, source)


@checked_call
def load_for(
    preparation: Preparation,
    spec: Any,
    *,
    with_target: bool = True,
    missing: Missing | None = None,
    decimal: str | None = None,
    test_split: float | None = None,
    seed: int = 0,
    loader_workers: int | None = None,
    bad_images: BadImages = "error",
    decode: Decode | None = None,
) -> Rows:
    """Loads the data that `spec` names, to evaluate or predict with a trained model.

    These are the rows of its test set, where it has one of its own; otherwise all rows. Images are scaled as
    in training, and those in files become grey for a model that was trained on images of one channel.

    Args:
        preparation: of the model; a table is read with the columns and categories kept there.
        spec: as for `load`.
        with_target: False: targets are not read and may be absent.
        missing: None: as in training, but without targets no row is left out: there
            missing values are an error unless they were filled in training.
        decimal: the decimal sign of a table in a text file; None: as in training.
        test_split: with a number, and no test set of its own: only the rows that `load` made the
            test set with this share and seed.
        seed: as given to `load`.
        loader_workers: as for `load`.
        bad_images: as for `load`.
        decode: as for `load`.

    Raises:
        As `load`; also DataError, ShapeError: the data does not fit the model.
    """
    check_missing(missing)
    chosen = missing or preparation.missing
    if missing is None and chosen == "drop" and not with_target:
        chosen = None
    schema = preparation.schema
    if is_table(spec):
        name = "table"
        if schema is None:
            table = frame_table(spec, -1 if with_target else None, chosen)
        else:
            table = frame_like(spec, schema, chosen, with_target=with_target)
        source = table_source(table)
    else:
        spec, name = input_name("data", spec), shown(spec)
        sign = decimal or "."
        source = open_source(
            spec,
            lambda path: (
                read_table(path, -1 if with_target else None, chosen, decimal=sign)
                if schema is None
                else read_table_like(path, schema, chosen, with_target=with_target, decimal=decimal)
            ),
            chosen,
            with_target=with_target,
            images=ImageOptions(
                preparation.image_size, loader_workers, bad_images, decode, _takes_grey(preparation)
            ),
            for_trained=True,
        )
    x, y, files, lines, part = _part(source, test_split, seed)
    raw = y if with_target else None
    if raw is not None and files is not None:
        check_folders(name, source.classes or (), preparation.classes)
    filled = replace(preparation, missing=chosen)
    return Rows(
        description=f"{name}: {source.format}; {len(x):,} {part}",
        x=filled.apply_inputs(x),
        y=None if raw is None else filled.apply_target(raw, lines),
        raw_target=raw,
        lines=lines,
        is_test_set=part.startswith("test rows"),
        files=files,
        notes=left_out(source),
    )


def _classes(name: str, targets: Array, source: Source) -> tuple[str, ...]:
    names = class_names(targets)
    table = source.table
    if table is not None and table.schema.target_is_text and 2 * len(names) > len(targets) > 20:
        raise DataError(
            f"{name}: the target {quoted(table.target_name)} holds {len(names)} different texts in "
            f"{len(targets)} rows, too many for classes: name another column as the target"
        )
    return names


def _split(source: Source, y: Array, test_split: float, seed: int) -> tuple[Split, Split, str]:
    """Training rows, test rows, and how they were told apart."""
    x = source.x
    if source.x_test is not None and source.y_test is not None:
        return (x, y, source.files), (source.x_test, source.y_test, source.test_files), ""
    train, test = (
        (choose_rows(x, rows), y[rows], _files_of(source, rows))
        for rows in split_rows(len(x), test_split, seed)
    )
    return train, test, f" (split by seed {seed})"


def _part(
    source: Source, test_split: float | None, seed: int
) -> tuple[Array, Array | None, Files, NDArray[np.int64] | None, str]:
    """The rows that a trained model is shown: inputs, targets, files, lines, and what they are."""
    if source.x_test is not None:
        return source.x_test, source.y_test, source.test_files, None, "test rows"
    x, y = source.x, source.y
    lines = None if source.table is None else source.table.lines
    if test_split is None:
        return x, y, source.files, lines, "rows"
    test = split_rows(len(x), test_split, seed)[1]
    part = f"test rows (split by seed {seed})"
    chosen = choose_rows(x, test)
    targets = None if y is None else y[test]
    return chosen, targets, _files_of(source, test), None if lines is None else lines[test], part


def _files_of(source: Source, rows: NDArray[np.int64]) -> Files:
    """The files of chosen rows of images."""
    return None if source.files is None else tuple(source.files[k] for k in rows.tolist())


def _takes_grey(preparation: Preparation) -> bool:
    """Whether a model takes images of one channel."""
    return len(preparation.input_shape) == 3 and preparation.input_shape[-1] == 1


def _components_words(preparation: Preparation) -> str:
    made = preparation.components
    if made is None:
        return ""
    return f", {len(made.directions)} components of them with {made.explained:.1%} of the variance"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _target_words(source: Source, preparation: Preparation) -> str:
    names = source.table.schema.target_names if source.table else ()
    word = "target" if len(names) == 1 else "targets"
    name = f"{word} {names_text(names)}: " if names else ""
    if preparation.task == "regression":
        return f"{name}regression"
    classes = preparation.classes
    more = ", ..." if len(classes) > SHOWN else ""
    listed = shown(", ".join(classes[:SHOWN]), 200)
    return f"{name}classification, {len(classes)} classes ({listed}{more})"
