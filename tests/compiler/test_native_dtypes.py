"""Compiled code computes what NumPy does in every dtype: conversions, comparisons, wrapping, halves."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.op import Op, OpKind
from magmadnn.memory.dtypes import DTYPES, is_floating
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, EPS

from .exact_draw import ON_X86, draw
from .native_graphs import Array, fault, shrunk

BLOCK = 10
COMPILED = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
# formulas of several steps, or of functions that compiled code has in its own way
ROUNDED = {op.name for op in BUILT_IN.values()} - set(
    "add subtract multiply divide floor_divide remainder negative abs sign floor ceil square maximum minimum "
    "where _clip cast stop_gradient relu sqrt reciprocal _where_positive".split()
)


def numbers(dtype: str) -> Array:
    """Ends of ranges, what lies beyond the ends of others, and small numbers."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True, True, False])
    if not is_floating(kind):
        ends = np.iinfo(kind)
        listed = [0, 1, 2, 3, 7, 100, ends.max, ends.min, ends.max - 1, ends.max // 2 + 3]
        return np.array(listed).astype(kind)
    inside = [0.0, -0.0, 1.0, 0.5, 2.5, -2.5, 127, 128, 200, 254, 255, 255.5, -128, -200, 70000]
    beyond = [256, 300, 3e9, -3e9, 1e19, -1e19, np.nan, np.inf, -np.inf]
    with np.errstate(over="ignore"):
        return np.array(inside + beyond * ON_X86).astype(kind)


def native_and_reference(nodes: list[Node], feeds: dict[Node, Any]) -> Iterator[tuple[Array, ...]]:
    found = (Executable(nodes, executor=e).run(feeds) for e in ("native", "reference"))
    return zip(*found, strict=True)


def equal(got: Array, expected: Array, *, exact: bool = True) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if exact or not is_floating(expected.dtype):
        return bool(((got == expected) | ((got != got) & (expected != expected))).all())
    within = 16 * EPS[expected.dtype.name]
    a, b = got.astype(np.float64), expected.astype(np.float64)
    return bool(np.isclose(a, b, rtol=within, atol=within, equal_nan=True).all())


# --- conversions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", COMPILED)
def test_casts_are_numpys(source: str) -> None:
    """In range, at the ends of it and beyond; the bytes 128 to 255 became 127 once."""
    values = numbers(source)
    x = placeholder("x", Spec(values.shape, values.dtype))
    nodes = [ops.cast(x, to) for to in DTYPES]
    plan = Executable([n for n in nodes if n.dtype.name in COMPILED[:4]], executor="native").native
    assert plan.plan.kernels == len(plan.plan.work)
    for to, (native, reference) in zip(
        DTYPES, native_and_reference(nodes, {x: values}), strict=True
    ):
        assert equal(native, reference), (source, to, native, reference)
        with np.errstate(all="ignore"):
            assert equal(native, values.astype(DTYPES[to])), (source, to)


@pytest.mark.parametrize("source", FLOATS)
def test_every_byte_survives(source: str) -> None:
    """bfloat16 has no digits for some."""
    values = np.arange(256).astype(DTYPES[source])
    x = placeholder("x", Spec(values.shape, values.dtype))
    ((native, reference),) = native_and_reference([ops.cast(x, "uint8")], {x: values})
    assert equal(native, reference)
    if source != "bfloat16":
        assert equal(native, np.arange(256, dtype=np.uint8))


# --- pointwise ops in all dtypes ------------------------------------------------------------------

POINTWISE = {n: op for n, op in BUILT_IN.items() if op.kind is OpKind.POINTWISE and n != "cast"}
USUAL = ("multiply", "greater_equal", "where", "_clip", "remainder", "_where_positive")


def operands(dtypes: tuple[str, ...]) -> list[Array]:
    """All pairs of numbers; of three operands, some of all triples."""
    each = np.meshgrid(*map(numbers, dtypes), indexing="ij")
    return [x.ravel()[:: 1 if len(dtypes) < 3 else 13] for x in each]


def combinations(op: Op, every: int) -> Iterator[tuple[str, ...]]:
    """The dtypes of operands; each with each of two operands, some of three."""
    found = itertools.product(COMPILED, repeat=len(op.args))
    return itertools.islice(found, 0, None, every * (1 if len(op.args) < 3 else 11))


@pytest.mark.parametrize(
    ("name", "every"),
    [*((n, 7) for n in USUAL), *(pytest.param(n, 1, marks=pytest.mark.long) for n in POINTWISE)],
)
def test_every_pointwise_op_in_every_mix_of_dtypes(name: str, every: int) -> None:
    """At most 16 of them are one program: what is computed in one kernel is tried too."""
    op = POINTWISE[name]
    made: list[tuple[tuple[str, ...], Node]] = []
    fed: dict[Node, Array] = {}
    for dtypes in combinations(op, every):
        given = operands(dtypes)
        inputs = [
            placeholder(f"x{len(fed)}_{i}", Spec(g.shape, g.dtype)) for i, g in enumerate(given)
        ]
        try:
            node: Node = op(*inputs)
            Executable([node]).run(feeds := dict(zip(inputs, given, strict=True)))
        except MagmaDNNError:
            continue  # subtract of truth values, 2**-1 in integers
        made.append((dtypes, node))
        fed |= feeds
    assert made
    for part in (made[k : k + 16] for k in range(0, len(made), 16)):
        results = native_and_reference([node for _, node in part], fed)
        for (dtypes, _), (native, reference) in zip(part, results, strict=True):
            assert equal(native, reference, exact=name not in ROUNDED), (name, dtypes)


def test_comparisons_of_truth_values_are_in_order() -> None:
    values = np.array([[False, False, True, True], [False, True, False, True]])
    x, y = (placeholder(n, Spec((4,), np.dtype(bool))) for n in "xy")
    pairs = [
        (x < y, [0, 1, 0, 0]),
        (x <= y, [1, 1, 0, 1]),
        (x > y, [0, 0, 1, 0]),
        (x >= y, [1, 0, 1, 1]),
    ]
    for (native, _), (_, wanted) in zip(
        native_and_reference([n for n, _ in pairs], {x: values[0], y: values[1]}),
        pairs,
        strict=True,
    ):
        np.testing.assert_array_equal(native, np.array(wanted, bool))


def test_a_condition_keeps_its_digits_and_numbers_between_steps_wrap() -> None:
    """In one kernel: 0.5 is true though the numbers are integers; -1 of a byte is 255."""
    half, byte = np.array([0.5, 0.0, -0.25]), np.array([1, 0, 200], np.uint8)
    x, b = placeholder("x", Spec((3,), np.dtype(float))), placeholder("b", Spec((3,), byte.dtype))
    nodes = [ops.where(x, b, np.int32(-7)), ops.negative(b) > b, (b + b) / 2, ops.square(b) * 1.0]
    results = [r for r, _ in native_and_reference(nodes, {x: half, b: byte})]
    assert results[0].tolist() == [1, -7, 200]
    assert results[1].tolist() == [True, False, False]
    assert results[2].tolist() == [1.0, 0.0, 72.0]
    assert results[3].tolist() == [1.0, 0.0, 64.0]


@pytest.mark.parametrize("number", [2**60 + 1, -(2**62) - 3])
def test_large_integers_that_are_known_keep_all_digits(number: int) -> None:
    """Constants over more elements than are worth computing beforehand."""
    wide = ops.broadcast_to(constant(np.int64(number)), (5000,))
    nodes = [
        wide + constant(np.int64(1)),
        ops.where(wide > 0, wide, 3),
        ops.max(wide),
        ops.sum(wide),
    ]
    for native, reference in native_and_reference(nodes, {}):
        np.testing.assert_array_equal(native, reference)


def test_graphs_that_were_not_compiled_once() -> None:
    """Constants beside truth values; a loss of numbers that were converted there and back."""
    truth, x = np.array([True, False]), np.linspace(-1, 1, 7, dtype=np.float32)
    b, v = placeholder("b", Spec((2,), truth.dtype)), placeholder("v", Spec((7,), x.dtype))
    there_and_back = ops.cast(ops.cast(v, "float64"), "float32")
    nodes = [
        ops.clip(b), ops.clip(b, False, True), ops.clip(b, 0, 1), ops.divide(b, 2), ops.divide(2, b),
        ops.sum(ops.gaussian_rbf(there_and_back, 0.7)),
    ]  # fmt: skip
    for native, reference in native_and_reference(nodes, {b: truth, v: x}):
        assert equal(native, reference, exact=False)


# --- sums of integers -----------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_norms_and_means_of_integers_do_not_wrap(executor: str) -> None:
    small, large = np.array([200, 3, 255], np.uint8), np.array([2**62, 2**62, 2**62 + 2**40])
    x, y = placeholder("x", Spec((3,), small.dtype)), placeholder("y", Spec((3,), large.dtype))
    nodes = [ops.norm(x), ops.mean(x), ops.norm(y), ops.mean(y), ops.var(y), ops.std(x)]
    found = Executable(nodes, executor=executor).run({x: small, y: large})
    s, w = small.astype(float), large.astype(float)
    wanted = [np.linalg.norm(s), s.mean(), np.linalg.norm(w), w.mean(), w.var(), s.std()]
    for got, expected in zip(found, wanted, strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected, rtol=1e-14)


# --- random graphs --------------------------------------------------------------------------------

drawn = functools.lru_cache(maxsize=BLOCK)(draw)


def check(seed: int) -> None:
    case = drawn(seed)
    if (why := fault(case, exact=True)) is not None:
        small = shrunk(case, exact=True)
        pytest.fail(f"seed {seed}: {why}\nshrunk: {fault(small, exact=True)}\n{small.text()}")


@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(k, marks=pytest.mark.long) for k in range(4, 200))]
)
def test_random_graphs_of_exact_steps_are_equal(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed)


def test_exact_graphs_cover_what_they_should() -> None:
    cases = [draw(seed) for seed in range(60)]
    nodes = [n for case in cases for n in case.program.nodes()]
    assert set(DTYPES) <= {n.dtype.name for n in nodes}
    wanted = {"cast", "where", "less", "remainder", "floor_divide", "power", "_clip", "sum", "prod", "max",
              "argmax", "cumsum", "matmul", "take", "scatter_add", "one_hot", "transpose", "_slice",
              "concat", "pad", "broadcast_to", "sign"}  # fmt: skip
    assert wanted <= {n.op.name for n in nodes}
    assert sum(len(case.feeds) > 1 for case in cases) > 20
    assert sum(len(case.updates) for case in cases) > 10
