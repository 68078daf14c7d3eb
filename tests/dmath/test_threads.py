"""A session used by several threads, what it tells workers about layouts, and records after a failed one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import magmadnn as md
from magmadnn import dmath as dm
from magmadnn.dmath.client import session as sessions
from magmadnn.dmath.functions import elementwise
from magmadnn.errors import CommunicationError, OutOfMemoryError
from tests.dmath.test_client import alone


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_several_threads_use_new_workers() -> None:
    """A layout was told after a record of another thread that named it; two threads made a session each."""
    w, problems = md.workers(0), list[object]()

    def body(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for turn in range(16):
                shape = tuple(int(n) for n in rng.integers(1, 50, 2))
                A = w.full(shape, turn, layout=dm.Blocks(tuple(rng.integers(1, 9, 2).tolist())))
                A = A + w.ones(shape, layout=dm.Rows(block=1 + turn % 7))
                if turn % 5 == 0:
                    np.testing.assert_array_equal(np.asarray(A), np.full(shape, turn + 1.0))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert w.counters()["array_bytes"] == 0


def test_explain_in_one_thread_leaves_others_alone() -> None:
    w, inside, done = alone(), threading.Event(), threading.Event()
    A, found = w.ones((3, 3)), list[float]()

    def other() -> None:
        inside.wait(10)
        found.append(float((A + 1).sum()))
        done.set()

    def explained() -> None:
        inside.set()
        assert done.wait(10)
        _ = A @ A

    thread = threading.Thread(target=other)
    thread.start()
    assert "matmul: 3 x 3 by 3 x 3" in w.explain(explained)
    thread.join()
    assert found == [18.0]


def test_workers_forget_layouts_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MOST_LAYOUTS", 3)
    w = alone()
    often = dm.Rows(block=2)
    for size in range(1, 12):
        A = w.ones((size, 2), layout=dm.Rows(block=3)) + w.ones((size, 2), layout=often)
        np.testing.assert_array_equal(np.asarray(A.to(often)), np.full((size, 2), 2.0))
        w.ones((7, 2), layout=often).wait()  # used last: it stays
    assert len(w._engine.worker.layouts) <= 3  # type: ignore[union-attr]  # in this process


def test_an_array_that_is_sent_as_an_earlier_error_is_told_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its layout was, so that each later use of the layout ended the workers."""
    w, x = md.workers(0), np.arange(6.0).reshape(3, 2)
    A = w.zeros((2, 2))
    (A + 1).wait()  # the client knows its dtype then

    def breaks(*_: object) -> None:
        np.linalg.cholesky(np.array([[-1.0]]))  # the error comes from a frame of NumPy's

    with monkeypatch.context() as patch:
        patch.setattr(elementwise, "function_of", lambda name, xp: breaks)
        _ = A + 1
    line = r"worker 0 of 1, at test_threads.py:\d+: Matrix is not positive definite"
    with pytest.raises(CommunicationError, match=line):
        for rows in range(1, 80):
            w.array(np.ones((rows, 2)), layout=dm.Rows(block=rows))
    for number in range(1, rows + 1):
        made = w.array(x[:1].repeat(number, 0), layout=dm.Rows(block=number))
        np.testing.assert_array_equal(np.asarray(made), x[:1].repeat(number, 0))


def test_a_worker_without_memory_for_a_result_says_so() -> None:
    w = md.workers(0)
    made = w.zeros((1 << 23, 1)) + w.zeros((1, 1 << 23))  # more than there are addresses for
    for _ in range(2):
        with pytest.raises(
            OutOfMemoryError, match=r"add: Unable to allocate .*: spread it over more"
        ):
            made.wait()
    assert float(w.ones(3).sum()) == 3


def test_closed_workers_refuse_new_arrays_at_once() -> None:
    with md.workers(0) as w:
        w.ones(3).wait()
    with pytest.raises(CommunicationError, match="they are closed"):
        w.ones(3)
