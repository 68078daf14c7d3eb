"""Workers that train one model decide alike, whatever their clocks say and whoever meets a NaN."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.runtime.agreement import ALONE, agreeing, agreement
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.loop import fit as loop
from magmadnn.training.loop import pieces
from tests.runtime.cuda.devices import DEVICES, on

WORKERS = 2
ROWS, BATCH, EPOCHS = 800, 8, 3


class Table:
    """Where all workers put their answers; whoever asks another question than the others is found out."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(WORKERS, timeout=60)
        self.answers: list[Any] = [None] * WORKERS
        self.asked: list[str] = []

    def of(self, rank: int) -> Together:
        return Together(self, rank)

    def gathered(self, rank: int, about: str, answer: int) -> list[int]:
        self.answers[rank] = (about, answer)
        self.barrier.wait()
        found = list(self.answers)
        self.barrier.wait()
        assert len({question for question, _ in found}) == 1, found
        if rank == 0:
            self.asked.append(about)
        return [number for _, number in found]


class Together:
    is_alone = False

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank = table, rank

    def all(self, fact: bool, about: str) -> bool:
        return all(self.table.gathered(self.rank, about, int(fact)))

    def least(self, number: int, about: str) -> int:
        return min(self.table.gathered(self.rank, about, number))


class Clock:
    """A clock of each thread's own: one worker's steps seem to take much longer."""

    def __init__(self) -> None:
        self.times = threading.local()

    def perf_counter(self) -> float:
        self.times.now = getattr(self.times, "now", 0.0) + getattr(self.times, "step", 1e-4)
        return float(self.times.now)

    monotonic = perf_counter


class Steps(md.callbacks.Callback):
    """How many steps were done at the end of each chunk."""

    stands_aside = True

    def __init__(self) -> None:
        self.seen: list[int] = []

    def batches(self, fit: Any) -> int | None:
        return None

    def on_batch_end(self, fit: Any) -> None:
        self.seen.append(fit.steps)


class StopAt(Steps):
    """Asks to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_batch_end(self, fit: Any) -> None:
        super().on_batch_end(fit)
        if fit.steps >= self.steps:
            fit.stop("enough")


def model_of(executor: str) -> md.Model:
    return md.Model(
        [md.layers.Input((5,)), md.layers.Dense(16, activation="tanh"), md.layers.Dense(1)],
        loss="mse", optimizer="adam", seed=3, executor=executor,
    )  # fmt: skip


def data(bad: int | None = None) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x, y = (
        draw.normal(size=(ROWS, 5)).astype(np.float32),
        draw.normal(size=(ROWS, 1)).astype(np.float32),
    )
    if bad is not None:
        y[bad] = 1e25  # whose square is infinite
    return x, y


Found = tuple[md.Model, Steps, BaseException | None]


def together(
    clock: Clock, given: Callable[[int], tuple[Any, Any]], executor: str = "native",
    callback: Callable[[int], Steps] = lambda rank: Steps(),
) -> tuple[list[Found], list[str]]:  # fmt: skip
    """Train one model in each of two threads that agree."""
    table, found = Table(), [None] * WORKERS

    def work(rank: int) -> None:
        clock.times.step = (1e-4, 0.05)[rank]
        model, steps, error = model_of(executor), callback(rank), None
        with agreeing(table.of(rank)):
            try:
                x, y = given(rank)
                model.fit(
                    x,
                    y,
                    batch_size=BATCH,
                    epochs=EPOCHS,
                    shuffle=False,
                    verbose=0,
                    callbacks=[steps],
                )
            except BaseException as raised:
                error = raised
                table.barrier.abort() if not isinstance(raised, NumericError) else None
        found[rank] = (model, steps, error)  # type: ignore[call-overload]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, table.asked  # type: ignore[return-value]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    monkeypatch.setattr(pieces, "time", made)
    monkeypatch.setattr("magmadnn.runtime.cpu.sliced.slices.time", made)
    return made


def test_a_worker_that_is_alone_gets_its_own_answer() -> None:
    assert agreement() is ALONE
    assert [ALONE.all(fact, "") for fact in (True, False)] == [True, False]
    assert ALONE.least(7, "") == 7
    with agreeing(Table().of(0)):
        assert not agreement().is_alone
    assert agreement() is ALONE


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_other_clocks_give_equal_chunks(clock: Clock, executor: str) -> None:
    (one, other), asked = together(clock, lambda rank: data(), executor)
    for _, _, error in (one, other):
        if error is not None:
            raise error
    assert one[1].seen == other[1].seen
    assert one[1].seen[-1] == EPOCHS * ROWS // BATCH
    assert "training goes on" in asked
    if executor == "native":
        assert (
            4 < len(one[1].seen) < EPOCHS * ROWS // BATCH
        )  # chunks of several steps, as the slow one's
        assert {"batches of a chunk", "steps are finite"} <= set(asked)
    alone = model_of(executor)
    alone.fit(*data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    hashes = {parameters_sha256(m.values().items()) for m in (one[0], other[0], alone)}
    assert len(hashes) == 1


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_all_stop_where_one_meets_a_nan(clock: Clock, executor: str) -> None:
    bad = 437  # in batch 54
    (one, other), _ = together(clock, lambda rank: data(bad if rank else None), executor)
    assert isinstance(one[2], NumericError)
    assert isinstance(other[2], NumericError)
    assert "on another worker" in str(one[2])
    assert "on another worker" not in str(other[2])
    assert one[1].seen == other[1].seen
    assert one[1].seen[-1] == bad // BATCH
    hashes = {parameters_sha256(m.values().items()) for m, _, _ in (one, other)}
    assert len(hashes) == 1  # neither has the step that failed


def test_all_stop_where_one_is_asked_to(clock: Clock) -> None:
    (one, other), _ = together(
        clock, lambda rank: data(), callback=lambda rank: StopAt(120 if rank else 10**9)
    )
    assert one[2] is other[2] is None
    assert one[1].seen == other[1].seen
    assert 120 <= one[1].seen[-1] < EPOCHS * ROWS // BATCH
    hashes = {parameters_sha256(m.values().items()) for m, _, _ in (one, other)}
    assert len(hashes) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_begun_that_others_do_not_know_of_on_a_device(device: str) -> None:
    asked: list[str] = []

    class Noting:
        is_alone = False

        def all(self, fact: bool, about: str) -> bool:
            asked.append(about)
            return fact

        def least(self, number: int, about: str) -> int:
            asked.append(about)
            return min(number, 7)

    with on(device):
        steps, model = (
            Steps(),
            md.Model(
                [md.layers.Input((5,)), md.layers.Dense(1)],
                loss="mse",
                optimizer="sgd",
                device="cuda",
            ),
        )
        x, y = data()
        with agreeing(Noting()):
            for _ in range(2):
                model.fit(
                    x[:160], y[:160], batch_size=BATCH, epochs=2, verbose=0, callbacks=[steps]
                )
    assert all(
        later - sooner <= 7 for sooner, later in zip(steps.seen, steps.seen[1:], strict=False)
    )
    assert {"copies of data are as they were", "steps are finite", "batches of a chunk"} <= set(
        asked
    )
