"""More models than memory has room for: they are planned, train in waves, and end with the same bits."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.compiler.llvm.driver.rounds import Round
from magmadnn.errors import ArgumentError, OutOfMemoryError
from magmadnn.runtime.cpu.sliced.courses import Course
from magmadnn.runtime.threads import on_threads
from magmadnn.training.loop.fit import Fit
from magmadnn.training.many import fits
from magmadnn.training.many.course import FitCourse
from magmadnn.training.many.running import members, room
from magmadnn.training.many.told import Told
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.training.many_networks import digests, network

DRAW = np.random.default_rng(16)
X = DRAW.normal(size=(45, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 45)
BATCH, REST = 8, 45 % 8
GIVEN: dict[str, Any] = {"batch_size": BATCH, "epochs": 3, "verbose": False}
LONG = GIVEN | {"epochs": 800}  # pieces of 10 ms: some are under way while others begin
COUNT = 7

MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
import magmadnn as md

def network(seed):
    hidden = [md.layers.Dense(503, activation="tanh") for _ in range(2)]
    return md.Model([md.layers.Input((67,)), *hidden, md.layers.Dense(10)], loss="cross_entropy",
                    optimizer="adam", seed=seed)

def highest():
    return int(re.search("VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024

class Looks(md.callbacks.Callback):  # so that each has a training of its own
    def on_epoch_end(self, fit):
        pass

md.set_threads(2)
random = np.random.default_rng(1)
x = random.normal(size=(4096, 67)).astype(np.float32)
y = random.integers(0, 10, 4096)
network(0).fit(x, y, batch_size=64, verbose=False)  # what is compiled stays
models = [network(k) for k in range(8)]
for model in models:
    model.values()
one = network(0).memory(x, y, batch_size=2048)
with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * 4096
limit = 8 * one.optimizer + one.workspace + int(2.5 * (one.total - one.optimizer - one.parameters))
given = limit if sys.argv[1] == "waves" else None
md.fit_many(models, x, y, batch_size=2048, verbose=False, memory_limit=given, callbacks=[Looks()])
print(highest() - before, limit)
"""


def made(**given: Any) -> list[md.Model]:
    return [network(k, **given) for k in range(COUNT)]


def limit_for(count: float, models: int = COUNT) -> int:
    """Room for so many at the same time, from what `model.memory` says of one."""
    whole, rest = (network(0).memory(X, Y, batch_size=n) for n in (BATCH, REST))
    values = sum(m.activations + m.gradients + m.batch for m in (whole, rest))
    return models * whole.optimizer + whole.workspace + int(count * (values + whole.copies))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most that have been under way."""
    under_way: set[members.Member] = set()
    found = [0]
    begin, end = members.Member._begin, members.Member.end

    def begun(member: members.Member) -> None:
        under_way.add(member)
        found[0] = max(found[0], len(under_way))
        begin(member)

    def ended(member: members.Member, error: BaseException | None = None) -> None:
        under_way.discard(member)
        end(member, error)

    monkeypatch.setattr(members.Member, "_begin", begun)
    monkeypatch.setattr(members.Member, "end", ended)
    return found


EXPECTED: list[Any] = []


def expected() -> tuple[list[str], list[list[float]]]:
    if not EXPECTED:
        models = made()
        histories = md.fit_many(models, X, Y, **LONG)
        EXPECTED.append((digests(models), [h["loss"] for h in histories]))
    return EXPECTED[0]


@pytest.mark.parametrize(
    "room_for, most",
    [pytest.param(1.0, 1, marks=pytest.mark.long), (2.7, 2), (5.0, 5), (7.0, COUNT)],
)
def test_as_many_as_have_room_are_under_way(counted: list[int], room_for: float, most: int) -> None:
    bits, losses = expected()
    counted[0], models = 0, made()
    histories = md.fit_many(models, X, Y, memory_limit=limit_for(room_for), **LONG)
    assert counted[0] <= most
    assert counted[0] >= min(most, 2)
    assert digests(models) == bits
    assert [h["loss"] for h in histories] == losses
    assert all((m._step is None) == (most < COUNT) for m in models)


@pytest.mark.long
def test_a_further_fit_goes_on_from_the_optimiser_of_a_wave() -> None:
    waves, whole = made(), made()
    for _ in range(2):
        md.fit_many(waves, X, Y, memory_limit=limit_for(2.0), **GIVEN)
        md.fit_many(whole, X, Y, **GIVEN)
    assert digests(waves) == digests(whole)


def test_what_is_free_decides_where_no_limit_is_given(
    monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    bits, _ = expected()
    monkeypatch.setattr(room, "available_bytes", lambda: int(limit_for(3.0) / 0.8) + 1)
    counted[0], models = 0, made()
    md.fit_many(models, X, Y, **LONG)
    assert 1 <= counted[0] <= 3
    assert digests(models) == bits


def test_nothing_is_planned_where_memory_is_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_need_of", lambda *_: pytest.fail("planned"))
    md.fit_many(made(), X, Y, **GIVEN)


def test_one_that_has_no_room_is_refused_before_the_start() -> None:
    models = made()
    before = digests(models)
    with pytest.raises(OutOfMemoryError) as said:
        md.fit_many(models, X, Y, memory_limit=limit_for(0.99), **GIVEN)
    assert re.fullmatch(
        r"fit_many: the training of models\[0\] takes [0-9.]+ KiB, optimisers keep [0-9.]+ KiB of all 7, and "
        r"memory_limit is [0-9.]+ KiB; train fewer models in one call, or with a smaller batch_size",
        str(said.value),
    )
    assert digests(models) == before and all(m.epochs_done == 0 for m in models)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1 GB"])
def test_a_limit_that_is_none(wrong: Any) -> None:
    with pytest.raises(ArgumentError) as said:
        md.fit_many(made(), X, Y, memory_limit=wrong, **GIVEN)
    assert str(said.value) == (
        f"fit_many: memory_limit must be a number of bytes of at least 1, got {wrong!r}"
    )


def test_models_of_several_kinds_share_the_room(counted: list[int]) -> None:
    def mixed() -> list[md.Model]:
        wide = [layers.Input((6,)), layers.Dense(201, activation="relu"), layers.Dense(3)]
        big = md.Model(wide, loss="cross_entropy", optimizer="sgd", seed=5)
        return [*made()[:3], big, *made()[3:]]

    alone, waves = mixed(), mixed()
    md.fit_many(alone, X, Y, **LONG)
    whole, rest = (mixed()[3].memory(X, Y, batch_size=n) for n in (BATCH, REST))
    big = sum(m.activations + m.gradients + m.batch for m in (whole, rest)) + whole.copies
    more = max(
        whole.workspace - network(0).memory(X, Y, batch_size=BATCH).workspace, 0
    )  # all share it
    limit = limit_for(0) + more + whole.optimizer + big  # the large one alone, or the small ones
    counted[0] = 0
    md.fit_many(waves, X, Y, memory_limit=limit, **LONG)
    assert counted[0] < 8
    assert digests(waves) == digests(alone)


def test_a_set_in_waves_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    bits, losses = expected()

    class Breaks(md.callbacks.Callback):
        def on_epoch_end(self, fit: Fit) -> None:
            if fit.epoch == 70:
                raise KeyError("power")

    def saving(breaks: int | None) -> Any:
        def of(number: int) -> list[md.callbacks.Callback]:
            first = [Breaks()] if number == breaks else []
            return [*first, md.callbacks.Checkpoint(tmp_path / f"{number}")]

        return of

    with pytest.raises(KeyError):
        md.fit_many(made(), X, Y, callbacks=saving(4), memory_limit=limit_for(2), **LONG)
    models = made()
    histories = md.fit_many(models, X, Y, callbacks=saving(None), memory_limit=limit_for(3), **LONG)
    assert digests(models) == bits
    assert [h["loss"] for h in histories] == losses


class Looks(md.callbacks.Callback):
    """Looks at each epoch, so that a training is made for its model."""

    stands_aside = True

    def on_epoch_end(self, fit: Fit) -> None:
        """Nothing."""


def test_one_without_memory_beside_others_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = LONG | {"callbacks": [Looks()]}
    alone = made()
    md.fit_many(alone, X, Y, **given)
    making, begun, refused = FitCourse.made.__func__, list[Fit](), set[int]()  # type: ignore[attr-defined]

    def tight(cls: Any, fit: Fit) -> Any:
        if any(one.goes_further for one in begun) and fit.model.seed not in refused:
            refused.add(fit.model.seed)
            raise OutOfMemoryError("pool: full")
        begun.append(fit)
        return making(cls, fit)

    monkeypatch.setattr(FitCourse, "made", classmethod(tight))
    models = made()
    md.fit_many(models, X, Y, **given)
    assert refused and digests(models) == digests(alone)
    said = capsys.readouterr().err
    for seed in refused:
        assert f"fit_many: models[{seed}] waits: no memory beside " in said


def test_no_memory_for_one_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(cls: Any, fit: Fit) -> Any:
        raise OutOfMemoryError("pool: full")

    monkeypatch.setattr(FitCourse, "made", classmethod(full))
    with pytest.raises(OutOfMemoryError, match="pool: full"):
        md.fit_many(made(), X, Y, **GIVEN)


def test_what_is_printed_of_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(fits, "Told", lambda verbose: Told(verbose, output))
    md.fit_many(made(), X, Y, memory_limit=limit_for(2.5), **GIVEN | {"verbose": True})
    lines = output.getvalue().splitlines()
    assert lines[1] == "not all have room at the same time: in waves of 2 or more"
    assert lines[-1].startswith("7 of 7 models done, 21 epochs, loss ")


def test_cross_validation_in_waves(counted: list[int]) -> None:
    whole = md.cross_validate(network, X, Y, folds=5, verbose=False, batch_size=8)
    counted[0] = 0
    waves = md.cross_validate(
        network, X, Y, folds=5, verbose=False, batch_size=8, memory_limit=limit_for(2.0, 5)
    )
    assert counted[0] <= 2
    assert waves.rows == whole.rows


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="sizes are read from /proc")
def test_waves_take_the_memory_that_they_may() -> None:
    """Of the whole process: eight trainings of 34 MB each, room for two and a half.

    What the allocator keeps of trainings that have ended counts too, so the limit is passed a little; how
    many are trained at a time is counted above.
    """
    taken = {}
    for way in ("waves", "whole"):
        run = [sys.executable, "-c", MEASURE, way]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=100)
        taken[way], limit = map(int, done.stdout.split())
    assert taken["waves"] - limit < 0.5 * (taken["whole"] - taken["waves"]), (taken, limit)


@needs_compiler
@pytest.mark.parametrize(
    "width", [9, pytest.param(301, marks=pytest.mark.long)]
)  # a block for each, and in turns
def test_on_a_device_parameters_make_way(counted: list[int], width: int) -> None:
    def wide(seed: int) -> md.Model:
        net = [layers.Input((6,)), layers.Dense(width, activation="relu"), layers.Dense(3)]
        return md.Model(net, loss="cross_entropy", optimizer="adam", seed=seed, device="cuda")

    with emulated_device():
        alone, waves = ([wide(k) for k in range(4)] for _ in range(2))
        md.fit_many(alone, X, Y, **GIVEN)
        one = wide(0).memory(X, Y, batch_size=BATCH)
        rest = wide(0).memory(X, Y, batch_size=REST)
        values = sum(m.activations + m.gradients + m.batch for m in (one, rest)) + one.workspace
        limit = values + 2 * (one.parameters + one.optimizer + one.copies)
        counted[0] = 0
        md.fit_many(waves, X, Y, memory_limit=limit, **GIVEN)
        assert counted[0] == 2
        assert digests(waves) == digests(alone)
        there = [v.value.memory.device_valid for m in waves for v in m.named().values()]
        assert not any(there)
        np.testing.assert_array_equal(waves[0].predict(X), alone[0].predict(X))
        for models in (alone, waves):
            md.fit_many(models, X, Y, **GIVEN)
        assert digests(waves) == digests(alone)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("where", ["start", "_give", "finish", "found"])
def test_an_interrupt_leaves_nothing_trained_that_does_not_count(
    where: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran natively and is in no history is taken back: models are as after the epochs that count."""

    def build(k: int) -> md.Model:  # none follows another one
        net = [layers.Input((6,)), layers.Dense(5 + k), layers.BatchNorm(), layers.Dense(3)]
        return md.Model(net, loss="cross_entropy", optimizer=optim.Adam(0.02), seed=k)

    monkeypatch.setattr(FitCourse, "seconds_of_batch", 1e-6)  # so that pieces are whole epochs
    owner: type = Course if where == "found" else Round
    plain = getattr(owner, where)
    for at, is_done, looks in itertools.product((1, 2, 5), (False, True), (False, True)):
        calls = list[int]()

        def interrupted(
            self: Any, *rest: Any, at: int = at, is_done: bool = is_done, calls: Any = calls
        ) -> Any:
            calls.append(at)
            if len(calls) == at and not is_done:
                raise KeyboardInterrupt
            found = plain(self, *rest)
            if len(calls) == at:
                raise KeyboardInterrupt
            return found

        models = [build(k) for k in range(4)]
        given: dict[str, Any] = {"batch_size": BATCH, "verbose": False}
        seen = md.callbacks.LambdaCallback(on_epoch_end=lambda fit: None)  # pieces of one epoch
        with on_threads(threads), monkeypatch.context() as patch:
            patch.setattr(owner, where, interrupted)
            try:
                callbacks = [seen] * looks
                md.fit_many(models, X, Y, epochs=3, callbacks=callbacks, parallel=False, **given)
            except KeyboardInterrupt:
                assert len(calls) >= at
        for k, model in enumerate(models):
            other = build(k)
            if model.epochs_done:
                other.fit(X, Y, epochs=model.epochs_done, **given)
            assert digests([model]) == digests([other]), (at, is_done, looks, k)
