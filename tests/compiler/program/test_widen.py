"""widen: what is computed of half precision is computed in float32, and rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.program.call_plan import plan_of
from magmadnn.compiler.program.verify import verify
from magmadnn.compiler.program.widen import widen
from magmadnn.graph import Node
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.memory.dtypes import DTYPES
from magmadnn.runtime.reference import run
from tests.compiler.sample_programs import BATCH, PROGRAMS
from tests.graph.bare_nodes import placed

HALVES = ("float16", "bfloat16")


def kinds(program: Program) -> list[str]:
    return [f"{n.op.name} {n.dtype.name}" for n in program.nodes() if isinstance(n.op, Op)]


def graph(dtype: str) -> tuple[list[Node], Any]:
    x = placed("x", BATCH, 7, dtype=DTYPES[dtype])
    w, bias = (placed(n, *s, dtype=DTYPES[dtype]) for n, s in (("w", (7, 3)), ("bias", (3,))))
    return [x, w, bias], ops.tanh(x @ w + bias)


@pytest.mark.parametrize("half", HALVES)
def test_before_and_after(half: str) -> None:
    program = Program.of([graph(half)[1]])
    assert kinds(program) == [f"matmul {half}", f"add {half}", f"tanh {half}"]
    after = widen(program)
    verify(before=program, after=after, name="widen")
    wide, rounded = "cast float32", f"cast {half}"
    assert sorted(kinds(after)) == sorted(
        [wide] * 5 + [rounded] * 3 + ["matmul float32", "add float32", "tanh float32"]
    )


@pytest.mark.parametrize("half", HALVES)
def test_values_are_the_same_bits(half: str) -> None:
    """It is what the NumPy functions do: in float32, rounded after each op."""
    inputs, result = graph(half)
    draw = np.random.default_rng(3)
    feeds = {n: draw.normal(size=(11 if n.shape[0] == BATCH else n.shape[0], *n.shape[1:])).astype(n.dtype)
             for n in inputs}  # fmt: skip
    program = Program.of([result])
    before, after = (run(plan_of(p), feeds)[0] for p in (program, widen(program)))
    assert before.dtype == after.dtype == DTYPES[half]
    np.testing.assert_array_equal(before.view(np.uint16), after.view(np.uint16))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_has_no_halves_stays(name: str) -> None:
    program = PROGRAMS[name]()
    after = widen(program)
    verify(before=program, after=after, name="widen")
    assert kinds(after) == kinds(program)


def test_with_float64_it_is_float64() -> None:
    x, y = placed("x", 5, dtype="float16"), placed("y", 5, dtype="float64")
    after = widen(Program.of([ops.add(x, y)]))
    assert kinds(after) == ["cast float64", "add float64"]


def test_conditions_have_no_say_and_integers_are_no_hindrance() -> None:
    c, x, y = placed("c", 5, dtype="float64"), placed("x", 5, dtype="float16"), placed("y", 5)
    after = widen(Program.of([ops.where(c, x, y)]))
    assert kinds(after) == ["cast float32", "where float32"]
    n = placed("n", 5, dtype="int32")
    after = widen(Program.of([ops.where(n, x, 0.5), ops.less(x, n)]))
    half = [
        "cast float32",
        "cast float32",
        "where float32",
        "cast float16",
    ]  # of x, and of the number
    assert kinds(after) == [*half, "cast float32", "less bool"]


def test_what_moves_and_what_has_no_kernel_stays() -> None:
    x = placed("x", 5, 7, dtype="float16")
    program = Program.of([ops.cumsum(ops.reshape(x, (7, 5)), -1)])
    assert kinds(widen(program)) == kinds(program) == ["reshape float16", "cumsum float16"]
