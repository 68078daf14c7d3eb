"""Loops: forward, gradients of all orders, lengths, and what a run of them may not do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import Operation
from magmadnn.errors import DataError
from magmadnn.graph.body import is_loop
from magmadnn.graph.program import Program
from magmadnn.ops.repeated import _saved
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.loops import Loop
from magmadnn.runtime.threads import thread_count
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.scans import (
    BATCH,
    FEATURES,
    STEPS,
    UNITS,
    Lstm,
    assert_close,
    executable,
    lstm_numpy,
    run,
    unrolled,
)
from tests.runtime.unrolling import program_without_loops

# g++ takes long for the kernels of some tests, which the emulated device then runs with --all only
slow_on_a_device = pytest.mark.parametrize(
    "executor",
    [
        "reference",
        "native",
        *(pytest.param(*p.values, marks=[*p.marks, pytest.mark.long]) for p in DEVICES),
    ],
    indirect=True,
)


@pytest.fixture(params=["reference", "native", *DEVICES])
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    """What runs: "cuda" is a device, which is in place."""
    if request.param in ("reference", "native"):
        yield request.param
        return
    with on(request.param):
        yield "cuda"


def drawn(*shape: int, dtype: str = "float64", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def parameters() -> tuple[md.Variable, md.Variable, md.Variable]:
    """x, h and c."""
    return (
        md.variable("x", drawn(STEPS, BATCH, FEATURES)),
        md.variable("h", drawn(BATCH, UNITS, seed=1)),
        md.variable("c", drawn(BATCH, UNITS, seed=2)),
    )


def test_an_lstm_over_time_is_what_numpy_gives(executor: str) -> None:
    lstm, (x, h, c) = Lstm(), parameters()
    (last_h, last_c), kept = md.scan(lstm, (h, c), x)
    expected = lstm_numpy(*(v.numpy() for v in (x, h, c, *lstm.weights)))
    assert_close(run([kept, last_h, last_c], executor=executor), expected)


def of_second_order(looped: bool, reverse: bool) -> list[Operation]:
    """A loss of all results of an LSTM, its gradients, and those of a loss of these."""
    lstm, (x, h, c) = Lstm(), parameters()
    (last_h, last_c), kept = (
        md.scan(lstm, (h, c), x, reverse=reverse)
        if looped
        else unrolled(lstm, (h, c), x, STEPS, reverse)
    )
    loss = (last_h**2).sum() + 0.3 * last_c.sum() + (kept**3).sum()
    targets = [x, h, c, *lstm.weights]
    first = md.grad(loss, targets)
    second = md.grad(sum(((g * g).sum() for g in first), start=loss), targets)
    return [loss, kept, *first, *second]


@pytest.mark.parametrize("least_terms", [1, 1000])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_first_and_second_order_are_those_of_the_unrolled_graph(
    reverse: bool, least_terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether products are kept for the gradient or computed again."""
    monkeypatch.setattr(_saved, "_LEAST_TERMS", least_terms)
    expected = run(of_second_order(looped=False, reverse=reverse), executor="reference")
    for executor in ("native", "reference"):
        assert_close(run(of_second_order(True, reverse), executor=executor), expected)


@slow_on_a_device
def test_an_lstm_s_gradient_is_that_of_differences(executor: str) -> None:
    lstm, (x, h, c) = Lstm(), parameters()
    _, kept = md.scan(lstm, (h, c), x)
    weights = drawn(STEPS, BATCH, UNITS, seed=3)
    (gradient,) = run([md.grad((kept * weights).sum(), lstm.u)], executor=executor)
    values = [v.numpy() for v in (x, h, c, *lstm.weights)]
    step, place = 1e-6, (2, 7)
    sides = []
    for sign in (1, -1):
        moved = [v.copy() for v in values]
        moved[4][place] += sign * step
        sides.append((lstm_numpy(*moved)[0] * weights).sum())
    # the error of central differences: step^2 of the third derivative, eps/step of the sum
    assert abs(gradient[place] - (sides[0] - sides[1]) / (2 * step)) < 1e-7


@slow_on_a_device
def test_one_executable_runs_any_length(executor: str) -> None:
    lstm = Lstm()
    x = md.placeholder("x", ("time", "batch", FEATURES), dtype="float64")
    zero = md.ops.broadcast_to(np.zeros(1), (x.shape[1], UNITS))
    (last, _), kept = md.scan(lstm, (zero, zero), x)
    gradients = md.grad((kept**2).sum() + last.sum(), lstm.weights)
    made = executable([kept.node, *(g.node for g in gradients)], executor)
    for steps, batch in ((3, 2), (5, 3), (1, 1)):
        fed = drawn(steps, batch, FEATURES, seed=steps)
        fixed = md.variable("fixed", fed)
        start = np.zeros((batch, UNITS))
        (last, _), whole = unrolled(lstm, (start, start), fixed, steps)
        expected = [whole, *md.grad((whole**2).sum() + last.sum(), lstm.weights)]
        assert_close(made.run({x.node: fed}), run(expected, executor="reference"))
    empty = made.run({x.node: np.zeros((0, 2, FEATURES))})
    assert empty[0].shape == (0, 2, UNITS)
    assert all(not g.any() for g in empty[1:])
    nobody = made.run({x.node: np.zeros((4, 0, FEATURES))})
    assert nobody[0].shape == (4, 0, UNITS)
    assert all(not g.any() for g in nobody[1:])


def test_a_loop_of_no_steps_gives_what_it_began_with(executor: str) -> None:
    h = md.variable("h", drawn(3))
    last, kept = md.scan(lambda h, x: (h * 2.0, h + x), h, np.zeros((0, 3)))
    found = run([last, kept, md.grad((last**2).sum() + kept.sum(), h)], executor=executor)
    assert np.array_equal(found[0], h.numpy())
    assert found[1].shape == (0, 3)
    assert np.array_equal(found[2], 2 * h.numpy())


def test_a_loop_without_inputs_counts_its_steps_itself(executor: str) -> None:
    (count, power), outputs = md.scan(
        lambda pair, _: ((pair[0] + 1, pair[1] * 2.0), (pair[0], pair[1])),
        (np.int64(0), np.ones(2)),
        length=5,
    )
    found = run([count, power, *outputs], executor=executor)
    assert found[0] == 5
    assert np.array_equal(found[1], [32.0, 32.0])
    assert np.array_equal(found[2], np.arange(5))
    assert np.array_equal(found[3][:, 0], 2.0 ** np.arange(5))


@slow_on_a_device
def test_values_may_be_swapped_passed_on_and_rearranged(executor: str) -> None:
    a, b = md.variable("a", drawn(3, 3)), md.variable("b", drawn(3, 3, seed=1))
    x = md.variable("x", drawn(4, 3, 3, seed=2))

    def body(pair: Any, x: Operation) -> tuple[Any, Any]:
        one, other, same = pair
        return (other, one.T, same), (one, x.T, x, same[0], np.float64(2.0) * np.ones(2))

    found = []
    for looped in (True, False):
        begin = (a, b, b)
        last, kept = md.scan(body, begin, x) if looped else unrolled(_as_nodes(body), begin, x, 4)
        total = sum(((y * y).sum() for y in (*last, *kept)), start=np.float64(0.0))
        outputs = [*last, *kept, *md.grad(total, [a, b, x])]
        found.append(run(outputs, executor=executor if looped else "reference"))
    assert_close(*found)


def _as_nodes(body: Any) -> Any:
    def made(carried: Any, x: Operation) -> Any:
        carried, kept = body(carried, x)
        return carried, tuple(
            y if isinstance(y, Operation) else md.ops.broadcast_to(y + 0 * x[0, 0], y.shape)
            for y in kept
        )

    return made


@slow_on_a_device
def test_a_loop_in_a_loop(executor: str) -> None:
    x = md.variable("x", drawn(3, 4, 2))
    w = md.variable("w", drawn(2, 2, seed=1))

    def inner(h: Operation, x: Operation) -> tuple[Operation, Operation]:
        h = md.ops.tanh(h @ w + x)
        return h, h * h

    def outer(loop: Any) -> Any:
        def body(h: Operation, rows: Operation) -> tuple[Operation, Operation]:
            last, kept = loop(inner, h, rows)
            return last * 0.5, kept.sum(axis=0) + h

        return body

    found = []
    for looped in (True, False):
        begin = md.ops.sum(w, axis=0)
        if looped:
            last, kept = md.scan(outer(md.scan), begin, x)
        else:
            last, kept = unrolled(outer(lambda b, h, r: unrolled(b, h, r, 4)), begin, x, 3)
        loss = (last**2).sum() + (kept**2).sum()
        first = md.grad(loss, [x, w])
        outputs = [loss, kept, *first, md.grad((first[1] ** 2).sum(), w)]
        found.append(run(outputs, executor=executor if looped else "reference"))
    assert_close(*found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_smaller_dtypes_are_carried_and_kept(executor: str, dtype: str) -> None:
    x = md.ops.cast(md.variable("x", drawn(6, 8, dtype="float32")), dtype)
    begin = x[0]
    last, kept = md.scan(lambda h, x: (0.5 * h + x, h), begin, x)
    expected = unrolled(lambda h, x: (0.5 * h + x, h), begin, x, 6)
    found = run([last, kept], executor=executor)
    assert found[0].dtype.name == dtype
    for one, other in zip(found, run(expected, executor=executor), strict=True):
        assert np.array_equal(one, other)


def test_truths_and_integers_are_carried(executor: str) -> None:
    x = md.variable("x", np.array([3, -1, 4, -1, 5]))

    def body(pair: Any, x: Operation) -> tuple[Any, Operation]:
        seen, total = pair
        return (md.ops.logical_or(seen, x < 0), total + x), seen

    (seen, total), kept = md.scan(body, (np.bool_(False), np.int64(0)), x)
    found = run([seen, total, kept], executor=executor)
    assert found[0] == np.bool_(True)
    assert found[1] == 10
    assert np.array_equal(found[2], [False, False, True, True, True])


def test_each_step_draws_its_own_numbers_with_a_carried_counter(executor: str) -> None:
    counter, kept = md.scan(
        lambda n, _: (n + 1, md.ops.random_uniform(n, (4,), "float64", seed=3)),
        np.int64(10),
        length=3,
    )
    end, found = run([counter, kept], executor=executor)
    assert end == 13
    for step in range(3):
        assert np.array_equal(
            found[step], md.ops.random_uniform(np.int64(10 + step), (4,), "float64", seed=3)
        )


def test_what_numpy_computes_may_stand_in_a_body(executor: str) -> None:
    x = md.variable("x", np.arange(24, dtype=np.int8).reshape(4, 6))
    last, kept = md.scan(lambda h, x: (h + x, md.ops.max(x) - h), np.zeros(6, np.int8), x)
    found = run([last, kept], executor=executor)
    values = x.numpy()
    before = np.concatenate([np.zeros((1, 6), np.int8), np.cumsum(values, axis=0, dtype=np.int8)])
    assert np.array_equal(found[0], before[-1])
    assert np.array_equal(found[1], values.max(axis=1, keepdims=True) - before[:-1])


def test_a_strided_input_is_taken_as_it_is(executor: str) -> None:
    x = md.placeholder("x", (30, 9, 40), dtype="float64")
    fed = drawn(30, 9, 40)
    last, kept = md.scan(
        lambda h, x: (h + x, h * x), np.zeros((30, 40)), md.ops.transpose(x, (1, 0, 2))
    )
    found = run([last, kept], {x: fed}, executor)
    before = np.concatenate([np.zeros((1, 30, 40)), np.cumsum(fed.transpose(1, 0, 2), axis=0)])
    assert_close(found, [before[-1], before[:-1] * fed.transpose(1, 0, 2)])


def test_what_is_fed_may_be_captured_and_changes_from_run_to_run(executor: str) -> None:
    x = md.placeholder("x", ("time", 90), dtype="float64")
    scale = md.placeholder("scale", (90, 90), dtype="float64")  # large: read where it lies
    last, _ = md.scan(lambda h, x: (h @ scale + x, ()), np.zeros(90), x)
    made = executable([last.node], executor)
    for seed in range(3):
        fed, by = drawn(4, 90, seed=seed), drawn(90, 90, seed=seed + 9) * 0.1
        h = np.zeros(90)
        for row in fed:
            h = h @ by + row
        assert_close(made.run({x.node: fed, scale.node: by}), [h])


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_are_what_their_steps_are_one_after_the_other(reverse: bool) -> None:
    nodes = [y.node for y in of_second_order(True, reverse)]
    flat = program_without_loops(Program.of(nodes))
    found = Executable(flat, executor="reference", check=True)
    assert not any(is_loop(node) for node in found.program.nodes())
    assert_close(found.run({}), Executable(nodes, executor="reference").run({}))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    lstm = Lstm("float32", 64, 96)
    x = md.variable("x", drawn(6, 80, 64, dtype="float32"))
    zero = np.zeros((80, 96), np.float32)
    (last, _), kept = md.scan(lstm, (zero, zero), x)
    outputs = [last, kept, *md.grad((kept**2).sum(), [x, *lstm.weights])]
    found, before = [], thread_count()
    try:
        for threads in (1, 2, 4):
            md.set_threads(threads)
            found.append([y.tobytes() for y in run(outputs)])
    finally:
        md.set_threads(before)
    assert found[0] == found[1] == found[2]


def test_a_body_has_phases(executor: str) -> None:
    x = md.variable("x", np.arange(1.0, 7.0).reshape(3, 2))
    last, kept = md.scan(lambda h, x: (h + md.by_phase(2.0 * x, x), h), np.zeros(2), x)
    loss = (last * last).sum() + kept.sum()
    for training, factor in ((False, 1.0), (True, 2.0)):
        gradient = md.grad(loss, x, training=training)
        found = run([last, kept, gradient], executor=executor, training=training)
        values = factor * x.numpy()
        total = values.sum(axis=0)
        later = np.array([[2.0], [1.0], [0.0]])  # how many of `kept` each slice is in
        assert np.array_equal(found[0], total)
        assert np.array_equal(found[1], np.cumsum(values, axis=0) - values)
        assert np.array_equal(found[2], factor * (2 * total + later))


def test_a_class_that_is_not_there_is_told_though_it_is_known_in_a_step_only(executor: str) -> None:
    classes = md.placeholder("classes", ("time",), dtype="int64")
    total, _ = md.scan(
        lambda h, k: (h + md.ops.one_hot(k, 3), ()), np.zeros(3, np.float32), classes
    )
    made = executable([total.node], executor)
    assert np.array_equal(made.run({classes.node: np.array([0, 2, 2])})[0], [1, 0, 2])
    with pytest.raises(DataError, match=r"one_hot: .*7"):
        made.run({classes.node: np.array([0, 7, 2])})


def test_no_variable_is_written_where_a_step_fails(executor: str) -> None:
    table, rows = md.variable("table", np.eye(3)), md.variable("rows", np.array([0, 9]))
    kept, other = md.variable("kept", np.zeros(3)), md.variable("other", np.ones(3))
    found, _ = md.scan(lambda h, k: (h + md.ops.take(table, k, axis=0), ()), kept, rows)
    updates = [(kept.node, found.node), (other.node, (other * 2.0).node)]
    made = executable([(other + 1.0).node], executor, updates)
    with pytest.raises(DataError, match="take: index 9"):
        made.run({})
    assert not kept.numpy().any()
    assert np.array_equal(other.numpy(), np.ones(3))
    rows.value.write(np.array([0, 2]))
    assert np.array_equal(made.run({})[0], np.full(3, 2.0))
    assert np.array_equal(kept.numpy(), [1.0, 0.0, 1.0])
    assert np.array_equal(other.numpy(), np.full(3, 2.0))


@pytest.mark.parametrize("reverse", [False, True])
def test_slices_are_read_and_outputs_written_where_they_lie(
    reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(self: Loop, *arrays: Any) -> Any:
        raise AssertionError("a step copies")

    for name in ("_fetch", "_keep"):
        monkeypatch.setattr(Loop, name, copied)
    x = md.placeholder("x", ("time", 70, 50), dtype="float64")  # large: read where it is fed
    w = md.variable("w", drawn(50, 50))

    def body(h: Operation, x: Operation) -> tuple[Operation, Operation]:
        return h + x, md.ops.tanh(x[:, ::-1] @ w)

    total, kept = md.scan(body, np.zeros((70, 50)), x, reverse=reverse)
    made = executable([total.node, kept.node], "native")
    for steps in (5, 3):
        fed = drawn(steps, 70, 50, seed=steps)
        expected = [fed.sum(axis=0), np.tanh(fed[:, :, ::-1] @ w.numpy())]
        assert_close(made.run({x.node: fed}), expected)


def test_loops_may_be_copied_and_pickled() -> None:
    lstm, (x, h, c) = Lstm(), parameters()
    _, kept = md.scan(lstm, (h, c), x)
    expected = run([kept])
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert np.array_equal(run([other])[0], expected[0])
        assert np.array_equal(
            run([other], executor="reference")[0], run([kept], executor="reference")[0]
        )
