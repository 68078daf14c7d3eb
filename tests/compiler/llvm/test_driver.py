"""The driver: equal bits for any number of threads, more threads than cores, stopping, gathering."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import weakref

import numpy as np
import pytest

from magmadnn.compiler.kernels.data_rows import Gather
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import pointwise
from magmadnn.compiler.llvm.driver import driver as driver_module
from magmadnn.compiler.llvm.driver.code import driver_text
from magmadnn.compiler.llvm.driver.driver import Driver, Task, prepare, teams
from magmadnn.compiler.llvm.gemm.gemm import gemm_scratch_bytes
from magmadnn.compiler.llvm.ir.target import assembly, can_use_futex, host, named
from magmadnn.compiler.llvm.kernel import block, load
from magmadnn.errors import ArgumentError
from tests.compiler.llvm.llvm_calls import call

# 0.99 w - 0.1 product, written over w
NEW = (
    "subtract",
    ("multiply", ("argument", 0), ("constant", 0.99)),
    ("multiply", ("product",), ("constant", 0.1)),
)
DECAYED = Finish((Operand("w", "float32"),), (Result("w", "float32", NEW),), ("product",))


def dot_chain(threads: int, batches: int, **options) -> np.ndarray:
    """A small net's worth of phases: gather, product, activation, update; returns the weights."""
    rng = np.random.default_rng(1)
    data = rng.standard_normal((60, 23)).astype("f4")
    order = rng.permutation(60).astype("i8")
    x, y = np.empty((20, 23), "f4"), np.empty((20, 37), "f4")
    w = (rng.standard_normal((23, 37)) / 5).astype("f4")
    room = np.empty_like(w)
    fetch, forward = Gather("float32", "float32"), Gemm("float32")
    tanh = pointwise((Operand("y", "float32"),), Result("y", "float32", ("tanh", ("argument", 0))))
    update = Gemm("float32", transpose_a=True, epilogue=DECAYED, unread=True)
    kernels = [fetch, forward, tanh, update]
    loaded = dict(zip(kernels, load(kernels), strict=True))

    def task(kernel, **slots):
        return Task(loaded[kernel], block(kernel, **slots))

    def tiles(rows, columns):
        for i, j in itertools.product(itertools.pairwise(rows), itertools.pairwise(columns)):
            yield {"row0": i[0], "row1": i[1], "column0": j[0], "column1": j[1]}

    phases = [
        [
            task(
                fetch, row0=i, row1=i + 5, columns=23, batch_rows=20, source=data, source_row=23,
                order=order, result=x, result_row=23,
            )
            for i in range(0, 20, 5)
        ],
        [
            task(forward, **tile, k=23, a=x, lda=23, b=w, ldb=37, c=y, ldc=37)
            for tile in tiles((0, 7, 20), (0, 16, 37))
        ],
        [task(tanh, **tile, y=y, y_row=37) for tile in tiles((0, 10, 20), (0, 37))],
        [
            task(
                update, **tile, k=20, a=x, lda=23, b=y, ldb=37, c=room, ldc=37, w=w, w_row=37
            )
            for tile in tiles((0, 12, 23), (0, 16, 37))
        ],
    ]  # fmt: skip
    size = max(gemm_scratch_bytes(kernel, host()) for kernel in (forward, update))
    with Driver(phases, threads, size, **options) as driver:
        for first in range(batches):
            driver.run(first % 3, 1)
        driver.run(0, 3)
    return w


def test_equal_bits_for_any_number_of_threads():
    alone = dot_chain(1, 30)
    assert np.isfinite(alone).all()
    for threads in (2, 3, 5):  # the last more than many machines have cores
        np.testing.assert_array_equal(dot_chain(threads, 30), alone)


def test_naps_instead_of_futex():
    np.testing.assert_array_equal(dot_chain(2, 5, futex=False), dot_chain(1, 5))


def counting(threads: int, tasks: int, timed: bool = False):
    """A driver whose tasks each add 1 to a number of their own, in two phases."""
    add = pointwise(
        (Operand("x", "int64"),), Result("x", "int64", ("add", ("argument", 0), ("constant", 1)))
    )
    numbers = np.zeros((tasks, 8), "i8")
    here = {"row0": 0, "row1": 1, "column0": 0, "column1": 8, "x_row": 8}
    phase = [Task(load([add])[0], block(add, **here, x=row)) for row in numbers]
    return Driver([phase, phase[: tasks // 2]], threads, timed=timed), numbers


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_task_runs_once_per_batch(threads):
    driver, numbers = counting(threads, 7)
    with driver:
        for first, batches in ((0, 5), (5, 0), (5, 1000)):
            driver.run(first, batches)
    expected = np.where(np.arange(7) < 3, 2, 1) * 1005
    np.testing.assert_array_equal(numbers, np.repeat(expected[:, None], 8, axis=1))


def test_empty_slices_do_not_confuse_the_workers():
    driver, numbers = counting(3, 4)
    with driver:
        for _ in range(200):
            driver.run(0, 0)
            driver.run(0, 1)
    assert (numbers[-1] == 200).all()
    with Driver([[]], 2) as driver:
        driver.run(0, 7)


def test_many_short_slices():
    """Workers come late to most of them, and mistake none for another."""
    driver, numbers = counting(3, 5)
    with driver:
        for batches in range(1, 4):
            for _ in range(3000):
                driver.run(0, batches)
    expected = np.where(np.arange(5) < 2, 2, 1) * 18_000
    np.testing.assert_array_equal(numbers[:, 0], expected)


def test_programs_of_different_lengths_take_turns():
    """Workers that come late to one program meet the next; what it was made of may be gone by then."""
    total = np.zeros(3, int)
    for _ in range(150):
        for k, tasks in enumerate((2, 9, 5)):
            driver, numbers = counting(3, tasks)
            for batches in (1, 3, 1):
                driver.run(0, batches)
            total[k] += numbers[-1, 0]
            del driver
    np.testing.assert_array_equal(total, 150 * 5)


def test_a_slice_does_not_wait_for_workers_that_do_not_come(monkeypatch):
    class Asleep:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            pass

        def join(self) -> None:
            pass

    monkeypatch.setattr(threading, "Thread", Asleep)
    driver, numbers = counting(3, 4)
    with driver:
        for _ in range(10):
            driver.run(0, 10)
    assert (numbers[-1] == 100).all()


def test_ticks():
    driver, _ = counting(2, 4, timed=True)
    with driver:
        driver.run(0, 50)
        ticks = driver.ticks()
    assert ticks.shape == (6, 2)
    assert (ticks[:, 1] == 50).all()
    assert (ticks[:, 0] > 0).all()


def test_waiting_workers_do_not_use_a_core():
    driver, _ = counting(3, 2)
    with driver:
        driver.run(0, 1)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.05


def test_more_threads_than_cores_beside_a_busy_one():
    """Crowded threads still get through: a phase costs no more than some turns of the scheduler."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            pass

    busy = threading.Thread(target=work)
    busy.start()
    try:
        driver, numbers = counting(2 * (os.cpu_count() or 1), 8)
        with driver:
            driver.run(0, 50)
    finally:
        done.set()
        busy.join()
    assert (numbers[-1] == 50).all()


def test_threads_end_with_the_driver():
    def workers():
        return sum(thread.name.endswith("(_work)") for thread in threading.enumerate())

    before = workers()
    driver, _ = counting(3, 2)
    assert workers() == before + 2
    gone = weakref.ref(driver)
    del driver
    gc.collect()
    assert gone() is None
    assert workers() == before


def test_programs_share_their_threads():
    before = set(threading.enumerate())
    first, one = counting(3, 4)
    second, two = counting(3, 5)
    with first, second:
        for _ in range(20):
            first.run(0, 1)
            second.run(0, 2)
        assert len(set(threading.enumerate()) - before) == 2
    assert (one[-1] == 20).all() and (two[-1] == 40).all()
    del first, second
    gc.collect()
    assert set(threading.enumerate()) <= before
    closed, _ = counting(1, 1)
    closed.close()
    with pytest.raises(ArgumentError, match="closed"):
        closed.run(0, 1)


def test_programs_that_run_at_the_same_time_have_teams_of_their_own():
    drivers = [counting(2, 6) for _ in range(4)]
    begin = threading.Barrier(len(drivers))

    def work(driver: Driver) -> None:
        begin.wait()
        for _ in range(50):
            driver.run(0, 20)

    callers = [threading.Thread(target=work, args=(driver,)) for driver, _ in drivers]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for driver, numbers in drivers:
        assert (numbers[-1] == 1000).all()
        driver.close()


def test_a_program_that_needs_more_scratch_memory_gets_a_team_with_more():
    shared = teams(2, False, False, None)
    small = shared.take(100)
    shared.give(small)
    assert shared.take(100) is small
    shared.give(small)
    large = shared.take(small.room + 1)
    assert large is not small and large.room > small.room
    shared.give(large)
    assert shared.take(100) is large


def test_threads_must_be_positive():
    with pytest.raises(ArgumentError, match="threads must be at least 1, got 0"):
        Driver([], 0)


@pytest.mark.parametrize(("cpu", "futex"), [("neoverse-v2", True), ("apple-m1", False)])
def test_other_machines(cpu, futex):
    """The driver compiles for machines without x86's instructions or Linux's futex."""
    listing = assembly(driver_text(named(cpu), futex, True), named(cpu))
    assert "run_slice" in listing
    assert "yield" in listing or "hint" in listing


@pytest.mark.parametrize(
    ("source", "goal", "columns"),
    [
        ("float32", "float32", 37),
        ("uint8", "float32", 50),
        ("int64", "int64", 1),
        ("bool", "bool", 9),
    ],
)
def test_gather(source, goal, columns):
    rng = np.random.default_rng(2)
    data = rng.integers(0, 2 if source == "bool" else 200, (31, columns)).astype(source)
    order = rng.permutation(31).astype("i8")
    for batch in range(3):
        result = np.zeros((10, columns), goal)
        call(
            Gather(source, goal),
            host(),
            batch=batch,
            row0=2,
            row1=10,
            columns=columns,
            batch_rows=10,
            source=data,
            source_row=columns,
            order=order,
            result=result,
            result_row=columns,
        )
        np.testing.assert_array_equal(result[2:], data[order[10 * batch :][2:10]].astype(goal))
        assert not result[:2].any()


def test_native_code_is_made_once_where_it_was_prepared(monkeypatch):
    """Who needs it while a thread makes it waits for that thread."""
    made = []

    def slow(*arguments):
        made.append(arguments)
        time.sleep(0.05)
        return compiled(*arguments)

    compiled = driver_module.object_code
    monkeypatch.setattr(driver_module, "_libraries", {})
    monkeypatch.setattr(driver_module, "object_code", slow)
    futex = can_use_futex(host())
    prepare(None)
    held = teams(17, False, futex, None)
    prepare(None)
    assert len(made) == 1
    held.give(held.take(0))
