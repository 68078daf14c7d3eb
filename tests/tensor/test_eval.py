"""Operation.eval runs compiled code: equal results at each call, the errors that NumPy raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import DataError, DTypeError, ShapeError
from magmadnn.runtime import Executable

X = np.random.default_rng(11).normal(size=(5, 7)).astype(np.float32)


def test_it_is_compiled() -> None:
    y = ops.tanh(md.variable("x", X)) * 2.0
    y.eval()
    (executable,) = y._executables.values()
    assert executable.executor == "native" and executable.native.plan.kernels == 1


def test_calls_give_equal_bits_and_compile_once() -> None:
    x = md.placeholder("x", (None, 7))
    y = ops.softmax(x @ md.variable("w", X.T))
    first = y.eval({x: X}).numpy()
    for rows in (1, 3, 5):
        again = y.eval({x: X[:rows]}).numpy()
        np.testing.assert_array_equal(again, first[:rows])
    assert len(y._executables) == 1
    fresh = ops.softmax(x @ md.variable("w", X.T)).eval({x: X})
    np.testing.assert_array_equal(fresh.numpy(), first)


@pytest.mark.parametrize(
    ("dtype", "given", "error", "text"),
    [
        ("float32", [1j, 2], DTypeError, "variable v: expected float32, got complex128; cast it"),
        ("bfloat16", [1j, 2], DTypeError, "variable v: expected bfloat16, got complex128; cast it"),
        ("int32", [1.5, 2], DTypeError, "variable v: expected int32, got float64; cast it"),
        ("int32", [2**40, 2], DataError, "variable v: 1099511627776 does not fit into int32"),
        ("uint8", [-1, 2], DataError, "variable v: -1 does not fit into uint8"),
        ("float32", ["1", "2"], DTypeError, "variable v: expected float32, got <U1; cast it"),
        ("float32", [[1], [2, 3]], ShapeError, "a list of 2 does not make an array: its parts"),
    ],
)
def test_values_of_another_kind_are_not_assigned(
    dtype: str, given: Any, error: type[Exception], text: str
) -> None:
    v = md.variable("v", np.zeros(2), dtype=dtype)
    with pytest.raises(error, match=text):
        v.assign(given)
    assert not np.asarray(v, np.float64).any()
    for value in ([1, 2], np.array([1, 2], np.int8)):  # of a kind that is widened
        v.assign(value)
        assert np.asarray(v).tolist() == [1, 2]


@pytest.mark.parametrize("make", [
    lambda x, i: ops.take_class(x, i), lambda x, i: ops.one_hot(i, 7), lambda x, i: ops.take(x, i),
])  # fmt: skip
def test_an_index_that_is_out_of_range_is_an_error(make: Any) -> None:
    x, i = md.placeholder("x", (None, 7)), md.placeholder("i", (None,), "int64")
    y = make(x, i)
    with pytest.raises(DataError, match=r"index 7 at \(3,\) is outside 0 to"):
        y.eval({x: X, i: [0, 1, 2, 7, 4]} if x.node in Executable([y.node]).program.nodes()
               else {i: [0, 1, 2, 7, 4]})  # fmt: skip


def test_nan_and_infinity_are_values() -> None:
    x, i = md.placeholder("x", (None, 7)), md.placeholder("i", (None,), "int64")
    values = X.copy()
    values[1, 1], values[2, 2] = np.nan, np.inf
    taken = ops.take_class(x, i).eval({x: values, i: np.arange(5)})
    np.testing.assert_array_equal(taken.numpy(), values[np.arange(5), np.arange(5)])
    np.testing.assert_array_equal(ops.log(x - x).eval({x: X}).numpy(), np.full_like(X, -np.inf))


def test_running_statistics_are_updated_once_where_the_result_is_nan() -> None:
    x, i = md.placeholder("x", (None, 7)), md.placeholder("i", (None,), "int64")
    count = md.variable("count", np.float32(0))
    y = md.tensor.operation.with_update(ops.take_class(x, i), count, count + 1.0)
    y.eval({x: np.full((5, 7), np.nan), i: np.arange(5)}, training=True)
    assert float(count.value) == 1


def test_updates_of_one_variable_follow_each_other_and_other_readers_see_it_as_it_was() -> None:
    x, total = md.placeholder("x", (None,), "float64"), md.variable("total", np.float64(3))
    y = md.with_update(x - total, total, 0.5 * total + x.sum())
    y = md.with_update(y + total, total, 0.5 * total + y.sum())
    y = md.with_update(y, total, total * total)
    out = y.eval({x: [7.0, 11.0]}, training=True)
    np.testing.assert_array_equal(out.numpy(), [7.0, 11.0])
    first = 0.5 * 3 + 7 + 11
    second = 0.5 * first + (7 - 3) + (11 - 3)
    assert float(total.value) == second**2


def test_large_arrays_are_read_where_they_lie_now() -> None:
    """One is fed again after it has changed, then others: one that is not contiguous, its copy, a view."""
    x = md.placeholder("x", (97, 101))
    y = x * 2.0
    a = np.random.default_rng(3).standard_normal((97, 101)).astype(np.float32)
    turned = np.asfortranarray(a + 1)
    for fed in (a, a, turned, turned, turned.copy(), np.concatenate([a, a])[50:147], a):
        fed += 1
        np.testing.assert_array_equal(y.eval({x: fed}).read(), fed * 2)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4"])
def test_constants_of_the_other_order_of_bytes_are_the_numbers_that_they_hold(dtype: str) -> None:
    a = np.arange(1, 36).reshape(7, 5).astype(dtype)
    h = md.variable("h", np.zeros(5, a.dtype.newbyteorder("=")))
    total, _ = md.scan(lambda h, x: (h + x, ()), h, a)
    np.testing.assert_array_equal(total.eval().read(), a.sum(axis=0))
    assert (h * a).node.inputs[1].value.dtype.isnative
    model = md.Model([md.layers.Input((5,)), md.layers.Dense(3)])
    if a.dtype.kind == "f":
        native = a.astype(np.float32)
        np.testing.assert_allclose(model(a).eval().read(), model.predict(native), rtol=1e-5)


def test_what_was_fed_when_an_interruption_came_is_read_next_time() -> None:
    class Interrupted(list):
        def __iter__(self):
            raise KeyboardInterrupt

    x = md.placeholder("x", (97, 101))
    y = x * 2.0
    first, second = np.random.default_rng(4).standard_normal((2, 97, 101)).astype(np.float32)
    y.eval({x: first})
    ((_, _, instance),) = (e.native._last for e in y._executables.values())
    patches = instance._patches[x.node]
    instance._patches[x.node] = Interrupted(patches)
    with pytest.raises(KeyboardInterrupt):
        y.eval({x: second})
    instance._patches[x.node] = patches
    np.testing.assert_array_equal(y.eval({x: second}).read(), second * 2)
