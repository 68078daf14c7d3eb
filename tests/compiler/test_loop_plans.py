"""Plans of loops: one for a step whatever the length, and no more memory than what is kept of the steps."""

from __future__ import annotations

import time

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph.node import VARIABLE
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from tests.runtime.scans import Lstm

BATCH, FEATURES, UNITS = 32, 24, 48


def program(steps: int, features: int = FEATURES, units: int = UNITS) -> Program:
    """A loss of the last state of an LSTM, and its gradients."""
    lstm = Lstm("float32", features, units)
    x = md.variable("x", np.zeros((steps, BATCH, features), np.float32))
    zero = np.zeros((BATCH, units), np.float32)
    (last, _), _ = md.scan(lstm, (zero, zero), x)
    loss = (last**2).sum()
    return Program.of([loss.node, *(g.node for g in md.grad(loss, lstm.weights))])


def planned(steps: int) -> tuple[NativePlan, float]:
    """A plan and the least time of this thread that it took."""
    made, seconds = program(steps), []
    for _ in range(5):
        begin = time.thread_time()
        plan = native_plan(made)
        seconds.append(time.thread_time() - begin)
    return plan, min(seconds)


def test_plan_and_planning_time_do_not_depend_on_the_length() -> None:
    (short, quick), (long, slow) = planned(10), planned(1000)
    assert len(program(10).nodes()) == len(program(1000).nodes())
    assert len(short.work) == len(long.work)
    steps = [[len(loop.step.work) for loop in plan.loops.values()] for plan in (short, long)]
    assert steps[0] == steps[1]
    assert slow < 3 * quick  # equal but for what else the machine does


@pytest.mark.parametrize(
    ("features", "units", "stored"),
    [
        (
            FEATURES,
            UNITS,
            2 + 4,
        ),  # h and c, and x w + h u + b of four gates, where the sums are long
        (8, 12, 2),  # where they are short: they are computed again
    ],
)
def test_memory_grows_by_the_stored_states_that_the_gradient_reads(
    features: int, units: int, stored: int
) -> None:
    arenas = {
        steps: arena_of(native_plan(program(steps, features, units)), {}).nbytes
        for steps in (10, 20, 40)
    }
    of_a_step = stored * BATCH * units * 4  # in float32
    assert arenas[20] - arenas[10] == 10 * of_a_step
    assert arenas[40] - arenas[20] == 20 * of_a_step


def test_a_gradient_computes_no_long_product_again() -> None:
    plan = native_plan(program(10))
    products = {
        len(loop.carried): sum(w.region.kind is RegionKind.GEMM for w in loop.step.work)
        for loop in plan.loops.values()
    }
    assert products == {2: 2, 5: 3}  # x w and h u; the gradients of w, u and h


def test_a_loop_stores_nothing_that_nobody_asks_for() -> None:
    x = md.variable("x", np.ones((50, 8)))
    (kept, unused), outputs = md.scan(
        lambda pair, x: ((pair[0] + x, pair[1] * 2.0), (x, pair[0])), (x[0], x[0]), x
    )
    assert unused.shape == (8,)
    assert outputs[1].shape == (50, 8)
    (loop,) = native_plan(Program.of([kept.node])).loops.values()
    assert [number for number, _ in loop.carried.items()] == [0]
    assert not loop.kept
    assert not loop.before
    assert len(loop.step.work) == 1


def test_a_sum_over_steps_is_added_up_in_place() -> None:
    plan = native_plan(program(10))
    backward = max(plan.loops.values(), key=lambda loop: len(loop.carried))
    sums = [target.label for target in backward.step.in_place.values()]
    assert {"sum for w", "sum for u", "sum for b"} <= set(sums)
    assert all(target.op is VARIABLE for target in backward.step.in_place.values())


def test_what_is_the_same_in_all_steps_is_computed_before_the_loop() -> None:
    w = md.variable("w", np.eye(4))
    last, _ = md.scan(lambda h, x: (h @ (w @ w + 1.0) + x, ()), np.zeros(4), np.ones((6, 4)))
    plan = native_plan(Program.of([last.node]))
    (loop,) = plan.loops.values()
    products = [w for w in loop.step.work if "matmul" in str(w.region)]
    assert len(products) == 1


def test_the_text_of_a_plan_shows_each_step_and_counts_all_of_them() -> None:
    x = md.placeholder("x", ("time", 6))
    last, _ = md.scan(lambda h, x: (h * x, ()), np.ones(6, np.float32), x)
    text = describe(native_plan(Program.of([last.node])), {"time": 9})
    assert "loop [9] of 1 results" in text
    assert "rows [6] multiply  # scan" in text
    assert f"{9 * 6} operations" in text
    assert "0 calls of NumPy, loops: 1" in text


def test_precision_reaches_into_bodies() -> None:
    w = md.variable("w", np.full((3, 3), 1 / 3, np.float32))
    x = np.full((2, 3), 1 / 7, np.float32)
    last, _ = md.scan(lambda h, x: (h @ w + x, ()), np.ones((1, 3), np.float32), x)
    native, reference = (
        Executable([last.node], executor=executor, precision="mixed_bf16").run({})[0]
        for executor in ("native", "reference")
    )
    exact = 1 + 2 / 7  # each row of w adds up to 1
    assert np.array_equal(native, reference)
    assert np.all(abs(native - exact) > 2.0**-12)
    assert np.all(abs(native - exact) < 4 * 2.0**-8)  # two products of factors of 8 bits
