"""The mistakes that users make: each, in each place where it can be made, with class and text.

`PYTHON` holds what is done from Python, `COMMAND` what is typed; a mistake that can be made in both
places has the same name in both. Every text is one line, and on the command line the exit code is 2.
In the texts {p} is the test's folder.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn import models
from magmadnn.cli import main
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    DeviceError,
    DTypeError,
    FileError,
    GraphError,
    MagmaDNNError,
    NumericError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.training import disk
from magmadnn.training.run_folder import create_run
from tests.data.mistakes import idx_bytes

ROOT = Path(__file__).resolve().parents[1]
X = np.random.default_rng(4).normal(size=(23, 5)).astype(np.float32)
Y = (np.arange(23) % 3).astype(np.int64)


# --- what the mistakes are made with ---------------------------------------------------------


class NoEpoch(md.callbacks.Callback):
    """Training must not begin."""

    def on_epoch_begin(self, fit: object) -> None:
        raise AssertionError("an epoch was begun")


def network(*last: md.layers.Layer, **changes: object) -> md.Model:
    layers = [md.layers.Input((5,))]
    layers += last or [md.layers.Dense(7, activation="relu"), md.layers.Dense(3)]
    return md.Model(
        layers, **{"loss": "cross_entropy", "optimizer": "adam", "metrics": ["accuracy"], **changes}
    )


def binary() -> md.Model:
    return network(md.layers.Dense(1), loss="binary_cross_entropy", metrics=[])


def rows() -> md.Model:
    """A class for each of 4 places in a sample."""
    return md.Model(
        [md.layers.Input((4, 5)), md.layers.Dense(3)], loss="cross_entropy", optimizer="adam"
    )


def fit(x: object = X, y: object = Y, model: md.Model | None = None, **options: object) -> None:
    (model or network()).fit(x, y, **{"epochs": 1, "verbose": False, **options})


def changed(array: np.ndarray, place: object, value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


def table(text: str = "") -> str:
    rows = [f"{k * 0.37 % 1:.3f},{k * 0.71 % 2:.3f},{'no' if k % 3 else 'yes'}" for k in range(40)]
    return text or "\n".join(["wind,rain,storm", *rows])


def make_files(p: Path) -> None:
    """All the files that the mistakes are about."""
    (p / "good.csv").write_text(table())
    (p / "empty.csv").write_text("")
    (p / "header.csv").write_text("wind,rain,storm\n")
    (p / "gap.csv").write_text(table().replace("0.740,1.420", "0.740,?"))
    (p / "short.csv").write_text(table().replace("0.740,1.420,no", "0.740,1.420"))
    (p / "inf.csv").write_text(table().replace("0.740", "inf"))
    (p / "word.csv").write_text(table().replace("0.740", "strong"))
    (p / "one_class.csv").write_text(table().replace("yes", "no"))
    (p / "data.xlsx").write_bytes(b"PK")
    np.savez(p / "nan.npz", x=changed(X, (3, 2), np.nan), y=Y)
    np.savez(p / "rows.npz", x=X, y=Y[:-1])
    np.savez(p / "names.npz", samples=X, answers=Y)
    images, labels = np.zeros((9, 4, 4), np.uint8), np.arange(9, dtype=np.uint8) % 3
    images[:, 1, 2] = np.arange(9)
    files = {
        "train-images-idx3-ubyte": idx_bytes(images), "train-labels-idx1-ubyte": idx_bytes(labels),
        "t10k-images-idx3-ubyte": idx_bytes(images), "t10k-labels-idx1-ubyte": idx_bytes(labels),
    }  # fmt: skip
    for folder in ("idx", "idx_cut", "idx_swapped", "idx_missing"):
        (p / folder).mkdir()
        for name, content in files.items():
            (p / folder / name).write_bytes(content)
    (p / "idx_cut" / "train-images-idx3-ubyte").write_bytes(files["train-images-idx3-ubyte"][:-5])
    (p / "idx_swapped" / "train-images-idx3-ubyte").write_bytes(files["train-labels-idx1-ubyte"])
    (p / "idx_swapped" / "train-labels-idx1-ubyte").write_bytes(files["train-images-idx3-ubyte"])
    (p / "idx_missing" / "t10k-labels-idx1-ubyte").unlink()
    (p / "nothing").mkdir()
    (p / "used").mkdir()
    (p / "used" / "notes.txt").write_text("mine")
    (p / "file").write_text("a file")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the table: Python -----------------------------------------------------------------------

Act = Callable[[Path], object]
D = md.layers.Dense
PYTHON: dict[str, tuple[Act, type[MagmaDNNError], str]] = {
    "shape: inner axis": (
        lambda p: md.ops.matmul(np.ones((5, 3)), np.ones((4, 2))),
        ShapeError,
        (
            "matmul: axis k is 3 in x but 4 in w; make them equal: ... m k, ... k n -> ... "
            "m n, x (5, 3), w (4, 2)"
        ),
    ),
    "shape: broadcast": (
        lambda p: md.variable("v", np.ones((5, 3))) + md.variable("w", np.ones((5, 4))),
        ShapeError,
        (
            "add: axis -1 is 3 in x but 4 in y; make them equal, or one of them 1: x (5, "
            "3), y (5, 4)"
        ),
    ),
    "shape: samples": (
        lambda p: fit(X[:, :4]),
        ShapeError,
        (
            "fit: input 'input' expects samples of shape (5,), got (4,) (x has shape (23, "
            "4)); reshape x, or change Input"
        ),
    ),
    "shape: rows": (
        lambda p: fit(X, Y[:-1]),
        ShapeError,
        "x has 23 rows but y has 22: every row needs a target",
    ),
    "shape: layer": (
        lambda p: md.layers.Reshape((4,))(md.layers.Input((5,))),
        ShapeError,
        "reshape: x (batch, 5) has 5*batch elements, which do not fit into (batch, 4)",
    ),
    "shape: target": (
        lambda p: fit(X, X, network(loss="mse", metrics=[])),
        ShapeError,
        (
            "mean_squared_error: targets must have the shape (batch, 3) of predictions, "
            "got (batch, 5): axis 1 is 5 but 3 in predictions"
        ),
    ),
    "shape: predict": (
        lambda p: network().predict(X[:, :4]),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (5,), got (4,) (x has shape "
            "(23, 4)); reshape x, or change Input"
        ),
    ),
    "shape: evaluate": (
        lambda p: network().evaluate(X[:, :4], Y),
        ShapeError,
        (
            "evaluate: input 'input' expects samples of shape (5,), got (4,) (x has shape "
            "(23, 4)); reshape x, or change Input"
        ),
    ),
    "dtype: text": (
        lambda p: fit(X.astype(str)),
        DTypeError,
        (
            "x: elements are of type <U32, expected numbers: convert text to numbers or "
            "class numbers first"
        ),
    ),
    "dtype: fractions as classes": (
        lambda p: fit(X, Y + 0.5),
        DTypeError,
        ('y: class numbers are of type float64, expected integers: use y.astype("int64")'),
    ),
    "dtype: complex": (
        lambda p: fit(X.astype(np.complex64)),
        DTypeError,
        (
            "x: elements are of type complex64, expected numbers: convert text to numbers "
            "or class numbers first"
        ),
    ),
    "labels: too large": (
        lambda p: fit(X, changed(Y, 4, 3)),
        DataError,
        "y: row 4 has the label 3, outside the classes 0..2",
    ),
    "labels: negative": (
        lambda p: fit(X, changed(Y, 4, -1)),
        DataError,
        "y: row 4 has the label -1, outside the classes 0..2",
    ),
    "labels: evaluate": (
        lambda p: network().evaluate(X, changed(Y, 4, 9)),
        DataError,
        "y: row 4 has the label 9, outside the classes 0..2",
    ),
    "labels: binary": (
        lambda p: fit(X, Y, binary()),
        DataError,
        "y: row 2 has the label 2, outside the classes 0..1",
    ),
    "labels: of a sequence": (
        lambda p: fit(np.ones((3, 4, 5), "f4"), changed(np.zeros((3, 4), int), (1, 2), 7), rows()),
        DataError,
        "y: row 1, column 2 has the label 7, outside the classes 0..2",
    ),
    "labels: weights of classes in a sequence": (
        lambda p: fit(
            np.ones((2, 4, 5), "f4"),
            np.full((2, 4), 2),
            rows(),
            class_weight={0: 1.0, 1: 1.0, 2: 1.0},
        ),
        ShapeError,
        (
            "fit: class_weight needs one class for each row of y, got shape (2, 4); give the loss "
            "the weights: md.losses.CrossEntropy(class_weight=...)"
        ),
    ),
    "shape: rows of different lengths": (
        lambda p: fit([[1.0, 2.0], [1.0]], [0, 1]),
        ShapeError,
        "a list of 2 does not make an array: its parts differ in shape",
    ),
    "shape: nothing": (
        lambda p: fit(None),
        GraphError,
        "fit: the model has one input, got 0 arrays",
    ),
    "shape: validation": (
        lambda p: fit(validation_data=(X[:, :3], Y), callbacks=[NoEpoch()]),
        ShapeError,
        (
            "fit: validation_data: input 'input' expects samples of shape (5,), got (3,) (x has shape "
            "(23, 3)); reshape x, or change Input"
        ),
    ),
    "shape: validation rows": (
        lambda p: fit(validation_data=(X, Y[:3]), callbacks=[NoEpoch()]),
        ShapeError,
        "fit: validation_data: x has 23 rows but y has 3: every row needs a target",
    ),
    "size: batch is no integer": (
        lambda p: fit(batch_size=2.5),
        ArgumentError,
        "fit: batch_size must be an integer of at least 1, got 2.5",
    ),
    "size: batch of an epoch": (
        lambda p: fit(batch_size=lambda epoch: -epoch),
        ArgumentError,
        "fit: batch_size(0) must be an integer of at least 1, got 0",
    ),
    "size: seed": (
        lambda p: network(seed=1.5),
        ArgumentError,
        "Model: seed must be an integer of at least 0, got 1.5",
    ),
    "size: patience": (
        lambda p: md.callbacks.EarlyStopping(patience="2"),
        ArgumentError,
        "EarlyStopping: patience must be an integer of at least 0, got '2'",
    ),
    "list: callbacks": (
        lambda p: fit(callbacks=[3]),
        ArgumentError,
        "fit: callbacks must be a list such as [md.callbacks.EarlyStopping()], got [3]",
    ),
    "list: metrics": (
        lambda p: network(metrics="accuracy"),
        ArgumentError,
        "Model: metrics must be a list such as [\"accuracy\"], got 'accuracy'",
    ),
    "list: feeds": (
        lambda p: (md.placeholder("x", (None, 3)) * 2).eval([X]),
        GraphError,
        "feeds are a dict {placeholder: array}, got list",
    ),
    "function: regularizer": (
        lambda p: network(D(3, kernel_regularizer="l2")),
        ArgumentError,
        ("dense_1: regularizer of kernel must be a function such as md.layers.L2(1e-4), got 'l2'"),
    ),
    "function: init": (
        lambda p: network(D(3, bias_init=0.0)),
        ArgumentError,
        "dense_1: init of bias must be a function such as md.init.normal(), got 0.0",
    ),
    "name: executor": (
        lambda p: network(executor="fast"),
        UnknownNameError,
        "executor 'fast' is not known: known are native, reference",
    ),
    "name: precision": (
        lambda p: network(precision="fp16"),
        UnknownNameError,
        (
            "precision 'fp16' is not known: did you mean 'mixed_fp16'? known are float32, "
            "float64, mixed_bf16, mixed_fp16, tf32"
        ),
    ),
    "name: device is a number": (
        lambda p: network(device=0),
        UnknownNameError,
        "device 0 is not known: known are auto, cpu, cuda",
    ),
    "file: picture": (
        lambda p: md.History([{"epoch": 1, "loss": 2.0}]).plot("curves.xyz"),
        UnknownNameError,
        r"~history.plot curves.xyz: format 'xyz' is not known: known are .*png.*",
    ),
    "file: picture below a file": (
        lambda p: md.History([{"epoch": 1, "loss": 2.0}]).plot("file/curves"),
        FileError,
        (
            "cannot write {p}/file/curves.png: a part of the path is a file, not a folder; "
            "choose another path (Not a directory)"
        ),
    ),
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
        "the iterable of batches is empty",
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
            "folder with IDX files or CIFAR-10 batches, a table (.csv, .tsv, .data, .dat, "
            ".txt) or an .npz file"
        ),
    ),
    "data: unknown kind": (
        lambda p: md.data.load("data.xlsx"),
        DataError,
        (
            "data.xlsx: its kind '.xlsx' is not known: expected mnist, a folder with IDX "
            "files or CIFAR-10 batches, a table (.csv, .tsv, .data, .dat, .txt) or an .npz "
            "file"
        ),
    ),
    "data: folder of nothing": (
        lambda p: md.data.load("nothing"),
        DataError,
        (
            "nothing: holds neither IDX files (train-images-idx3-ubyte, ...) nor CIFAR-10 "
            "batches (data_batch_1.bin, ...): found an empty folder"
        ),
    ),
    "name: model": (
        lambda p: models.by_name("mpl"),
        UnknownNameError,
        "model 'mpl' is not known: did you mean 'mlp'? known are mlp",
    ),
    "name: preset": (
        lambda p: models.by_name("mlp").preset("papr"),
        UnknownNameError,
        ("mlp: preset 'papr' is not known: did you mean 'paper'? known are image, paper, table"),
    ),
    "name: activation": (
        lambda p: D(3, activation="rleu")(md.layers.Input((5,))),
        UnknownNameError,
        (
            "activation 'rleu' is not known: did you mean 'relu'? known are elu, "
            "gaussian_rbf, gelu, leaky_relu, linear, prelu, relu, sigmoid, softmax, "
            "softplus, softsign, swish, tanh"
        ),
    ),
    "name: optimizer": (
        lambda p: network(optimizer="adma"),
        UnknownNameError,
        (
            "optimiser 'adma' is not known: did you mean 'Adam'? known are AdaGrad, Adam, "
            "AdamW, Chain, LAMB, LARS, RMSProp, SGD"
        ),
    ),
    "name: loss": (
        lambda p: fit(model=network(loss="cros_entropy")),
        UnknownNameError,
        (r"~loss 'cros_entropy' is not known: did you mean 'cross_entropy'\? known are binary_.*"),
    ),
    "name: metric": (
        lambda p: fit(model=network(metrics=["acuracy"])),
        UnknownNameError,
        (r"~metric 'acuracy' is not known: did you mean 'accuracy'\? known are accuracy, auc, .*"),
    ),
    "name: layer": (
        lambda p: network().layer("dens_1"),
        UnknownNameError,
        ("layer 'dens_1' is not known: did you mean 'dense_1'? known are dense_1, dense_2"),
    ),
    "name: missing": (
        lambda p: md.data.load("good.csv", missing="maen"),
        UnknownNameError,
        "missing 'maen' is not known: did you mean 'mean'? known are drop, mean",
    ),
    "name: task": (
        lambda p: md.data.load("good.csv", task="regresion"),
        UnknownNameError,
        (
            "task 'regresion' is not known: did you mean 'regression'? known are "
            "classification, regression"
        ),
    ),
    "name: verbose": (
        lambda p: fit(verbose="atuo"),
        UnknownNameError,
        "verbose 'atuo' is not known: did you mean 'auto'? known are auto",
    ),
    "name: monitor": (
        lambda p: fit(callbacks=[md.callbacks.EarlyStopping("val_los")]),
        UnknownNameError,
        (
            "EarlyStopping: monitor 'val_los' is not known: did you mean 'loss'? known are "
            "accuracy, epoch, learning_rate, loss, samples_per_second, seconds"
        ),
    ),
    "size: units": (
        lambda p: D(-3)(md.layers.Input((5,))),
        ArgumentError,
        "dense: units must be an integer of at least 1, got -3",
    ),
    "size: input": (
        lambda p: md.layers.Input((5, -1)),
        ShapeError,
        "Input input: sizes must be at least 1, got (5, -1)",
    ),
    "size: dropout": (
        lambda p: md.layers.Dropout(1.5)(md.layers.Input((5,))),
        ArgumentError,
        "dropout: rate must be a number of at least 0 and below 1, got 1.5",
    ),
    "size: learning rate": (
        lambda p: md.optim.SGD(learning_rate=-0.1),
        ArgumentError,
        "SGD: learning_rate must be a number of at least 0, got -0.1",
    ),
    "size: batch": (
        lambda p: fit(batch_size=0),
        ArgumentError,
        "fit: batch_size must be an integer of at least 1, got 0",
    ),
    "size: epochs": (
        lambda p: fit(epochs=-1),
        ArgumentError,
        "fit: epochs must be an integer of at least 0, got -1",
    ),
    "size: validation split": (
        lambda p: fit(validation_split=1.0),
        ArgumentError,
        "fit: validation_split must be at least 0 and below 1, got 1.0",
    ),
    "size: test split": (
        lambda p: md.data.load("good.csv", test_split=1.5),
        ArgumentError,
        "fraction of a split: must be between 0 and 1, got 1.5",
    ),
    "size: memory": (
        lambda p: md.MemoryManager(-20),
        ArgumentError,
        "memory: size must be an integer of at least 0, got -20",
    ),
    "device: memory": (
        lambda p: md.MemoryManager(20, kind=md.DEVICE),
        DeviceError,
        (
            "DEVICE memory: device 0 cannot be used: no NVIDIA driver was found "
            "(libcuda.so.1); use HOST or MANAGED, which work without a GPU"
        ),
    ),
    "graph: no input": (
        lambda p: md.Model([D(3)]),
        ArgumentError,
        "Model: the first of the layers must be md.layers.Input(shape)",
    ),
    "graph: not fed": (
        lambda p: md.placeholder("x", (None, 2)).sum().eval(),
        GraphError,
        "placeholder x (batch, 2) is not fed: give {x: array}",
    ),
    "graph: a list": (
        lambda p: md.variable("v", [1.0, 2.0]),
        ArgumentError,
        (
            "variable v: a list could be a shape or values: write a tuple for a shape, "
            "np.array([...]) for values"
        ),
    ),
    "graph: no loss": (
        lambda p: fit(model=network(loss=None)),
        ArgumentError,
        "the model has no loss; give one: Model(..., loss='cross_entropy')",
    ),
    "file: no model": (
        lambda p: md.load("nowhere"),
        FileError,
        "cannot read {p}/nowhere: there is no such folder; check the path",
    ),
    "file: foreign folder": (
        lambda p: md.load("used"),
        CheckpointError,
        (
            "{p}/used: has no manifest.json; expected a folder that magmadnn wrote, this "
            "one is foreign or only partly copied"
        ),
    ),
    "file: folder in use": (
        lambda p: network().save("used"),
        FileError,
        (
            "cannot replace {p}/used: it holds 'notes.txt', which is not part of what "
            "magmadnn wrote there; choose another folder or move that file away"
        ),
    ),
    "file: below a file": (
        lambda p: network().save("file/model"),
        FileError,
        (
            "cannot write {p}/file/model: a part of the path is a file, not a folder; "
            "choose another path (Not a directory)"
        ),
    ),
    "file: run exists": (
        lambda p: create_run("used", {}),
        FileError,
        (
            "{p}/used: expected a new or empty folder, got one that holds 'notes.txt'; "
            "give another --out, or go on with the run there by --resume"
        ),
    ),
}

# --- the table: command line -----------------------------------------------------------------

TRAIN = ("train", "--data", "good.csv", "--epochs", "1", "--hidden", "3")
COMMAND: dict[str, tuple[tuple[str, ...], str]] = {
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
            "a folder with IDX files or CIFAR-10 batches, a table (.csv, .tsv, .data, "
            ".dat, .txt) or an .npz file"
        ),
    ),
    "data: unknown kind": (
        ("train", "--data", "data.xlsx"),
        (
            "{p}/data.xlsx: its kind '.xlsx' is not known: expected mnist, a folder with "
            "IDX files or CIFAR-10 batches, a table (.csv, .tsv, .data, .dat, .txt) or an "
            ".npz file"
        ),
    ),
    "data: folder of nothing": (
        ("train", "--data", "nothing"),
        (
            "{p}/nothing: holds neither IDX files (train-images-idx3-ubyte, ...) nor "
            "CIFAR-10 batches (data_batch_1.bin, ...): found an empty folder"
        ),
    ),
    "data: NaN in the loss": (
        (*TRAIN, "--lr", "1e38", "--optimizer", "sgd", "--epochs", "9"),
        (
            r"~matmul in dense_\d: the result has infinity, first at .*; lower the learning "
            r"rate, clip gradients, or look for bad data"
        ),
    ),
    "name: command": (
        ("trian",),
        (
            "command 'trian' is not known: did you mean 'train'? known are doctor, "
            "evaluate, export, predict, summary, train, tune"
        ),
    ),
    "name: no command": (
        (),
        (
            "a command is missing: give one of train, evaluate, predict, export, summary, doctor, "
            "tune, or --help"
        ),
    ),
    "name: option before the command": (
        ("--versoin",),
        ("option '--versoin' is not known: did you mean '--version'? known are --help, --version"),
    ),
    "name: option": (
        (*TRAIN, "--epoch", "3"),
        (
            "option '--epoch' is not known: did you mean '--epochs'? known are "
            "--activation, --batch-size, --checkpoint-every, --data, --device, --epochs, "
            "--help, --hidden, --json, --lr, --missing, --optimizer, --out, --precision, --preset, "
            "--quiet, --resume, --seed, --target, --task, --test-split, --threads, "
            "--validation-split, --weight-decay, -h"
        ),
    ),
    "name: model": (
        ("train", "mpl"),
        "model 'mpl' is not known: did you mean 'mlp'? known are mlp",
    ),
    "name: preset": (
        (*TRAIN, "--preset", "papr"),
        ("mlp: preset 'papr' is not known: did you mean 'paper'? known are image, paper, table"),
    ),
    "name: activation": (
        (*TRAIN, "--activation", "rleu"),
        (
            "--activation: activation 'rleu' is not known: did you mean 'relu'? known are "
            "elu, gaussian_rbf, gelu, leaky_relu, linear, relu, sigmoid, softmax, "
            "softplus, softsign, swish, tanh; see magmadnn train --help"
        ),
    ),
    "name: optimizer": (
        (*TRAIN, "--optimizer", "adma"),
        (
            "--optimizer: optimiser 'adma' is not known: did you mean 'Adam'? known are "
            "AdaGrad, Adam, AdamW, Chain, LAMB, LARS, RMSProp, SGD; see magmadnn train "
            "--help"
        ),
    ),
    "name: missing": (
        (*TRAIN, "--missing", "maen"),
        (
            "--missing: way 'maen' is not known: did you mean 'mean'? known are drop, "
            "mean; see magmadnn train --help"
        ),
    ),
    "name: task": (
        (*TRAIN, "--task", "regresion"),
        (
            "--task: task 'regresion' is not known: did you mean 'regression'? known are "
            "classification, regression; see magmadnn train --help"
        ),
    ),
    "name: device": (
        (*TRAIN, "--device", "gpu"),
        (
            "--device: device 'gpu' is not known: did you mean 'cpu'? known are auto, cpu, "
            "cuda; see magmadnn train --help"
        ),
    ),
    "name: summary": (
        ("summary", "mpl"),
        (
            "model 'mpl' is not known: did you mean 'mlp'? known are mlp; nor is it a "
            "training's output folder"
        ),
    ),
    "size: hidden": (
        (*TRAIN, "--hidden", "528,-3"),
        (
            "--hidden: must be whole numbers of at least 1 with commas between, such as "
            "512,256, got '528,-3'; see magmadnn train --help"
        ),
    ),
    "size: learning rate": (
        (*TRAIN, "--lr", "-0.1"),
        "--lr: must be a number above 0, got '-0.1'; see magmadnn train --help",
    ),
    "size: learning rate NaN": (
        (*TRAIN, "--lr", "nan"),
        "--lr: must be a number above 0, got 'nan'; see magmadnn train --help",
    ),
    "size: weight decay": (
        (*TRAIN, "--weight-decay", "-1"),
        ("--weight-decay: must be a number of at least 0, got '-1'; see magmadnn train --help"),
    ),
    "size: batch": (
        (*TRAIN, "--batch-size", "0"),
        ("--batch-size: must be a whole number of at least 1, got '0'; see magmadnn train --help"),
    ),
    "size: epochs": (
        (*TRAIN, "--epochs", "2.5"),
        ("--epochs: must be a whole number of at least 1, got '2.5'; see magmadnn train --help"),
    ),
    "size: validation split": (
        (*TRAIN, "--validation-split", "1"),
        (
            "--validation-split: must be a share of at least 0 and below 1, got '1'; see "
            "magmadnn train --help"
        ),
    ),
    "size: test split": (
        (*TRAIN, "--test-split", "1.5"),
        ("--test-split: must be a share above 0 and below 1, got '1.5'; see magmadnn train --help"),
    ),
    "size: seed": (
        (*TRAIN, "--seed", "-1"),
        ("--seed: must be a whole number of at least 0, got '-1'; see magmadnn train --help"),
    ),
    "size: threads": (
        (*TRAIN, "--threads", "0"),
        ("--threads: must be a whole number of at least 1, got '0'; see magmadnn train --help"),
    ),
    "size: checkpoints": (
        (*TRAIN, "--checkpoint-every", "0"),
        (
            "--checkpoint-every: must be a whole number of at least 1, got '0'; see "
            "magmadnn train --help"
        ),
    ),
    "option: without a value": (
        (*TRAIN, "--out"),
        "--out: expected one argument; see magmadnn train --help",
    ),
    "option: left out": (
        ("predict", "run", "--data", "good.csv"),
        "the following arguments are required: --out; see magmadnn predict --help",
    ),
    "option: one too many": (
        (*TRAIN, "mlp", "again"),
        "'again' is one argument too many; see magmadnn train --help",
    ),
    "device: cuda": (
        (*TRAIN, "--device", "cuda"),
        "--device cuda: no NVIDIA driver was found (libcuda.so.1); use --device cpu",
    ),
    "file: folder in use": (
        (*TRAIN, "--out", "used"),
        (
            "--out used: expected a new or empty folder, got one that holds 'notes.txt'; "
            "give another --out, or go on with the run there by --resume"
        ),
    ),
    "file: a file": (
        (*TRAIN, "--out", "file"),
        "--out file: expected a new or empty folder, got a file",
    ),
    "file: below a file": (
        (*TRAIN, "--out", "file/run"),
        "--out file/run: {p}/file is a file, not a folder; choose another path",
    ),
    "file: json below a file": (
        (*TRAIN, "--json", "file/r.json"),
        "--json {p}/file/r.json: {p}/file is a file, not a folder; choose another path",
    ),
    "file: json is a folder": (
        (*TRAIN, "--json", "used"),
        "--json {p}/used: expected the name of a file, got a folder",
    ),
    "file: no model": (
        ("evaluate", "nowhere", "--data", "good.csv"),
        "nowhere: expected the output folder of a training, which is not there",
    ),
    "file: foreign folder": (
        ("evaluate", "used", "--data", "good.csv"),
        (
            "{p}/used: has no manifest.json; expected a folder that magmadnn wrote, this "
            "one is foreign or only partly copied"
        ),
    ),
    "file: nothing to resume": (
        ("train", "--resume", "nowhere"),
        "nowhere: expected a run's folder, got none with a run.json; check the path",
    ),
    "file: foreign run": (
        ("train", "--resume", "used"),
        "used: expected a run's folder, got none with a run.json; check the path",
    ),
}


def fits(text: str, expected: str, place: Path) -> bool:
    """Whether a text is the expected one, or matches it where that begins with ~."""
    if expected.startswith("~"):
        return re.fullmatch(expected[1:], text) is not None
    return text == expected.replace("{p}", str(place))


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    act, error, expected = PYTHON[name]
    with pytest.raises(MagmaDNNError) as raised:
        act(place)
    text = str(raised.value)
    assert fits(text, expected, place), text
    assert type(raised.value) is error
    assert "\n" not in text


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, expected = COMMAND[name]
    before = sorted(place.iterdir())
    assert main(arguments) == 2
    _, err = capsys.readouterr()
    assert err.startswith("magmadnn: error: ") and err.endswith("\n")
    text = err.removeprefix("magmadnn: error: ").removesuffix("\n")
    assert fits(text, expected, place), text
    assert "\n" not in text
    if "NaN in the loss" not in name:  # that one is found while training
        assert sorted(place.iterdir()) == before


# --- a disk that is full ----------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write fails as on a full disk."""

    def write(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.calls, "write", write)


FULL = "the disk is full; free some space or choose another folder (No space left on device)"


def test_a_full_disk_in_python(place: Path, full_disk: None) -> None:
    for act, where in (
        (lambda: network().save("model"), "model"),
        (lambda: fit(callbacks=[md.callbacks.Checkpoint("run")]), "run/checkpoints/step-00000001"),
    ):
        with pytest.raises(FileError) as raised:
            act()
        assert str(raised.value) == f"cannot write {place}/{where}: {FULL}"


def test_a_full_disk_on_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str], full_disk: None
) -> None:
    assert main([*TRAIN, "--out", "run", "--quiet"]) == 2
    assert capsys.readouterr() == ("", f"magmadnn: error: cannot write {place}/run: {FULL}\n")
    assert not (place / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits there")
def test_a_disk_that_fills_up_while_training(place: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        f"sys.path.insert(0, {str(ROOT)!r}); from magmadnn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    wide = ("train", "--data", "good.csv", "--epochs", "1", "--hidden", "997")
    done = subprocess.run(
        [sys.executable, "-c", code, *wide, "--out", "run", "--quiet"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"magmadnn: error: cannot write {place}/run/checkpoints/step-00000001: it would be too large for "
        "this file system; choose another folder (File too large)\n"
    )
    # What can be fixed is fixed, and the run goes on.
    assert main(["train", "--resume", "run", "--quiet"]) == 0
