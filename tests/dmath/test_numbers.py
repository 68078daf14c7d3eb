"""Numbers beside arrays: dtypes and values are NumPy's, whatever was computed before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, MagmaDNNError, ShapeError

# Equal as keys of a dictionary are True, 1, 1.0 and 1+0j; 0.0 and -0.0; 2 and 2.0.
NUMBERS = (True, 1, 1.0, 1 + 0j, 0, 0.0, -0.0, False, 2, 2.0, 1j, -1, 300)
ARRAYS = (
    np.array([True, False]),
    np.arange(-2, 3, dtype=np.int8),
    np.array([0, 255], np.uint8),
    np.arange(4),
    np.array([-1.5, 0.0, 2.0], np.float32),
    np.array([-1.5, 0.0, 2.0]),
    np.array([1j, 2, -1], np.complex64),
)
FUNCTIONS = {
    **{
        name: name for name in ("add", "subtract", "multiply", "divide", "floor_divide", "copysign")
    },
    **{name: name for name in ("remainder", "maximum", "equal", "less_equal", "hypot")},
    "pow": "power",
    "atan2": "arctan2",
}


@pytest.fixture(scope="module")
def one() -> Iterator[Any]:
    with md.workers(0) as w:
        yield w


@pytest.mark.parametrize("first", ["whole numbers first", "whole numbers last"])
@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: str(x.dtype))
def test_a_number_keeps_its_type_after_an_equal_one(one: Any, x: Any, first: str) -> None:
    numbers = NUMBERS if first == "whole numbers first" else NUMBERS[::-1]
    for (name, numpys), number, turned in product(FUNCTIONS.items(), numbers, (False, True)):
        operands = (number, x) if turned else (x, number)
        given = [one.array(v) if v is x else v for v in operands]
        try:
            with np.errstate(all="ignore"):
                expected = getattr(np, numpys)(*operands)
        except (TypeError, ValueError, OverflowError):
            with pytest.raises(MagmaDNNError, match=name):
                np.asarray(getattr(md.dmath, name)(*given))
            continue
        made = getattr(md.dmath, name)(*given)
        found = np.asarray(made)
        assert made.dtype == found.dtype == expected.dtype, (name, number)
        np.testing.assert_array_equal(found, expected, err_msg=f"{name} {number!r}")


BEYOND = (
    lambda w, x: x.__setitem__(0, 300),
    lambda w, x: x.__setitem__(0, float("nan")),
    lambda w, x: x.__setitem__(slice(None), [1, 300, 2]),
    lambda w, x: w.full(3, -129, dtype="int8"),
    lambda w, x: w.full(3, float("inf"), dtype="int64"),
    lambda w, x: w.full(3, "2"),
    lambda w, x: w.array([1, 300], dtype="int8"),
    lambda w, x: w.arange(0, 300, 100, dtype="int8"),
    lambda w, x: w.arange(0, float("nan")),
    lambda w, x: md.dmath.leaky_relu(x, slope="a"),
    lambda w, x: md.dmath.round(x, decimals=1.5),
    lambda w, x: md.dmath.round(x > 0, decimals=2),
    lambda w, x: md.dmath.tril(x[:, None], k=0.5),
    lambda w, x: md.dmath.roll(x, (1, 2, 3), axis=(0, 0)),
    lambda w, x: md.dmath.reshape(x, (3.0, 1)),
    lambda w, x: md.dmath.diff(x, n=-1),
    lambda w, x: md.dmath.meshgrid(x, x, indexing="yx"),
    lambda w, x: w.full(3, 1j),
)


@pytest.mark.parametrize("number", range(len(BEYOND)))
def test_numbers_that_do_not_fit_are_refused_before_workers_see_them(one: Any, number: int) -> None:
    """On a worker they were errors of NumPy's, for which all workers were ended."""
    x = one.array(np.arange(3, dtype=np.int8))
    with pytest.raises(MagmaDNNError):
        BEYOND[number](one, x)
    np.testing.assert_array_equal(np.asarray(x), np.arange(3))


def test_numbers_of_numpys_types_and_complex_ones(one: Any) -> None:
    d, y = md.dmath, np.arange(6.0).reshape(2, 3)
    Y, place = one.array(y), np.int64(1)
    for found, expected in (
        (d.roll(Y, place, axis=place), np.roll(y, 1, axis=1)),
        (d.reshape(Y, np.int64(6)), y.reshape(6)),
        (d.tensordot(Y, Y.T, axes=place), y @ y.T),
        (d.moveaxis(Y, np.int64(0), place), y.T),
        (d.tile(Y, np.int64(2)), np.tile(y, 2)),
        (one.zeros(np.int64(3)), np.zeros(3)),
        (one.full(2, 1 - 2j, dtype="complex64"), np.full(2, 1 - 2j, np.complex64)),
        (one.full(2, np.float32(0.5)), np.full(2, 0.5)),
    ):
        np.testing.assert_array_equal(np.asarray(found), expected)
    Y[:, 1] = [7, 8]
    np.testing.assert_array_equal(np.asarray(Y), [[0, 7, 2], [3, 8, 5]])


def test_values_that_overflow_are_no_warnings(one: Any) -> None:
    """pytest makes errors of them; casts and functions along an axis gave them, other functions did not."""
    x = one.array(np.array([[1e300, np.inf]]))
    for function in (
        lambda x: x.astype("float16"), md.dmath.softmax, md.dmath.var, md.dmath.norm,
        lambda x: md.dmath.cumulative_prod(x, axis=1),
    ):  # fmt: skip
        assert not np.isfinite(np.asarray(function(x))).all()


def test_one_element_is_formatted_as_a_number(one: Any) -> None:
    x = one.array(np.array([1.25, 2.0]))
    assert f"{x.sum():.1f} {x[0]:>6} {x}" == "3.2   1.25 [1.25 2.  ]"
    with pytest.raises(ShapeError, match="one element is a number"):
        f"{x:.1f}"


def test_negative_powers_of_integers_are_refused_on_all_workers_alike() -> None:
    with md.workers(2) as w:
        x, rows = w.array(np.array([2, 3]), layout=md.dmath.Rows()), md.dmath.Rows()
        with pytest.raises(ArgumentError, match="pow: integers have no negative powers here"):
            x**-1
        bad = x ** w.array(np.array([1, -1]), layout=rows)  # seen by one of the two
        with pytest.raises(ArgumentError, match=r"pow: integers .*test_numbers\.py:\d+"):
            np.asarray(bad)
        good = x ** w.array(np.array([1, 2]), layout=rows)
        np.testing.assert_array_equal(np.asarray(good), [2, 9])
        halves = x.astype("float64") ** w.array(np.array([1, -1]), layout=rows)
        np.testing.assert_allclose(np.asarray(halves), [2, 1 / 3], rtol=1e-15)
