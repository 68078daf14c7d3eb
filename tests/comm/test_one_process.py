"""Ranks that are threads with a GPU each: the calls of all communicators, on a stand-in for CuPy.

Its arrays are NumPy's and know on which GPU they are; copies are made at once, and only by `memcpyAsync`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from magmadnn.comm import Communicator, simulate
from magmadnn.comm.gpu import on_gpus
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    DeviceError,
    DTypeError,
    MissingExtraError,
    ShapeError,
)

GPUS = 5
HERE = threading.local()


def current() -> int:
    return int(getattr(HERE, "device", 0))


class Ndarray(np.ndarray):
    """NumPy's array with what CuPy's has beside."""

    __module__ = "cupy"

    def __array_finalize__(self, source: Any) -> None:
        self.place = getattr(source, "place", current())

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.place)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=np.asarray(self).flags.c_contiguous)


def on_gpu(values: Any) -> Any:
    """An array on the current GPU."""
    made = np.array(values, order="C").view(Ndarray)
    made.place = current()
    return made


class Device:
    """The current GPU of a thread, while the block runs."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> None:
        self.before, HERE.device = current(), self.id

    def __exit__(self, *_: object) -> None:
        HERE.device = self.before


class Stream:
    """Does all at once, and keeps what it was asked for, and in which order all streams were."""

    log: ClassVar[list[tuple[str, int, Any]]] = []
    names = iter(range(1, 1 << 30))

    def __init__(self, **options: Any) -> None:
        self.ptr, self.device = next(self.names), current()
        self.before: list[Any] = []

    def record(self) -> Any:
        assert current() == self.device
        event = SimpleNamespace(done=True, stream=self.ptr, number=next(self.names))
        self.log.append(("record", self.ptr, event.number))
        return event

    def wait_event(self, event: Any) -> None:
        self.log.append(("wait", self.ptr, event.number))

    def synchronize(self) -> None:
        self.log.append(("synchronize", self.ptr, None))

    def __enter__(self) -> None:
        self.before.append(getattr(HERE, "stream", None))
        HERE.stream = self

    def __exit__(self, *_: object) -> None:
        HERE.stream = self.before.pop()


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    made, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    reached: list[tuple[int, int]] = []
    main = threading.get_ident()

    class CUDARuntimeError(RuntimeError):
        pass

    def copy(to: int, start: int, size: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (4, HERE.stream.ptr) and HERE.stream.device == current()
        Stream.log.append(("copy", stream, size))
        ctypes.memmove(to, start, size)

    def enable(other: int) -> None:
        if (current(), other) in reached:
            raise CUDARuntimeError("peer access is enabled already")
        reached.append((current(), other))

    def stream_of_thread() -> Stream:
        assert threading.get_ident() != main
        if getattr(HERE, "stream", None) is None:
            HERE.stream = Stream()
        return HERE.stream

    runtime = SimpleNamespace(
        getDeviceCount=lambda: GPUS, memcpyAsync=copy, deviceEnablePeerAccess=enable,
        deviceCanAccessPeer=lambda one, other: int(abs(one - other) < 3), CUDARuntimeError=CUDARuntimeError,
    )  # fmt: skip
    vars(cuda).update(
        runtime=runtime, Device=Device, Stream=Stream, get_current_stream=stream_of_thread
    )
    vars(made).update(
        cuda=cuda, ndarray=Ndarray, empty=lambda shape, dtype: on_gpu(np.empty(shape, dtype)),
        reached=reached,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(Stream, "log", [])
    yield made


def given(rank: int, shape: Any, dtype: Any = np.float32) -> Any:
    draw = np.random.default_rng(100 + rank).normal(size=shape)
    return (draw * 10).astype(dtype)


def every_call(comm: Communicator, put: Any) -> list[Any]:
    """What all calls give on a rank; `put` makes an array of the communicator's kind."""
    rank, size = comm.rank, comm.size
    found: list[Any] = []

    def keep(array: Any) -> None:
        found.append((array.dtype.name, array.shape, np.asarray(array).tobytes()))

    for algorithm in (None, "everyone", "direct", "tree", "ring", "torus", "library"):
        for shape in ((7, 3), (41, 111)):
            keep(comm.all_reduce(put(given(rank, shape)), algorithm=algorithm))
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64, np.int64):
        keep(comm.all_reduce(put(given(rank, (9,), dtype))))
    for op in ("max", "min", "prod"):
        keep(comm.all_reduce(put(given(rank, (9,))), op=op))
    for wire in ("float16", "bfloat16"):
        keep(comm.all_reduce(put(given(rank, (300,))), wire=wire))
        keep(comm.all_gather(put(given(rank, (3, 2))), wire=wire))
        keep(comm.shift(put(given(rank, (5,))), wire=wire))
    own = put(given(rank, (6,)))
    keep(comm.all_reduce(own, own))
    counts = [r % 3 for r in range(size)]
    keep(comm.reduce_scatter(put(given(rank, (2 * size, 3)))))
    keep(comm.reduce_scatter(put(given(rank, (sum(counts), 2))), counts=counts))
    keep(comm.all_gather(put(given(rank, (2, 5)))))
    keep(comm.all_gather(put(given(rank, (counts[rank], 2))), counts=counts))
    keep(comm.broadcast(put(given(rank, (8,))), root=size - 1))
    for part in comm.all_to_all([put(given(rank * size + r, (r, rank + 1))) for r in range(size)]):
        keep(part)
    keep(comm.shift(put(given(rank, (4,))), put(np.zeros(4, np.float32)), by=-1))
    moved = comm.start_shift(put(np.array([rank])))
    sums = [comm.start_all_reduce(put(given(rank, (n,)))) for n in (3, 100_003)]
    keep(moved.wait())
    for request in reversed(sums):
        keep(request.wait())
        assert request.done()
    if size > 1:
        to, source = (rank + 1) % size, (rank - 1) % size
        came = [put(np.zeros(5, np.float32)) for _ in range(2)]
        requests = [comm.start_recv(one, source, tag=k) for k, one in enumerate(came)]
        for k in (1, 0):
            comm.start_send(put(given(rank + 10 * k, (5,))), to, tag=k)
        for request in requests:
            keep(request.wait())
        if rank == 0:
            comm.send(put(given(3, (2, 2))), 1)
        elif rank == 1:
            keep(comm.recv(put(np.zeros((2, 2), np.float32)), 0))
    group = comm.split(rank % 2, key=-rank)
    assert group is not None
    found.append(group.exchange(rank))
    keep(group.all_reduce(put(given(rank, (5,)))))
    assert comm.split(None) is None
    comm.barrier()
    found.append(comm.exchange({"rank": rank}))
    group.close()
    comm.close()
    with pytest.raises(ArgumentError, match="closed"):
        comm.barrier()
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_calls_have_the_bits_of_simulated_ranks(size: int) -> None:
    expected = simulate(size, every_call, np.array)
    for _ in range(3):  # threads meet in another order each time
        assert on_gpus(range(size), every_call, on_gpu) == expected


def test_results_are_on_the_rank_s_gpu() -> None:
    def body(comm: Communicator) -> list[int]:
        x = on_gpu(np.ones((4, 2), np.float32))
        results = [
            comm.all_reduce(x),
            comm.all_gather(x),
            comm.shift(x),
            comm.start_shift(x).wait(),
        ]
        results += comm.all_to_all([x, x])
        return [one.device.id for one in results]

    assert on_gpus([3, 1], body) == [[3] * 6, [1] * 6]


def test_streams_wait_for_each_other() -> None:
    """A copy is behind what the sender's stream had to do, and the sender's stream waits for the copy."""

    def body(comm: Communicator) -> int:
        x = on_gpu(np.full(1000, comm.rank + 1.0))
        stream = sys.modules["cupy"].cuda.get_current_stream()
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0)
        return int(stream.ptr)

    sender, receiver = on_gpus([0, 1], body)
    log = Stream.log
    at = log.index(("copy", receiver, 8000))
    ready = log[at - 1][2]
    assert log[at - 1][:2] == ("wait", receiver) and ("record", sender, ready) in log[:at]
    assert log[at + 1][:2] == ("record", receiver)
    assert log[at + 2] == ("wait", sender, log[at + 1][2])
    assert log.index(("synchronize", sender, None)) > at  # before the thread ends


def test_calls_on_the_side_are_behind_the_current_stream_and_before_what_waits() -> None:
    def body(comm: Communicator) -> tuple[int, int, int]:
        comm.barrier()
        with_all = len(Stream.log)
        request = comm.start_all_reduce(on_gpu(np.ones(2000)))
        request.wait()
        comm.barrier()
        return with_all, 0, int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    found = on_gpus([0, 1], body)
    mine = {ptr for _, _, ptr in found}
    copies = {stream for what, stream, size in Stream.log if what == "copy"}
    assert copies and not copies & mine  # all on streams of their own
    records = {number: stream for what, stream, number in Stream.log if what == "record"}
    waits = [(stream, records[number]) for what, stream, number in Stream.log if what == "wait"]
    for stream in mine:
        side = next(one for one, other in waits if other == stream and one in copies)
        assert (stream, side) in waits


def test_gpus_reach_each_other(cupy: Any) -> None:
    """Where they can, and once: a second group finds it done."""
    for _ in range(2):
        on_gpus([0, 1, 4], lambda comm: comm.barrier())
    assert sorted(cupy.reached) == [(0, 1), (1, 0)]


def mistakes() -> dict[str, tuple[Any, type[Exception], str]]:
    def wrong_gpu(comm: Any) -> None:
        x = on_gpu(np.ones(3))
        x.place = 4
        comm.all_reduce(x)

    return {
        "calls differ": (
            lambda c: c.barrier() if c.rank else c.all_reduce(on_gpu(np.ones(3))),
            CommunicationError,
            "calls differ: rank",
        ),
        "shapes differ": (
            lambda c: c.all_reduce(on_gpu(np.ones(3 + c.rank))), CommunicationError, "calls differ",
        ),
        "a rank has ended": (
            lambda c: c.rank or c.barrier(),
            CommunicationError,
            "no rank can go on: rank 0 waits in barrier at .*; rank 1 has ended; it made no call",
        ),
        "asked in vain": (lambda c: c.rank or polls(c), CommunicationError, "no rank can go on"),
        "circle": (
            lambda c: c.recv(on_gpu(np.ones(3)), 1 - c.rank),
            CommunicationError,
            "no rank can go on: rank 0 waits in recv .*; rank 1 waits in recv",
        ),
        "message": (
            lambda c: c.send(on_gpu(np.ones(3)), 1) if c.rank == 0 else c.recv(on_gpu(np.ones(4)), 0),
            CommunicationError,
            r"got float64 \(3,\) from rank 0, expected float64 \(4,\)",
        ),
        "in a task": (
            lambda c: c.shift(on_gpu(np.ones(3)), out=on_gpu(np.ones(2)), by=2),
            ShapeError,
            "shift: out has shape",
        ),
        "raises": (
            lambda c: c.barrier() if c.rank else [].pop(), IndexError, "pop from empty list",
        ),
        "a NumPy array": (lambda c: c.all_reduce(np.ones(3)), DTypeError, "use cupy.asarray"),
        "another GPU": (wrong_gpu, DeviceError, "is on device 4, this rank works on [01]"),
        "strides": (
            lambda c: c.all_reduce(on_gpu(np.ones((4, 4)))[:, 1]), ArgumentError, "cupy.ascontiguous",
        ),
        "out": (
            lambda c: c.all_reduce(on_gpu(np.ones(3)), on_gpu(np.ones(4))), ShapeError, "out has shape",
        ),
        "out on the host": (
            lambda c: c.all_reduce(on_gpu(np.ones(3)), np.ones(3)), DTypeError, "out must be an array of",
        ),
        "out of itself": (shifted, ArgumentError, "out shares memory"),
    }  # fmt: skip


def polls(comm: Any) -> None:
    request = comm.start_recv(on_gpu(np.ones(3)), 1)
    while not request.done():
        pass


def shifted(comm: Any) -> None:
    x = on_gpu(np.ones(3))
    comm.shift(x, x)


@pytest.mark.parametrize("name", mistakes())
def test_a_mistake_ends_all_and_is_named(name: str) -> None:
    body, kind, text = mistakes()[name]
    with pytest.raises(kind, match=text):
        on_gpus([0, 1], body)
    assert not [one for one in threading.enumerate() if one.name.startswith("rank ")]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for devices, kind, text in (
        ([], ArgumentError, "devices must be 1 to 64, got 0"),
        ([0, 5], DeviceError, "there is no GPU 5: this machine has 5"),
        ([1, 2, 1], DeviceError, "ranks 0 and 2 would both use GPU 1: give each its own"),
    ):
        with pytest.raises(kind, match=text):
            on_gpus(devices, print)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtraError, match="communication among GPUs needs CuPy"):
        on_gpus([0], print)
