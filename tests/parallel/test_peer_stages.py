"""A pipeline whose values cross from GPU to GPU, on emulated devices of simulated ranks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine
from magmadnn.comm import simulate
from magmadnn.comm.gpu.peer_buffers import PeerBuffers
from magmadnn.comm.group import HostCommunicator
from magmadnn.errors import CommunicationError, MagmaDNNError, NumericError
from magmadnn.parallel.pipelined import turns
from magmadnn.parallel.pipelined.peer_stages import PeerStages
from magmadnn.parallel.pipelined.step import PipelineStep
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.running.direct import Direct
from tests.parallel.parameters import assert_near
from tests.parallel.test_peers import count_copies
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

pytestmark = needs_compiler

DRAW = np.random.default_rng(11)
ROWS = 103  # of which the last batch of 32 has 7
X = DRAW.normal(size=(ROWS, 5))
Y = DRAW.integers(0, 3, ROWS)


HERE = threading.local()


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`simulate`, where a device that waits for another one lets other ranks go on."""

    def one(comm: Any) -> Any:
        HERE.never = comm.start_recv(np.empty(1), (comm.rank + 1) % size, tag=9999)
        device_engine(min(comm.rank, 1)).idle = lambda: HERE.never.done()  # type: ignore[attr-defined]
        return function(comm, *arguments)

    return simulate(size, one)


def deep(device: str, **settings: Any) -> md.Model:
    layers = md.layers
    given = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01), "metrics": ["accuracy"]}
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(7, activation="tanh"), layers.BatchNorm(),
            layers.Dense(6, activation="relu"), layers.Dense(5), layers.Dense(3),
        ],
        seed=3, precision="float64", device=device, **(given | settings),
    )  # fmt: skip


def clipped(device: str) -> md.Model:
    return deep(device, optimizer=md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05))


def residual(device: str) -> md.Model:
    """A value that passes over stages."""
    layers = md.layers
    x = layers.Input((5,), "float64")
    first = layers.Dense(5)(x)
    third = layers.Dense(5)(layers.Dense(5, activation="tanh")(first)) + first
    return md.Model(
        inputs=[x], outputs=[layers.Dense(3)(third)], loss="cross_entropy",
        optimizer=md.optim.SGD(0.1), metrics=["accuracy"], seed=3, precision="float64", device=device,
    )  # fmt: skip


def trained(comm: Any, make: Callable[[str], md.Model] = deep, **options: Any) -> Any:
    model = make(f"cuda:{comm.rank}" if comm.rank < 2 else "cuda:1")
    way = md.parallel.Pipeline(comm, micro_batches=3)
    given: dict[str, Any] = {"batch_size": 32, "epochs": 2, "verbose": False} | options
    history = model.fit(X, Y, parallel=way, **given)
    step = model._step[2]
    assert isinstance(step, PipelineStep)
    return history.rows, model.values(), step


def check(found: Any, by_hosts: Any) -> None:
    for (rows, values, _), (other_rows, others, _) in zip(found, by_hosts, strict=True):
        for row, other in zip(rows, other_rows, strict=True):
            for name in ("loss", "accuracy"):
                assert row[name] == pytest.approx(other[name], rel=1e-11)
        for name, value in values.items():
            np.testing.assert_allclose(value, others[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_numbers_as_through_the_hosts(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_device(devices=2, apart=True):
        found = on_ranks(ranks, trained)
        assert all(step.peer_bytes > 0 for _, _, step in found)
        monkeypatch.setattr(PeerBuffers, "among", lambda *_: "not here")
        by_hosts = on_ranks(ranks, trained)
        assert all(step.peer_bytes is None for _, _, step in by_hosts)
        assert "travel from GPU to GPU" in found[1][2].text({"batch": 32})
        assert "through the hosts: not here" in by_hosts[1][2].text({"batch": 32})
    check(found, by_hosts)


def test_larger_batches_get_larger_buffers() -> None:
    """In the second of two fits; the first one's buffers are given back."""
    with emulated_device(devices=2, apart=True):

        def one(comm: Any) -> Any:
            model = deep(f"cuda:{comm.rank}")
            for size in (16, 48, 32):
                way = md.parallel.Pipeline(comm, micro_batches=3)
                model.fit(X, Y, batch_size=size, epochs=1, verbose=False, parallel=way)
            assert model._step[2].peer_bytes > 0
            return model.values()

        alone = deep("cpu")
        for size in (16, 48, 32):
            way = md.parallel.Pipeline(simulate(1, lambda comm: comm)[0], micro_batches=3)
            alone.fit(X, Y, batch_size=size, epochs=1, verbose=False, parallel=way)
        for values in on_ranks(2, one):
            assert_near(values, alone.values(), 1e-11)


@pytest.mark.parametrize("make", [clipped, residual])
def test_what_crosses_by_the_hosts(make: Callable[[str], md.Model]) -> None:
    """Sums over parameters of several ranks, and a value that two stages need."""
    with emulated_device(devices=2, apart=True):
        found = on_ranks(3, lambda comm: trained(comm, make))
    assert all(step.peer_bytes is None for _, _, step in found)
    alone = make("cpu")
    alone.fit(
        X, Y, batch_size=32, epochs=2, verbose=False,
        parallel=md.parallel.Pipeline(simulate(1, lambda comm: comm)[0], micro_batches=3),
    )  # fmt: skip
    assert_near(found[0][1], alone.values(), 1e-11)


def test_no_activations_pass_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()
    count_copies(monkeypatch, found)

    def wide(device: str) -> md.Model:
        layers = [
            md.layers.Input((5,)),
            *(md.layers.Dense(64, activation="tanh") for _ in range(3)),
        ]
        return md.Model(
            [*layers, md.layers.Dense(3)], loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=3,
            precision="float64", device=device,
        )  # fmt: skip

    def bytes_of(epochs: int) -> int:
        found.clear()
        options = {"epochs": epochs, "shuffle": False, "batch_size": 51}
        steps = [one[2] for one in on_ranks(2, lambda comm: trained(comm, wide, **options))]
        assert (steps[0].peer_bytes is None) == is_by_hosts
        return sum(found.values())

    with emulated_device(devices=2, apart=True):
        is_by_hosts = False
        by_peers = bytes_of(3) - bytes_of(1)
        monkeypatch.setattr(PeerBuffers, "among", lambda *_: "not here")
        is_by_hosts = True
        by_hosts = bytes_of(3) - bytes_of(1)
    parameters = 8 * sum(v.size for v in wide("cpu").values().values())
    assert by_peers <= 2 * 2 * parameters  # all ranks have all of them after an epoch
    assert by_hosts > 2 * by_peers


def test_what_is_wrong_on_one_stage_is_told_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is found where it comes from; an error does not leave others waiting, nor an update behind."""

    def one(comm: Any, by_hosts: bool) -> str:
        model = deep(f"cuda:{comm.rank}")
        way = md.parallel.Pipeline(comm, micro_batches=3)
        options: dict[str, Any] = {"batch_size": 32, "epochs": 1, "verbose": False, "parallel": way}
        model.fit(X, Y, **options)
        before, step = model.values(), model._step[2]
        assert (step.peer_bytes is None) == by_hosts
        name = next(k for k in before if "dense_2" in k and before[k].ndim == 2)
        model.named()[name].assign(np.full_like(before[name], 1e308))
        with pytest.raises(NumericError) as error:
            model.fit(X, Y, **options)
        model.named()[name].assign(before[name])
        for key, value in model.values().items():
            np.testing.assert_array_equal(value, before[key])
        if by_hosts:
            return str(error.value)
        plain = step._there._forward.into

        def broken(feeds: Any, goals: Any) -> Any:
            if comm.rank:
                raise MagmaDNNError("no room")
            return plain(feeds, goals)

        step._there._forward.into = broken
        with pytest.raises(MagmaDNNError, match="no room"):
            model.fit(X, Y, **options)
        return str(error.value)

    with emulated_device(devices=2, apart=True):
        told = on_ranks(2, one, False)
        monkeypatch.setattr(PeerBuffers, "among", lambda *_: "not here")
        assert told == on_ranks(2, one, True)
    assert any("stopped the step" in text for text in told)


@pytest.mark.parametrize("program", ["_forward", "_backward"])
@pytest.mark.parametrize(("stage", "is_early"), [(0, True), (1, False), (1, True), (0, False)])
def test_an_error_of_a_stage_ends_the_step_on_all(stage: int, is_early: bool, program: str) -> None:
    """Wherever it is, nobody waits for what was not computed."""

    def one(comm: Any) -> None:
        model = deep(f"cuda:{comm.rank}")
        way = md.parallel.Pipeline(comm, micro_batches=3)
        options: dict[str, Any] = {"batch_size": 32, "epochs": 1, "verbose": False, "parallel": way}
        model.fit(X, Y, **options)
        there = model._step[2]._there
        assert there.peers is not None

        def fails(*_: Any) -> bool:
            raise MagmaDNNError("no room")

        if comm.rank == stage:
            getattr(there, program).into = fails if is_early else lambda *_: fails
        with pytest.raises(MagmaDNNError, match="no room"):
            model.fit(X, Y, **options)

    with emulated_device(devices=2, apart=True):
        on_ranks(2, one)


def skipping(device: str) -> md.Model:
    """Two values that cross between the same two stages."""
    layers = md.layers
    x = layers.Input((5,), "float64")
    first = layers.Dense(64, activation="tanh")(x)
    third = layers.Dense(64)(layers.Dense(64, activation="tanh")(first)) + first
    return md.Model(
        inputs=[x], outputs=[layers.Dense(3)(third)], loss="cross_entropy",
        optimizer=md.optim.SGD(0.1), metrics=["accuracy"], seed=3, precision="float64", device=device,
    )  # fmt: skip


def noted(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """What each rank does, by rank: runs, waits for its GPU, messages, and copies of reports."""
    found: dict[int, list[str]] = {0: [], 1: []}
    place = threading.local()

    def wrap(owner: Any, name: str, note: str) -> None:
        plain = getattr(owner, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(self, PeerStages):
                place.rank = self._comm.rank
            if getattr(place, "rank", None) is not None:
                found[place.rank].append(note)
            return plain(self, *arguments, **named)

        monkeypatch.setattr(owner, name, call)

    wrap(PeerStages, "run", "run")
    wrap(PeerStages, "ends", "ends")
    wrap(Direct, "launch", "direct")
    wrap(PeerBuffers, "done", "done")
    wrap(HostCommunicator, "start_send", "send")
    wrap(Layout, "copy_within", "copy")
    return found


@pytest.mark.parametrize("make", [deep, skipping])
def test_what_a_batch_costs(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No value is copied. In the first batch the host waits and tells once for all that crosses between two
    stages, in the second one it does neither.
    """
    pieces, rows = 3, 96
    with emulated_device(devices=2, apart=True):

        def one(comm: Any) -> Any:
            model = make(f"cuda:{comm.rank}")
            stages = {deep: None, skipping: ["dense_3"]}[make]
            way = md.parallel.Pipeline(comm, micro_batches=pieces, stages=stages)
            model.fit(X[:rows], Y[:rows], batch_size=rows, epochs=2, verbose=False, parallel=way)
            return model._step[2]

        found = noted(monkeypatch)
        for step in on_ranks(2, one):
            assert step.peer_bytes > 0
    # the first stage waits for what goes forward, the last for what comes back, and both at the end
    for rank in (0, 1):
        first, _, rest = " ".join(found[rank]).partition("ends done")
        second, _, _ = rest.partition("ends done")
        first, second = first[first.index("run") :], second[second.index("run") :]
        assert first.count("run direct done send") == pieces
        assert first.count("done") == first.count("send") == pieces
        for text in (first, second):
            assert text.count("run direct") == 2 * pieces
            assert "copy" not in text
        assert "done" not in second and "send" not in second


def by_flags(step: Any) -> bool:
    """Whether values of the last batch were waited for on the device."""
    both = step._there.peers._both
    return both.by_flags is not None and both.turns is both.by_flags


def test_ranks_that_share_a_gpu_or_a_process_send_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_device(devices=2, apart=True):
        assert all(by_flags(step) for _, _, step in on_ranks(2, trained))
        assert not any(by_flags(step) for _, _, step in on_ranks(3, trained))
        monkeypatch.setattr(turns, "place_of", lambda device: (f"GPU {device}", "a process"))
        assert not any(by_flags(step) for _, _, step in on_ranks(2, trained))


def test_flags_that_do_not_arrive_are_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_device(devices=2, apart=True) as engine:
        for other in (engine, *engine.others):
            monkeypatch.setattr(other, "tell", lambda places, number: None)
        assert not any(by_flags(step) for _, _, step in on_ranks(2, trained))


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5])
def test_an_interrupt_of_one_rank_leaves_no_gpu_waiting(at: int) -> None:
    """Whatever the rank has begun: the end of the device finds nothing under way."""

    def one(comm: Any) -> None:
        model = deep(f"cuda:{comm.rank}")
        way = md.parallel.Pipeline(comm, micro_batches=3)
        options: dict[str, Any] = {"batch_size": 51, "epochs": 1, "verbose": False, "parallel": way}
        model.fit(X[:102], Y[:102], **options)
        there, runs = model._step[2]._there, 0
        plain = there._has_run

        def interrupted(*arguments: Any) -> bool:
            nonlocal runs
            if comm.rank == 1 and runs == at:
                raise KeyboardInterrupt
            runs += 1
            return bool(plain(*arguments))

        there._has_run = interrupted
        model.fit(X[:102], Y[:102], **options)

    with emulated_device(devices=2, apart=True), pytest.raises(KeyboardInterrupt):
        on_ranks(2, one)


def test_ranks_in_different_batches_are_told() -> None:
    def one(comm: Any) -> None:
        model = deep(f"cuda:{comm.rank}")
        way = md.parallel.Pipeline(comm, micro_batches=3)
        options: dict[str, Any] = {"batch_size": 51, "epochs": 1, "verbose": False, "parallel": way}
        model.fit(X[:102], Y[:102], **options)
        flags = model._step[2]._there.peers._both.by_flags
        flags.meet()
        flags._turn += comm.rank
        with pytest.raises(CommunicationError, match=r"batches from 2 to 3: make the model anew"):
            flags.meet()

    with emulated_device(devices=2, apart=True):
        on_ranks(2, one)


@pytest.mark.parametrize("stage", [0, 1])
def test_an_update_that_is_not_finite_is_on_no_rank(stage: int) -> None:
    """Sums of gradients are finite, and what one stage makes of them is not."""

    def one(comm: Any) -> str:
        model = deep(f"cuda:{comm.rank}", optimizer=md.optim.SGD(0.1, momentum=0.5))
        way = md.parallel.Pipeline(comm, micro_batches=3)
        options: dict[str, Any] = {"batch_size": 32, "epochs": 1, "verbose": False, "parallel": way}
        model.fit(X, Y, **options)
        step, before = model._step[2], model.values()
        assert step.peer_bytes > 0 and step._there._at_once
        states = [v.value.read().copy() for v in step._slots.values()]
        plain = step._there._update.update

        def overflows(feeds: Any) -> None:
            mass = next(node for node in feeds if node.name == "total_mass")
            plain({**feeds, mass: np.array(1e-309)} if comm.rank == stage else feeds)

        step._there._update.update = overflows
        with pytest.raises(NumericError) as error:
            model.fit(X, Y, **options)
        for key, value in model.values().items():
            np.testing.assert_array_equal(value, before[key])
        for variable, state in zip(step._slots.values(), states, strict=True):
            np.testing.assert_array_equal(variable.value.read(), state)
        return str(error.value)

    with emulated_device(devices=2, apart=True):
        told = on_ranks(2, one)
    assert "another worker" in told[1 - stage] and "another worker" not in told[stage]
