"""Native plans at work: updates in place, memory, feeds, sizes, constants."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.plan.arena import Life
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import DataError
from magmadnn.graph import Node
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from tests.compiler.native_draw import draw
from tests.compiler.native_programs import PROGRAMS
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed, variable

Updates = Sequence[tuple[Node, Node]]
EPS = 2.0**-23


def held(name: str, value: Any) -> Node:
    return md.variable(name, np.array(value)).node


def stepped(outputs: list[Node], updates: Updates, feeds: dict[Node, Any]) -> list[str]:
    """Run both executors from one start, compare, and tell what was updated in place."""
    start = {t: np.array(t.value.read()) for t, _ in updates}
    found = {}
    for executor in ("reference", "native"):
        for target, value in start.items():
            target.value.write(value)
        executable = Executable(outputs, updates, executor=executor)
        results = executable.run(feeds)
        found[executor] = [*results, *(np.array(t.value.read()) for t, _ in updates)]
    for wanted, got in zip(found["reference"], found["native"], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=64 * EPS, atol=64 * EPS)
    return sorted(str(t.name) for t in executable.native.plan.in_place.values())


# --- updates in place -----------------------------------------------------------------------------


def test_a_plain_update_is_in_place() -> None:
    w, g = held("w", ramp(5, 7)), placed("g", 5, 7)
    assert stepped([], [(w, w - g * 0.5)], {g: ramp(5, 7)}) == ["w"]


def test_an_update_waits_for_other_readers() -> None:
    w, v = held("w", ramp(5, 7)), held("v", ramp(7))
    assert stepped([], [(w, w * 2.0), (v, v + ops.sum(w, 0))], {}) == ["v", "w"]


def test_a_variable_read_row_by_row_is_not_written_meanwhile() -> None:
    w = held("w", ramp(5, 7))
    assert stepped([], [(w, w - w[0])], {}) == []


def test_two_variables_that_need_each_other() -> None:
    a, b = held("a", ramp(5, 7)), held("b", ramp(5, 7) + 2)
    assert len(stepped([], [(a, b * 2.0), (b, a * 3.0)], {})) == 1


def test_two_variables_are_swapped() -> None:
    a, b = held("a", ramp(5, 7)), held("b", ramp(5, 7) + 2)
    assert stepped([], [(a, b), (b, a)], {}) == []


def test_a_variable_whose_old_value_goes_elsewhere_is_copied() -> None:
    a, b = held("a", ramp(5, 7)), held("b", ramp(5, 7) + 2)
    assert stepped([], [(a, a * 2.0), (b, a)], {}) == []
    assert stepped([], [(a, a * 2.0), (b, ops.reshape(a, (5, 7)))], {}) == []


def test_one_value_for_two_variables() -> None:
    a, b = held("a", ramp(5, 7)), held("b", ramp(5, 7) + 2)
    value = a + b
    assert stepped([], [(a, value), (b, value)], {}) == []


def test_a_later_walk_over_the_row_reads_the_old_value() -> None:
    w, v = held("w", ramp(5, 7)), held("v", ramp(5, 7))
    doubled = w * 2.0
    v_new = w - ops.max(doubled, -1, keepdims=True)
    assert "w" not in stepped([], [(w, doubled), (v, v_new)], {})


def test_a_row_is_updated_in_place_where_no_later_walk_reads_it() -> None:
    w, x = held("w", ramp(5, 7)), placed("x", 5, 7)
    assert stepped([], [(w, ops.softmax(x))], {x: ramp(5, 7)}) == ["w"]
    assert stepped([], [(w, ops.softmax(w))], {}) == ["w"]
    assert stepped([], [(w, x / ops.sum(w * x, -1, keepdims=True))], {x: ramp(5, 7)}) == ["w"]


def test_a_number_of_a_row_is_updated_in_place() -> None:
    b, g = held("b", ramp(1)), placed("g", BATCH, 1)
    assert stepped([], [(b, b - 0.5 * ops.sum(g, 0))], {g: ramp(11, 1)}) == ["b"]


def test_a_number_that_a_later_number_reads_too_is_copied() -> None:
    b, v, g = held("b", ramp(11)), held("v", ramp(11)), placed("g", 11, 7)
    new = b - ops.sum(g, 1)
    later = ops.max(g * ops.reshape(new, (11, 1)), 1) + b
    assert "b" not in stepped([], [(b, new), (v, later)], {g: ramp(11, 7)})


def test_a_product_reads_all_of_its_operand() -> None:
    w, x = held("w", ramp(131, 131)), placed("x", 131, 131)
    assert stepped([], [(w, w - x @ w)], {x: ramp(131, 131) / 131}) == []


def test_outputs_show_the_values_from_before() -> None:
    w = held("w", ramp(5, 7))
    assert stepped([w, ops.transpose(w)], [(w, w * 2.0)], {}) == ["w"]
    assert stepped([ops.exp(w)], [(w, ops.exp(w))], {}) == []


def test_calls_that_fail_change_nothing() -> None:
    w, v, table = held("w", ramp(5, 7)), held("v", ramp(3)), held("table", ramp(5))
    index = placed("index", 3, dtype=np.int64)
    executable = Executable([], [(w, w * 2.0), (v, ops.take(table, index))], executor="native")
    with pytest.raises(DataError, match="index 9"):
        executable.run({index: np.array([0, 9, 1])})
    np.testing.assert_array_equal(w.value.read(), ramp(5, 7))


def test_a_variable_that_is_a_strided_view() -> None:
    memory = np.repeat(ramp(7, 5), 2, axis=1)
    w = md.variable("w", md.Tensor.wrap(memory[:, ::2].T)).node
    assert stepped([ops.sum(w)], [(w, w * 2.0)], {}) == ["w"]
    np.testing.assert_array_equal(memory[:, ::2], ramp(7, 5) * 2)
    np.testing.assert_array_equal(memory[:, 1::2], ramp(7, 5))


def test_other_storage_than_tensors() -> None:
    w = variable("w", ramp(5, 7))
    stepped([ops.sum(w)], [(w, w * 2.0)], {})


# --- memory ---------------------------------------------------------------------------------------


def overlap(a: Life, b: Life) -> bool:
    in_time = a.first <= b.last and b.first <= a.last
    return in_time and a.start < b.start + max(b.nbytes, 1) and b.start < a.start + max(a.nbytes, 1)


def check_lives(plan: NativePlan, batch: int) -> None:
    arena = arena_of(plan, {"batch": batch})
    for k, a in enumerate(arena.lives):
        assert a.start % 64 == 0 and a.start + a.nbytes <= arena.nbytes
        assert not [b for b in arena.lives[:k] if overlap(a, b)]
    readers: dict[Node, int] = {}
    for work in plan.work:
        for node in work.region.nodes:
            readers |= {plan.layouts.bases[i]: work.phase for i in node.inputs}
    assert all(life.last >= readers.get(life.node, 0) for life in arena.lives)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_that_live_together_lie_apart(name: str) -> None:
    for batch in (0, 1, 13, 32):
        check_lives(native_plan(PROGRAMS[name]()), batch)


def test_values_of_random_programs_lie_apart() -> None:
    for seed in range(300, 330):
        check_lives(native_plan(draw(seed).program), 5)


def test_memory_is_used_again() -> None:
    y = placed("x", 128, 128)
    for _ in range(6):
        y = ops.tanh(y @ ramp(128, 128))
    arena = arena_of(native_plan(Program.of([y])), {})
    assert arena.nbytes == 2 * 128 * 128 * 4 and arena.apart == 6 * 128 * 128 * 4


# --- feeds and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", [11, 1201]
)  # small feeds are copied, large ones read where they are
def test_feeds_of_any_layout_and_dtype(rows: int) -> None:
    x, one = placed("x", BATCH, 7), placed("one")
    outputs = [ops.exp(x) * one, ops.transpose(x)[1:3] + 1.0, x @ ramp(7, 3), x, one]
    array = ramp(rows, 7)
    wide = np.repeat(array, 2, axis=1)[:, ::2]
    shifted = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(np.float32).reshape(rows, 7)
    assert not shifted.flags.aligned
    executable = Executable(outputs, executor="native")
    wanted = Executable(outputs, executor="reference").run({x: array, one: 2.0})
    for fed in (array, wide, array.T.copy().T, array.astype(np.float64), shifted, array.tolist()):
        got = executable.run({x: np.asarray(fed), one: np.float32(2)})
        for a, b in zip(wanted, got, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(b, a, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("rows", [5, 1201])
def test_results_are_arrays_of_their_own(rows: int) -> None:
    x = placed("x", rows, 7)
    executable = Executable([x, ops.transpose(x), ops.exp(x)], executor="native")
    array = ramp(rows, 7)
    first = executable.run({x: array})
    copies = [r.copy() for r in first]
    executable.run({x: array + 1})
    array[:] = 9
    for result, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(result, copy)


def test_other_sizes_compile_nothing_new() -> None:
    program = PROGRAMS["mlp_adam"]()
    executable = Executable(program.outputs, program.updates, executor="native")
    feeds = {n.name: n for n in executable.program.placeholders}
    settings = {n: np.float64(0.01) for k, n in feeds.items() if k not in ("input", "target")}
    seen = []
    for batch in (13, 5, 2, 32, 1, 7, 1):
        data = {feeds["input"]: ramp(batch, 7), feeds["target"]: np.arange(batch) % 3}
        executable.run({**settings, **data})
        seen.append(len(kernel._loaded))
    several, single = seen[:4], seen[4:]
    assert len(set(several)) == len(set(single)) == 1
    assert several[0] < single[0]  # products with a single row have kernels of their own


def test_equal_kernels_are_loaded_once() -> None:
    x = placed("x", BATCH, 7)
    Executable([ops.exp(x) - 0.25], executor="native").run({x: ramp(5, 7)})
    before = len(kernel._loaded)
    y = placed("y", 3, BATCH)
    Executable([ops.exp(y) - 0.25], executor="native").run({y: ramp(3, 11)})
    assert len(kernel._loaded) == before


def test_2000_runs_do_not_allocate() -> None:
    x, w = placed("x", BATCH, 7), held("w", ramp(7, 3))
    loss = ops.mean(ops.square(x @ w))
    executable = Executable([loss], [(w, w * 0.999)], executor="native")
    feeds = {x: ramp(5, 7)}

    def blocks(runs: int) -> int:
        for _ in range(runs):
            executable.run(feeds)
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks(200)
    assert blocks(2_000) - before < 200  # one forgotten object a run would be 2,000


# --- formulas -------------------------------------------------------------------------------------


def both(outputs: list[Node], feeds: dict[Node, Any]) -> tuple[list[Any], list[Any]]:
    return tuple(  # type: ignore[return-value]
        Executable(outputs, executor=e).run(feeds) for e in ("reference", "native")
    )


def test_constants_that_compare_equal_are_told_apart() -> None:
    x = placed("x", 7)
    for outputs in ([x * 0.0, x * -0.0], [ops.maximum(x, 0.0)], [ops.where(x > 9, x, -0.0)],
                    [ops.where(x > 9, x, 0.0)]):  # fmt: skip
        for a, b in zip(*both(outputs, {x: np.full(7, -1, np.float32)}), strict=True):
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_bytes_wrap_after_every_op() -> None:
    x = placed("x", 7, dtype=np.uint8)
    values = np.array([0, 1, 16, 100, 200, 254, 255], np.uint8)
    for outputs in ([ops.maximum(x + x, x)], [x * x > 100], [ops.cast(x + x, np.float32)]):
        (wanted,), (got,) = both(outputs, {x: values})
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_mixed_dtypes_are_promoted_as_numpy_does() -> None:
    i, f, d = placed("i", 7, dtype=np.int64), placed("f", 7), placed("d", 7, dtype=np.float64)
    big = 2**53 + np.arange(7, dtype=np.int64)
    outputs = [i * f, f + d, ops.where(f > 0, i, d), ops.equal(i, d), i / 3, ops.power(i, 2)]
    feeds = {i: big, f: ramp(7) + 0.3, d: big.astype(np.float64)}
    for wanted, got in zip(*both(outputs, feeds), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_a_formula_that_doubles_at_every_op_is_cut() -> None:
    y = placed("x", 7)
    for _ in range(30):
        y = ops.tanh(y * y + y)
    (wanted,), (got,) = both([y], {n: ramp(7) for n in Program.of([y]).nodes() if n.name})
    np.testing.assert_allclose(got, wanted, rtol=200 * EPS)


def test_a_product_by_other_subscripts_is_no_plain_product() -> None:
    x, y = placed("x", 5, 5), placed("y", 5, 5)
    texts = ("ij,jk->ik", "ij,kj->ki", "ij,ik->jk", "ij,ij->ij", "ij,jk->ki")
    outputs = [ops.einsum(t, x, y) for t in texts]
    for wanted, got in zip(*both(outputs, {x: ramp(5, 5), y: ramp(5, 5).T + 1}), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conversions_of_halves_are_compiled(dtype: str) -> None:
    """Stored, in registers, after a product, after a sum over rows, as wider numbers."""
    x, h = placed("x", BATCH, 7), placed("h", BATCH, 7, dtype=md.memory.as_dtype(dtype))
    half = ops.cast(x * 1000.0, dtype)
    back = ops.cast(half, "float32")
    sums = ops.cast(ops.sum(back, 0) / 3.0, dtype)
    cut = ops.cast(ops.relu(x @ ramp(7, 3)), dtype)
    outputs = [
        half,
        ops.exp(back / 3000.0),
        sums,
        cut,
        ops.cast(cut, "float32") + 1.0,
        ops.cast(h, "float64"),
    ]
    plan = native_plan(Program.of(outputs), check=True)
    assert plan.kernels == len(plan.work)
    odd = (ramp(5, 7) - 2).astype(h.dtype)
    wanted, got = both(outputs, {x: ramp(5, 7) / 3, h: odd})
    for w, g in zip(wanted, got, strict=True):
        assert w.dtype == g.dtype
        eps = 4 * EPS if w.dtype == np.float32 else 0  # exp, and the next half where a sum differs
        if g is got[2] or g is got[3] or g is got[4]:
            eps = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=eps, atol=eps)
    np.testing.assert_array_equal(got[0].view(np.uint16), wanted[0].view(np.uint16))


HALF_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "every op rounds": lambda a, b: (a * b + a) * 2.5 - b / a,
    "functions": lambda a, b: ops.exp(a) * ops.tanh(b) + ops.sigmoid(a),
    "choices": lambda a, b: ops.where(a < b, ops.maximum(a, 0.5), ops.sign(b)),
    "remainders": lambda a, b: ops.floor_divide(a, b) + ops.remainder(a, b),
    "truth": lambda a, b: ops.isnan(a / b),
    "an integer": lambda a, b: ops.cast(a * 3.0, "int32"),
    "the other half": lambda a, b: ops.cast(a, "bfloat16") * ops.cast(b, "bfloat16"),
    "beside float32": lambda a, b: a * ops.cast(b, "float32") + a,
    "beside float64": lambda a, b: a * ops.cast(b, "float64"),
    "beside truth": lambda a, b: a * (a < b),
    "sums": lambda a, b: ops.sum(a * b, axis=0) + ops.max(a, axis=0),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALF_ARITHMETIC)
def test_half_arithmetic_has_kernels_and_the_bits_of_numpy(name: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    kind = md.memory.as_dtype(dtype)
    values = [(rng.standard_normal((5, 67)) * 3).astype(kind) for _ in range(2)]
    values[0][0, :6] = [np.nan, np.inf, -np.inf, 0.0, 6e4, 1e-7]  # too large, and subnormal
    a, b = (placed(f"x{k}", 5, 67, dtype=kind) for k in range(2))
    if name == "an integer":
        values[0][0, :6] = 1.0  # what is none becomes some integer
    made = HALF_ARITHMETIC[name](a, b)
    assert "0 calls of NumPy" in describe(native_plan(Program.of([made])))
    with np.errstate(all="ignore"):
        (wanted,), (got,) = both([made], {a: values[0], b: values[1]})
    assert got.dtype == wanted.dtype
    # functions of float32 differ in their last digit, and so halves of them now and then
    most = 2 * float(ml_dtypes.finfo(kind).eps) if name == "functions" else 0
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), most)


def test_what_of_half_precision_is_a_call() -> None:
    h, d = placed("h", 7, dtype=np.dtype(np.float16)), placed("d", 7, dtype=np.dtype(np.float64))
    i = placed("i", 7, dtype=np.dtype(np.int32))
    for y in (ops.cast(d, "float16"), ops.cast(i, "float16")):
        assert native_plan(Program.of([y])).kernels == 0
    assert native_plan(Program.of([h * i])).kernels == 1  # in float64, which holds both
    feeds = {
        h: np.linspace(-9, 9, 7).astype(np.float16),
        i: np.arange(-3, 4, dtype=np.int32) * 700_000_001,
    }
    (wanted,), (got,) = both([h * i], feeds)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs(dtype: str) -> None:
    x = placed("x", BATCH, 7, dtype=md.memory.as_dtype(dtype))
    (wanted,), (got,) = both([ops.softmax(x @ ops.cast(ramp(7, 3), dtype))], {x: ramp(5, 7)})
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
