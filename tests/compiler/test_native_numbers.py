"""Random numbers of compiled kernels: the very bits of the reference, however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.operands import ROW, SCALAR, Operand, Result
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.ops import philox
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from tests.compiler.llvm.llvm_calls import WIDTHS, call

COUNTERS = (0, -1, 2**40 + 7, -(2**62), 2**63 - 1)


def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[Node, list[Node]]:
    counter = placeholder("counter", Spec((), np.dtype(np.int64)))
    made: Any = ops.random_uniform(counter, shape, dtype, seed)
    return counter, [made, made >= 0.3, ops.cast(made >= 0.7, "float32") * 2 - made]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (64,), (67, 3), (3, 5, 11), (1009,), (0, 4)])
def test_numbers_are_those_of_the_reference(shape: tuple[int, ...], dtype: str) -> None:
    for seed in (0, -5, 2**63, 2**70 + 3):
        counter, outputs = drawn(shape, dtype, seed)
        native, reference = (Executable(outputs, executor=e) for e in ("native", "reference"))
        assert native.native.plan.kernels == len(native.native.plan.work) == 1
        for value in COUNTERS:
            feeds = {counter: np.int64(value)}
            for a, b in zip(native.run(feeds), reference.run(feeds), strict=True):
                assert a.dtype == b.dtype
                assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_counters_of_other_integers_count_alike(dtype: str) -> None:
    counter = placeholder("counter", Spec((), np.dtype(dtype)))
    made = ops.random_uniform(counter, (37,), "float32", 3)
    value = np.array(np.iinfo(dtype).min + 9, dtype)
    native, reference = (
        Executable([made], executor=e).run({counter: value})[0] for e in ("native", "reference")
    )
    assert np.array_equal(native, reference)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    counter, outputs = drawn((401, 509), "float32", 11)
    plan = native_plan(Program.of(outputs))
    feeds = {counter: np.array(5)}
    one, many = (Instance(plan, {}, n).run(feeds, guard=False) for n in (1, threads))
    assert one is not None and many is not None
    for a, b in zip(one, many, strict=True):
        assert np.array_equal(a, b)


def test_seeds_share_one_kernel() -> None:
    plans = [native_plan(Program.of(drawn((5, 7), "float32", seed)[1])) for seed in (1, 2)]
    kernels = {w.lowered.kernel for plan in plans for w in plan.work if w.lowered}
    assert len(kernels) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
def test_bits_do_not_depend_on_vector_width_or_tiles(target: Target, dtype: str) -> None:
    made = Draw(
        (Operand("stream", "int64", SCALAR),), (Result("y", dtype, ("drawn",), ROW),), dtype
    )
    y, count = np.zeros(1009, dtype), 983
    for start, end in ((0, 64), (64, 320), (320, count)):
        call(made, target, column0=start, column1=end, seed=7, stream=np.array([2**33 + 1]), y=y)
    assert np.array_equal(y[:count], philox.uniform(7, 2**33 + 1, count, dtype))
    assert not y[count:].any()
