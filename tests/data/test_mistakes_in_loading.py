"""Mistakes with data named by one text, and with arrays: each with its class of error and its text.

In the messages `{p}` stands for the folder of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    FileError,
    ShapeError,
    UnknownNameError,
)
from tests.data.mistakes import Mistake, bytes_of

KINDS = (
    "mnist, a folder with IDX files, CIFAR batches or images, a table (.csv, .tsv, .data, .dat, .txt) "
    "or an .npz or .h5 file"
)
NAMED = "age,height,score\n1,2,3\n4,5,6\n7,8,9\n"
X, Y = np.arange(6.0).reshape(3, 2) + 0.5, np.array([0, 1, 1])


def load(name: str, content: str | bytes, **arguments: Any) -> Callable[[Path], Any]:
    def read(p: Path) -> Any:
        (p / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return data.load(p / name, **arguments)

    return read


def folder(*names: str) -> Callable[[Path], Any]:
    def read(p: Path) -> Any:
        for name in names:
            (p / name).touch()
        return data.load(p)

    return read


BAD_X = X.copy()
BAD_X[2, 1] = np.nan
TEXT_TARGETS = "".join(f"{i},name{i}\n" for i in range(23))

LOAD: dict[str, Mistake] = {
    "no such data": Mistake(
        lambda p: data.load("minst"),
        FileError,
        "data 'minst' is not there: did you mean 'mnist'? expected " + KINDS,
    ),
    "a file beside": Mistake(
        lambda p: ((p / "wine.csv").touch(), data.load(p / "vine.csv")),
        FileError,
        "data '{p}/vine.csv' is not there: did you mean '{p}/wine.csv'? expected " + KINDS,
    ),
    "no such folder": Mistake(
        lambda p: data.load(p / "q" / "r"),
        FileError,
        "data '{p}/q/r' is not there: expected " + KINDS,
    ),
    "unknown kind": Mistake(
        load("a.parquet", ""),
        DataError,
        "{p}/a.parquet: its kind '.parquet' is not known: expected " + KINDS,
    ),
    "a folder of other files": Mistake(
        folder("a", "b", "c", "d", "e", "f"),
        DataError,
        "{p}: holds neither IDX files (train-images-idx3-ubyte, ...) nor CIFAR batches "
        "(data_batch_1.bin, ...) nor a folder of images for each class: found a, b, c, d, e, ...",
    ),
    "an empty folder": Mistake(
        folder(),
        DataError,
        "{p}: holds neither IDX files (train-images-idx3-ubyte, ...) nor CIFAR batches "
        "(data_batch_1.bin, ...) nor a folder of images for each class: found an empty folder",
    ),
    "missing values": Mistake(
        load("t.dat", "1 2\n? 4\n"),
        DataError,
        "{p}/t.dat: values are missing in 1 row (line 2) (columns 'column 0'): "
        'use missing="mean" to fill them or missing="drop" to leave the rows out',
    ),
    "what to do with missing values": Mistake(
        lambda p: data.load("mnist", missing="fill"),
        UnknownNameError,
        "missing 'fill' is not known: known are drop, mean",
    ),
    "unknown column": Mistake(
        load("t.csv", NAMED, target="sore"),
        UnknownNameError,
        "{p}/t.csv: target column 'sore' is not known: did you mean 'score'? "
        "known are age, height, score",
    ),
    "no target": Mistake(
        load("t.csv", NAMED, target=None),
        ArgumentError,
        "{p}/t.csv: without a target there is nothing to train: name a column",
    ),
    "unknown task": Mistake(
        load("t.csv", NAMED, task="classify"),
        UnknownNameError,
        "task 'classify' is not known: did you mean 'classification'? "
        "known are classification, regression",
    ),
    "text for regression": Mistake(
        load("t.csv", "1,a\n2,b\n3,a\n", task="regression"),
        DTypeError,
        "target: is of type <U1 and shape (2,), expected numbers of the shape [rows] or [rows, n] "
        "for regression",
    ),
    "one class": Mistake(
        load("t.csv", "1,a\n2,a\n3,a\n"),
        DataError,
        "target: every row is 'a', expected at least 2 classes: is it the right column?",
    ),
    "as many classes as rows": Mistake(
        load("t.csv", TEXT_TARGETS),
        DataError,
        "{p}/t.csv: the target 'column 1' holds 23 different texts in 23 rows, too many for "
        "classes: name another column as the target",
    ),
    "one row": Mistake(
        load("t.csv", "1.5,2.5\n"),
        DataError,
        "a split needs at least 2 rows, got 1",
    ),
    "no share": Mistake(
        load("t.csv", NAMED, test_split=0.0),
        ArgumentError,
        "fraction of a split: must be between 0 and 1, got 0.0",
    ),
    "NaN in an .npz": Mistake(
        load("a.npz", bytes_of(np.savez, x=BAD_X, y=Y)),
        DataError,
        "{p}/a.npz: x: row 2, column 1 is nan, expected finite numbers: "
        "repair or leave out the row",
    ),
    "NaN in the targets of an .npz": Mistake(
        load("a.npz", bytes_of(np.savez, x=X, y=BAD_X[:, 1]), missing="mean"),
        DataError,
        "{p}/a.npz: y: row 2 is nan, expected finite numbers: repair or leave out the row",
    ),
    "NaN in every row": Mistake(
        load("a.npz", bytes_of(np.savez, x=X + np.nan, y=Y), missing="drop"),
        DataError,
        '{p}/a.npz: x: every row has NaN, so none is left: use missing="mean"',
    ),
    "nothing to fill from": Mistake(
        load("t.csv", "a,b,y\n1,?,3\n2,?,4\n3,?,5\n4,?,6\n5,?,7.5\n", missing="mean"),
        DataError,
        "x: column 'b' has no known value in the training rows",
    ),
}


def x_with(value: float, *where: int, shape: tuple[int, ...] = (7, 3)) -> np.ndarray:
    x = np.linspace(-1.5, 2.5, int(np.prod(shape))).reshape(shape)
    x[where] = value
    return x


GOOD = x_with(1.5, 0, 0)
CHECK: dict[str, Mistake] = {
    "empty": Mistake(
        lambda p: data.check_arrays(GOOD[:0]),
        DataError,
        "x is empty: its shape is (0, 3), expected some rows",
    ),
    "no arrays": Mistake(
        lambda p: data.check_arrays({}),
        DataError,
        "x: expected at least one array, got an empty dict",
    ),
    "lengths differ": Mistake(
        lambda p: data.check_arrays(GOOD, np.arange(6)),
        ShapeError,
        "x has 7 rows but y has 6: every row needs a target",
    ),
    "lengths of two inputs differ": Mistake(
        lambda p: data.check_arrays({"a": GOOD, "b": GOOD[1:]}),
        ShapeError,
        "x['b'] has 6 rows but x['a'] has 7: all arrays need the same number of rows",
    ),
    "a number": Mistake(
        lambda p: data.check_arrays(np.float64(3.0)),
        DTypeError,
        "x: expected an array, got float64",
    ),
    "an array without rows": Mistake(
        lambda p: data.check_arrays(np.array(3.0)),
        ShapeError,
        "x: expected an array with rows, got a single number",
    ),
    "an iterator": Mistake(
        lambda p: data.check_arrays(iter([1, 2])),
        DTypeError,
        "x: expected an array, got list_iterator",
    ),
    "rows of unequal length": Mistake(
        lambda p: data.check_arrays([[1, 2], [3]]),
        DTypeError,
        "x: expected an array, got rows of unequal length",
    ),
    "objects": Mistake(
        lambda p: data.check_arrays((GOOD, np.array([1, "a"] * 3 + [2], dtype=object))),
        DTypeError,
        "x[1]: elements are of type object, expected numbers: "
        "convert text to numbers or class numbers first",
    ),
    "texts": Mistake(
        lambda p: data.check_arrays(GOOD, np.array(list("abcdefg"))),
        DTypeError,
        "y: elements are of type <U1, expected numbers: "
        "convert text to numbers or class numbers first, for instance with classes, numbers = "
        "np.unique(labels, return_inverse=True)",
    ),
    "complex numbers": Mistake(
        lambda p: data.check_arrays(GOOD + 1j),
        DTypeError,
        "x: elements are of type complex128, expected numbers: "
        "convert text to numbers or class numbers first",
    ),
    "NaN": Mistake(
        lambda p: data.check_arrays(x_with(np.nan, 4, 2)),
        DataError,
        "x: row 4, column 2 is nan, expected finite numbers: repair or leave out the row",
    ),
    "infinity in an image": Mistake(
        lambda p: data.check_arrays(x_with(-np.inf, 4, 1, 0, 1, shape=(7, 2, 3, 2))),
        DataError,
        "x: row 4, position (1, 0, 1) is -inf, expected finite numbers: "
        "repair or leave out the row",
    ),
    "NaN in a target": Mistake(
        lambda p: data.check_arrays(GOOD, x_with(np.nan, 5, shape=(7,))),
        DataError,
        "y: row 5 is nan, expected finite numbers: repair or leave out the row",
    ),
    "label too large": Mistake(
        lambda p: data.check_arrays(GOOD, np.array([0, 1, 2, 3, 4, 10, 11]), classes=10),
        DataError,
        "y: row 5 has the label 10, outside the classes 0..9",
    ),
    "label negative": Mistake(
        lambda p: data.check_arrays(GOOD, np.array([0, 1, 2, -1, 4, 5, 6]), classes=10),
        DataError,
        "y: row 3 has the label -1, outside the classes 0..9",
    ),
    "labels that are no integers": Mistake(
        lambda p: data.check_arrays(GOOD, np.arange(7.0), classes=10),
        DTypeError,
        'y: class numbers are of type float64, expected integers: use y.astype("int64")',
    ),
    "one column for each of other classes": Mistake(
        lambda p: data.check_arrays(GOOD, np.ones((7, 4)), classes=3),
        ShapeError,
        "y: labels have the shape (7, 4), expected (7,) with class numbers or (7, 3) with one "
        "column per class",
    ),
}

BATCHES: dict[str, Mistake] = {
    "size 0": Mistake(
        lambda p: data.batches(GOOD, 0),
        ArgumentError,
        "batch_size: must be at least 1, got 0",
    ),
    "a size that is not whole": Mistake(
        lambda p: data.batches(GOOD, 2.5),
        DTypeError,
        "batch_size: expected a whole number, got 2.5",
    ),
    "start beyond the end": Mistake(
        lambda p: data.batches(GOOD, 2, start=5),
        ArgumentError,
        "start: expected a batch number 0..4, got 5",
    ),
    "negative start": Mistake(
        lambda p: data.batches(GOOD, 2, start=-1),
        ArgumentError,
        "start: must be at least 0, got -1",
    ),
    "shuffled without a seed": Mistake(
        lambda p: data.batches(GOOD, 2, shuffle=True),
        ArgumentError,
        "shuffle=True needs a seed, which fixes the order: give seed=0, say",
    ),
    "rows differ": Mistake(
        lambda p: data.batches((GOOD, GOOD[:5]), 2),
        ShapeError,
        "arrays[1] has 5 rows but arrays[0] has 7: all arrays need the same number of rows",
    ),
    "no rows": Mistake(
        lambda p: data.batches(GOOD[:0], 2),
        DataError,
        "arrays is empty: its shape is (0, 3), expected some rows",
    ),
    "nothing": Mistake(
        lambda p: data.batches((GOOD, None), 2),
        DTypeError,
        "arrays[1]: expected an array, got NoneType",
    ),
    "a share above 1": Mistake(
        lambda p: data.split(GOOD, 1.5, 0),
        ArgumentError,
        "fraction of a split: must be between 0 and 1, got 1.5",
    ),
    "a split of one row": Mistake(
        lambda p: data.split(GOOD[:1], 0.5, 0),
        DataError,
        "a split needs at least 2 rows, got 1",
    ),
}

ALL = {
    f"{place}: {mistake}": row
    for place, rows in {
        "load": LOAD,
        "check_arrays": CHECK,
        "batches": BATCHES,
    }.items()
    for mistake, row in rows.items()
}


@pytest.mark.parametrize("mistake", ALL.values(), ids=ALL)
def test_a_mistake_is_one_clear_line(mistake: Mistake, expect_mistake: Callable[..., None]) -> None:
    expect_mistake(*mistake)
