"""Arrays, lists and functions that are not what a model wants: shapes, dtypes, labels.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DataError, DTypeError, GraphError, ShapeError
from tests.refusals.cases import (
    D,
    NoEpoch,
    PythonCase,
    X,
    Y,
    binary,
    changed,
    check_in_python,
    fit,
    network,
    rows,
)

PYTHON: dict[str, PythonCase] = {
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
    "labels: weights of classes in places that are 0 and 1": (
        lambda p: fit(
            np.ones((2, 4, 5), "f4"),
            np.array([[0, 1, 0, 0], [1, 0, 1, 0]]),
            rows(),
            class_weight={0: 1.0, 1: 2.0, 2: 1.0},
        ),
        DataError,
        (
            "fit: class_weight needs one class for each row of y, but row 1 has 2 of 4; give rows "
            "their weights as sample_weight"
        ),
    ),
    "labels: weights of classes in rows of 0 and -1": (
        lambda p: fit(
            X,
            np.where(np.arange(3) == np.arange(23)[:, None] % 3, -1, 0),
            network(loss="mse", metrics=[]),
            class_weight="balanced",
        ),
        DataError,
        (
            "fit: class_weight needs 0 and 1 in the columns of y, but row 0, column 0 is -1; give each row "
            "its class as 1, or rows their weights as sample_weight"
        ),
    ),
    "labels: weights of classes in rows of several labels": (
        lambda p: fit(
            X,
            np.zeros((23, 3), "f4"),
            network(loss="binary_cross_entropy", metrics=[]),
            class_weight="balanced",
        ),
        DataError,
        (
            "fit: class_weight needs one class for each row of y, but row 0 has 0 of 3; give rows "
            "their weights as sample_weight"
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
        "fit: x is None, expected an array of samples",
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
    "shape: validation weights": (
        lambda p: fit(validation_data=(X, Y, np.ones(3)), callbacks=[NoEpoch()]),
        ShapeError,
        "fit: validation_data: sample_weight must have shape (23,), got (3,)",
    ),
    "shape: validation of four": (
        lambda p: fit(validation_data=(X, Y, None, None), callbacks=[NoEpoch()]),
        ArgumentError,
        "fit: validation_data must be (x, y) or (x, y, weights)",
    ),
    "list: callbacks": (
        lambda p: fit(callbacks=[3]),
        ArgumentError,
        "fit: callbacks must be a list such as [md.callbacks.EarlyStopping()], got [3]",
    ),
    "list: metrics": (
        lambda p: network(metrics="accuracy"),
        ArgumentError,
        "Model: metrics must be a list such as [\"accuracy\"], or a dict by output, got 'accuracy'",
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
    "shape: a size is no number": (
        lambda p: md.layers.Input((5, 2.5)),
        ShapeError,
        "Input input: a size is an integer, a name or None, got 2.5",
    ),
    "shape: of a placeholder": (
        lambda p: md.placeholder("p", 2.5),
        ShapeError,
        "placeholder p: expected a shape such as (None, 3), got 2.5",
    ),
    "shape: a size of a placeholder": (
        lambda p: md.placeholder("p", (None, "3", 3.0)),
        ShapeError,
        "placeholder p: a size is an integer, a name or None, got 3.0",
    ),
    "dtype: text for an array": (
        lambda p: fit("good.csv"),
        ShapeError,
        "fit: expected an array for input 'input', got the text 'good.csv'; md.data reads files",
    ),
    "dtype: text for a value": (
        lambda p: md.variable("v", "abc"),
        DTypeError,
        (
            "dtype 'str96' is not known: known are bfloat16, bool, complex128, complex64, "
            "float16, float32, float64, int16, "
            "int32, int64, int8, uint8"
        ),
    ),
    "dtype: weights": (
        lambda p: fit(sample_weight="balanced"),
        DTypeError,
        (
            "fit: sample_weight must be a number for each row, got <U8; weights of classes are "
            "class_weight"
        ),
    ),
    "list: layers": (
        lambda p: md.Model(D(3)),
        ArgumentError,
        "Model: layers must be a list, got Dense(units=3); write Model([...])",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])
