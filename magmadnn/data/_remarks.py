"""What is said of data beside its arrays, and what of it is refused: columns, files, classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._sources import Source
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.targets import number_classes
from magmadnn.data.tables.cell_grid import names_text
from magmadnn.errors import ArgumentError, DataError, quoted, shown

SHOWN = 10  # class names that a text lists


def notes_of(source: Source, preparation: Preparation) -> tuple[str, ...]:
    """What somebody should know about the columns, or the images."""
    if source.table is None:
        return _channels_first(preparation.input_shape) + left_out(source)
    notes = source.table.notes
    if constant := preparation.constant:
        are = "is" if len(constant) == 1 else "are"
        notes += (f"constant in the training rows, and so not used, {are} {names_text(constant)}",)
    return notes


def left_out(source: Source) -> tuple[str, ...]:
    """Files and folders of images that were not read."""
    unread = source.unread
    notes = () if unread is None else (f"not read, as there is a folder test: {shown(unread)}",)
    return notes + tuple(f"left out {line}" for line in source.skipped)


def _channels_first(shape: Sequence[int]) -> tuple[str, ...]:
    """What is said of images whose first axis looks like channels: (3, 32, 32)."""
    if len(shape) != 3 or shape[0] not in (1, 3, 4) or not shape[0] < shape[1] == shape[2]:
        return ()
    taken = f"images of {shape[0]} x {shape[1]} pixels with {shape[2]} channels"
    return (f"inputs are taken for {taken}; where channels come first, give np.moveaxis(x, 1, -1)",)


def classes_notes(name: str, y: NDArray[Any], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Which classes no training row has.

    Raises:
        DataError: all training rows are of one class.
    """
    if not classes:
        return ()
    rows = np.bincount(number_classes(y, classes), minlength=len(classes))
    if (rows > 0).sum() < 2:
        raise DataError(
            f"{name}: every training row is of the class {quoted(classes[int(rows.argmax())])}, so there is "
            "nothing to learn: add rows, or keep back others, by another seed or share"
        )
    if not (without := [one for one, count in zip(classes, rows, strict=True) if not count]):
        return ()
    more = ", ..." if len(without) > SHOWN else ""
    are = "is" if len(without) == 1 else "are"
    listed = f"{shown(', '.join(without[:SHOWN]), 200)}{more}"
    found = f"{len(without)} of the {len(classes)} classes {are} in no training row"
    return (f"{found}, and so never learnt: {listed}",)


def check_folders(name: str, here: Sequence[str], known: Sequence[str]) -> None:
    """Refuse class folders that a model does not know.

    Raises:
        DataError: there is one.
    """
    if known and (other := [one for one in here if one not in known]):
        more = ", ..." if len(known) > SHOWN else ""
        raise DataError(
            f"{name}: the class {quoted(other[0])} is none of those that the model was trained on "
            f"({shown(', '.join(known[:SHOWN]), 200)}{more}): rename its folder, or remove it"
        )


def check_no_columns(name: str, columns: dict[str, Any], decimal: str) -> None:
    """Refuse what is said of the columns of a table, for other data.

    Raises:
        ArgumentError: something is.
    """
    for column, value in columns.items():
        said = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value]
        if said not in ([], [None], [-1], ["-1"]):  # -1 is where nothing is said
            raise ArgumentError(f"{name}: {column} names columns of a table, and this is none")
    if decimal != ".":
        raise ArgumentError(
            f"{name}: decimal is of numbers in the text of a table, and this is none"
        )
