"""NaN, infinities, -0.0 and subnormal numbers: ops mean by them what NumPy means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import OpKind
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import BFLOAT16, DTYPES
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, Array, bits

NAN, INF = np.nan, np.inf
REAL = ("float64", "float32", "float16", "bfloat16")


def specials(dtype: str) -> Array:
    info = ml_dtypes.finfo(DTYPES[dtype])
    small, largest = float(info.smallest_subnormal), float(info.max)
    listed = [NAN, INF, -INF, 0.0, -0.0, small, -small, float(info.tiny), largest, -largest]
    return np.array([*listed, 1.0, -1.0, 0.5, -2.5]).astype(DTYPES[dtype])


def same(result: Array, expected: Array) -> None:
    """Equal, NaN where NaN is expected, and zeros of the same sign."""
    assert result.dtype == expected.dtype
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(result, expected)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result)[real], np.signbit(expected)[real])


# --- pointwise ops that NumPy has -----------------------------------------------------------------

NUMPY_NAMES = {"_clip": "clip"}
UNARY = (
    "abs ceil floor sign negative square exp expm1 log log1p sqrt sin cos tanh reciprocal "
    "isnan logical_not".split()
)
BINARY = (
    "add subtract multiply divide floor_divide remainder power equal not_equal less less_equal "
    "greater greater_equal logical_and logical_or".split()
)


def numpy_of(name: str, *arrays: Array) -> Array:
    """NumPy's result; for bfloat16 that of float32, rounded once."""
    wide = [a.astype(np.float32) if a.dtype == BFLOAT16 else a for a in arrays]
    with np.errstate(all="ignore"):
        result = np.asarray(getattr(np, name)(*wide))
        return (
            result.astype(BFLOAT16) if wide[0] is not arrays[0] and result.dtype != bool else result
        )


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    x = specials(dtype)
    result = getattr(ops, name)(x)
    if result.dtype == bool:
        assert np.array_equal(result, numpy_of(name, x))
    else:
        same(result, numpy_of(name, x))
    checked(x.size)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    """All pairs."""
    x, y = specials(dtype)[:, None], specials(dtype)[None, :]
    result = getattr(ops, name)(x, y)
    if result.dtype == bool:
        assert np.array_equal(result, numpy_of(name, x, y))
    else:
        same(result, numpy_of(name, x, y))
    checked(x.size * y.size)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_pass_nan_on(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    x, y = specials(dtype)[:, None], specials(dtype)[None, :]
    result, expected = getattr(ops, name)(x, y), numpy_of(name, x, y)
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))
    checked(x.size * y.size)


# --- pointwise ops of ours ------------------------------------------------------------------------

AT = (NAN, INF, -INF, 0.0, -0.0)
OURS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "sigmoid": (ops.sigmoid, (NAN, 1.0, 0.0, 0.5, 0.5)),
    "softsign": (ops.softsign, (NAN, NAN, NAN, 0.0, -0.0)),  # inf / inf
    "relu": (ops.relu, (NAN, INF, 0.0, 0.0, 0.0)),
    "leaky_relu": (ops.leaky_relu, (NAN, INF, -INF, 0.0, -0.0)),
    "prelu": (lambda x: ops.prelu(x, 0.25), (NAN, INF, -INF, 0.0, -0.0)),
    "elu": (ops.elu, (NAN, INF, -1.0, 0.0, -0.0)),
    "softplus": (ops.softplus, (NAN, INF, 0.0, np.log(2), np.log(2))),
    "swish": (ops.swish, (NAN, INF, NAN, 0.0, -0.0)),  # -inf / inf
    "gelu": (ops.gelu, (NAN, INF, NAN, 0.0, -0.0)),  # -inf * 0
    "gaussian_rbf": (lambda x: ops.gaussian_rbf(x, 2.0), (NAN, 0.0, 0.0, 1.0, 1.0)),
    "erf": (ops.erf, (NAN, 1.0, -1.0, 0.0, -0.0)),
    "_clip": (lambda x: ops.clip(x, -3, 3), (NAN, 3.0, -3.0, 0.0, -0.0)),
    "_faded": (lambda x: BUILT_IN["_faded"](x, below=1.0), (NAN, INF, -INF, 0.0, 0.0)),
    "_where_positive": (lambda x: BUILT_IN["_where_positive"](x, x), (0.0, INF, 0.0, 0.0, 0.0)),
    "where": (lambda x: ops.where(x == x, x, 7), (7, INF, -INF, 0.0, -0.0)),
    "stop_gradient": (ops.stop_gradient, AT),
    "cast": (lambda x: ops.cast(x, "float64"), AT),
    "_after": (lambda x: BUILT_IN["_after"](x, x[0]), AT),
}


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", OURS)
def test_ours(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    function, expected = OURS[name]
    result = function(np.array(AT).astype(DTYPES[dtype]))
    wanted = np.array(expected).astype(result.dtype)
    if name in ("relu", "elu"):  # the larger or smaller of -0.0 and 0.0 may be either
        result, wanted = result + 0, wanted + 0
    same(result, wanted)
    checked(len(AT))


def test_every_pointwise_op_is_in_a_table() -> None:
    pointwise = {n for n, op in BUILT_IN.items() if op.kind is OpKind.POINTWISE}
    assert pointwise == {*UNARY, *BINARY, "maximum", "minimum", *OURS}


@pytest.mark.parametrize("dtype", REAL)
def test_subnormal_numbers_are_kept(dtype: str) -> None:
    small = ml_dtypes.finfo(DTYPES[dtype]).smallest_subnormal
    x = np.array([small, -small]).astype(DTYPES[dtype])
    for name in ("relu", "leaky_relu", "elu", "softsign", "stop_gradient", "abs"):
        assert getattr(ops, name)(x)[0] == small, name
    assert ops.add(x, x).tolist() == [2 * float(small), -2 * float(small)]


def test_casts() -> None:
    big = np.array([1e300, -1e300, 65520.0, NAN, -0.0, 1e-50])
    with np.errstate(all="ignore"):
        for dtype in REAL:
            same(ops.cast(big, dtype), big.astype(DTYPES[dtype]))
    assert ops.cast(np.array([0.0, -0.0, NAN, 0.2]), "bool").tolist() == [False, False, True, True]
    assert ops.cast(np.array([2.9, -2.9]), "int32").tolist() == [2, -2]


# --- movements change no bit ----------------------------------------------------------------------

KEPT = {
    "reshape": lambda x: ops.reshape(x, (7, 2)),
    "_copy": BUILT_IN["_copy"],
    "transpose": lambda x: ops.transpose(ops.reshape(x, (7, 2))).T,
    "broadcast_to": lambda x: ops.broadcast_to(x, (3, x.size))[1],
    "concat": lambda x: ops.concat([x, x])[x.size :],
    "_slice": lambda x: np.ascontiguousarray(ops.flip(ops.flip(x, 0), 0)),
    "_unslice": lambda x: BUILT_IN["_unslice"](x, (("slice", 1, x.size + 1, 1),), (x.size + 2,))[
        1:-1
    ],
    "pad": lambda x: ops.pad(x, ((2, 1),))[2:-1],
    "take": lambda x: ops.take(x, np.arange(x.size)),
    "_interleave": lambda x: BUILT_IN["_interleave"](
        [x.reshape(1, -1, 1)], (x.size * 2,), (2,), ((1,),)
    )[0, 1::2, 0],
    "_windows": lambda x: np.reshape(
        BUILT_IN["_windows"](x.reshape(1, -1, 1), (2,), (2,), (1,)), -1
    ),
    "take_class": lambda x: ops.take_class(x, np.arange(x.size)),
}


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", KEPT)
def test_movements_keep_every_bit(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    x = specials(dtype)
    x.view(f"u{x.itemsize}")[0] += 1  # a NaN with a payload
    assert np.isnan(x[0])
    assert bits(np.asarray(KEPT[name](x))) == bits(x)
    checked(x.size)


def test_every_movement_is_in_the_table() -> None:
    assert {n for n, op in BUILT_IN.items() if op.kind is OpKind.MOVEMENT} <= {*KEPT}


# --- reductions -----------------------------------------------------------------------------------

ROWS = np.array(
    [
        [1.0, NAN, -2.0, INF],
        [INF, 1.0, 2.0, 3.0],
        [-INF, 1.0, 2.0, 3.0],
        [INF, -INF, 1.0, 2.0],
        [-0.0, 0.0, -0.0, 0.0],
        [-INF, -INF, -INF, -INF],
        [NAN, NAN, NAN, NAN],
    ]
)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", "sum prod max min argmax argmin cumsum mean var".split())
def test_reductions(name: str, dtype: str, checked: Callable[[int], None]) -> None:
    x = ROWS.astype(DTYPES[dtype])
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype(np.float64), axis=1)
    np.testing.assert_array_equal(getattr(ops, name)(x, axis=1).astype(expected.dtype), expected)
    checked(len(ROWS))


SOFTMAX = [  # row, softmax, log_softmax, logsumexp
    ([0.0, NAN], [NAN, NAN], [NAN, NAN], NAN),
    ([0.0, INF], [NAN, NAN], [NAN, NAN], INF),
    ([0.0, -INF], [1.0, 0.0], [0.0, -INF], 0.0),
    ([-INF, -INF], [NAN, NAN], [NAN, NAN], -INF),
    ([30000.0, 0.0], [1.0, 0.0], [0.0, -30000.0], 30000.0),
    ([-30000.0, -30000.0], [0.5, 0.5], [-np.log(2), -np.log(2)], -30000.0 + np.log(2)),
]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(("row", "soft", "logs", "total"), SOFTMAX)
def test_softmax(
    row: list[float], soft: list[float], logs: list[float], total: float, dtype: str
) -> None:
    x = np.array(row).astype(DTYPES[dtype])
    near = {"rtol": 2 * float(ml_dtypes.finfo(x.dtype).eps)}
    np.testing.assert_allclose(ops.softmax(x).astype(np.float64), soft, **near)
    np.testing.assert_allclose(ops.log_softmax(x).astype(np.float64), logs, **near)
    np.testing.assert_allclose(np.float64(ops.logsumexp(x)), total, **near)


def test_half_precision_does_not_overflow_inside() -> None:
    x = np.full(1000, 300.0, np.float16)
    assert ops.mean(x) == 300  # the sum is 300,000
    assert ops.std(np.tile(np.array([-300.0, 300.0], np.float16), 500)) == 300
    assert np.isinf(ops.sum(x))  # the result itself is beyond float16
    assert abs(float(ops.norm(np.full(16, 500.0, np.float16))) - 2000) <= 2000 * 2**-11
    assert abs(float(ops.logsumexp(np.zeros(70000, np.float16))) - np.log(70000)) <= 12 * 2**-11


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_added_up_in_float32(dtype: str) -> None:
    """4096 ones: adding them in float16 stops at 2048, in bfloat16 at 256."""
    ones, zeros = np.ones(4096, DTYPES[dtype]), np.zeros(4096, np.int64)
    assert ops.sum(ones) == 4096
    assert ops.cumsum(ones)[-1] == 4096
    assert ops.matmul(ones, ones) == 4096
    assert ops.einsum("i,i", ones, ones) == 4096
    assert ops.scatter_add(ones, zeros, count=1)[0] == 4096
    assert ops.norm(ones) == 64


def test_matmul_does_not_hide_nan() -> None:
    x = np.array([[0.0, 1.0]])
    assert np.isnan(ops.matmul(x, np.array([[INF], [1.0]])))
    assert np.isnan(ops.matmul(x, np.array([[NAN], [1.0]])))


# --- gradients ------------------------------------------------------------------------------------


def slope(function: Callable[..., Any], x: Array) -> list[float]:
    node = placeholder("x", Spec(x.shape, x.dtype))
    (found,) = Executable(gradient(ops.sum(function(node)), [node]), check=True).run({node: x})
    return [float(v) for v in found]


def test_gradients_at_kinks() -> None:
    zero = np.array([0.0, -0.0])
    assert slope(ops.relu, zero) == [0, 0]
    assert slope(ops.abs, zero) == [0, 0]
    assert slope(lambda x: ops.maximum(x, 0), zero) == [0.5, 0.5]
    assert slope(lambda x: ops.max(x), zero) == [0.5, 0.5]
    assert slope(lambda x: ops.clip(x, 0, 1), zero) == [1, 1]
    assert slope(lambda x: ops.power(x, 1), zero) == [1, 1]
    assert slope(lambda x: ops.power(x, 2), zero) == [0, 0]
    assert slope(lambda x: ops.power(x, 0), zero) == [0, 0]
    assert slope(ops.sign, zero) == slope(ops.floor, zero) == [0, 0]
    assert slope(ops.prod, np.array([0.0, 3.0, 5.0])) == [15, 0, 0]
    assert slope(ops.prod, np.array([0.0, 0.0, 5.0])) == [0, 0, 0]


def test_what_where_leaves_out_has_no_gradient() -> None:
    assert slope(
        lambda x: ops.where(x > 0, ops.log(ops.where(x > 0, x, 1)), 0), np.array([0.0, 2.0])
    ) == [
        0,
        0.5,
    ]


def test_a_bound_that_comes_out_gets_the_gradient() -> None:
    x, low, high = (placeholder(n, Spec((4,), np.dtype(np.float64))) for n in ("x", "low", "high"))
    found = gradient(ops.sum(ops.clip(x, low, high)), [x, low, high])
    values = Executable(found).run(
        {
            x: np.array([0.0, -5.0, 5.0, 0.0]),
            low: np.array([-1.0, -1.0, -1.0, 3.0]),
            high: np.array([1.0, 1.0, 1.0, 2.0]),  # the last below low: then high comes out
        }
    )
    assert [v.tolist() for v in values] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]


def test_saturated_values_have_no_nan_gradient() -> None:
    far = np.array([1e4, -1e4, 80.0, -80.0])
    for name in ("sigmoid", "tanh", "softplus", "elu", "gelu", "swish", "relu", "softsign", "erf"):
        found = slope(getattr(ops, name), far)
        assert np.isfinite(found).all(), (name, found)
