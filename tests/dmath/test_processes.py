"""Arrays on real workers: processes joined by MPI, driven from this one."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import dmath as dm
from magmadnn.backends.cuda import device_count
from magmadnn.comm import Communicator, simulate
from magmadnn.dmath import devices
from magmadnn.dmath.arrays.team import Team
from magmadnn.errors import ArgumentError, CommunicationError, DeviceError, NumericError
from tests.dmath import asked  # noqa: F401 - workers import it from here
from tests.dmath.test_client import SCRIPTS, equations, same

pytestmark = pytest.mark.timeout(120)


def check(found: Any, expected: Any) -> None:
    same(np.asarray(found), np.asarray(expected))


@pytest.fixture(scope="module")
def three() -> Any:
    with md.workers(3) as w:
        yield w


def test_the_issues_example(three: Any) -> None:
    w = three
    a = np.random.default_rng(0).standard_normal((300, 200))
    A = w.array(a, layout=dm.Blocks((64, 64), owners=dm.cyclic(1, 3)))
    B = w.random((200, 257), seed=1, layout=dm.Rows())
    before = w.counters()["client_bytes"]
    C = A @ B
    C += 1
    D = dm.relu(C).sum(axis=0)
    w.wait()
    assert w.counters()["client_bytes"] == before
    b = np.asarray(B)
    np.testing.assert_allclose(np.asarray(D), np.maximum(a @ b + 1, 0).sum(0), rtol=1e-11)
    assert dm.matmul(A, B, layout=dm.Columns()).layout.cuts[1] == (0, 86, 172, 257)
    counted = w.counters()
    assert 0 < counted["sent_bytes"] <= 1.05 * counted["planned_bytes"]
    assert "test_processes.py" in w.bill()
    assert "->" in w.explain(lambda: A @ B)


@pytest.mark.long
def test_the_issues_example_as_it_stands() -> None:
    a = np.random.default_rng(0).random((520, 8192), dtype=np.float32)
    with md.workers(4) as w:
        A = w.array(a, layout=md.dmath.Blocks((512, 512), owners=md.dmath.cyclic(2, 2)))
        B = w.random((8192, 8192), seed=1, dtype="float32", layout=md.dmath.Rows())
        C = A @ B
        C += 1
        D = md.dmath.relu(C).sum(axis=0)
        found = np.asarray(D)
        D2 = md.dmath.matmul(A, B, layout=md.dmath.Rows())
        assert "->" in w.explain(lambda: A @ B)
        assert "test_processes.py" in w.bill()
        assert w.counters()["client_bytes"] == a.nbytes + found.nbytes
        b = np.asarray(B[:, :64])
        wanted = a.astype(np.float64) @ b
        # Sums of k = 8192 positive terms, in any order, are off by k u at most, of 520 by 520 u more.
        bound = 8192 * 2.0**-24
        np.testing.assert_allclose(np.asarray(D2[:, :64]), wanted, rtol=bound)
        np.testing.assert_allclose(found[:64], (wanted + 1).sum(0), rtol=2 * bound)
        assert [cut[-1] for cut in D2.layout.cuts] == [520, 8192] and len(D2.layout.active) == 4


@pytest.mark.parametrize("script", [*SCRIPTS, equations])
def test_on_three_processes(three: Any, script: Any) -> None:
    script(three, check)


def test_operations_do_not_wait_and_keep_their_order(three: Any) -> None:
    x = three.zeros(7)
    for _ in range(1000):
        x = x + 1
    assert np.asarray(x).tolist() == [1000.0] * 7


@pytest.mark.skipif(sys.platform != "linux", reason="says how the C library of Linux keeps memory")
def test_workers_keep_memory_of_arrays_that_are_gone(three: Any) -> None:
    """8 MB a worker: 40 sums would take 82,000 pages a worker from the system, if each had new ones."""
    x = three.ones((3 << 20,))

    def sums() -> None:
        held = [x + i for i in range(4)]
        three.wait()
        held.clear()
        three.wait()

    sums()
    before = three.counters()["page_faults"]
    for _ in range(10):
        sums()
    pages = 3 * 40 * (8 << 20) // resource.getpagesize()
    assert three.counters()["page_faults"] - before < pages / 10


def test_sessions_of_the_same_workers_do_not_meet(three: Any) -> None:
    fixed = dm.distributed(three, deterministic="layout")
    A, B = three.ones((40, 40)), fixed.full((40, 40), 2.0)
    assert float((A @ A).sum()) == 40**3
    assert float((B @ B).sum()) == 4 * 40**3
    with pytest.raises(ArgumentError, match="another set of workers"):
        A + B
    number = fixed._engine._number
    assert all(a.value > 0 for a in three.call("test.arrays", number))
    fixed.close()
    assert all(a.value == 0 for a in three.call("test.arrays", number))
    assert float(A.sum()) == 1600


@pytest.mark.skipif(device_count() >= 3, reason="there are enough GPUs")
def test_workers_without_a_gpu_each_are_refused(three: Any) -> None:
    with pytest.raises(DeviceError, match=r"device 0 cannot be used|3 workers need a GPU each"):
        dm.distributed(three, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("script", [*SCRIPTS, equations])
def test_on_two_gpus(script: Any) -> None:
    with md.workers(2) as w:
        script(dm.distributed(w, device="cuda"), check)


def test_more_workers_than_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_memory", lambda number: None)
    monkeypatch.setattr(devices, "array_library", lambda: np)
    monkeypatch.setattr(devices, "device_count", lambda: 2)

    def one(comm: Communicator) -> str:
        with pytest.raises(DeviceError) as caught:
            devices.on_devices(Team(comm))
        return str(caught.value)

    text = "cuda: 3 workers need a GPU each, this machine has 2: start md.workers(2)"
    assert simulate(3, one) == [text] * 3


def test_an_operation_that_fails_leaves_the_workers_alive(three: Any) -> None:
    bad = dm.cholesky(-three.eye(5))
    with pytest.raises(NumericError, match=r"leading minor of order 1 .*test_processes.py:\d+"):
        np.asarray(bad + 1)
    assert float(three.ones(5).sum()) == 5


def test_a_worker_that_dies_is_named_and_others_start_again() -> None:
    with md.workers(2) as w:
        A = w.ones((300, 300), layout=dm.Rows())
        pids = [answer.value for answer in w.call("test.pid")]
        A = A @ A.T
        os.kill(pids[1], signal.SIGKILL)
        start = time.monotonic()
        time.sleep(0.1)  # a thread of the client has handed the record over by then
        with pytest.raises(CommunicationError, match=r"worker 1 .*run at test_processes.py:\d+"):
            for _ in range(100):
                A = A @ A.T
                w.wait()
        assert time.monotonic() - start < 5  # a second where nothing else runs
        w.restart()
        with pytest.raises(ArgumentError, match="they are closed"):
            np.asarray(A)
        assert float(w.ones((3, 3)).sum()) == 9


def test_closed_workers_refuse_arrays() -> None:
    with md.workers(0) as w:
        A = w.ones(3)
        assert float(A.sum()) == 3
    with pytest.raises(ArgumentError, match="workers: they are closed"):
        A + 1
    with pytest.raises(CommunicationError, match="they are closed"):
        w.ones(3).wait()


def test_what_workers_cannot_do_is_said() -> None:
    with md.workers(0) as w, pytest.raises(AttributeError, match=r"no attribute 'aray'"):
        w.aray([1.0])


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 5, 8])
def test_on_other_numbers_of_processes(count: int) -> None:
    with md.workers(count) as w:
        for script in (*SCRIPTS, equations):
            script(w, check)
