"""Functions made of several ops, against NumPy: values, dtypes, and the same on a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn import linalg, ops
from magmadnn.graph import Dim, Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.operators import FUNCTIONS
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import BFLOAT16, DTYPES
from magmadnn.ops import philox
from magmadnn.runtime import Executable
from tests.ops.contract_cases import Array, Drawing, bits

X = Drawing(1)(3, 5, 7)
V = Drawing(2)(7)
ONE = Drawing(3)(3, 1, 7)


def logsumexp(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


# What is called with x, and what NumPy says.
TABLE: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "mean": (lambda x: ops.mean(x), np.mean),
    "mean of axes": (lambda x: ops.mean(x, (0, -1)), lambda x: np.mean(x, (0, -1))),
    "mean kept": (lambda x: ops.mean(x, 1, keepdims=True), lambda x: np.mean(x, 1, keepdims=True)),
    "var": (lambda x: ops.var(x, 1, ddof=1), lambda x: np.var(x, 1, ddof=1)),
    "std": (lambda x: ops.std(x, 1, True), lambda x: np.std(x, 1, keepdims=True)),
    "norm": (lambda x: ops.norm(x, 2), lambda x: np.linalg.norm(x, axis=2)),
    "norm of all": (lambda x: ops.norm(x), lambda x: np.sqrt((x * x).sum())),
    "logsumexp": (lambda x: ops.logsumexp(x), logsumexp),
    "logsumexp of axes": (lambda x: ops.logsumexp(x, (0, 2)), lambda x: logsumexp(x, (0, 2))),
    "logsumexp kept": (
        lambda x: ops.logsumexp(x, -1, keepdims=True),
        lambda x: logsumexp(x, -1, keepdims=True),
    ),
    "clip": (lambda x: ops.clip(x, -1, 0.5), lambda x: np.clip(x, -1, 0.5)),
    "clip below": (lambda x: ops.clip(x, low=0), lambda x: np.maximum(x, 0)),
    "clip above": (lambda x: ops.clip(x, high=0), lambda x: np.minimum(x, 0)),
    "clip nothing": (lambda x: ops.clip(x), lambda x: x),
    "flatten": (lambda x: ops.flatten(x), lambda x: x.reshape(3, 35)),
    "swapaxes": (lambda x: ops.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1)),
    "moveaxis": (lambda x: ops.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "expand_dims": (lambda x: ops.expand_dims(x, -2), lambda x: np.expand_dims(x, -2)),
    "squeeze": (lambda x: ops.squeeze(x[:, :1]), lambda x: x[:, 0]),
    "squeeze one": (lambda x: ops.squeeze(x[:1, :1], 1), lambda x: x[:1, 0]),
    "expand": (lambda x: ops.expand(x[:, :1], (3, 5, 7)), lambda x: np.broadcast_to(x[:, :1], (3, 5, 7))),
    "tile": (lambda x: ops.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "stack": (lambda x: ops.stack([x, x * 2], -1), lambda x: np.stack([x, x * 2], -1)),
    "split": (lambda x: ops.split(x, 7, axis=-1)[2], lambda x: np.split(x, 7, -1)[2]),
    "unstack": (lambda x: ops.unstack(x, 1)[4], lambda x: x[:, 4]),
    "flip": (lambda x: ops.flip(x, 1), lambda x: np.flip(x, 1)),
    "slice": (lambda x: ops.slice(x, np.s_[1:, ..., ::-2]), lambda x: x[1:, ..., ::-2]),
    "gather": (lambda x: ops.gather(x, [1, 1, 0], axis=1), lambda x: x[:, [1, 1, 0]]),
    "embedding": (lambda x: ops.embedding(np.array([[2, 0]]), x), lambda x: x[np.array([[2, 0]])]),
    "linear": (
        lambda x: ops.linear(x, np.ones((7, 2)), np.arange(2.0)),
        lambda x: x @ np.ones((7, 2)) + np.arange(2.0),
    ),
    "einsum": (lambda x: ops.einsum("bij,bkj->bik", x, x), lambda x: np.einsum("bij,bkj->bik", x, x)),
    "einsum implied": (lambda x: ops.einsum("...j,j", x, V), lambda x: np.einsum("...j,j", x, V)),
    "einsum turned": (lambda x: ops.einsum("cab", x), lambda x: np.einsum("cab", x)),
    "convolution_transposed": (
        lambda x: ops.convolution_transposed(x, np.ones((2, 3, 7)), 2),
        lambda x: np.repeat(x.sum(-1, keepdims=True), 2, axis=1) * np.ones(3),
    ),
    "dropout of nothing": (lambda x: ops.dropout(x, 0.0, 1), lambda x: x),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_functions_are_numpys(name: str) -> None:
    ours, theirs = TABLE[name]
    expected = np.asarray(theirs(X))
    result = np.asarray(ours(X))
    assert result.dtype == expected.dtype
    # up to 105 terms are added in another order: 105 eps of their sizes, which are below 8
    np.testing.assert_allclose(result, expected, rtol=1e-14, atol=105 * 2.3e-16 * 8)
    node = placeholder("x", Spec(X.shape, X.dtype))
    (on_graph,) = Executable([ours(node)], check=True).run({node: X})
    assert bits(on_graph) == bits(result)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions_keep_the_dtype(name: str, dtype: str) -> None:
    if name in ("linear", "einsum implied", "convolution_transposed"):  # beside float64 operands
        return
    ours, theirs = TABLE[name]
    x = X.astype(DTYPES[dtype])
    expected = np.asarray(theirs(x.astype(np.float64)))
    result = np.asarray(ours(x))
    assert result.dtype == x.dtype
    node = placeholder("x", Spec(x.shape, x.dtype))
    (on_graph,) = Executable([ours(node)], check=True).run({node: x})
    assert bits(on_graph) == bits(result)
    # a few roundings of values up to 35, and in float32 sums of up to 105 terms of them
    eps = float(ml_dtypes.finfo(x.dtype).eps)
    off = np.abs(result.astype(np.float64) - expected)
    assert (off <= 4 * eps * np.maximum(np.abs(expected), 1) + 105 * 1.2e-7 * 4).all()


def test_every_function_is_in_a_table_or_an_op() -> None:
    called = {name.split()[0] for name in TABLE} | {"dropout", "random_normal", "arange", "getitem"}
    called |= {"real", "imag", "conj", "angle"}  # tests/linalg/test_fft.py
    private = {name for name in FUNCTIONS if name.startswith("_")}
    assert {*FUNCTIONS} - {*REGISTRY} - private <= called
    public = {*FUNCTIONS} - private - {n for n in FUNCTIONS if n.startswith("user_")}
    assert public | {"pointwise"} == {*ops.__all__, "cholesky", "solve_triangular"}
    assert {"cholesky", "solve_triangular"} <= {*linalg.__all__}


def test_integers_give_float64() -> None:
    x = np.arange(1, 7, dtype=np.int8).reshape(2, 3)
    for name in ("mean", "var", "std", "norm", "softmax", "log_softmax", "logsumexp", "sigmoid"):
        assert np.asarray(getattr(ops, name)(x)).dtype == np.float64, name
    assert ops.mean(np.full(1000, 100, np.int8)) == 100  # no overflow
    assert ops.sum(np.full(1000, 100, np.int8)) == 100_000


def test_the_type_of_an_attribute_counts() -> None:
    x = np.arange(-2, 3)
    assert ops.leaky_relu(x, slope=2).dtype == np.int64
    assert ops.leaky_relu(x, slope=2.0).dtype == np.float64
    assert ops.leaky_relu(x, slope=2).dtype == np.int64


def test_python_numbers_and_lists() -> None:
    assert ops.add(1, 2.5) == 3.5
    assert ops.mean([1, 2, 4]) == 7 / 3
    assert ops.where([True, False], 1, 0.5).tolist() == [1, 0.5]
    assert ops.take([10.0, 20.0], 1) == 20
    assert ops.sigmoid(0) == 0.5
    assert ops.one_hot(2, 3).tolist() == [0, 0, 1]
    assert ops.matmul(w=[[1.0], [2.0]], x=[3.0, 5.0]).tolist() == [13]


INDICES = [
    0, -1, slice(1, 3), slice(None, None, -2), (1, 2), (0, slice(2, None), -1), (..., 0), None,
    (None, 1, ..., None), (slice(-100, None, -1),), (slice(5, 2),), slice(0, 0), (np.int64(-1), np.int8(2)),
    (slice(np.int64(1), None), 3), [2, 0], np.array([[0, 1], [2, 2]]), np.int64(2), (slice(-2, -1), None),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_numpys(index: Any) -> None:
    expected = X[index]
    assert np.array_equal(ops.getitem(X, index), expected)
    node = placeholder("x", Spec(X.shape, X.dtype))
    picked = node[index]
    assert picked.shape == expected.shape
    result, slope = Executable([picked, *gradient(picked.sum(), [node])], check=True).run({node: X})
    assert bits(result) == bits(np.asarray(expected))
    counts = np.zeros(X.shape)
    np.add.at(counts, index, 1.0)
    assert np.array_equal(slope, counts)


def test_iterating_and_unpacking() -> None:
    node = placeholder("x", Spec((2, 3), np.dtype(np.float32)))
    first, second = node
    values = Executable([first, second]).run({node: np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert [v.tolist() for v in values] == [[0, 1, 2], [3, 4, 5]]


EINSUMS = {
    "ij,jk": [(3, 5), (5, 2)],
    "...ij,...jk->...ik": [(2, 3, 5), (2, 5, 7)],
    "...ab,...bc->...ac": [(2, 3, 4, 5), (3, 5, 7)],  # `...` is two axes here and one there
    "ij,kj->": [(3, 5), (2, 5)],
    "ij...,j->i...": [(3, 5, 2, 7), (5,)],
    "i...->...": [(3, 5, 2)],
}


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_einsum_is_numpys(subscripts: str) -> None:
    draw = Drawing(5)
    arrays = [draw(*shape) for shape in EINSUMS[subscripts]]
    np.testing.assert_allclose(
        ops.einsum(subscripts, *arrays), np.einsum(subscripts, *arrays), rtol=1e-13, atol=1e-13
    )


def test_arange() -> None:
    assert ops.arange(5).tolist() == [0, 1, 2, 3, 4]
    x = placeholder("x", Spec((Dim.symbol("batch"),), np.dtype(np.float32)))
    counted = ops.arange(x.shape[0])
    assert isinstance(counted, Node)
    assert Executable([counted]).run({x: np.zeros(3)})[0].tolist() == [0, 1, 2]


# --- randomness -----------------------------------------------------------------------------------


def test_random_numbers_are_those_of_the_stream() -> None:
    counter = philox.stream_of("encoder/dropout_1", 3)
    signed = np.uint64(counter).astype(np.int64)
    drawn = ops.random_uniform(signed, (3, 5), "float32", seed=7)
    assert bits(drawn) == bits(philox.uniform(7, counter, 15, np.float32).reshape(3, 5))
    node = placeholder("counter", Spec((), np.dtype(np.int64)))
    run = Executable(
        [ops.random_uniform(node, (3, 5), seed=7), ops.random_uniform(node + 1, (3, 5), seed=7)]
    )
    first, second = run.run({node: signed})
    assert bits(first) == bits(drawn)
    assert bits(second) == bits(philox.uniform(7, counter + 1, 15, np.float32).reshape(3, 5))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_dropout(dtype: Any) -> None:
    x = np.full((100, 101), 3.0).astype(dtype)
    kept = ops.dropout(x, 0.25, 5, seed=9)
    assert kept.dtype == x.dtype
    assert set(np.unique(kept).astype(np.float64).tolist()) == {0.0, 4.0}
    share = (kept == 0).mean()
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / x.size)
    assert bits(kept) == bits(ops.dropout(x, 0.25, 5, seed=9))
    assert bits(kept) != bits(ops.dropout(x, 0.25, 6, seed=9))
    assert bits(kept) != bits(ops.dropout(x, 0.25, 5, seed=8))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_random_normal(dtype: Any) -> None:
    drawn = ops.random_normal(5, (100, 101), dtype, seed=9)
    assert drawn.dtype == dtype
    n, z = drawn.size, drawn.astype(np.float64)
    # five standard deviations of the mean, of the variance, and of the shares below some numbers
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    for below in (-1.9, -0.3, 0.7, 2.3):
        share = (1 + math.erf(below / math.sqrt(2))) / 2
        assert abs((z < below).mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    # neighbours know nothing of each other
    assert abs((z[:, 1:] * z[:, :-1]).mean()) < 5 / np.sqrt(n)
    assert bits(drawn) == bits(ops.random_normal(5, (100, 101), dtype, seed=9))
    assert bits(drawn) != bits(ops.random_normal(6, (100, 101), dtype, seed=9))
    assert bits(drawn) != bits(ops.random_normal(5, (100, 101), dtype, seed=8))


def test_random_normal_is_made_of_two_uniform_numbers() -> None:
    u = philox.uniform(9, 5, 1001)
    v = philox.uniform(9 ^ 1 << 62, 5, 1001)
    expected = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
    drawn = ops.random_normal(5, 1001, "float64", seed=9)
    # 1 - u rounds, which log makes as large as 2**-53 / u below u: the root of what is left
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=16 * 2.0**-26)


def test_dropped_values_leave_nothing() -> None:
    x = np.full(1000, np.nan)
    kept = ops.dropout(x, 0.5, 5)
    assert 0 < np.isnan(kept).sum() < 1000
    assert set(kept[~np.isnan(kept)]) == {0.0}
