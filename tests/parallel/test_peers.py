"""Parameters and gradients that go from GPU to GPU, on emulated devices of simulated ranks."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.comm.gpu import ipc, peer_buffers
from magmadnn.comm.gpu.peer_buffers import PeerBuffers
from magmadnn.errors import NumericError
from magmadnn.parallel.asynchronous import AsyncStep
from magmadnn.parallel.peers.parameters import PeerParameters
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.data.copies import CopiesAtOnce
from magmadnn.storage.checkpoint import parameters_sha256
from tests.parallel.parameters import assert_near
from tests.runtime.cuda.emulator import HostMemory, emulated_device, needs_compiler

pytestmark = needs_compiler

DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(140, 6))
Y = (X @ DRAW.normal(size=(6, 3))).argmax(axis=1)
WIDTH = 40
PARAMETERS = 8 * (6 * WIDTH + WIDTH + WIDTH * 3 + 3)  # bytes


def count_copies(monkeypatch: pytest.MonkeyPatch, found: Counter[str]) -> None:
    """Bytes of single copies between host and device that are as large as a matrix of weights."""

    def wrap(name: str, place: int) -> None:
        plain = getattr(HostMemory, name)

        def copy(self: Any, *arguments: Any, **named: Any) -> None:
            nbytes = arguments[place].nbytes
            if nbytes >= 8 * 3 * WIDTH:
                found[name] += nbytes
            plain(self, *arguments, **named)

        monkeypatch.setattr(HostMemory, name, copy)

    wrap("copy_to_device", 1)
    wrap("copy_to_host", 0)


def network(device: str, **settings: Any) -> md.Model:
    layers = [md.layers.Input((6,)), md.layers.Dense(WIDTH, activation="tanh"), md.layers.Dense(3)]
    given = {
        "loss": "cross_entropy",
        "optimizer": md.optim.SGD(0.2, momentum=0.5),
        "metrics": ["accuracy"],
    }
    return md.Model(layers, precision="float64", seed=2, device=device, **(given | settings))


def trained(comm: Any, devices: list[str], make: Any = network, **options: Any) -> Any:
    model = make(devices[comm.rank])

    def computed(comm: Any) -> None:
        comm.advance((0.0, 3.1, 1.07, 1.4142)[comm.rank])

    way = md.parallel.AsyncSGD(comm, computed=computed, staleness=options.pop("staleness", None))
    given: dict[str, Any] = {"batch_size": 32, "epochs": 3, "verbose": False} | options
    history = model.fit(X, Y, parallel=way, **given)
    step = model._step[2]
    assert isinstance(step, AsyncStep)
    losses = [row["loss"] for row in history.rows]
    return parameters_sha256(model.values().items()), losses, step, model.values()


def noisy(device: str) -> md.Model:
    """Layers with counters of random numbers, and with running statistics; moments; float32."""
    layers = [
        md.layers.Input((6,)), md.layers.Dense(WIDTH), md.layers.BatchNorm(), md.layers.Dropout(0.3),
        md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=2, device=device
    )


class Stops(md.callbacks.Callback):
    """Ends training within the second epoch."""

    def on_batch_end(self, fit: Any) -> None:
        if fit.steps == 7:
            fit.stop("enough")


DEVICES = ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_one_worker_is_a_training_alone() -> None:
    alone = network("cpu")
    history = alone.fit(X, Y, batch_size=32, epochs=3, verbose=False, parallel=False)
    with emulated_device(devices=2):
        for _, losses, step, values in simulate(
            2, lambda comm: trained(comm, ["cuda:0", "cuda:1"])
        ):
            assert step.peer_bytes > 0
            assert losses == pytest.approx([row["loss"] for row in history.rows], rel=1e-12)
            assert_near(values, alone.values())


def test_nothing_large_passes_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of batches; what GPUs copy is a gradient and parameters for each."""
    found: Counter[str] = Counter()
    count_copies(monkeypatch, found)
    host, peers = [], []
    with emulated_device(devices=2):
        for epochs in (1, 2, 4):
            found.clear()
            trainings = simulate(
                4,
                lambda comm, n=epochs: trained(comm, DEVICES, epochs=n, shuffle=False),  # type: ignore[misc]
            )
            host.append(dict(found))
            peers.append(trainings[0][2].peer_bytes)
            assert {one[0] for one in trainings} == {trainings[0][0]}
    # beside what an epoch ends with: moments, and parameters that callbacks and `values` look at
    for way in ("copy_to_host", "copy_to_device"):
        first, second = (host[k + 1][way] - host[k][way] for k in (0, 1))
        assert second == 2 * first <= 2 * 4 * PARAMETERS
    batches = -(-len(X) // 32)
    assert peers[2] - peers[1] == 2 * (peers[1] - peers[0]) == 2 * PARAMETERS * (2 * batches + 3)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "noisy": {"make": noisy},
    "bounded": {"staleness": 2},
    "weights": {"sample_weight": DRAW.integers(1, 5, len(X)) / 4},
    "held back": {"validation_split": 0.2},
    "stops": {"callbacks": [Stops()]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_numbers_as_through_the_hosts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, far = OPTIONS[name], 1e-5 if name == "noisy" else 1e-13
    with emulated_device(devices=2):
        there = simulate(4, lambda comm: trained(comm, DEVICES, **options))
        monkeypatch.setattr(PeerBuffers, "among", lambda *_: "not here")
        by_hosts = simulate(4, lambda comm: trained(comm, DEVICES, **options))
        assert there[0][2].peer_bytes > 0 and by_hosts[0][2].peer_bytes is None
        sizes = {"batch": 32}
        assert "travel from GPU to GPU" in there[1][2].text(sizes)
        assert "through the hosts: not here" in by_hosts[1][2].text(sizes)
    assert there[0][2].stale == by_hosts[0][2].stale and max(there[0][2].stale) > 1
    for one, other in zip(there, by_hosts, strict=True):
        for key, value in one[3].items():
            np.testing.assert_allclose(value, other[3][key], rtol=0, atol=far)


@pytest.mark.parametrize("name", ["copies one by one", "outputs by the host"])
def test_the_same_numbers_where_one_launch_does_not_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulated_device(devices=2):
        found = simulate(3, lambda comm: trained(comm, DEVICES))
        if name == "copies one by one":  # as for many arrays, or dtypes that kernels do not read
            monkeypatch.setattr(CopiesAtOnce, "can", staticmethod(lambda arrays: False))
        else:
            monkeypatch.setattr(Executable, "run_into", lambda *_: False)
        other = simulate(3, lambda comm: trained(comm, DEVICES))
    assert [one[:2] for one in found] == [one[:2] for one in other]
    assert [one[2].peer_bytes for one in found] == [one[2].peer_bytes for one in other]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_synchronous_server_has_the_numbers_of_its_messages(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last batch of fewer rows than ranks, so that one rank has none."""

    def one(comm: Communicator) -> Any:
        model = network(DEVICES[comm.rank])
        way = md.parallel.ParameterServer(comm)
        given: dict[str, Any] = {"batch_size": 46, "epochs": 3, "verbose": False, "shuffle": False}
        losses = [r["loss"] for r in model.fit(X[:140], Y[:140], parallel=way, **given).rows]
        return model.values(), losses, model._step[2].peer_bytes, model._step[2].count

    with emulated_device(devices=2):
        found: Counter[str] = Counter()
        with monkeypatch.context() as patch:
            count_copies(patch, found)
            there = simulate(ranks, one)
        monkeypatch.setattr(PeerBuffers, "among", lambda *_: "not here")
        by_hosts = simulate(ranks, one)
    batches = 3 * 4
    assert there[0][2] >= batches * (ranks - 1) * 1.7 * PARAMETERS and by_hosts[0][2] is None
    assert found["copy_to_host"] < batches * PARAMETERS
    for (values, losses, _, steps), other in zip(there, by_hosts, strict=True):
        assert losses == pytest.approx(other[1], rel=1e-12) and steps == other[3] == batches
        for name, value in values.items():
            np.testing.assert_allclose(value, other[0][name], rtol=0, atol=1e-13)


def test_all_ranks_of_a_synchronous_server_hear_of_its_overflow() -> None:
    def one(comm: Communicator) -> bool:
        layers = [md.layers.Input((6,)), md.layers.Dense(3)]
        given: dict[str, Any] = {"precision": "float64", "device": DEVICES[comm.rank], "seed": 2}
        model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(1.7e308), **given)
        before, way = model.values(), md.parallel.ParameterServer(comm)
        with pytest.raises(NumericError):
            model.fit(1e4 * X, Y, batch_size=32, verbose=False, parallel=way)
        assert model._step[2].peer_bytes is not None
        return all(np.array_equal(v, before[k]) for k, v in model.values().items())

    with emulated_device(devices=2):
        assert simulate(3, one) == [True] * 3


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("call", ["__init__", "_described", "_open", "_try", "_read"])
def test_gpus_that_do_not_reach_each_other_send_by_the_hosts(
    rank: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails on one rank, all of them know."""
    plain = getattr(PeerBuffers, call)

    def broken(self: PeerBuffers, *arguments: Any) -> Any:
        if rank == (arguments[2] if call == "__init__" else self._rank):
            raise RuntimeError("cudaErrorPeerAccessUnsupported")
        return plain(self, *arguments)

    monkeypatch.setattr(PeerBuffers, call, broken)
    with emulated_device():
        found = simulate(
            3, lambda comm: PeerBuffers.among(comm, 0, [8], () if comm.rank else (1, 2))
        )
        broke = call != "_open" or rank == 0  # which opens those of others
        assert [isinstance(one, str) for one in found] == [broke] * 3
        if broke:
            assert len(set(found)) == 1  # type: ignore[arg-type]
            assert str(rank) in str(found[0]) and (
                "PeerAccess" in str(found[0]) or "does not arrive" in str(found[0])
            )


def test_boxes_that_hold_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that are mapped to another place, and copies that do not arrive."""

    def opened(comm: Communicator) -> bool:
        return isinstance(PeerBuffers.among(comm, 0, [8], () if comm.rank else (1,)), PeerBuffers)

    with emulated_device():
        assert simulate(2, opened) == [True, True]
        plain = PeerBuffers._address
        kept = np.zeros(4, np.int64)
        with monkeypatch.context() as patch:
            patch.setattr(
                PeerBuffers, "_address", lambda *words: plain(*words) and kept.ctypes.data
            )
            assert simulate(2, opened) == [False, False]
        kept[:] = 2  # what rank 1 writes to its own
        with monkeypatch.context() as patch:
            patch.setattr(
                PeerBuffers, "_address", lambda *words: plain(*words) and kept.ctypes.data
            )
            assert simulate(2, opened) == [False, False]


def test_ranks_without_gpus_are_asked_once() -> None:
    with emulated_device():
        devices = ["cpu", "cuda:0", "cuda:0"]
        found = simulate(3, lambda comm: trained(comm, devices))
        assert all(one[2].peer_bytes is None for one in found)
        assert len({one[0] for one in found}) == 1


@pytest.mark.parametrize("rate", [1.7e308, 1e-6])
def test_an_update_that_is_not_finite_is_taken_back(rate: float) -> None:
    """In one of the first batches, or after a callback has set the rate."""

    class Overflows(md.callbacks.Callback):
        is_aside = False

        def on_batch_end(self, fit: Any) -> None:
            if fit.batch == 2:
                fit.step.set(learning_rate=1.7e308)
            self.before = fit.model.values()

    def one(comm: Communicator) -> None:
        layers = [md.layers.Input((6,)), md.layers.Dense(3)]
        given: dict[str, Any] = {"precision": "float64", "device": DEVICES[comm.rank], "seed": 2}
        model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(rate), **given)
        overflows = Overflows()
        before = model.values()
        way = md.parallel.AsyncSGD(comm)
        try:
            model.fit(1e4 * X, Y, batch_size=32, verbose=False, parallel=way, callbacks=[overflows])
        except NumericError:
            before = getattr(overflows, "before", before)
            same.append(all(np.array_equal(v, before[k]) for k, v in model.values().items()))
            raise

    same = list[bool]()
    with emulated_device(devices=2), pytest.raises(NumericError, match="rank 0") as error:
        simulate(2, one)
    assert same == [True] and "loss of batch" not in str(error.value)


class Late:
    """Copies among GPUs as late as CUDA may make them: when they are waited for, or before the same GPU is
    given something else; and whose turn it is with a worker's buffers.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pending: dict[PeerBuffers, list[Callable[[], None]]] = {}
        self.computing: set[int] = set()
        done = PeerBuffers.done

        def late(name: str) -> None:
            plain = getattr(PeerBuffers, name)

            def call(buffers: PeerBuffers, *what: Any) -> None:
                self.pending.setdefault(buffers, []).append(lambda: plain(buffers, *what))

            monkeypatch.setattr(PeerBuffers, name, call)

        def now(buffers: PeerBuffers) -> None:
            for what in self.pending.pop(buffers, []):
                what()
            done(buffers)

        def ordered(name: str) -> None:
            plain = getattr(PeerParameters, name)

            def call(peers: PeerParameters, *rank: int) -> None:
                if rank:
                    assert not self.computing & set(rank), "another rank's turn"
                plain(peers, *rank)
                if name != "give":
                    now(peers._buffers)

            monkeypatch.setattr(PeerParameters, name, call)

        for name in ("give", "fetch", "take"):
            ordered(name)
        late("copy")
        late("launch")
        monkeypatch.setattr(PeerBuffers, "done", now)
        self.skip = lambda: monkeypatch.setattr(PeerBuffers, "done", done)
        plain = AsyncStep._sums_of

        def gradients(step: AsyncStep, feeds: Any) -> Any:
            self.computing.add(step._comm.rank)
            step._comm.advance(0.5)  # others have their turn before it ends
            found = plain(step, feeds)
            self.computing.discard(step._comm.rank)
            return found

        monkeypatch.setattr(AsyncStep, "_sums_of", gradients)


def test_no_worker_reads_parameters_before_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither old ones nor such as are being written; where nobody waits for copies, that is found out."""

    def losses() -> tuple[list[float], list[float]]:
        one, several = (simulate(n, lambda comm: trained(comm, DEVICES)) for n in (2, 4))
        assert max(several[0][2].stale) > 1
        return one[0][1], several[0][1]

    with emulated_device(devices=2):
        right = losses()[0]
        late = Late(monkeypatch)
        assert losses()[0] == right
        late.skip()
        assert losses()[0] != right


class Cuda:
    """CUDA's handles of memory, as CuPy gives them; an allocation is 4 KB here."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.cuda = SimpleNamespace(Device=lambda number: nullcontext(), runtime=self)

    def ipcGetMemHandle(self, base: int) -> bytes:
        assert base % 4096 == 0
        return base.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self.opened.append(int.from_bytes(handle, "little"))
        return self.opened[-1]

    def ipcCloseMemHandle(self, address: int) -> None:
        self.closed.append(address)

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        base._obj.value = address.value - address.value % 4096
        return 0


def test_memory_of_other_processes_is_mapped_once_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, numbers = Cuda(), count()
    monkeypatch.setattr(peer_buffers, "array_library", lambda: cuda)
    monkeypatch.setattr(peer_buffers, "library", lambda: cuda)
    monkeypatch.setattr(peer_buffers.os, "getpid", lambda: next(numbers))
    kept = list[PeerBuffers]()

    def one(comm: Communicator) -> bool:
        made = PeerBuffers.among(comm, 0, [8, 600], () if comm.rank else (1, 2))
        if isinstance(made, str):
            return False
        kept.append(made)
        return all(len(theirs) == 2 for theirs in made.of.values())

    with emulated_device():
        assert simulate(3, one) == [True] * 3
        first = set(cuda.opened)
        assert len(cuda.opened) == len(first) and not cuda.closed
        (server,) = (made for made in kept if made.of)
        for rank in (1, 2):
            assert server.of[rank] == next(b.own for b in kept if b._rank == rank)
        del server, kept[:]
        gc.collect()
        assert sorted(cuda.closed) == sorted(first) and not ipc._maps
        monkeypatch.setattr(cuda, "ipcOpenMemHandle", lambda handle: 1 / 0)
        monkeypatch.setattr(peer_buffers, "array_library", lambda: None)  # no handles at all
        assert simulate(3, one) == [False] * 3
