"""Writes to spread arrays that fail, and copies that are written to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from magmadnn import dmath as dm
from magmadnn.dmath.functions import elementwise
from magmadnn.errors import ArgumentError, NumericError, OutOfMemoryError


def alone() -> dm.Session:
    return dm.in_this_process("cpu")


WRITES: tuple[Callable[[dm.Matrix, dm.Matrix], object], ...] = (
    lambda a, bad: a.__iadd__(bad),
    lambda a, bad: a.__setitem__(slice(None), bad),
    lambda a, bad: a[2:].__imul__(bad[2:]),  # through a view
    lambda a, bad: dm.add_row_col_sum(a[0], bad),
)
REFUSED = "the leading minor of order 1 is not positive.*test_writes"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", [lambda a: a, lambda a: a[1:3], lambda a: a.replica()])
def test_a_refused_write_is_told_once_and_the_values_from_before_count(
    write: Callable[[dm.Matrix, dm.Matrix], object], read: Callable[[dm.Matrix], dm.Matrix]
) -> None:
    w = alone()
    A, bad = w.ones((4, 4)), dm.cholesky(-1.0 * w.eye(4))
    read_before, made = read(A), []
    write(A, bad)
    A += 1  # of an array that is refused: so is this
    made = [A.T, A + 1]
    for x in (*made, read_before, *made):  # what was made of it has no values
        with pytest.raises(NumericError, match=REFUSED):
            np.asarray(x)
    np.testing.assert_array_equal(np.asarray(read_before), np.ones(read_before.shape))
    A += 1
    np.testing.assert_array_equal(np.asarray(A), np.full((4, 4), 2.0))
    np.testing.assert_array_equal(np.asarray(A.T @ A), np.full((4, 4), 16.0))


def test_refusals_that_an_operation_finds_itself() -> None:
    w = alone()
    A, known = w.ones(2), w.array(np.array([3, 2]))
    known **= w.array(np.array([1, -1]))
    with pytest.raises(ArgumentError, match="pow: integers have no negative powers"):
        np.asarray(known)
    np.testing.assert_array_equal(np.asarray(known), [3, 2])
    follows = A.replica()
    follows += 1
    with pytest.raises(ArgumentError, match="add: a replica has the values of its original"):
        np.asarray(follows)
    np.testing.assert_array_equal(np.asarray(follows), np.ones(2))
    A += 1
    np.testing.assert_array_equal(np.asarray(follows), np.full(2, 2.0))


def test_refused_writes_to_a_replica_and_its_original_are_told_each() -> None:
    w = alone()
    A, bad = w.ones((4, 4)), dm.cholesky(-1.0 * w.eye(4))
    follows = A.replica()
    follows += 1
    A += bad
    with pytest.raises(ArgumentError, match="add: a replica has the values of its original"):
        np.asarray(follows)
    with pytest.raises(NumericError, match=REFUSED):
        np.asarray(follows)
    for x in (A, follows):
        np.testing.assert_array_equal(np.asarray(x), np.ones((4, 4)))


@pytest.mark.parametrize("error", [ArgumentError("after a block"), OutOfMemoryError("on one")])
def test_a_write_that_broke_off_leaves_no_array_that_looks_right(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote a block before; or failed on one worker, of which others know nothing."""
    w = alone()
    A = w.ones((4, 4), layout=dm.Blocks((2, 2)))
    function, calls = elementwise.function_of("add", np), list[int]()

    def breaks_off(*operands: object, **settings: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise error
        return function(*operands, **settings)

    def found(name: str, xp: object) -> object:
        if isinstance(error, OutOfMemoryError):
            raise error
        return breaks_off

    with monkeypatch.context() as patch:
        patch.setattr(elementwise, "function_of", found)
        A += 1
    view = A[:1]
    for x in (A, view, A.T, A):
        with pytest.raises(type(error), match=r"block|on one"):
            np.asarray(x)
    with pytest.raises(type(error), match=r"block|on one"):
        np.asarray(A + 1)


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
