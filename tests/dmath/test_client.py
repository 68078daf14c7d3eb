"""What users write, in this process and on simulated workers, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import dmath as dm
from magmadnn.backends.cuda import device_count
from magmadnn.comm import Communicator
from magmadnn.comm.simulated import SerialCommunicator, simulate
from magmadnn.dmath.arrays import making
from magmadnn.dmath.arrays.team import Count, Team
from magmadnn.dmath.client.engines import InProcess, Recording
from magmadnn.dmath.worker import Worker
from magmadnn.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    IndexOutOfRangeError,
    MagmaDNNError,
    NumericError,
    OutOfMemoryError,
    ShapeError,
)

Check = Callable[[Any, Any], None]
Script = Callable[[dm.Session, Check], None]


def alone(**settings: Any) -> dm.Session:
    return dm.Session(InProcess(Worker(Team(SerialCommunicator()))), **settings)


def in_this_process(script: Script, **settings: Any) -> None:
    def check(found: Any, expected: Any) -> None:
        same(np.asarray(found), np.asarray(expected))

    script(alone(**settings), check)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def gathered(script: Script, workers: int, **settings: Any) -> tuple[list[np.ndarray], Count]:
    """What simulated workers have for each array that the script checks, and what they sent."""
    engine = Recording(workers)
    session = dm.Session(engine, **settings)
    session.set_rates(dm.Rates())
    alive, expected = [], []

    def check(found: Any, value: Any) -> None:
        alive.append(found)
        expected.append(np.array(value))
        session._ask("pull", [found])

    script(session, check)

    def one(comm: Communicator) -> tuple[list[Any], Count]:
        worker, answers = Worker(Team(comm)), []
        for record, flats in engine.records:
            answer, flat = worker.run(record, None if flats is None else flats[comm.rank])
            assert not (isinstance(answer, dict) and "error" in answer), answer
            if record["op"] == "pull":
                answers.append((answer["layout"], flat))
        return answers, worker.team.total()

    done = simulate(workers, one)
    arrays = []
    for number, value in enumerate(expected):
        answers = [answers[number] for answers, _ in done]
        layout = making.first_holders(dm.Layout.of_record(answers[0][0]))
        dtype = answers[0][1].dtype
        arrays.append(making.assembled(layout, dtype, [flat for _, flat in answers]))
        same(arrays[-1], value)
    total = Count(*(sum(getattr(c, f) for _, c in done) for f in vars(Count())))
    assert total.sent_bytes <= 1.05 * total.planned_bytes
    return arrays, total


def products_and_sums(w: dm.Session, check: Check) -> None:
    draw = np.random.default_rng(0)
    a = draw.integers(-5, 6, (7, 5)).astype(float)
    b = draw.integers(-5, 6, (5, 11)).astype(float)
    A = w.array(a, layout=dm.Blocks((2, 2), owners=dm.cyclic(1, w.size)))
    B = w.array(b, layout=dm.Rows())
    C, c = A @ B, a @ b
    check(C, c)
    check(dm.matmul(A, B, layout=dm.Columns()), c)
    check(C.T @ A, c.T @ a)
    check(C @ B[0], c @ b[0])
    check(B[0] @ C.T, b[0] @ c.T)
    check(B[0] @ B[0], b[0] @ b[0])
    C += 1
    c = c + 1
    check(C, c)
    check(dm.relu(C).sum(axis=0), np.maximum(c, 0).sum(0))
    check(C.mean(), c.mean())
    check(C.var(axis=1), c.var(axis=1))
    check(C.std(axis=1, keepdims=True), c.std(axis=1, keepdims=True))
    check(C.max(axis=1), c.max(1))
    check((C > 0).any(axis=0), (c > 0).any(0))
    check((C > 0).all(), (c > 0).all())
    check(C - C.mean(axis=0), c - c.mean(0))
    check(C - C.mean(axis=1, keepdims=True), c - c.mean(1, keepdims=True))
    check(C[0][:, None] * C[:, 0], np.outer(c[0], c[:, 0]))
    check(dm.norm(C), np.linalg.norm(c))
    check(dm.norm(C * 1e200) / 1e200, np.linalg.norm(c))  # squares would overflow
    v = w.ones(11)
    check(dm.add_row_col_sum(v, C, alpha=2.0, beta=0.5), 2 * c.sum(0) + 0.5)


def views_and_writes(w: dm.Session, check: Check) -> None:
    c = np.random.default_rng(1).standard_normal((7, 11))
    C = w.array(c, layout=dm.Blocks((3, 2)))
    check(C[1:6:2, ::-1], c[1:6:2, ::-1])
    check(C[::-3], c[::-3])
    check(C[3], c[3])
    check(C[:, None, 2], c[:, None, 2])
    check(C[-1, -1], c[-1, -1])
    check(C[5:2], c[5:2])
    D = C[2:5]
    D *= 2
    c[2:5] *= 2
    check(C, c)
    C[1:3, 4] = 7
    c[1:3, 4] = 7
    C[0] = C[1]
    c[0] = c[1]
    C[0:3] = C[1:4]
    c[0:3] = c[1:4].copy()
    C.T[2] = np.arange(7.0)
    c.T[2] = np.arange(7.0)
    check(C, c)
    check(C.transpose(), c.T)
    check(dm.squeeze(dm.expand_dims(C, axis=1), 1), c)
    R = C.replica()
    check(R, c)
    C -= 3
    c -= 3
    check(R, c)
    C[:2].T[0] = 5.0  # through two views
    c[:2].T[0] = 5.0
    check(R + 0.0, c)
    check(C.to(dm.Replicated(), "float32"), c.astype("f4"))
    check(C.T.to(dm.Rows(), "float16"), c.T.astype("f2"))


def functions(w: dm.Session, check: Check) -> None:
    c = np.random.default_rng(2).standard_normal((5, 9))
    C = w.array(c, layout=dm.Columns())
    e = np.exp(c)
    check(dm.softmax(C), e / e.sum(-1, keepdims=True))
    check(dm.argmax(C, axis=0), c.argmax(0))
    check(dm.argmin(C, axis=1), c.argmin(1))
    check(dm.sort(C, axis=1), np.sort(c, 1))
    check(dm.cumulative_sum(C[0]), np.cumsum(c[0]))
    check(2 ** (C * 0.1), 2 ** (c * 0.1))
    check(dm.where(C > 0, C, 0.0), np.where(c > 0, c, 0))
    check(dm.clip(C, -0.5, 0.5), np.clip(c, -0.5, 0.5))
    check(np.exp(C), e)
    check(1 - C, 1 - c)
    check(dm.sigmoid(C), 1 / (1 + np.exp(-c)))
    check(dm.silu(C), c / (1 + np.exp(-c)))
    check(dm.softplus(C), np.log1p(e))
    check(dm.elu(C), np.where(c > 0, c, np.expm1(c)))
    check(dm.leaky_relu(C), np.where(c > 0, c, 0.01 * c))
    check(dm.tril(C, k=1), np.tril(c, 1))
    check(dm.triu(C, k=-1), np.triu(c, -1))
    check(w.arange(3, 20, 2), np.arange(3, 20, 2))
    check(w.eye(5, 7, k=1), np.eye(5, 7, k=1))
    check(w.array(c[:0]).sum(axis=0), np.zeros(9))
    check(w.array(c[:, :0]) @ w.array(c[:0]).to(dm.Rows()), np.zeros((5, 9)))
    check(w.array(np.arange(6)).sum(), np.arange(6).sum())
    check(w.array(np.arange(6)) / 4, np.arange(6) / 4)


def equations(w: dm.Session, check: Check) -> None:
    draw = np.random.default_rng(3)
    # More than two panels of 128, the last one narrow.
    n = 270
    m = draw.standard_normal((n, n))
    s = m @ m.T + n * np.eye(n)
    S, M = w.array(s, layout=dm.Rows()), w.array(m, layout=dm.Blocks((100, 64)))
    b = draw.standard_normal((n, 3))
    L = dm.cholesky(S)
    check(L, np.linalg.cholesky(s))
    x = np.linalg.solve(m, b)
    scale = np.abs(x).max()
    check(dm.solve(M, w.array(b)) / scale, x / scale)
    check(dm.solve(S, b[:, 0]) * n, np.linalg.solve(s, b[:, 0]) * n)


SCRIPTS = [products_and_sums, views_and_writes, functions]


@pytest.mark.parametrize("script", [*SCRIPTS, equations])
def test_in_this_process(script: Script) -> None:
    in_this_process(script)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("script", SCRIPTS)
def test_on_simulated_workers(script: Script, workers: int) -> None:
    gathered(script, workers)


def test_equations_on_simulated_workers() -> None:
    gathered(equations, 3)


def test_random_numbers_are_the_same_in_every_layout() -> None:
    expected: list[np.ndarray] = []

    def script(w: dm.Session, check: Check) -> None:
        made = []
        for layout in (dm.Rows(), dm.Columns(), dm.Blocks((3, 2)), dm.Replicated()):
            for dtype in ("float64", "float32"):
                made.append(w.random((7, 9, 2), seed=5, dtype=dtype, layout="auto"))
                made.append(w.random((7, 9), seed=5, dtype=dtype, layout=layout))
                made.append(w.normal((7, 9), seed=5, dtype=dtype, layout=layout))
        if not expected:
            expected.extend(np.asarray(one) for one in made)
        for one, value in zip(made, expected, strict=True):
            check(one, value)

    in_this_process(script)
    for number in range(len(expected)):  # all layouts alike
        assert (expected[number] == expected[number % 6]).all()
    flat = expected[1].ravel()
    assert len(set(flat.tolist())) == flat.size
    gathered(script, 4)
    assert abs(np.asarray(alone().normal((200, 100), seed=1)).std() - 1) < 0.02


def test_whole_sessions_have_the_same_bits_for_any_number_of_workers() -> None:
    """With deterministic="layout": products, sums, means."""

    def script(layout: Any) -> Script:
        def run(w: dm.Session, check: Check) -> None:
            X = w.random((130, 70), seed=1, dtype="float32", layout=layout)
            W = w.random((70, 33), seed=2, dtype="float32", layout=dm.Rows())
            Y = dm.sigmoid(X @ W)
            for one in (Y, Y.sum(axis=0), Y.sum(axis=1), Y.sum(), Y.mean(axis=0), X.T @ Y):
                check(one, found[len(checked)] if found else np.asarray(one))
                checked.append(one)

        return run

    checked: list[Any] = []
    found: list[np.ndarray] = []
    session = alone(deterministic="layout")
    values: list[np.ndarray] = []
    script(dm.Rows())(session, lambda one, value: values.append(value))
    found.extend(values)
    for workers, layout in ((2, dm.Rows()), (3, dm.Columns()), (4, dm.Blocks((50, 50)))):
        checked.clear()
        arrays, _ = gathered(script(layout), workers, deterministic="layout")
        for one, value in zip(arrays, found, strict=True):
            assert (one == value).all()


def test_sums_have_the_same_bits_in_any_layout() -> None:
    """A library's order of a sum depends on strides: one column was added otherwise than three."""
    x = np.random.default_rng(8).normal(size=(1037, 3))
    shares = np.exp(x) / np.exp(x).sum(axis=0)
    expected = {
        "sum": x.sum(0),
        "mean": x.mean(0),
        "var": x.var(0),
        "norm": (x * x).sum(0) ** 0.5,
        "softmax": shares,
        "log_softmax": np.log(shares),
        "norm of all": np.linalg.norm(x),
    }
    found: dict[str, set[bytes]] = {name: set() for name in expected}

    def script(w: dm.Session, check: Check) -> None:
        for layout in (dm.Rows(), dm.Columns(), dm.Blocks((100, 2))):
            turned = w.array(np.ascontiguousarray(x.T), layout=layout).T
            for a in (w.array(x, layout=layout), turned):
                for name, value in expected.items():
                    made = dm.norm(a) if name == "norm of all" else getattr(dm, name)(a, axis=0)
                    check(made, value)

    arrays: list[np.ndarray] = []
    script(alone(deterministic="layout"), lambda one, value: arrays.append(np.asarray(one)))
    for workers in (2, 3):
        arrays += gathered(script, workers, deterministic="layout")[0]
    for number, one in enumerate(arrays):
        found[list(expected)[number % len(expected)]].add(one.tobytes())
    assert {name: len(bits) for name, bits in found.items()} == dict.fromkeys(found, 1)


def test_backward_products_need_no_messages_when_blocks_were_kept() -> None:
    x = np.random.default_rng(4).integers(-4, 5, (12, 8)).astype(float)
    weights = np.random.default_rng(5).integers(-4, 5, (8, 6)).astype(float)

    def script(budget: int, write: bool) -> tuple[Script, Script]:
        def forward(w: dm.Session, check: Check) -> None:
            w.keep_blocks(budget)
            X, W = w.array(x, layout=dm.Rows()), w.array(weights, layout=dm.Rows())
            Y = dm.matmul(X, W, layout=dm.Rows(), keep=True)
            check(Y, x @ weights)
            alive.append((X, W, Y))

        def both(w: dm.Session, check: Check) -> None:
            forward(w, check)
            _, W, Y = alive[-1]
            scale = 1.0
            if write:
                W *= 2.0
                scale = 2.0
            check(dm.matmul(Y, W.T, layout=dm.Rows()), x @ weights @ weights.T * scale)

        return forward, both

    alive: list[Any] = []
    sent = {}
    for budget, write in ((1 << 20, False), (1 << 20, True), (64, False)):
        before = gathered(script(budget, write)[0], 4)[1].sent_bytes
        sent[budget, write] = gathered(script(budget, write)[1], 4)[1].sent_bytes - before
    assert sent[1 << 20, False] == 0
    assert sent[1 << 20, True] > 0  # never stale
    assert sent[64, False] > 0  # no room


def test_no_elements_pass_the_client_in_operations() -> None:
    w = alone()
    A = w.random((64, 64), seed=1)
    B = dm.relu(A @ A - 0.5).sum(axis=0)
    w.wait()
    assert w.counters()["client_bytes"] == 0
    np.asarray(B)
    assert w.counters()["client_bytes"] == 64 * 8
    w.array(np.zeros(3))
    assert w.counters()["client_bytes"] == 64 * 8 + 3 * 8


def test_memory_of_arrays_that_nobody_holds_is_free() -> None:
    w = alone()
    A = w.zeros((100, 100))
    for _ in range(5):
        A = A + 1
    w.wait()
    assert w.counters()["array_bytes"] == 80_000
    del A
    assert w.counters()["array_bytes"] == 0


def test_the_bill_names_lines_and_adds_up() -> None:
    w = alone()
    A = w.random((32, 32), seed=1)
    (A @ A).wait()
    text = w.bill()
    assert "test_client.py:" in text
    assert text.splitlines()[-1].endswith("in all")


def test_the_bill_has_what_was_foretold_of_products() -> None:
    w = alone()
    w.set_rates(dm.Rates(flops=1e9, flops_alone=1e9))
    A = w.random((64, 48), seed=1)
    A @ A.T
    A + 1.0
    lines = w.bill().splitlines()
    assert lines[0].split() == [*"bytes messages seconds foretold operations line".split()]
    product = next(line for line in lines if line.count(".") > 1 and len(line.split()) == 6)
    assert float(product.split()[3]) == pytest.approx(2 * 64 * 64 * 48 / 1e9, rel=0.3)


def test_explain_foretells_and_runs_nothing() -> None:
    w = alone()
    w.set_rates(dm.Rates())
    A = w.random((64, 48), seed=1)
    before = w.counters()["operations"]
    text = w.explain(lambda: dm.relu(A @ A.T + 1.0)[2:].sum(axis=0).to(dm.Rows()) * 2.0)
    assert "matmul: 64 x 48 by 48 x 64" in text
    assert "->" in text
    assert [line.split(":")[0] for line in text.splitlines() if ": " in line] == [
        *("transpose", "matmul", "add", "relu", "view", "sum", "remap", "multiply")
    ]
    assert w.counters()["operations"] == before
    with refused(ArgumentError, "values are asked for inside it"):
        w.explain(lambda: float((A @ A.T).sum()))
    assert np.asarray(A @ A.T).shape == (64, 64)  # and goes on


def test_one_interface_on_every_place() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for place in (dm.local, alone()):
        A = place.array(x)
        same(np.asarray(place.exp(A @ A.T)), np.exp(x @ x.T))
        same(np.asarray(dm.exp(A)), np.exp(x))
        assert {"array", "random", "matmul", "exp", "cholesky"} <= set(dir(place))
    with refused(MagmaDNNError, "session"):
        dm.local.expp(A)
    if not device_count():
        with refused(DeviceError, "device 0 cannot be used"):
            dm.cuda.ones(3)
    with refused(ArgumentError, 'expected "cpu" or "cuda"'):
        alone(device="tpu")


@pytest.mark.gpu
@pytest.mark.skipif(not device_count(), reason="no GPU")
@pytest.mark.parametrize("script", [*SCRIPTS, equations])
def test_on_a_gpu(script: Script) -> None:
    def check(found: Any, expected: Any) -> None:
        same(np.asarray(found), np.asarray(expected))

    script(dm.cuda, check)


def refused(error: type[MagmaDNNError], words: str) -> Any:
    return pytest.raises(error, match=words)


def test_mistakes_are_named_at_once() -> None:
    w = alone()
    A = w.ones((4, 3))
    with refused(ShapeError, r"matmul: axis k is 3 in a \(4, 3\) but 4 in b \(4, 3\)"):
        A @ A
    with refused(ShapeError, r"add: shapes \(4, 3\) and \(4,\) do not broadcast"):
        A + w.ones(4)
    with refused(ShapeError, "multiply numbers with"):
        A @ 2
    with refused(DTypeError, "bitwise_and: takes no operands of float64"):
        A & A
    with refused(DTypeError, "a result of float64 does not go into int64"):
        counts = w.array(np.arange(3))
        counts += 0.5
    with refused(ShapeError, r"in place, a result of shape \(4, 3\) does not fit \(3,\)"):
        v = w.ones(3)
        v += A
    with refused(IndexOutOfRangeError, "index 4 is beyond axis 0 of size 4"):
        A[4]
    with refused(ArgumentError, "an index is a number, a slice"):
        A[[0, 1]]
    with refused(IndexOutOfRangeError, "sum: axis 2 is not there"):
        A.sum(axis=2)
    with refused(ShapeError, "cholesky: needs a square matrix"):
        dm.cholesky(A)
    with refused(ShapeError, "max: an axis of size 0 has no max"):
        w.ones((0, 3)).max(axis=0)
    with refused(DTypeError, "random: numbers are floating-point"):
        w.random(3, dtype="int32")
    with refused(ArgumentError, "another set of workers"):
        A + alone().ones((4, 3))
    with refused(ArgumentError, "np.concatenate: gathers nothing by itself"):
        np.concatenate([A, A])
    with refused(ArgumentError, 'expected "layout" or None'):
        alone(deterministic="yes")
    with refused(DTypeError, "expected an array of these workers or a number, got 'text'"):
        A + "text"


def test_errors_come_with_the_line_that_caused_them() -> None:
    w = alone()
    bad = dm.cholesky(w.array([[1.0, 2.0], [2.0, 1.0]]))  # the line to be named
    worse = bad + 1
    with refused(
        NumericError, r"the leading minor of order 2 is not positive.*test_client.py:\d+\)"
    ):
        np.asarray(worse)
    with refused(NumericError, "solve: the matrix is singular: no pivot in column 1"):
        dm.solve(w.ones((2, 2)), w.ones(2)).wait()
    assert float(w.ones(3).sum()) == 3  # and the workers go on


def test_a_worker_without_memory_is_named() -> None:
    w = alone()
    with refused(
        OutOfMemoryError,
        r"full: worker 0 has no memory for its 8388608.00 GiB .*line .*test_client",
    ):
        w.zeros((2**25, 2**25)).wait()
    engine = Recording(3)
    session = dm.Session(engine)
    settings = {"value": 0, "dtype": "float64"}
    layout = dm.Rows(sizes=(0, 0, 2**25))
    session._new("full", [], (2**25, 2**25), np.dtype(float), layout, **settings)

    def one(comm: Communicator) -> Any:
        return Worker(Team(comm)).run(engine.records[0][0])[0]["error"]

    told = simulate(3, one)
    assert told[0] == told[1] == told[2]
    assert "worker 2 has no memory" in told[0]["text"]


def test_closed_workers_refuse() -> None:
    w = alone()
    A = w.ones(3)
    w.close()
    with refused(ArgumentError, "workers: they are closed"):
        A + 1
    with refused(ArgumentError, "workers: they are closed"):
        np.asarray(A)
