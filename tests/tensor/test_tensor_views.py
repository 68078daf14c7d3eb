"""Indexing, views and assignment agree with NumPy, and views share memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from magmadnn import errors, memory
from magmadnn.backends.cuda.simulated import simulated_devices
from magmadnn.memory import Kind
from magmadnn.tensor import Tensor
from magmadnn.tensor.conversion import asarray


@pytest.fixture(params=list(Kind), ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with simulated_devices():
        yield request.param
        memory.trim()


def pair(kind: Kind, *shape: int, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """A Tensor and an ndarray of the same values, in memories of their own."""
    array = np.random.default_rng(seed).permutation(int(np.prod(shape))).reshape(shape) + 1
    return asarray(array.copy(), kind=kind), array


def random_slice(rng: np.random.Generator, size: int) -> slice:
    start, stop = (
        None if rng.random() < 0.3 else int(x) for x in rng.integers(-size - 2, size + 2, 2)
    )
    step = None if rng.random() < 0.5 else int(rng.choice([-3, -2, -1, 1, 2, 3]))
    return slice(start, stop, step)


def random_index(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Integers, slices, None and `...`, for some of the axes."""
    count = int(rng.integers(0, len(shape) + 1))
    items: list[Any] = []
    for size in shape[:count]:
        if rng.random() < 0.2:
            items.append(None)
        if size and rng.random() < 0.4:
            items.append(int(rng.integers(-size, size)))
        else:
            items.append(random_slice(rng, size))
    if rng.random() < 0.3:
        items.append(...)
    return tuple(items)


def random_view(
    rng: np.random.Generator, t: Tensor, a: np.ndarray
) -> tuple[Tensor, np.ndarray, str]:
    """One step to a view of both, and its name."""
    step = int(rng.integers(0, 6))
    if step == 0:
        return t.T, a.T, "T"
    if step == 1 and a.ndim > 1:
        one, two = (int(x) for x in rng.integers(-a.ndim, a.ndim, 2))
        return t.swapaxes(one, two), a.swapaxes(one, two), f"swapaxes({one}, {two})"
    if step == 2:
        axis = int(rng.integers(-a.ndim - 1, a.ndim + 1))
        return t.unsqueeze(axis), np.expand_dims(a, axis), f"unsqueeze({axis})"
    if step == 3:
        return t.squeeze(), a.squeeze(), "squeeze"
    if step == 4:
        axes = tuple(int(x) for x in rng.permutation(a.ndim))
        return t.transpose(axes), a.transpose(axes), f"transpose{axes}"
    index = random_index(rng, a.shape)
    return t[index], np.asarray(a[(*index, ...) if ... not in index else index]), f"[{index}]"


@pytest.mark.parametrize("seed", range(40))
def test_chains_of_views_are_numpys(kind: Kind, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base, array = pair(kind, *(int(x) for x in rng.integers(1, 6, rng.integers(1, 5))), seed=seed)
    t, a, path = base, array, []
    for _ in range(5):
        t, a, name = random_view(rng, t, a)
        path.append(name)
        assert (t.shape, t.ndim, t.size) == (a.shape, a.ndim, a.size), path
        assert t.size == 0 or t.strides == a.strides, path
        assert t.memory is base.memory, path
        assert np.array_equal(t, a), path
        if a.size > 1 and rng.random() < 0.5:
            value = int(rng.integers(1000, 2000))
            t[...] = value
            a[...] = value
            assert np.array_equal(base, array), path


@pytest.mark.parametrize("seed", range(30))
def test_assignments_are_numpys(kind: Kind, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    t, a = pair(kind, 5, 3, 4, seed=seed)
    index = random_index(rng, a.shape)
    shape = a[index].shape
    values = rng.integers(-99, 0, shape) if rng.random() < 0.7 else -1
    t[index] = asarray(values) if rng.random() < 0.5 else values
    a[index] = values
    assert np.array_equal(t, a), index


ADVANCED: list[Any] = [
    [2, 0, 2],
    np.array([[0, -1], [3, 3]]),
    (slice(None), [1, 2]),
    ([0, 1], [1, 2]),
    ([0, 1], ..., [3, 0]),
    (None, [4, 0]),
    True,
    (1, True),
    np.arange(5) % 2 == 0,
    (slice(1, 3), np.array([True, False, True])),
    (np.array([1]), 2, 3),
]


@pytest.mark.parametrize("index", ADVANCED, ids=str)
def test_advanced_indices_copy_and_assign(kind: Kind, index: Any) -> None:
    t, a = pair(kind, 5, 3, 4)
    taken = t[index]
    assert taken.kind is kind
    assert np.array_equal(taken, a[index])
    taken[...] = 0
    assert np.array_equal(t, a), "a copy"
    t[index] = -7
    a[index] = -7
    assert np.array_equal(t, a)


def test_tensors_as_indices(kind: Kind) -> None:
    t, a = pair(kind, 5, 3)
    rows = asarray([3, 1], kind=kind)
    assert np.array_equal(t[rows], a[[3, 1]])
    assert np.array_equal(t[rows, asarray(2)], a[[3, 1], 2])
    mask = asarray(a > 7, kind=kind)
    assert np.array_equal(t[mask], a[a > 7])
    t[mask] = 0
    assert np.array_equal(t, np.where(a > 7, 0, a))
    one = t[asarray(2, kind=kind)]
    assert one.memory is t.memory, "an integer Tensor is an integer"
    assert np.array_equal(one, t.tolist()[2])
    assert np.array_equal(t[np.int8(-1), asarray(0) : asarray(2)], t.tolist()[-1][0:2])


def test_a_whole_index_is_a_view_without_axes(kind: Kind) -> None:
    t, _ = pair(kind, 5, 3)
    one = t[4, 1]
    assert (one.shape, one.memory is t.memory) == ((), True)
    one[...] = 99
    assert t[4, 1] == 99 if kind is not Kind.DEVICE else t[4, 1].item() == 99
    t[4, 1] = 98
    assert one.item() == 98


def test_overlapping_assignments(kind: Kind) -> None:
    t, a = pair(kind, 7, 3)
    t[1:] = t[:-1]
    a[1:] = a[:-1].copy()
    t[:, ::-1] = t
    a[:, ::-1] = a.copy()
    assert np.array_equal(t, a)


# --- reshape ---------------------------------------------------------------------------------

RESHAPES = [(24,), (-1,), (4, 6), (2, -1, 3), (1, 24, 1), (2, 3, 4)]


@pytest.mark.parametrize("shape", RESHAPES)
def test_reshape_is_a_view_where_strides_allow_it(kind: Kind, shape: tuple[int, ...]) -> None:
    t, a = pair(kind, 2, 3, 4)
    view = t.reshape(shape)
    assert view.memory is t.memory
    assert np.array_equal(view, a.reshape(shape))
    assert np.array_equal(t.reshape(*shape), view)
    turned = t.T.reshape(shape)
    assert np.array_equal(turned, a.T.reshape(shape))
    assert (turned.memory is t.memory) == np.shares_memory(a, a.T.reshape(shape))
    assert turned.kind is kind


def test_reshape_of_nothing_and_of_one() -> None:
    assert Tensor((0, 5)).reshape(5, 0).shape == (5, 0)
    assert Tensor((0, 5)).reshape(3, -1).shape == (3, 0)
    assert Tensor((1, 1)).reshape(()).shape == ()
    assert Tensor(()).reshape(-1).shape == (1,)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda t: t.reshape(7), r"reshape: \(2, 3, 4\) has 24 elements, which do not fit into \(7,\)"),
        (lambda t: t.reshape(-1, -1), r"do not fit into \(-1, -1\)"),
        (lambda t: t.reshape(5, -1), r"do not fit into \(5, -1\)"),
        (lambda t: t.reshape(0, -1), r"do not fit into \(0, -1\)"),
        (lambda t: t.reshape(-2, 12), "integers of at least 0"),
        (lambda t: t.squeeze(1), r"squeeze of shape \(2, 3, 4\)"),
        (lambda t: t.unsqueeze(9), "unsqueeze of shape"),
        (lambda t: t.transpose(0, 1), "transpose of shape"),
        (lambda t: t.transpose(0, 1, 1), "transpose of shape"),
        (lambda t: t.swapaxes(0, 5), "swapaxes of shape"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(make: Any, text: str) -> None:
    with pytest.raises(errors.ShapeError, match=text) as caught:
        make(Tensor((2, 3, 4)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ((5,), r"Tensor of shape \(5, 3\): index 5 is out of bounds for axis 0 with size 5"),
        ((0, -4), "index -4 is out of bounds for axis 1 with size 3"),
        ((0, 0, 0), "too many indices"),
        (([0, 9],), "index 9 is out of bounds for axis 0"),
        ((1.5,), "only integers"),
        (("name",), "only integers"),
        ((np.ones(4, bool),), "boolean index did not match"),
    ],
)
def test_indices_that_are_not_there(kind: Kind, index: Any, text: str) -> None:
    t, a = pair(kind, 5, 3)
    for use in (lambda: t[index], lambda: t.__setitem__(index, 1)):
        with pytest.raises(IndexError, match=text) as caught:
            use()
        assert isinstance(caught.value, errors.IndexOutOfRangeError)
        assert "\n" not in str(caught.value)
    assert np.array_equal(t, a)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.zeros(4), errors.ShapeError, "could not broadcast input array"),
        (2**70, errors.ArgumentError, "cannot assign a int"),
        ("seven", errors.ArgumentError, "cannot assign a str"),
        (np.ma.masked_less(np.ones(3), 2), errors.DataError, "Tensor: elements are masked"),
        ([[1], [2, 3]], errors.ArgumentError, "cannot assign a list"),
        (float("nan"), errors.ArgumentError, "cannot convert float NaN to integer"),
    ],
)
def test_values_that_do_not_fit(kind: Kind, value: Any, error: type[Exception], text: str) -> None:
    t, a = pair(kind, 5, 3)
    with pytest.raises(error, match=text) as caught:
        t[1] = value
    assert "\n" not in str(caught.value)
    assert np.array_equal(t, a), "nothing was written"
