"""Programs beside each other: batches numbered on, one thread for each, done while the caller is away."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn.compiler.kernels.data_rows import Gather, Keep
from magmadnn.compiler.llvm.driver.driver import Task, Team, Teams
from magmadnn.compiler.llvm.driver.rounds import Nested, Round
from magmadnn.compiler.llvm.kernel import block, load

Numbers = NDArray[np.float64]
GATHER, KEEP = Gather("float64", "float64"), Keep("float64")


def copying(source: Numbers, result: Numbers, rows: int) -> tuple[Nested, list[object]]:
    """Batch n copies row `rows` - 1 - n of the source, by way of a room, to row n of the result."""
    order, columns = np.arange(rows)[::-1].copy(), source.shape[1]
    room = np.zeros(columns)
    gather, keep = load([GATHER, KEEP])
    tasks = [
        Task(
            gather,
            block(
                GATHER, row0=0, row1=1, columns=columns, batch_rows=1, source=source,
                source_row=columns, order=order, result=room, result_row=columns,
            ),
        ),
        Task(keep, block(KEEP, column0=0, column1=columns, step=columns, source=room, result=result)),
    ]  # fmt: skip
    return Nested(tasks), [order, room, source, result]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_program_runs_all_its_batches_in_order(threads: int) -> None:
    draw = np.random.default_rng(2)
    counts = [1, 7, 30, 2, 11, 64, 3]
    sources = [draw.normal(size=(3 * n, 5 + n)) for n in counts]
    results = [np.zeros_like(s) for s in sources]
    programs, held = [], []
    for source, result, count in zip(sources, results, counts, strict=True):
        inner, kept = copying(source, result, 3 * count)
        inner.batches = count
        outer = Nested([inner.task])
        outer.batches = 3  # batches of the inner one go on counting
        programs.append(outer)
        held.append((inner, kept))
    turns = Round(threads, len(programs))
    for size in (len(programs), 2, 3):
        for result in results:
            result[:] = 0
        turns.start(programs[:size], 0)
        ticks = turns.finish()
        for source, result in zip(sources[:size], results[:size], strict=True):
            np.testing.assert_array_equal(result, source[::-1])
        assert not any(result.any() for result in results[size:])
        assert ticks.shape == (size,)
        assert (ticks > 0).all()


def test_other_threads_do_it_while_the_caller_is_away() -> None:
    source = np.random.default_rng(3).normal(size=(50, 4))
    result = np.zeros_like(source)
    program, held = copying(source, result, 50)
    program.batches = 50
    turns = Round(2, 1)
    assert not turns.is_done
    turns.start([program], 0)
    ends = time.monotonic() + 30
    while not turns.is_done and time.monotonic() < ends:
        time.sleep(0.001)
    assert turns.is_done
    np.testing.assert_array_equal(result, source[::-1])
    turns.finish()
    assert held


def test_one_thread_does_nothing_before_finish() -> None:
    source = np.ones((4, 2))
    result = np.zeros_like(source)
    program, _held = copying(source, result, 4)
    program.batches = 4
    turns = Round(1, 3)
    turns.start([program], 0)
    assert not turns.is_done
    assert not result.any()
    turns.finish()
    assert result.all()


def test_batches_of_none_do_nothing() -> None:
    source = np.ones((4, 2))
    result = np.zeros_like(source)
    program, _held = copying(source, result, 4)
    program.batches = 0
    turns = Round(2, 1)
    turns.start([program], 0)
    turns.finish()
    assert not result.any()


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("method", ["take", "start", "finish", "give"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_round_ends(
    threads: int, method: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = np.random.default_rng(3).normal(size=(200, 400))
    result = np.zeros_like(source)
    program, held = copying(source, result, 200)
    program.batches = 200
    turns = Round(threads, 1)
    owner = Teams if method in ("take", "give") else Team
    own = getattr(owner, method)

    def interrupted(self: Any, *given: Any) -> Any:
        if before:
            raise KeyboardInterrupt
        own(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            turns.start([program], 0)
            turns.finish()
    turns.end()
    turns.end()
    began = method in ("finish", "give") or (method == "start" and not before)
    if began and (threads > 1 or method == "give" or not before):
        expected = source[::-1] if threads > 1 or method != "start" else np.zeros_like(source)
        np.testing.assert_array_equal(result, expected)
    else:
        assert not result.any()
    again = np.zeros_like(source)
    program, more = copying(source, again, 200)
    program.batches = 200
    turns.start([program], 0)
    turns.finish()
    np.testing.assert_array_equal(again, source[::-1])
    assert held and more
