"""Writes to spread arrays that fail, and copies that are written to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from magmadnn import dmath as dm
from magmadnn.errors import ArgumentError, NumericError


def alone() -> dm.Session:
    return dm.in_this_process("cpu")


def test_a_write_that_fails_leaves_no_array_that_looks_right() -> None:
    w, refused_minor = alone(), "the leading minor of order 1 is not positive.*test_writes"

    def written_by(write: Callable[[dm.Matrix, dm.Matrix], object]) -> list[dm.Matrix]:
        A, bad = w.ones((4, 4)), dm.cholesky(-1.0 * w.eye(4))
        view = A[1:3]
        write(A, bad)
        return [A, view, A.T, A + 1]

    for write in (
        lambda a, bad: a.__iadd__(bad),
        lambda a, bad: a.__setitem__(slice(None), bad),
        lambda a, bad: a[2:].__imul__(bad[2:]),  # through a view
        lambda a, bad: dm.add_row_col_sum(a[0], bad),
    ):
        for x in written_by(write):
            with pytest.raises(NumericError, match=refused_minor):
                np.asarray(x)
    A, known = w.ones(2), w.array(np.array([1, 2]))
    known **= w.array(np.array([1, -1]))
    with pytest.raises(ArgumentError, match="pow: integers have no negative powers"):
        np.asarray(known)
    follows = A.replica()
    follows += 1
    with pytest.raises(ArgumentError, match="add: a replica has the values of its original"):
        np.asarray(follows)
    np.testing.assert_array_equal(np.asarray(A), np.ones(2))


def test_copies_have_elements_of_their_own_and_pickle_says_where_they_are() -> None:
    A = alone().ones((3, 2))
    for made in (copy.copy(A), copy.deepcopy([A])[0]):
        made += 1
        np.testing.assert_array_equal(np.asarray(made), np.full((3, 2), 2.0))
        del made
        np.testing.assert_array_equal(np.asarray(A), np.ones((3, 2)))
    with pytest.raises(ArgumentError, match="pickle: the elements lie on workers: take"):
        pickle.dumps(A)


def test_places_and_numbers_without_axes_can_be_written_to() -> None:
    """Those of a vector were scalars of NumPy's: writes were lost, or ended in a TypeError."""
    w = alone()
    for find in (dm.argmax, dm.argmin):
        place = find(w.array(np.array([3.0, 1.0, 5.0])))
        place[()] = 7
        place += w.array(np.array(2))
        assert np.asarray(place) == 9 and np.asarray(place).shape == ()
    A = w.zeros((2, 3))
    A[1, 2] = np.array(4.5)
    A[0] = np.array(2, np.float32)
    np.testing.assert_array_equal(np.asarray(A), [[2, 2, 2], [0, 0, 4.5]])
