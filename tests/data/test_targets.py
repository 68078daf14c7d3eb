"""Classes or quantities, and class numbers."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data.preparation.targets import one_hot_to_numbers
from magmadnn.errors import DataError, DTypeError, ShapeError

KINDS = {
    "text": (np.array(["b", "a"]), "classification"),
    "bool": (np.array([True, False, True]), "classification"),
    "two numbers in few rows": (np.array([0.0, 1.0, 1.0]), "classification"),
    "three numbers in 29 rows": (np.arange(29) % 3, "regression"),
    "three numbers in 30 rows": (np.arange(30) % 3, "classification"),
    "grades of wines": (3.0 + np.arange(1599) % 6, "classification"),
    "20 numbers": (np.arange(1000) % 20, "classification"),
    "21 numbers": (np.arange(1000) % 21, "regression"),
    "one number is not whole": (np.append(np.arange(100) % 2, 0.5), "regression"),
    "measurements": (np.linspace(0.1, 2.3, 71), "regression"),
    "several numbers a row": (np.arange(8).reshape(4, 2), "regression"),
    "not finite": (np.array([0.0, np.nan, 1.0]), "regression"),
}


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_target_kind(case):
    raw, kind = case
    assert data.target_kind(raw) == kind


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (np.arange(400) % 100, "classification"),
        (1 + np.arange(400) % 100, "classification"),
        (np.arange(29) % 3, "classification"),
        ((np.arange(400) % 100).astype(float), "regression"),
        (2 + np.arange(400) % 100, "regression"),
        (2 * (np.arange(400) % 100), "regression"),
        (np.arange(400) % 201, "regression"),  # more than half of the rows
    ],
)
def test_labels_of_images_may_be_of_many_classes(raw, kind):
    assert data.target_kind(raw, of_images=True) == kind
    assert data.target_kind(raw) == "regression"


def test_arrays_of_images_of_many_classes_are_loaded_as_such(tmp_path):
    x, y = np.zeros((400, 3, 3, 3), np.uint8), np.arange(400) % 100
    x[..., 0] = y[:, None, None]
    np.savez(tmp_path / "images.npz", x=x, y=y)
    np.savez(tmp_path / "rows.npz", x=x.reshape(400, 27), y=y)
    assert data.load(tmp_path / "images.npz").preparation.task == "classification"
    assert data.load(tmp_path / "rows.npz").preparation.task == "regression"
    assert data.load(tmp_path / "images.npz", task="regression").preparation.task == "regression"


def test_class_names_are_in_the_order_of_the_values():
    assert data.class_names(np.array([10.0, 9.0, 10.0, -1.0])) == ("-1", "9", "10")
    assert data.class_names(np.array([10, 9, 2], np.uint8)) == ("2", "9", "10")
    assert data.class_names(np.array(["10", "9", "b"])) == ("10", "9", "b")
    assert data.class_names(np.array([True, False])) == ("False", "True")
    assert data.class_names(np.array([0.5, 2.0])) == ("0.5", "2")


def test_number_classes():
    labels = data.number_classes(np.array(["cat", "ant", "cat", "bee"]), ("bee", "cat", "ant"))
    assert labels.tolist() == [1, 2, 1, 0]
    assert labels.dtype == np.int64
    # Whole numbers are the same class whatever type they were read with.
    for dtype in (np.int64, np.uint8, np.float32):
        raw = np.array([7, 3, 7], dtype)
        assert data.number_classes(raw, ("3", "7")).tolist() == [1, 0, 1]


def test_unknown_classes_name_the_row_or_the_line():
    raw, lines = np.array([3.0, 9.0]), np.array([2, 17])
    with pytest.raises(DataError) as error:
        data.number_classes(raw, ("3", "7"))
    assert str(error.value) == "target: row 1 is '9', which is none of the 2 classes 3, 7"
    with pytest.raises(DataError, match="target: line 17 is '9'"):
        data.number_classes(raw, ("3", "7"), lines)


BAD = {
    "NaN": (np.array([0.0, np.nan]), DataError, "target: row 1 is nan, expected a class"),
    "two axes": (
        np.ones((2, 3)),
        ShapeError,
        "target: has the shape (2, 3), expected one class for each row",
    ),
    "objects": (
        np.array([1, None]),
        DTypeError,
        "target: elements are of type object, expected texts or numbers",
    ),
    "empty": (np.array([]), DataError, "target: is empty, expected a class for each row"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_what_cannot_be_classes(case):
    raw, kind, message = case
    with pytest.raises(kind) as error:
        data.class_names(raw)
    assert str(error.value) == message


def test_one_hot_targets_become_numbers():
    assert one_hot_to_numbers(np.eye(3)[[2, 0, 1]]).tolist() == [2, 0, 1]
    assert one_hot_to_numbers(np.array([[5.5], [2.5]])).tolist() == [5.5, 2.5]
    for other in (np.array([[1, 1], [0, 1]]), np.array([[0.5, 0.5], [0.0, 1.0]]), np.arange(3)):
        assert one_hot_to_numbers(other) is other
