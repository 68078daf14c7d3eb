"""Calls for GPU memory and bytes between host and GPU, as `counters()` gives them, on a stand-in for CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import dmath as dm
from magmadnn.dmath.arrays.team import Team
from magmadnn.errors import NumericError
from tests.dmath import gpu
from tests.dmath.test_client import Check, alone, gathered

DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    return gpu.on_stand_ins(monkeypatch)


def products_and_sums(w: dm.Session, check: Check) -> None:
    a, b = DRAW.standard_normal((40, 24)), DRAW.standard_normal((24, 56))
    A, B = w.array(a, layout=dm.Rows()), w.array(b, layout=dm.Columns())
    C, c = A @ B, a @ b
    check(C, c)
    C += 1
    check(dm.relu(C).sum(axis=0), np.maximum(c + 1, 0).sum(0))
    check(C.T[3:7, ::-1], (c + 1).T[3:7, ::-1])
    check(dm.reshape(C, (56, 40)), (c + 1).reshape(56, 40))


def places(w: dm.Session, check: Check) -> None:
    x, where = DRAW.standard_normal((9, 6)), DRAW.integers(0, 6, 7)
    X = w.array(x, layout=dm.Rows())
    check(dm.take(X, where, axis=1), x.take(where, axis=1))
    order = np.argsort(x, axis=1)
    check(dm.take_along_axis(X, w.array(order), axis=1), np.sort(x, axis=1))
    check(dm.real(dm.fft.ifft(dm.fft.fft(X))), x)


def factors(w: dm.Session, check: Check) -> None:
    a = DRAW.standard_normal((150, 150))
    right, spd = DRAW.standard_normal((150, 3)), a @ a.T + 150 * np.eye(150)
    A, S = w.array(a), w.array(spd)
    check(dm.solve(A, w.array(right)), np.linalg.solve(a, right))
    check(dm.cholesky(S), np.linalg.cholesky(spd))
    check(dm.slogdet(A)[1], np.linalg.slogdet(a)[1])


def random_numbers(w: dm.Session, check: Check) -> None:
    X = w.random((70, 30), seed=5, layout=dm.Rows())
    check(X, np.asarray(alone().random((70, 30), seed=5)))
    check(w.eye(7, k=1) + w.arange(7), np.eye(7, k=1) + np.arange(7))


SCRIPTS = [products_and_sums, places, factors, random_numbers]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_copy_between_host_and_gpu_is_counted(script: Any, workers: int) -> None:
    """The stand-in counts too, and refuses copies that CuPy makes without being asked."""
    arrays, total = gathered(script, workers, device="cuda")
    assert total.host_to_device_bytes == gpu.POOL.to_device > 0
    assert total.device_to_host_bytes == gpu.POOL.to_host >= sum(array.nbytes for array in arrays)


def test_operations_copy_nothing_between_host_and_gpu() -> None:
    w = alone(device="cuda")
    x = DRAW.standard_normal((64, 32))
    A = w.array(x, layout=dm.Rows())
    w.set_rates(dm.Rates())
    before = w.counters()
    assert before["host_to_device_bytes"] == x.nbytes
    B = dm.relu(A @ A.T - A.mean()) * 0.5
    v = dm.add_row_col_sum(w.zeros(64), B, axis=1)
    dm.add_row_col_sum(v, B, axis=1, deterministic=False)
    assert w.counters() | {"array_bytes": 0, "page_faults": 0, "operations": 0} == before | {
        "array_bytes": 0,
        "page_faults": 0,
        "operations": 0,
        "device_allocations": w.counters()["device_allocations"],
    }
    found = np.asarray(v)
    assert w.counters()["device_to_host_bytes"] - before["device_to_host_bytes"] == found.nbytes
    np.testing.assert_allclose(found, np.maximum(x @ x.T - x.mean(), 0).sum(1))


def test_the_pool_asks_for_no_memory_after_the_first_steps() -> None:
    w = alone(device="cuda")
    w.set_rates(dm.Rates())
    A = w.random((200, 100), seed=1)

    def step() -> None:
        B = dm.relu(A @ A.T)
        B += 1
        dm.add_row_col_sum(w.zeros(200), B)

    step()
    step()
    warm = w.counters()["device_allocations"]
    assert warm == gpu.POOL.asked >= 5
    for _ in range(10):
        step()
    assert w.counters()["device_allocations"] == warm
    held = [A + i for i in range(20)]  # beyond what was there before
    assert warm + len(held) - 5 <= w.counters()["device_allocations"] <= warm + len(held)


def test_memory_that_the_driver_has_not_is_no_allocation(stand_in: Any) -> None:
    w = alone(device="cuda")
    team: Team = w._engine.worker.team
    with team.at("here"):
        for pointer in (0, 8):
            team.watched.alloc_postprocess(device_id=0, mem_size=512, mem_ptr=pointer)
    assert team.lines["here"].device_allocations == 1


def test_a_matrix_that_is_not_positive_definite_on_a_gpu() -> None:
    w = alone(device="cuda")
    spd = np.eye(6)
    spd[3, 3] = -1
    with pytest.raises(NumericError, match="order 4 is not positive"):
        np.asarray(dm.cholesky(w.array(spd)))


def test_on_the_cpu_nothing_is_counted() -> None:
    w = alone()
    np.asarray(w.array(DRAW.standard_normal((50, 50))) + 1)
    counted = w.counters()
    names = ("device_allocations", "host_to_device_bytes", "device_to_host_bytes")
    assert [counted[name] for name in names] == [0, 0, 0]
