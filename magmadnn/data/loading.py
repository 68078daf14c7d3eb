"""Data named by one text, as on the command line: found, read, split and prepared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._sources import Source, open_source
from magmadnn.data.batching import split_rows
from magmadnn.data.preparation import Preparation
from magmadnn.data.tables.reading import Missing, check_missing, read_table, read_table_like
from magmadnn.data.targets import Task, check_task, class_names, target_kind
from magmadnn.errors import ArgumentError, DataError, quoted, shown
from magmadnn.storage.input_files import input_name

Array = NDArray[Any]

_SHOWN = 10  # class names that a description lists


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows as they were read, and the preparation fitted on the training rows.

    Attributes:
        description: one line: format, rows, inputs, how it was split, what the target is taken for.
        x_train: inputs [rows, ...].
        y_train: targets as they were read: texts, class numbers or quantities.
        x_test: likewise.
        y_test: likewise.
        preparation: scales inputs and targets; save it with the model.
    """

    description: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    preparation: Preparation

    def train(self) -> tuple[Array, Array]:
        """The training rows prepared: float32 inputs; int64 classes or scaled float32 targets."""
        return self._prepared(self.x_train, self.y_train)

    def test(self) -> tuple[Array, Array]:
        """The test rows, prepared with the statistics of the training rows."""
        return self._prepared(self.x_test, self.y_test)

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
    """

    description: str
    x: Array
    y: Array | None
    raw_target: Array | None
    lines: NDArray[np.int64] | None


def load(
    spec: str | os.PathLike[str],
    *,
    target: str | int = -1,
    missing: Missing | None = None,
    test_split: float = 0.2,
    seed: int = 0,
    task: Task | None = None,
) -> Dataset:
    """Loads the data that `spec` names, for training.

    Args:
        spec: `mnist`; a folder with IDX files; a folder with CIFAR-10 batches; a text file with a
            table (.csv, .tsv, .data, .dat, .txt); an .npz file (see `read_npz`; arrays of bytes
            with three or four axes are images).
        target: of a table: name or number of the target column.
        missing: values of a table, or NaN in an .npz: None: an error; "mean": filled with the
            training rows' mean; "drop": the row is left out.
        test_split: the share of rows that becomes the test set, where data has none of its own.
        seed: chooses these rows.
        task: overrides what `target_kind` tells.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        DataError, ShapeError, DTypeError: what is in it cannot be trained on.
        ArgumentError: an argument out of range, or a name that is not known.
    """
    check_missing(missing)
    if task is not None:
        check_task(task)
    spec, name = input_name("data", spec), shown(spec)
    source = open_source(spec, lambda path: read_table(path, target, missing), missing)
    if source.y is None:
        raise ArgumentError(f"{name}: without a target there is nothing to train: name a column")
    all_targets = np.concatenate([source.y, *([] if source.y_test is None else [source.y_test])])
    chosen = task or source.task or target_kind(all_targets)
    classes = None
    if chosen == "classification":
        classes = source.classes or _classes(name, all_targets, source)
    train, test, how = _split(source, source.y, test_split, seed)
    preparation = Preparation.fit(
        *train,
        task=chosen,
        classes=classes,
        missing=missing,
        schema=source.table.schema if source.table else None,
    )
    description = (
        f"{name}: {source.format}; {len(train[0]):,} training and {len(test[0]):,} test rows{how} "
        f"of {_shape(preparation.input_shape)} inputs; {_target_words(source, preparation)}"
    )
    return Dataset(description, *train, *test, preparation)


def load_for(
    preparation: Preparation,
    spec: str | os.PathLike[str],
    *,
    with_target: bool = True,
    missing: Missing | None = None,
    test_split: float | None = None,
    seed: int = 0,
) -> Rows:
    """Loads the data that `spec` names, to evaluate or predict with a trained model.

    These are the rows of its test set, where it has one of its own; otherwise all rows.

    Args:
        preparation: of the model; a table is read with the columns and categories kept there.
        spec: as for `load`.
        with_target: False: targets are not read and may be absent.
        missing: None: as in training, but without targets no row is left out: there
            missing values are an error unless they were filled in training.
        test_split: with a number, and no test set of its own: only the rows that `load` made the
            test set with this share and seed.
        seed: as given to `load`.

    Raises:
        As `load`; also DataError, ShapeError: the data does not fit the model.
    """
    check_missing(missing)
    chosen = missing or preparation.missing
    if missing is None and chosen == "drop" and not with_target:
        chosen = None
    spec, name, schema = input_name("data", spec), shown(spec), preparation.schema
    source = open_source(
        spec,
        lambda path: (
            read_table(path, -1 if with_target else None, chosen)
            if schema is None
            else read_table_like(path, schema, chosen, with_target=with_target)
        ),
        chosen,
        with_target=with_target,
    )
    x, y, lines, part = _part(source, test_split, seed)
    raw = y if with_target else None
    filled = replace(preparation, missing=chosen)
    return Rows(
        description=f"{name}: {source.format}; {len(x):,} {part}",
        x=filled.apply_inputs(x),
        y=None if raw is None else filled.apply_target(raw, lines),
        raw_target=raw,
        lines=lines,
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


def _split(
    source: Source, y: Array, test_split: float, seed: int
) -> tuple[tuple[Array, Array], tuple[Array, Array], str]:
    """Training rows, test rows, and how they were told apart."""
    x = source.x
    if source.x_test is not None and source.y_test is not None:
        return (x, y), (source.x_test, source.y_test), ""
    train, test = split_rows(len(x), test_split, seed)
    return (x[train], y[train]), (x[test], y[test]), f" (split by seed {seed})"


def _part(
    source: Source, test_split: float | None, seed: int
) -> tuple[Array, Array | None, NDArray[np.int64] | None, str]:
    """The rows that a trained model is shown: inputs, targets, lines, and what they are."""
    if source.x_test is not None:
        return source.x_test, source.y_test, None, "test rows"
    x, y = source.x, source.y
    lines = None if source.table is None else source.table.lines
    if test_split is None:
        return x, y, lines, "rows"
    test = split_rows(len(x), test_split, seed)[1]
    part = f"test rows (split by seed {seed})"
    return x[test], None if y is None else y[test], None if lines is None else lines[test], part


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _target_words(source: Source, preparation: Preparation) -> str:
    table = source.table
    name = "" if table is None else f"target {quoted(table.target_name)}: "
    if preparation.task == "regression":
        return f"{name}regression"
    classes = preparation.classes
    more = ", ..." if len(classes) > _SHOWN else ""
    listed = shown(", ".join(classes[:_SHOWN]), 200)
    return f"{name}classification, {len(classes)} classes ({listed}{more})"
