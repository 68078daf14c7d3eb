"""moved_halves: what is moved into another order is moved as halves; the bits stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan import planning
from magmadnn.compiler.plan.built_alike import reuse
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.moved_halves import move_halves
from magmadnn.compiler.program.verify import verify
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation, placeholder
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

RNG = np.random.default_rng(11)


def given() -> tuple[Operation, Operation]:
    return placeholder("x", (3, 4, 5), "float32"), placeholder("w", (20, 7), "float32")


def rounded(x: Any, half: str = "bfloat16") -> Any:
    return ops.cast(ops.cast(x, half), "float32")


def merged(x: Any) -> Any:
    """[3, 4, 5] as [3, 20] by columns: a copy."""
    return ops.reshape(ops.transpose(x, (0, 2, 1)), (3, 20))


def moved(program: Program) -> list[str]:
    """The dtypes of what is copied or transposed."""
    nodes = (n for n in program.nodes() if isinstance(n.op, Op))
    return [n.dtype.name for n in nodes if n.op.kind is OpKind.MOVEMENT]


def passed(*made: Any) -> Program:
    """What the pass makes of it; results are the same to the bit."""
    before = Program.of([one.node for one in made])
    after = move_halves(before)
    verify(before=before, after=after, name="move_halves")
    feeds = {n: RNG.standard_normal(n.shape).astype(np.float32) for n in before.placeholders}

    def bits(program: Program) -> list[bytes]:
        return [a.tobytes() for a in Executable(program.outputs, executor="reference").run(feeds)]

    assert bits(before) == bits(after)
    return after


def test_what_is_rounded_behind_movements_is_rounded_before_them() -> None:
    x, w = given()
    assert moved(passed(rounded(merged(ops.exp(x))) @ w)) == ["bfloat16", "bfloat16"]
    view = rounded(ops.transpose(ops.exp(x), (0, 2, 1)), "float16")
    assert moved(passed(view @ ops.reshape(w[:12], (4, 21)))) == ["float16", "float32", "float32"]


def test_what_is_widened_before_copies_is_widened_behind_them() -> None:
    x, w = given()
    assert moved(passed(merged(rounded(ops.exp(x))) @ w)) == ["bfloat16", "bfloat16"]
    both = passed(rounded(merged(rounded(ops.exp(x)))) @ w)
    assert moved(both) == ["bfloat16", "bfloat16"]
    assert sum(n.dtype.name == "bfloat16" for n in both.nodes()) == 3  # rounded once
    assert moved(passed(ops.transpose(rounded(ops.exp(x)), (0, 2, 1)))) == ["float32"]  # a view


@pytest.mark.parametrize("why", ["fed", "wanted", "read by others", "two halves", "repeated"])
def test_others_stay(why: str) -> None:
    """What lies in memory as float32, or is wanted so, is no fewer bytes as halves besides."""
    x, w = given()
    wave = ops.exp(x)
    made: dict[str, list[Any]] = {
        "fed": [rounded(merged(x)) @ w],
        "wanted": [rounded(merged(wave)) @ w, merged(wave)],
        "read by others": [rounded(merged(wave)) @ w, ops.sum(wave, axis=-1)],
        "two halves": [rounded(merged(wave)) @ w, rounded(merged(wave), "float16") @ w],
        "repeated": [rounded(ops.reshape(ops.broadcast_to(wave[:, :1], (3, 4, 5)), (3, 20))) @ w],
    }
    assert set(moved(passed(*made[why]))) == {"float32"}


def test_only_plans_of_devices_have_it() -> None:
    x, w = given()
    program = Program.of([(rounded(merged(ops.exp(x))) @ w).node])

    def halves(rounding: bool) -> list[Node]:
        plan = native_plan(program, check=True, rounding=rounding, libraries=frozenset())
        moves = (n for n in plan.program.nodes() if isinstance(n.op, Op))
        return [n for n in moves if n.op.kind is OpKind.MOVEMENT and n.dtype.name == "bfloat16"]

    assert halves(rounding=False)
    assert not halves(rounding=True)


@needs_compiler
@pytest.mark.parametrize("order", ["rounded behind", "widened before"])
def test_kernels_store_the_same_halves_at_the_end_of_the_range(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 ends at 65504; from 65520 on numbers are infinite, rounded before they are moved or behind."""
    x, w = given()
    wave = ops.add(x, ops.abs(x) * 2.0**-30)  # computed by a kernel; what it adds is rounded off
    halves = (
        rounded(merged(wave), "float16") if order[0] == "r" else merged(rounded(wave, "float16"))
    )
    outputs = [halves, ops.maximum(halves, -60_000.0) @ w]
    values = 65504 + np.linspace(-40, 40, 60).astype(np.float32).reshape(3, 4, 5)
    values[0, 0, :3] = 65520, np.nextafter(np.float32(65520), np.float32(0)), 65536
    values[1:2] *= -1
    feeds = {x.node: values, w.node: RNG.uniform(0.5, 1.5, w.shape).astype(np.float32)}

    def computed() -> tuple[str, list[np.ndarray]]:
        reuse._templates.clear()
        run = Executable([y.node for y in outputs], executor="native", device="cuda", check=True)
        return run.text({}), run.run(feeds)

    with emulated_device():
        text, found = computed()
        monkeypatch.setitem(planning.LOOKS_FOR, "move_halves", lambda node: False)
        text_of_others, others = computed()
    reuse._templates.clear()
    assert text != text_of_others
    for one, other in zip(found, others, strict=True):
        np.testing.assert_array_equal(one, other)
    expected = (values + np.abs(values) * np.float32(2.0**-30)).transpose(0, 2, 1).reshape(3, 20)
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float16).astype(np.float32)
    assert 10 < np.isinf(expected).sum() < 50
    np.testing.assert_array_equal(found[0], expected)
