"""Products of half precision: what they read and store, and who else may read it; against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.plan.listing import costs_of, describe
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.precision import precision
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from tests.compiler.native_programs import PROGRAMS
from tests.graph.by_numpy import doubled

HALVES = ("bfloat16", "float16")
PAIRS = [(h, h) for h in HALVES] + [("float32", "bfloat16"), ("float16", "float64")]
BOTH = list(itertools.product((False, True), repeat=2))
RNG = np.random.default_rng(3)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def fed(name: str, dtype: str, *shape: int) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


def rounded(x: Any, dtype: str) -> Any:
    return ops.cast(ops.cast(x, dtype), "float32")


def products(plan: NativePlan) -> list[Gemm | Gemv]:
    kernels = [w.lowered.kernel for w in plan.work if w.lowered is not None]
    return [k for k in kernels if isinstance(k, Gemm)]


def planned(*outputs: Any) -> NativePlan:
    return native_plan(Program.of(list(outputs)), check=True)


def both(outputs: list[Any], feeds: dict[Node, Any]) -> list[list[Any]]:
    return [
        Executable(outputs, executor=executor).run(feeds) for executor in ("reference", "native")
    ]


def agree(outputs: list[Any], feeds: dict[Node, Any], terms: int) -> None:
    """Sums in float32 differ in their last bits, and so now and then does what is rounded to halves."""
    for wanted, got in zip(*both(outputs, feeds), strict=True):
        assert wanted.dtype == got.dtype
        wide = [x.astype(np.float64) for x in (wanted, got)]
        bound = terms * EPS["float32"] + 2 * EPS[wanted.dtype.name]
        np.testing.assert_allclose(wide[1], wide[0], rtol=bound)


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize("dtypes", PAIRS)
def test_products_of_halves(dtypes: tuple[str, str], ta: bool, tb: bool) -> None:
    for m, n, k in RNG.integers(1, 21, (6, 3)).tolist():
        x = fed("x", dtypes[0], *((k, m) if ta else (m, k)))
        w = fed("w", dtypes[1], *((n, k) if tb else (k, n)))
        y = ops.matmul(ops.transpose(x) if ta else x, ops.transpose(w) if tb else w)
        plan = planned(y)
        assert plan.kernels == len(plan.work) == 1 or dtypes[1] == "float64"
        feeds = {i: RNG.uniform(0.5, 1.5, i.shape).astype(i.dtype) for i in (x, w)}
        agree([y], feeds, k)


def test_stacks_and_sums_by_letters() -> None:
    x, w = fed("x", "bfloat16", 3, 5, 7), fed("w", "bfloat16", 3, 7, 4)
    outputs = [
        ops.matmul(x, w),
        ops.einsum("bij,bjk->ik", x, w),
        ops.matmul(x, w) @ fed("v", "bfloat16", 4, 2),
    ]
    feeds = {n: RNG.uniform(0.5, 1.5, n.shape).astype(n.dtype) for n in (x, w)}
    feeds |= {n: RNG.uniform(0.5, 1.5, n.shape).astype(n.dtype) for n in [outputs[2].inputs[1]]}
    agree(outputs, feeds, 60)


def test_a_parameter_is_rounded_by_the_product_and_a_value_for_it_alone_is_stored_as_halves() -> (
    None
):
    x, w = fed("x", "float32", 5, 7), fed("w", "float32", 7, 3)
    y = rounded(ops.tanh(x), "bfloat16") @ rounded(w, "bfloat16")
    plan = planned(y)
    (gemm,) = products(plan)
    assert gemm.load_a == Loading("bfloat16", "bfloat16")
    assert gemm.load_b == Loading("float32", "bfloat16")
    assert len(plan.work) == 2
    assert "keeps %0 cast bfloat16[5, 7]" in describe(plan)
    assert "w float32[7, 3] as bfloat16" in describe(plan)
    agree(
        [y],
        {x: RNG.uniform(1, 2, (5, 7)).astype("f4"), w: RNG.uniform(1, 2, (7, 3)).astype("f4")},
        30,
    )


def test_who_else_wants_a_rounded_value_gets_it_from_memory() -> None:
    x, w = fed("x", "float32", 5, 5), fed("w", "float32", 5, 5)
    r, s = rounded(x, "float16"), rounded(w, "float16")
    flipped = ops.flip(r, 0)
    outputs = [
        r @ s,
        ops.exp(r),
        ops.transpose(s),
        flipped @ s,
        ops.sum(rounded(x * 2.0, "float16"), axis=0),
    ]
    plan = planned(*outputs)
    assert plan.kernels == len(plan.work)
    agree(outputs, {n: RNG.uniform(1, 2, (5, 5)).astype("f4") for n in (x, w)}, 30)


def test_rounding_to_two_kinds_of_halves() -> None:
    x, w = fed("x", "float32", 5, 7), fed("w", "float32", 7, 3)
    outputs = [
        rounded(x, kind) @ rounded(w, other) for kind, other in itertools.product(HALVES, HALVES)
    ]
    plan = planned(*outputs)
    assert len(plan.work) == len(outputs)
    found = {(k.load_a.digits, k.load_b.digits) for k in products(plan) if k.load_a and k.load_b}
    assert found == set(itertools.product(HALVES, HALVES))
    agree(outputs, {n: RNG.uniform(1, 2, n.shape).astype("f4") for n in (x, w)}, 30)


@pytest.mark.parametrize("mode", ["mixed_bf16", "mixed_fp16"])
@pytest.mark.parametrize("name", ["mlp_sgd", "mlp_adam"])
def test_a_mixed_step_makes_no_further_pass(name: str, mode: str) -> None:
    """As many kernels as in float32, which read and store what they do there."""
    program = PROGRAMS[name]()
    full, mixed = native_plan(program), native_plan(precision(program, mode), check=True)
    assert mixed.kernels == len(mixed.work) == len(full.work)
    assert all(k.load_a and k.load_b for k in products(mixed))
    sizes = {"batch": 100}
    for slim, wide in zip(mixed.work, full.work, strict=True):
        costs = costs_of(mixed, slim, sizes), costs_of(full, wide, sizes)
        assert all(one <= other for one, other in zip(*costs, strict=True))
    assert "bfloat16" in str(mixed) or "float16" in str(mixed)


def test_other_devices_widen_but_do_not_round() -> None:
    x, w = fed("x", "float32", 5, 7), fed("w", "float32", 7, 3)
    program = Program.of([rounded(ops.tanh(x), "bfloat16") @ rounded(w, "bfloat16")])
    plan = native_plan(program, check=True, rounding=False)
    (gemm,) = products(plan)
    assert gemm.halves == "bfloat16"
    assert len(plan.work) == 3  # one of them rounds the parameter


def test_numpy_reads_what_lies_in_memory() -> None:
    """What NumPy computes gets float32, not halves."""
    x = fed("x", "float32", 5, 7)
    outputs = [doubled(rounded(x, "float16")), doubled(rounded(ops.tanh(x), "float16"))]
    assert planned(*outputs).kernels < len(planned(*outputs).work)
    agree(outputs, {x: RNG.uniform(1, 2, (5, 7)).astype("f4")}, 30)
