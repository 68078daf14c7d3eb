"""What is told to CUDA for copies from other processes' memory, on a stand-in whose memory is NumPy's."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import Communicator, simulate
from magmadnn.comm.gpu import PeerCopies, flags, peers
from magmadnn.errors import CommunicationError, DeviceError


class Ndarray(np.ndarray):
    """NumPy's array with CuPy's `data.ptr`, `get` and flags."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def get(self, stream: Any = None) -> np.ndarray:
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
        pass

    def __enter__(self) -> None:
        self.asked.append("kernel")

    def __exit__(self, *_: object) -> None:
        pass


class Driver:
    """libcuda: memory comes in pages of 4 KB here."""

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        base._obj.value = address.value - address.value % 4096
        return 0

    def cuStreamWriteValue32_v2(self, stream: Any, address: Any, value: Any, how: Any) -> int:
        assert stream.value == 7
        ctypes.c_uint32.from_address(address.value).value = value.value
        return 0

    def cuStreamWaitValue32_v2(self, stream: Any, address: Any, value: Any, how: Any) -> int:
        assert (stream.value, how.value) == (7, 0)
        waits.append((ctypes.c_uint32.from_address(address.value), value.value))
        return 0


waits: list[tuple[Any, int]] = []  # what streams wait for: a place in memory, and the least there


def cuda_of(stream: Stream) -> Any:
    def copy_2d(
        to: int, step: int, start: int, other: int, width: int, rows: int, kind: int, on: int
    ) -> None:
        assert on == 7
        for row in range(rows):
            ctypes.memmove(to + row * step, start + row * other, width)
        stream.asked.append(f"{rows} rows")

    def copy(to: int, start: int, size: int, kind: int, on: int) -> None:
        assert on == 7
        ctypes.memmove(to, start, size)
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
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        get_current_stream=lambda: stream,
        Stream=lambda non_blocking: Stream(),
        UnownedMemory=lambda address, size, owner, device: (address, size),
        MemoryPointer=lambda memory, offset: memory,
    )
    return SimpleNamespace(
        cuda=cuda,
        ndarray=array,
        zeros=lambda n, dtype: np.zeros(n, dtype).view(Ndarray),
        full=lambda n, value, dtype: np.full(n, value, dtype).view(Ndarray),
    )


def group_of(comm: Communicator) -> Any:
    stream = Stream()

    def meet(*words: Any) -> None:
        assert words[2:] == (1, 2, 0, 7)
        stream.asked.append("meet")
        comm.barrier()

    return SimpleNamespace(
        _cupy=cuda_of(stream), _device=0, _stream=stream, rank=comm.rank, size=comm.size,
        exchange=comm.exchange, _comm=SimpleNamespace(allReduce=meet),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.ctypes, "CDLL", lambda name: Driver())


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


def test_streams_meet_by_counts_in_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank has told every other one, once a meeting, when all waits can end."""
    waits.clear()
    kept = []

    def one(comm: Communicator) -> int:
        copies = PeerCopies.among(group_of(comm))
        assert copies is not None and copies._flags is not None
        kept.append(copies)
        for _ in range(3):
            copies.begin()
            copies.end()
        assert "meet" not in copies._stream.asked
        comm.barrier()
        return copies._flags._count

    assert simulate(3, one) == [7, 7, 7]
    assert len(waits) == 3 * 2 * 7
    assert all(place.value == 7 for place, _ in waits)
    assert sorted(least for _, least in waits) == sorted([*range(1, 8)] * 6)


@pytest.mark.parametrize("call", ["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"])
def test_drivers_without_counts_take_sums(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, call, lambda *_: 801)

    def one(comm: Communicator) -> list[str]:
        group = group_of(comm)
        copies = PeerCopies.among(group)
        assert copies is not None
        group._stream.asked.clear()
        copies.begin()
        return list(group._stream.asked)

    assert simulate(2, one) == [["wait", "meet"]] * 2


def test_counts_that_do_not_arrive_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "cuStreamWriteValue32_v2", lambda *_: 0)
    monkeypatch.setattr(Driver, "cuStreamWaitValue32_v2", lambda *_: 1 / 0)

    def one(comm: Communicator) -> bool:
        copies = PeerCopies.among(group_of(comm))
        return copies is not None and copies._flags is None

    assert simulate(2, one) == [True, True]


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
        expected = f"rank {rank} is at meeting 3 and waits since 0 s, rank 1 is at 2: it failed"
        assert rank == 1 or expected in told


def test_long_work_of_ones_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have come: what takes long is no fault, however long it takes."""
    monkeypatch.setattr(flags, "PATIENCE", 0.01)
    copies = PeerCopies.among(group_of(simulate(1, lambda comm: comm)[0]))
    assert copies is not None and copies._flags is not None
    end = time.monotonic() + 5 * flags.PATIENCE
    copies._flags.wait_for(lambda: time.monotonic() > end)


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
            assert simulate(2, broken(rank, call)) == [True, True]


def test_an_array_that_is_not_on_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = PeerCopies(group_of(simulate(1, lambda comm: comm)[0]))
    monkeypatch.setattr(Driver, "cuMemGetAddressRange_v2", lambda *_: 1)
    with pytest.raises(DeviceError, match=r"cuMemGetAddressRange gives 1 for an array of \(3,\)"):
        copies._described(np.zeros(3).view(Ndarray))
