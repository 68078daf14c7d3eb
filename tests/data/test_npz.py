"""Arrays from .npz files."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import DataError, DTypeError

X = np.arange(6.0).reshape(3, 2) - 2.5
Y = np.array([1, 0, 2])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_set(save, tmp_path):
    save(tmp_path / "a.npz", x=X, y=Y, other=np.zeros(2))
    arrays = data.read_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(arrays.x, X)
    np.testing.assert_array_equal(arrays.y, Y)
    assert arrays.x_test is None
    assert arrays.y_test is None


def test_two_sets(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[1:], y_test=Y[1:])
    arrays = data.read_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(arrays.x, X)
    np.testing.assert_array_equal(arrays.x_test, X[1:])
    np.testing.assert_array_equal(arrays.y_test, Y[1:])


def test_inputs_alone(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "test.npz", x_test=X[1:])
    np.testing.assert_array_equal(data.read_npz(tmp_path / "x.npz", with_target=False).x, X)
    np.testing.assert_array_equal(data.read_npz(tmp_path / "test.npz", with_target=False).x, X[1:])
    with pytest.raises(DataError, match=r"y is missing: expected the keys .*, found x$"):
        data.read_npz(tmp_path / "x.npz")


def test_pickles_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([1, None], dtype=object), y=np.zeros(2))
    with pytest.raises(DataError, match=r"x is no array of numbers \(it holds Python objects"):
        data.read_npz(tmp_path / "a.npz")


def test_text_is_no_input(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([["a"], ["b"]]), y=np.zeros(2))
    with pytest.raises(DTypeError, match=r"a\.npz: x: elements are of type <U1, expected numbers"):
        data.read_npz(tmp_path / "a.npz")


def test_images_that_look_channels_first_are_told_of(tmp_path):
    x, y = np.arange(30 * 3 * 25, dtype=np.uint8).reshape(30, 3, 5, 5), np.arange(30) % 2
    np.savez(tmp_path / "first.npz", x=x, y=y)
    np.savez(tmp_path / "last.npz", x=np.moveaxis(x, 1, -1), y=y)
    (note,) = data.load(tmp_path / "first.npz").notes
    assert note == (
        "inputs are taken for images of 3 x 5 pixels with 5 channels; where channels come first, give "
        "np.moveaxis(x, 1, -1)"
    )
    assert data.load(tmp_path / "last.npz").notes == ()
