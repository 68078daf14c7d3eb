"""What is told to CUDA for copies from other processes' memory, on a stand-in whose memory is NumPy's."""

from __future__ import annotations

import ctypes
import gc
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from magmadnn.backends.cuda.stream_flags import MemoryCall
from magmadnn.comm import Communicator, simulate
from magmadnn.comm.gpu import PeerCopies, flags, peers
from magmadnn.errors import CommunicationError, DeviceError


class Ndarray(np.ndarray):
    """NumPy's array with CuPy's `data.ptr`, `get` and flags."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def get(self, stream: Any = None) -> np.ndarray:
        go_on(-1)
        return np.array(self)


class Event:
    """What a stream had to do until here; it is done where `held` says nothing else."""

    held = False

    @property
    def done(self) -> bool:
        return not self.held

    def synchronize(self) -> None:
        pass


class Stream:
    """Carries out at once, and keeps what it was asked for."""

    ptr = 7

    def __init__(self) -> None:
        self.asked: list[str] = []

    def record(self) -> Event:
        return Event()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        self.asked.append("wait")

    def synchronize(self) -> None:
        go_on(-1)

    def begin_capture(self) -> None:
        assert not captured
        captured.append([])

    def end_capture(self) -> Graph:
        return Graph(captured.pop())

    def __enter__(self) -> None:
        self.asked.append("kernel")

    def __exit__(self, *_: object) -> None:
        pass


captured: list[list[Callable[[], object]]] = []  # the calls of a stream that is being captured


def given(call: Callable[[], object]) -> None:
    """What a stream is given: done now, or kept for a graph."""
    if captured:
        captured[0].append(call)
    else:
        call()


class Graph:
    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self._calls = calls

    def launch(self, stream: Stream) -> None:
        stream.asked.append("graph")
        for call in self._calls:
            call()


class Driver:
    """libcuda: memory comes in pages of 4 KB here. Streams go on as far as what they wait for is there, one
    call at a time, in an order that is drawn.
    """

    order = random.Random(0)
    all: ClassVar[list[Driver]] = []

    def __init__(self) -> None:
        self.queue: list[tuple[int, MemoryCall]] = []  # the number of the meeting, and a call of it
        self.batches = 0
        self.log: list[tuple[str, int]] = log
        self.all.append(self)

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        base._obj.value = address.value - address.value % 4096
        return 0

    def cuStreamBatchMemOp_v2(self, stream: Any, count: Any, calls: Any, how: Any) -> int:
        assert (stream.value, how.value) == (7, 0)
        array = (MemoryCall * count.value).from_address(calls.value)
        copied = [MemoryCall.from_buffer_copy(one) for one in array]
        given(lambda: self.take(copied))
        return 0

    def take(self, calls: list[MemoryCall]) -> None:
        self.queue += [(self.batches, one) for one in calls]
        self.batches += 1
        go_on()

    def step(self) -> bool:
        """Carry out one call, if it does not have to wait."""
        if not self.queue:
            return False
        meeting, call = self.queue[0]
        there = ctypes.c_uint32.from_address(call.address)
        assert call.how == 0
        if call.kind == 2:
            assert there.value != call.value, "a flag that nobody has seen is written over"
            there.value = call.value
        elif there.value < call.value:
            return False
        del self.queue[0]
        self.log.append(("come" if call.kind == 2 and call.value else "gone", meeting))
        return True


log: list[tuple[str, int]] = []


def go_on(most: int = 3) -> None:
    """Let streams do some of their calls; all, if `most` is less than 0."""
    while most and (ready := [one for one in Driver.all if one.step()]):
        assert ready
        Driver.order.shuffle(Driver.all)
        most -= 1


def cuda_of(stream: Stream) -> Any:
    def copy_2d(
        to: int, step: int, start: int, other: int, width: int, rows: int, kind: int, on: int
    ) -> None:
        assert on == 7
        for row in range(rows):
            given(partial(ctypes.memmove, to + row * step, start + row * other, width))
        stream.asked.append(f"{rows} rows")

    def copy(to: int, start: int, size: int, kind: int, on: int) -> None:
        assert on == 7
        given(partial(ctypes.memmove, to, start, size))
        stream.asked.append(f"{size} bytes")

    def array(shape: Any, dtype: Any, memory: Any, strides: Any) -> Ndarray:
        address, size = memory
        flat = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
        made = np.lib.stride_tricks.as_strided(
            flat[: np.dtype(dtype).itemsize].view(dtype), shape, strides
        )
        return made.view(Ndarray)

    runtime = SimpleNamespace(
        memcpyDefault=4,
        memcpy2DAsync=copy_2d,
        memcpyAsync=copy,
        ipcGetMemHandle=lambda base: base.to_bytes(8, "little"),
        ipcOpenMemHandle=lambda handle: int.from_bytes(handle, "little"),
        ipcCloseMemHandle=lambda address: None,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        get_current_stream=lambda: stream,
        Stream=lambda non_blocking: Stream(),
        UnownedMemory=lambda address, size, owner, device: (address, size),
        MemoryPointer=lambda memory, offset: memory,
        Device=Device,
        device=SimpleNamespace(get_cublas_handle=lambda: 11),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
    )
    return SimpleNamespace(
        cuda=cuda,
        ndarray=array,
        zeros=lambda n, dtype: np.zeros(n, dtype).view(Ndarray),
        empty=lambda n, dtype: np.empty(n, dtype).view(Ndarray),
        full=lambda n, value, dtype: np.full(n, value, dtype).view(Ndarray),
    )


class Device(nullcontext[None]):
    """A GPU, by its number or the current one."""

    compute_capability = "90"

    def __init__(self, number: int = 0) -> None:
        super().__init__()


def group_of(comm: Communicator) -> Any:
    stream = Stream()

    def meet(*words: Any) -> None:
        assert words[2:] == (1, 2, 0, 7)
        stream.asked.append("meet")
        comm.barrier()

    return SimpleNamespace(
        _cupy=cuda_of(stream), _device=comm.rank, _stream=stream, rank=comm.rank, size=comm.size,
        exchange=comm.exchange, _comm=SimpleNamespace(allReduce=meet),
    )  # fmt: skip


class Blas:
    """cuBLAS, on the handle 11."""

    def __init__(self) -> None:
        self.cublasGemmEx = Gemm()

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert handle.value == 11
        self.cublasGemmEx.stream, self.cublasGemmEx.has_room = stream.value, False
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, place: Any, size: Any) -> int:
        assert handle.value == 11 and place.value and size.value == 32 << 20
        self.cublasGemmEx.has_room = True
        return 0

    def cublasSetMathMode(self, handle: Any, mode: Any) -> int:
        assert handle.value == 11
        self.cublasGemmEx.mode = mode.value
        return 0


class Gemm:
    argtypes: Any = ()
    status = 0
    mode = 0  # 16: sums of halves are rounded once
    stream: int | None = None
    has_room = False  # a workspace of ours, which setting a stream takes away

    def __call__(self, handle: int, *words: int) -> int:
        assert handle == 11 and captured and len(self.argtypes) == 19
        assert self.stream == Stream.ptr and self.has_room and self.mode == 16
        captured[0].append(lambda: multiplied.append(words))
        return self.status


multiplied: list[tuple[int, ...]] = []


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(name: str) -> Any:
        return Driver() if "cuda.so" in name else Blas()

    monkeypatch.setattr(ctypes, "CDLL", library)
    for kept in (Driver.all, log, captured, multiplied):
        kept.clear()  # type: ignore[attr-defined]


def test_arrays_of_others_are_read_where_they_lie() -> None:
    def one(comm: Communicator) -> list[str]:
        group = group_of(comm)
        copies = PeerCopies.among(group)
        assert copies is not None
        base = (np.arange(40.0).reshape(5, 8) + 100 * comm.rank).view(Ndarray)
        whole = np.arange(6.0).view(Ndarray) * (comm.rank + 1)
        given = [base[1:4, 2:6], base.T[2:4], whole, base[:, ::3]]
        views = copies.share(given)
        assert all(mine is own for mine, own in zip(views[comm.rank], given, strict=True))
        other = 1 - comm.rank
        expected = np.arange(40.0).reshape(5, 8) + 100 * other
        asked = group._stream.asked
        asked.clear()
        copies.begin()
        for view, right, order in zip(
            views[other],
            (expected[1:4, 2:6], expected.T[2:4], np.arange(6.0) * (other + 1), expected[:, ::3]),
            "CFCC",
            strict=True,
        ):
            out = np.zeros_like(right, order=order).view(Ndarray)
            copies.copy(out, view)
            copies.wait(copies.mark())
            assert (np.asarray(out) == right).all()
        copies.copy(np.zeros((0, 3)).view(Ndarray), np.zeros((0, 3)).view(Ndarray))
        copies.end()
        comm.barrier()  # a stream would wait here; arrays live until then
        return list(asked)

    # From rows, from columns, from one run of bytes; elements that lie apart take a kernel.
    expected = [
        "wait",
        "3 rows",
        "wait",
        "5 rows",
        "wait",
        "48 bytes",
        "wait",
        "kernel",
        "wait",
    ]
    assert simulate(2, one) == [[*expected, "wait"]] * 2


def met(ranks: int, meetings: int) -> None:
    """All streams are done; none has gone from a meeting before all have come to it."""
    go_on(-1)
    assert not any(one.queue for one in Driver.all)
    for meeting in range(meetings):
        come = [at for at, one in enumerate(log) if one == ("come", meeting)]
        gone = [at for at, one in enumerate(log) if one == ("gone", meeting)]
        assert len(come) == ranks * (ranks - 1) and len(gone) == 2 * len(come)
        last_come = max(come)
        # a rank that waits for another one has gone past its wait, not out of the meeting
        assert sum(at > last_come for at in gone) >= ranks


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_streams_meet_by_flags_in_each_others_memory(seed: int, ranks: int) -> None:
    """Phases of two meetings and of more, in any order in which streams may go on."""
    Driver.order = random.Random(seed)
    kept, draw = [], random.Random(seed)
    inner = [draw.randint(0, 4) for _ in range(6)]

    def one(comm: Communicator) -> int:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None and copies._flags is not None
        kept.append(copies)
        comm.barrier()
        for driver in Driver.all:
            driver.batches = 0
        log.clear()
        comm.barrier()
        for more in inner:
            copies.begin()
            for _ in range(more):
                copies.begin()
            copies.end()
        assert "meet" not in copies._stream.asked
        comm.barrier()
        return copies._flags.count

    count = 2 * len(inner) + sum(inner)
    assert simulate(ranks, one) == [count] * ranks
    met(ranks, count)
    assert not any(np.asarray(one._flags._own).any() for one in kept)  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(8))
def test_phases_in_graphs_meet_others_that_are_in_none(seed: int) -> None:
    """Each rank takes graphs or not, as it likes; values are read when a graph runs."""
    Driver.order = random.Random(seed)
    kept = []

    def one(comm: Communicator) -> int:
        draw = random.Random(100 * seed + comm.rank)
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None and copies._flags is not None
        own = np.zeros(4).view(Ndarray)
        views = copies.share([own])
        out = np.zeros((comm.size, 4)).view(Ndarray)
        kept.append((copies, own, views, out))

        def phase(gemm: Any) -> None:
            copies.begin()
            for rank, (view,) in enumerate(views):
                copies.copy(out[rank], view)
            copies.wait(copies.mark())
            gemm(1, 2, 3)
            copies.end()

        launch, launches = copies.capture(phase), 0
        assert launch is not None and copies.nbytes == 32 << 20
        assert copies._flags.count == 0 and not own.any()
        for turn in range(8):
            own[...] = 10 * turn + comm.rank
            comm.barrier()
            out[...] = -1
            if draw.random() < 0.5:
                launches += 1
                launch()
            else:
                phase(lambda *words: multiplied.append(words))
            comm.barrier()
            go_on(-1)
            assert (out == 10 * turn + np.arange(comm.size)[:, None]).all()
            comm.barrier()
        copies.finish()
        assert copies._stream.asked.count("graph") == launches
        return copies._flags.count

    assert simulate(3, one) == [16] * 3
    assert multiplied == [(1, 2, 3)] * 24
    assert not any(one.queue for one in Driver.all)


def test_a_phase_that_cannot_be_captured_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one(comm: Communicator) -> None:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None and copies._flags is not None

        def broken(gemm: Any) -> None:
            copies.begin()
            raise NotImplementedError("a call that no graph can hold")

        def fails(gemm: Any) -> None:
            copies.begin()
            gemm(1)
            copies.end()

        with pytest.raises(NotImplementedError, match="no graph"):
            copies.capture(broken)
        monkeypatch.setattr(Gemm, "status", 13)
        with pytest.raises(RuntimeError, match="cublasGemmEx gives 13"):
            copies.capture(fails)
        assert not captured and copies._flags.count == 0 and not copies._begun
        comm.barrier()
        copies.begin()
        copies.end()
        comm.barrier()
        assert copies._flags.count == 2

    simulate(2, one)
    go_on(-1)
    assert not any(one.queue for one in Driver.all) and not multiplied


def test_ranks_without_flags_have_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "cuStreamBatchMemOp_v2", lambda *_: 801)

    def one(comm: Communicator) -> bool:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None
        return copies.capture(lambda gemm: None) is None and copies.nbytes == 0

    assert simulate(2, one) == [True, True]


@pytest.mark.parametrize("missing", [False, True])
def test_drivers_without_flags_take_sums(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing:
        monkeypatch.delattr(Driver, "cuStreamBatchMemOp_v2")
    else:
        monkeypatch.setattr(Driver, "cuStreamBatchMemOp_v2", lambda *_: 801)

    def one(comm: Communicator) -> list[str]:
        group = group_of(comm)
        copies = PeerCopies.among(group)
        assert copies is not None
        group._stream.asked.clear()
        copies.begin()
        return list(group._stream.asked)

    assert simulate(2, one) == [["wait", "meet"]] * 2


def test_flags_that_do_not_arrive_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes nowhere."""
    waited = []

    def take(driver: Driver, calls: list[MemoryCall]) -> None:
        waited.extend(one for one in calls if one.kind == 1)

    monkeypatch.setattr(Driver, "take", take)

    def one(comm: Communicator) -> bool:
        copies = PeerCopies.among(group_of(comm))
        return copies is not None and copies._flags is None

    assert simulate(2, one) == [True, True]
    assert not waited


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 comes to one meeting less; the others' streams wait for it, and their hosts say so in time."""
    monkeypatch.setattr(flags, "PATIENCE", 0.05)

    def one(comm: Communicator) -> str:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None
        copies.begin()
        copies.finish()
        if comm.rank != 1:
            copies.end()
        comm.barrier()
        monkeypatch.setattr(Event, "held", True)
        told = ""
        if comm.rank != 1:
            with pytest.raises(CommunicationError) as error:
                copies.finish()
            told = str(error.value)
        comm.barrier()
        monkeypatch.setattr(Event, "held", False)
        copies.finish()  # nothing is behind once the work is done
        comm.barrier()
        return told

    for rank, told in enumerate(simulate(3, one)):
        expected = (
            f"rank {rank} has been given 2 meetings and waits since 0 s for rank 1: it failed"
        )
        assert rank == 1 or expected in told


def test_long_work_of_ones_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have come: what takes long is no fault, however long it takes."""
    monkeypatch.setattr(flags, "PATIENCE", 0.01)

    def one(comm: Communicator) -> None:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None and copies._flags is not None
        end = time.monotonic() + 5 * flags.PATIENCE
        copies._flags.wait_for(lambda: time.monotonic() > end, lambda: 0)
        left = iter(range(10_000, 0, -1))  # phases that end one after the other are no fault either
        end = time.monotonic() + 5 * flags.PATIENCE
        copies._flags.wait_for(lambda: time.monotonic() > end, lambda: next(left))

    simulate(2, one)


def test_the_host_is_a_few_phases_ahead_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = PeerCopies.among(group_of(simulate(1, lambda comm: comm)[0]))
    assert copies is not None
    seen = list[int]()
    monkeypatch.setattr(Event, "done", property(lambda event: not seen.append(id(event))))
    marks = list[Event]()
    monkeypatch.setattr(Stream, "record", lambda stream: marks.append(Event()) or marks[-1])
    for _ in range(40):
        copies.begin()
        copies.end()
    ends = [id(mark) for mark in marks[1::2]]
    assert seen == ends[: 40 - peers._PHASES]


def test_gpus_that_cannot_read_each_other_have_no_copies() -> None:
    def broken(rank: int, call: str) -> Any:
        def one(comm: Communicator) -> bool:
            group = group_of(comm)
            if comm.rank == rank:

                def fail(*_: Any) -> None:
                    raise RuntimeError("cudaErrorInvalidResourceHandle")

                setattr(group._cupy.cuda.runtime, call, fail)
            return PeerCopies.among(group) is None

        return one

    for rank in (0, 1):
        for call in ("ipcGetMemHandle", "ipcOpenMemHandle"):
            gc.collect()  # mappings of before, of the same place
            assert simulate(2, broken(rank, call)) == [True, True]


def test_an_array_that_is_not_on_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = PeerCopies(group_of(simulate(1, lambda comm: comm)[0]))
    monkeypatch.setattr(Driver, "cuMemGetAddressRange_v2", lambda *_: 1)
    with pytest.raises(DeviceError, match=r"cuMemGetAddressRange gives 1 for an array of \(3,\)"):
        copies._described(np.zeros(3).view(Ndarray))
