"""Training of several ranks on devices: calls among GPUs within the graphs of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comm.test_launch import launched
from tests.runtime.cuda.devices import DEVICES
from tests.runtime.cuda.emulator import needs_compiler

SCRIPT = """
import ctypes
import json
import sys
from contextlib import nullcontext

import numpy as np

import magmadnn as md
from magmadnn.comm.gpu import meeting
from magmadnn.parallel.in_graph import slices, whole_step
from magmadnn.parallel.placements import slices as placed, step as placed_step
from magmadnn.parallel.sharding import parameters as pieces
from magmadnn.runtime.cuda import algorithms
from magmadnn.runtime.cuda.schedule import launches
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from tests.runtime.cuda.emulator import Emulator, emulated_device

whole_step.GPU_BUCKET_BYTES = 64  # several buckets
draw = np.random.default_rng(5)
x, y = draw.normal(size=(72, 5)), draw.integers(0, 3, 72)
comm, real = md.comm.world(), DEVICE == "gpu"
if APART:  # all products are the library's, which prefers other algorithms on each rank
    launches.choose_gemm = lambda *_: None
    Emulator.proposals = (b"first", b"second")[:: 1 - 2 * comm.rank]
    x, y = x[:64], y[:64]  # whole batches


class OnHost:
    # what NCCL does on GPUs
    rank, size, prepared = comm.rank, comm.size, []

    def prepare(self, *what):
        if what not in self.prepared:
            assert all(one == list(what) for one in comm.exchange(what))
            self.prepared.append(what)

    def can_add(self, dtype, stored):
        return dtype == stored or (dtype, stored) == ("bfloat16", "float32")

    def call_on(self, stream, kind, source, result, count, dtype, stored):
        assert (kind, count, dtype, stored) in self.prepared
        read = count * comm.size if kind in ("scatter", "exchange") else count
        made = count * comm.size if kind in ("gather", "exchange") else count
        own, found = array_at(source, read, dtype).copy(), array_at(result, made, stored)
        kinds.add(kind)
        if kind == "sum":
            found[...] = comm.all_reduce(own.astype(stored))
            dtypes.add(dtype)
        elif kind == "gather":
            found[...] = comm.all_gather(own)
        elif kind == "scatter":
            found[...] = comm.reduce_scatter(own)
        else:
            comm.all_to_all(np.split(own, comm.size), np.split(found, comm.size))


    def prepare_moves(self, *what):
        self.prepare(*map(list, what[0]), *what[1:])

    def move_on(self, stream, moves, source, result, count, dtype):
        assert (*map(list, moves), count, dtype) in self.prepared
        kinds.add("move")
        nothing = np.empty(0, dtype)
        parts, places = [nothing] * comm.size, [nothing] * comm.size
        for one, first, end, to, at in moves:
            if one == comm.rank:
                parts[to] = array_at(source, end * count, dtype)[first * count :].copy()
            if to == comm.rank:
                places[one] = array_at(result, (at + end - first) * count, dtype)[at * count :]
        comm.all_to_all(parts, places)


def array_at(address, count, dtype):
    raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def meet(communicator, device):
    meeting._gpus[communicator] = OnHost()


items, kinds, dtypes = [], set(), set()
known_calls = launches.calls_of


def calls_of(layout, work):
    found = known_calls(layout, work)
    items.extend(found)
    return found


def assert_in_order():
    # whichever graph they are in, a sum waits for the one before it: NCCL stops where ranks differ in order
    assert items
    edges = edges_of([(item.reads, item.writes) for item in items])
    assert edges == [(), *((k,) for k in range(len(items) - 1))], edges


counts = []


def counted(run):
    def again(self, order, count, follows=False):
        counts.append(count)
        result = run(self, order, count, follows)
        assert result is not None  # no batch is done again, one by one
        return result

    return again


def begun(launch):
    def again(self, order, count):
        counts.append(count)
        return launch(self, order, count)

    return again


def fit(device, way):
    layers = [md.layers.Input((5,)), md.layers.Dense(8, activation="tanh"), md.layers.Dense(4)]
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), precision=PRECISION,
        device=device, seed=1
    )
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=False, parallel=way)
    if way and comm.size > 1 and WAY == "data":
        assert f"over {comm.size} GPUs" in str(model.plan(batch_size=32))
        # a step keeps its losses and metrics until they are read, and no gradients
        assert model.memory(batch_size=32).workspace < 2 << 20, model.memory(batch_size=32)
    if way and comm.size > 1 and WAY == "moments":  # of Adam's two for each parameter it has half
        whole = 2 * sum(v.nbytes for v in model.values().values())
        assert whole / 2 <= model._step[2].own_bytes <= 0.6 * whole
    if way and comm.size > 1 and WAY == "parameters":  # no element is on both
        whole, own = 3 * sum(v.nbytes for v in model.values().values()), model._step[2].own_bytes
        assert own < 0.9 * whole and sum(comm.exchange(own)) == whole
        assert f"rank {comm.rank} of 2 keeps" in str(model.plan(batch_size=32))
    return [v.tolist() for _, v in sorted(model.values().items())], history.rows[-1]["loss"]


WAYS = {
    "data": md.parallel.DataParallel, "statistics": lambda: md.parallel.DataParallel(sync=True),
    "moments": lambda: md.parallel.DataParallel(shard="optimiser"),
    "parameters": lambda: md.parallel.DataParallel(shard="parameters"),
    "narrow": lambda: md.parallel.DataParallel(wire="bfloat16"),
    "model": md.parallel.ModelParallel,
    "hybrid": lambda: md.parallel.Hybrid({"dense_1": "data", "dense_2": "columns"}),
    "some": lambda: md.parallel.Hybrid(
        {"dense_1": md.dmath.Replicated(on=(1,)), "dense_2": md.dmath.Columns(on=(1, 0))}
    ),
}
PRECISION = "float32" if WAY == "narrow" else "float64"
alone = fit("cpu", False)
if not real:
    slices.meet = placed_step.meet = pieces.meet = meet
slices.RanksSlices.run = counted(slices.RanksSlices.run)
slices.RanksSlices.launch = begun(slices.RanksSlices.launch)
placed.PlacedSlices.run = counted(placed.PlacedSlices.run)
launches.calls_of = calls_of
with nullcontext() if real else emulated_device():
    found = fit(f"cuda:{comm.rank}" if real else "cuda", WAYS[WAY]())
if comm.size > 1:
    assert_in_order()
if WAY == "narrow" and comm.size > 1 and not real:
    assert dtypes == {"bfloat16"}, dtypes  # of gradients; weights of rows are known, as all have as many
told = comm.exchange([alone, found, counts, sorted(kinds), algorithms.frozen()])
if comm.rank == 0:
    print(json.dumps(told))
"""

# rank 1 has no room for its data, so all take batches one by one
NO_ROOM = """
from magmadnn.training.loop.own_rows import OwnRows

kinds, dtypes = set(), set()
slices.meet = placed_step.meet = meet
if comm.rank:
    OwnRows.data = lambda self, batch_size, room: None


def fit(device, way):
    layers = [md.layers.Input((5,)), md.layers.Dense(8, activation="tanh"), md.layers.Dense(4)]
    model = md.Model(
        layers, loss="cross_entropy", optimizer="sgd", precision="float64", device=device, seed=1
    )
    model.fit(x, y, batch_size=32, epochs=2, verbose=False, parallel=way)
    return [v.tolist() for _, v in sorted(model.values().items())]


alone = fit("cpu", False)
with emulated_device():
    found = fit("cuda", md.parallel.DataParallel() if WAY == "data" else md.parallel.ModelParallel())
told = comm.exchange([alone, found])
if comm.rank == 0:
    print(json.dumps(told))
"""


# slices of two batches, of which each begins before the one in front was looked at
AHEAD = """
from magmadnn.optim import StepSlices
from magmadnn.errors import NumericError
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.training.loop import fit as loop, pieces as chunks

kinds, dtypes, events = set(), set(), []
slices.meet = placed_step.meet = pieces.meet = meet
StepSlices.longest, loop._SLICE_SECONDS = 2, 1e6
for name in ("launch", "finish", "_go_back"):
    def told(self, *given, name=name, kept=getattr(CudaSlices, name)):
        events.append(name)
        return kept(self, *given)

    setattr(CudaSlices, name, told)
if ROOM == "one" and comm.rank:
    known = CudaSlices.free_side

    def full(self):
        if self._flights:
            raise md.errors.OutOfMemoryError("full")
        return known(self)

    CudaSlices.free_side = full


def fit(ahead=True, rate=0.01, **more):
    layers = [md.layers.Input((5,)), md.layers.Dense(8, activation="tanh"), md.layers.Dense(4)]
    model = md.Model(
        layers, loss="mse", optimizer=md.optim.SGD(rate), precision="float64", device="cuda", seed=1
    )
    known = chunks.PendingChunk.launch
    if not ahead:
        chunks.PendingChunk.launch = lambda chunk: False
    events.clear()
    more["parallel"] = WAYS[WAY]()
    try:
        model.fit(x[:64], np.eye(4)[y[:64]], batch_size=8, epochs=3, verbose=False, **more)
        said = "nothing"
    except NumericError as error:
        said = str(error)
    chunks.PendingChunk.launch = known
    return said, [v.tolist() for _, v in sorted(model.values().items())], list(events)


class Looks(md.callbacks.Callback):
    def on_epoch_end(self, fit):
        pass


WAYS = {
    "data": md.parallel.DataParallel,
    "moments": lambda: md.parallel.DataParallel(shard="optimiser"),
    "parameters": lambda: md.parallel.DataParallel(shard="parameters"),
    "model": md.parallel.ModelParallel,
}
looks = [Looks()] if comm.rank == 0 else []
with emulated_device():
    told = [fit(), fit(False), *(fit(a, 1e60) for a in (True, False)), fit(callbacks=looks)]
if comm.rank == 0:
    print(json.dumps(told))
"""


@needs_compiler
@pytest.mark.parametrize(
    ("way", "room", "most", "ends"),
    [("data", "two", 2, 1), ("data", "one", 1, 12),
     *(pytest.param(way, "two", 1, 12, marks=pytest.mark.long)
       for way in ("moments", "parameters", "model"))],
)  # fmt: skip
def test_ranks_begin_before_the_results_of_steps_in_front_are_there(
    way: str, room: str, most: int, ends: int, tmp_path: Path
) -> None:
    """Also across epochs; on no rank if one has no room, or looks, and not where each has parts."""
    pytest.importorskip("mpi4py")
    head = f"DEVICE, WAY, APART, ROOM = 'emulated', {way!r}, False, {room!r}\n"
    text = head + SCRIPT[: SCRIPT.index("items, kinds")] + AHEAD
    code, out, errors, _ = launched(tmp_path, 2, text, "")
    assert code == 0, errors
    ahead, plain, bad, plain_bad, looked_at = json.loads(out.splitlines()[-1])
    for one, other in ((ahead, plain), (bad, plain_bad), (looked_at, plain)):
        assert one[:2] == other[:2]
    assert "infinity" in bad[0] and ahead[0] == "nothing"
    for found, flying, waited in ((ahead, most, ends), (plain, 1, 12), (looked_at, 1, 12)):
        events = [event for event in found[2] if event != "_go_back"]
        now = np.cumsum([{"launch": 1, "finish": -1}[event] for event in events])
        assert (now.max(), (now == 0).sum(), events.count("launch")) == (flying, waited, 12)


KINDS = {
    "data": ["sum"],
    "statistics": ["gather", "sum"],
    "moments": ["gather", "scatter"],
    "parameters": ["gather", "scatter", "sum"],
    "narrow": ["sum"],
    "model": ["sum"],
    "hybrid": ["gather", "sum"],
    "some": ["move", "sum"],
}


@pytest.mark.parametrize("way", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_two_ranks_train_as_one(device: str, way: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if device == "gpu":
        from magmadnn.backends import cuda

        if cuda.device_count() < 2:
            pytest.skip("one GPU only")
    check(tmp_path, device, 2, way)


@needs_compiler
def test_one_rank_trains_in_slices(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    check(tmp_path, "emulated", 1, "data")


@needs_compiler
@pytest.mark.parametrize("way", ["data", "model"])
def test_ranks_take_the_same_algorithms(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first rank, whatever the library of another one prefers."""
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", "0")
    found = check(tmp_path, "emulated", 2, way, apart=True)
    assert len(found[0]) >= 5 and set(found[0].values()) == {b"first".hex()}
    assert found[1] == found[0]


@needs_compiler
@pytest.mark.parametrize("way", ["data", "model"])
def test_a_rank_without_room_for_data_lets_none_wait(way: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    head = f"DEVICE, WAY, APART = 'emulated', {way!r}, False\n"
    text = head + SCRIPT[: SCRIPT.index("items, kinds")] + NO_ROOM
    code, out, errors, _ = launched(tmp_path, 2, text, "")
    assert code == 0, errors
    for alone, found in json.loads(out.splitlines()[-1]):
        for value, expected in zip(found, alone, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


def check(
    folder: Path, device: str, ranks: int, way: str, apart: bool = False
) -> list[dict[str, str]]:
    """Train; gives the algorithms of each rank."""
    script = f"DEVICE, WAY, APART = {device!r}, {way!r}, {apart}\n" + SCRIPT
    code, out, errors, _ = launched(folder, ranks, script, "")
    assert code == 0, errors
    told: list[Any] = json.loads(out.splitlines()[-1])
    assert len(told) == ranks
    for alone, found, counts, kinds, _ in told:
        assert sum(counts) == 4  # whole batches; the last of an epoch has 8 rows
        assert found == told[0][1]
        assert device == "gpu" or kinds == (KINDS[way] if ranks > 1 else [])
        # of steps of Adam's of at most 0.01 each, in which gradients are off by 2^-8
        away = (1e-2, 2e-3) if way == "narrow" else (1e-12, 1e-11)
        assert found[1] == pytest.approx(alone[1], rel=away[0])
        for value, expected in zip(found[0], alone[0], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=away[1])
    return [algorithms for *_, algorithms in told]
