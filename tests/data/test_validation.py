"""What may be trained on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data import validation
from magmadnn.errors import DataError

X = np.linspace(-1.5, 2.5, 14).reshape(7, 2)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.int8, np.uint8, np.bool_]
)
def test_numbers_of_every_type_pass(dtype):
    assert data.check_arrays(X.astype(dtype)) == 7


def test_structures_and_labels_pass():
    labels = np.array([0, 1, 2, 2, 1, 0, 2])
    assert data.check_arrays((X, {"age": X[:, 0]}), labels, classes=3) == 7
    assert data.check_arrays(X, labels[:, None], classes=3) == 7
    assert data.check_arrays(X, np.eye(3)[labels], classes=3) == 7
    assert data.check_arrays(X, labels > 1, classes=2) == 7
    assert data.check_arrays(X, [X, X[:, 0]]) == 7


@pytest.mark.parametrize("large", [1, 1 << 25])
def test_the_first_bad_row_is_named_across_blocks(monkeypatch, large):
    monkeypatch.setattr(validation, "_BLOCK", 4)
    monkeypatch.setattr(validation, "_LARGE", large)
    x = X.astype(ml_dtypes.bfloat16)
    x[5, 1] = x[6, 0] = np.nan
    with pytest.raises(DataError, match=r"^x: row 5, column 1 is nan"):
        data.check_arrays(x)


def test_memory_maps_are_scanned_when_asked(tmp_path):
    x = X.copy()
    x[3, 1] = np.inf
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert data.check_arrays(mapped) == 7
    with pytest.raises(DataError, match=r"^x: row 3, column 1 is inf"):
        data.check_arrays(mapped, scan=True)
    assert data.check_arrays(x, scan=False) == 7
    labels = np.array([0, 1, 2, 9, 1, 0, 2])
    assert data.check_arrays(X, labels, classes=3, scan=False) == 7
