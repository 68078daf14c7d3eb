"""Data that cannot be trained on: tables, .npz files, IDX folders, and NaN among values.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli.arguments import as_typed
from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    NumericError,
    ShapeError,
    UnknownNameError,
)
from tests.refusals.cases import (
    TRAIN,
    CommandCase,
    PythonCase,
    X,
    Y,
    changed,
    check_in_python,
    check_on_the_command_line,
    fit,
    network,
)

PYTHON: dict[str, PythonCase] = {
    "data: NaN": (
        lambda p: fit(changed(X, (3, 2), np.nan)),
        DataError,
        ("x: row 3, column 2 is nan, expected finite numbers: repair or leave out the row"),
    ),
    "data: inf": (
        lambda p: fit(changed(X, (3, 2), np.inf)),
        DataError,
        ("x: row 3, column 2 is inf, expected finite numbers: repair or leave out the row"),
    ),
    "data: NaN in targets": (
        lambda p: fit(X, changed(X[:, :3], (3, 2), np.nan), network(loss="mse", metrics=[])),
        DataError,
        ("y: row 3, column 2 is nan, expected finite numbers: repair or leave out the row"),
    ),
    "data: empty": (
        lambda p: fit(X[:0], Y[:0]),
        DataError,
        "x is empty: its shape is (0, 5), expected some rows",
    ),
    "data: no batches": (
        lambda p: network().fit([], verbose=False),
        DataError,
        "the iterable of batches is empty; a generator can be gone through once: make a new one",
    ),
    "data: NaN in the loss": (
        lambda p: fit(X * 1e30, X[:, :3] * 1e30, network(loss="mse", metrics=[])),
        NumericError,
        (
            r"~square in mean_squared_error: the result has infinity, first at \(0, 0\); "
            r"operands: .*; lower the learning rate, clip gradients, or look for bad data"
        ),
    ),
    "column: name": (
        lambda p: md.data.load("good.csv", target="strom"),
        UnknownNameError,
        (
            "good.csv: target column 'strom' is not known: did you mean 'storm'? known are "
            "rain, storm, wind"
        ),
    ),
    "column: number": (
        lambda p: md.data.load("good.csv", target=3),
        ArgumentError,
        (
            "good.csv: target column 3 does not exist: there are 3 columns, 0..2 or from "
            "the end -1..-3"
        ),
    ),
    "table: empty": (
        lambda p: md.data.load("empty.csv"),
        DataError,
        "empty.csv: is empty: expected rows of numbers",
    ),
    "table: header only": (
        lambda p: md.data.load("header.csv"),
        DataError,
        "header.csv: holds a header and no rows: expected rows below line 1",
    ),
    "table: missing value": (
        lambda p: md.data.load("gap.csv"),
        DataError,
        (
            "gap.csv: values are missing in 1 row (line 4) (columns 'rain'): use "
            'missing="mean" to fill them or missing="drop" to leave the rows out'
        ),
    ),
    "table: short row": (
        lambda p: md.data.load("short.csv"),
        DataError,
        ("short.csv: line 4 has 2 fields, expected 3 as in line 1: repair or leave out the line"),
    ),
    "table: infinity": (
        lambda p: md.data.load("inf.csv"),
        DataError,
        (
            "inf.csv: line 4, column 'wind': the cell is inf, expected a finite number: "
            "correct it, or write ? where the value is missing"
        ),
    ),
    "table: word": (
        lambda p: md.data.load("word.csv"),
        DataError,
        (
            "word.csv: line 4, column 'wind': the cell is 'strong', expected a number: "
            "correct it, or write ? where the value is missing"
        ),
    ),
    "table: one class": (
        lambda p: md.data.load("one_class.csv"),
        DataError,
        ("target: every row is 'no', expected at least 2 classes: is it the right column?"),
    ),
    "npz: NaN": (
        lambda p: md.data.load("nan.npz"),
        DataError,
        (
            "nan.npz: x: row 3, column 2 is nan, expected finite numbers: repair or leave "
            "out the row"
        ),
    ),
    "npz: rows": (
        lambda p: md.data.load("rows.npz"),
        ShapeError,
        ("rows.npz: x has the shape (23, 5) but y (22,): both need the same number of rows"),
    ),
    "npz: names": (
        lambda p: md.data.load("names.npz"),
        DataError,
        (
            "names.npz: expected the keys x and y, or x_train and y_train (and x_test and "
            "y_test), found samples, answers"
        ),
    ),
    "idx: cut": (
        lambda p: md.data.load("idx_cut"),
        DataError,
        (
            "idx_cut/train-images-idx3-ubyte: is cut short: 9 images need 160 bytes, got "
            "155: fetch the file again"
        ),
    ),
    "idx: swapped": (
        lambda p: md.data.load("idx_swapped"),
        DataError,
        (
            "idx_swapped/train-images-idx3-ubyte: the magic number is 2049, expected 2051 "
            "(images): these are labels, so two files are swapped"
        ),
    ),
    "idx: missing": (
        lambda p: md.data.load("idx_missing"),
        DataError,
        (
            "idx_missing: t10k-labels-idx1-ubyte (plain or .gz) is missing: the folder "
            "needs the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
        ),
    ),
    "data: no such file": (
        lambda p: md.data.load("god.csv"),
        FileError,
        (
            "data 'god.csv' is not there: did you mean 'good.csv'? expected mnist, a "
            "folder with IDX files, CIFAR batches or images, a table (.csv, .tsv, .data, .dat, "
            ".txt) or an .npz or .h5 file"
        ),
    ),
    "data: unknown kind": (
        lambda p: md.data.load("data.xlsx"),
        DataError,
        (
            "data.xlsx: its kind '.xlsx' is not known: expected mnist, a folder with IDX "
            "files, CIFAR batches or images, a table (.csv, .tsv, .data, .dat, .txt) or an .npz "
            "or .h5 file"
        ),
    ),
    "data: folder of nothing": (
        lambda p: md.data.load("nothing"),
        DataError,
        (
            "nothing: holds neither IDX files (train-images-idx3-ubyte, ...) nor CIFAR "
            "batches (data_batch_1.bin, ...) nor a folder of images for each class: "
            "found an empty folder"
        ),
    ),
}

COMMAND: dict[str, CommandCase] = {
    "column: name": (
        (*TRAIN, "--target", "strom"),
        (
            "{p}/good.csv: target column 'strom' is not known: did you mean 'storm'? known "
            "are rain, storm, wind"
        ),
    ),
    "column: number": (
        (*TRAIN, "--target", "3"),
        (
            "{p}/good.csv: target column 3 does not exist: there are 3 columns, 0..2 or "
            "from the end -1..-3"
        ),
    ),
    "column: text as a number": (
        (*TRAIN, "--task", "regression"),
        (
            "target: is of type <U3 and shape (32,), expected numbers of the shape [rows] "
            "or [rows, n] for regression"
        ),
    ),
    "table: empty": (
        ("train", "--data", "empty.csv"),
        "{p}/empty.csv: is empty: expected rows of numbers",
    ),
    "table: header only": (
        ("train", "--data", "header.csv"),
        "{p}/header.csv: holds a header and no rows: expected rows below line 1",
    ),
    "table: missing value": (
        ("train", "--data", "gap.csv"),
        (
            "{p}/gap.csv: values are missing in 1 row (line 4) (columns 'rain'): use "
            "--missing mean to fill them or --missing drop to leave the rows out"
        ),
    ),
    "table: short row": (
        ("train", "--data", "short.csv"),
        (
            "{p}/short.csv: line 4 has 2 fields, expected 3 as in line 1: repair or leave "
            "out the line"
        ),
    ),
    "table: infinity": (
        ("train", "--data", "inf.csv"),
        (
            "{p}/inf.csv: line 4, column 'wind': the cell is inf, expected a finite "
            "number: correct it, or write ? where the value is missing"
        ),
    ),
    "table: word": (
        ("train", "--data", "word.csv"),
        (
            "{p}/word.csv: line 4, column 'wind': the cell is 'strong', expected a number: "
            "correct it, or write ? where the value is missing"
        ),
    ),
    "table: one class": (
        ("train", "--data", "one_class.csv"),
        ("target: every row is 'no', expected at least 2 classes: is it the right column?"),
    ),
    "npz: NaN": (
        ("train", "--data", "nan.npz"),
        (
            "{p}/nan.npz: x: row 3, column 2 is nan, expected finite numbers: repair or "
            "leave out the row"
        ),
    ),
    "npz: rows": (
        ("train", "--data", "rows.npz"),
        ("{p}/rows.npz: x has the shape (23, 5) but y (22,): both need the same number of rows"),
    ),
    "npz: names": (
        ("train", "--data", "names.npz"),
        (
            "{p}/names.npz: expected the keys x and y, or x_train and y_train (and x_test "
            "and y_test), found samples, answers"
        ),
    ),
    "idx: cut": (
        ("train", "--data", "idx_cut"),
        (
            "{p}/idx_cut/train-images-idx3-ubyte: is cut short: 9 images need 160 bytes, "
            "got 155: fetch the file again"
        ),
    ),
    "idx: swapped": (
        ("train", "--data", "idx_swapped"),
        (
            "{p}/idx_swapped/train-images-idx3-ubyte: the magic number is 2049, expected "
            "2051 (images): these are labels, so two files are swapped"
        ),
    ),
    "idx: missing": (
        ("train", "--data", "idx_missing"),
        (
            "{p}/idx_missing: t10k-labels-idx1-ubyte (plain or .gz) is missing: the folder "
            "needs the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
        ),
    ),
    "data: no such file": (
        ("train", "--data", "god.csv"),
        (
            "data '{p}/god.csv' is not there: did you mean '{p}/good.csv'? expected mnist, "
            "a folder with IDX files, CIFAR batches or images, a table (.csv, .tsv, .data, "
            ".dat, .txt) or an .npz or .h5 file"
        ),
    ),
    "data: unknown kind": (
        ("train", "--data", "data.xlsx"),
        (
            "{p}/data.xlsx: its kind '.xlsx' is not known: expected mnist, a folder with "
            "IDX files, CIFAR batches or images, a table (.csv, .tsv, .data, .dat, .txt) or an "
            ".npz or .h5 file"
        ),
    ),
    "data: folder of nothing": (
        ("train", "--data", "nothing"),
        (
            "{p}/nothing: holds neither IDX files (train-images-idx3-ubyte, ...) nor "
            "CIFAR batches (data_batch_1.bin, ...) nor a folder of images for each class: "
            "found an empty folder"
        ),
    ),
    "data: NaN in the loss": (
        (*TRAIN, "--lr", "1e38", "--optimizer", "sgd", "--epochs", "9"),
        (
            r"~matmul in dense_\d: the result has infinity, first at .*; lower the learning "
            r"rate, clip gradients, or look for bad data"
        ),
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    while_training = "NaN in the loss" in name
    check_on_the_command_line(place, capsys, COMMAND[name], while_training)


@pytest.mark.parametrize(("python", "typed"), [
    ('give missing="mean"', "give --missing mean"),
    ("say so with categories=['sex', 'ward']", "say so with --categories sex,ward"),
    ("say so with categories=['column 2', 'its']", "say so with --categories 'column 2,its'"),
])  # fmt: skip
def test_ways_out_can_be_typed_as_they_are_printed(python: str, typed: str) -> None:
    assert as_typed(python) == typed
