"""Values straight from module to module, on a stand-in for GPUs whose memory is NumPy's."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.errors import DataError, DTypeError
from magmadnn.workflow.modules.direct import Direct
from magmadnn.workflow.modules.gpu_memory import ModuleMail
from magmadnn.workflow.tuples import messages as m


class Device:
    id = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Ndarray(np.ndarray):
    """NumPy's array as CuPy's: `data.ptr`, `get`, and reading it on the host by chance is an error."""

    device = Device()
    fetched = 0

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__

    def get(self) -> np.ndarray:
        Ndarray.fetched += 1
        return np.array(self)


class Driver:
    """libcuda: memory comes in pages of 4 KB here."""

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        base._obj.value = address.value - address.value % 4096
        return 0


class Gpu:
    """What is asked of CuPy."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.refuses = False
        stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
        runtime = SimpleNamespace(
            memcpyDefault=4,
            memcpyAsync=lambda to, start, size, kind, on: ctypes.memmove(to, start, size),
            ipcGetMemHandle=lambda base: base.to_bytes(64, "little"),
            ipcOpenMemHandle=self.opened,
            ipcCloseMemHandle=self.open.remove,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, get_current_stream=lambda: stream, Device=lambda number: Device()
        )

    def opened(self, handle: bytes) -> int:
        if self.refuses:
            raise RuntimeError("cudaErrorMapBufferObjectFailed")
        self.open.append(int.from_bytes(handle, "little"))
        return self.open[-1]

    def arange(self, count: int, dtype: str) -> Ndarray:
        return (np.arange(count) % 256).astype(dtype).view(Ndarray)

    def empty(self, count: int, dtype: str) -> Ndarray:
        return np.zeros(count, dtype).view(Ndarray)

    def asarray(self, array: Any) -> Ndarray:
        return np.array(array).view(Ndarray)


class Rank:
    """A rank of a job without MPI: its mail, and one run."""

    def __init__(
        self, number: int, near: set[int], posts: dict[int, deque[tuple[int, bytearray]]]
    ) -> None:
        own = posts[number] = deque()
        self.sent: list[m.Message] = []

        def send(raw: bytes, to: int) -> None:
            self.sent.append(m.Message(bytearray(raw)))
            posts[to].append((number, bytearray(raw)))

        self.mail: Any = ModuleMail(
            SimpleNamespace(  # type: ignore[arg-type]  # all of a Mail that is used
                send=send,
                receive=lambda: own.popleft() if own else None,
                comm=SimpleNamespace(Get_rank=lambda: number),
            ),
            near,
        )
        place = lambda module, copy: (10 + ord(module), [ord(module) - ord("a")])  # noqa: E731  # short
        name = chr(ord("a") + number)
        self.direct = Direct(self.mail, 10 + ord(name), (name, 0, 0), place, lambda record: None)

    def send(self, value: Any, module: str) -> None:
        self.direct.send(value, module, 0, 0, "x")

    def recv(self, module: str, dtype: Any = None) -> Any:
        return self.direct.recv(module, 0, 0, "x", dtype)

    @property
    def kinds(self) -> list[int]:
        found = [one.operation for one in self.sent]
        self.sent.clear()
        return found

    @property
    def lends(self) -> int:
        return len(self.mail._lent)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "cupy", made)  # type: ignore[arg-type]  # all of it that is used
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setattr(Ndarray, "fetched", 0)
    return made


def ranks(near: bool = True) -> tuple[Rank, Rank]:
    posts: dict[int, deque[tuple[int, bytearray]]] = {}
    here = {0, 1} if near else set()
    return Rank(0, here, posts), Rank(1, here, posts)


BIG = np.arange(60_000, dtype=np.float32).reshape(300, 200).view(Ndarray)


def test_arrays_stay_on_gpus_from_the_second_on(gpu: Gpu) -> None:
    a, b = ranks()
    a.send(BIG, "b")
    assert a.kinds == [m.CAN_READ, m.VALUE] and a.lends == 1
    assert (b.recv("a") == BIG).all() and b.kinds == [m.READS]
    fetched = Ndarray.fetched
    for value in (BIG.T, BIG[::3, 5:], BIG.astype(np.complex64)):
        a.send(value, "b")
        sent = a.sent[-1]
        assert a.kinds == [m.LENT] and len(sent.raw) < 300 and a.lends == 1
        kept = value.copy()
        value[...] = 0  # it may be changed once it is sent
        found = b.recv("a", value.dtype)
        assert isinstance(found, Ndarray) and found.dtype == kept.dtype and (found == kept).all()
        assert b.kinds == [m.RETURNED] and gpu.open == []
        BIG[...] = np.arange(60_000, dtype=np.float32).reshape(300, 200)
        a.mail.settle()
        assert a.lends == 0
    assert Ndarray.fetched == fetched  # nothing went through the host


@pytest.mark.parametrize("why", ["small", "far", "unreadable", "no libcuda", "itself", "NumPy"])
def test_others_go_through_the_host(gpu: Gpu, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ranks(near=why != "far")
    gpu.refuses = why == "unreadable"
    if why == "no libcuda":
        monkeypatch.setattr(ctypes, "CDLL", lambda name: exec("raise OSError(name)"))
    value = {"small": BIG[0], "NumPy": np.array(BIG)}.get(why, BIG)
    to, other = ("a", a) if why == "itself" else ("b", b)
    for _ in range(3):
        a.send(value, to)
        assert (other.recv("a") == value).all() and a.sent[-1].operation == m.VALUE
    a.mail.settle()
    assert a.lends == 0 and [k for k in a.kinds if k == m.CAN_READ] == [m.CAN_READ] * (
        why == "unreadable"
    )


def test_memory_comes_back_from_who_never_receives(gpu: Gpu) -> None:
    a, b = ranks()
    a.send(BIG, "b")
    b.recv("a")
    a.send(BIG, "b")
    a.send(BIG, "b")
    a.direct.send(np.array(1.0), "b", 0, 0, "y")
    assert a.lends == 2
    b.direct.recv("a", 0, 0, "y", None)  # both others have come with it
    b.direct.close()
    a.mail.settle()
    assert a.lends == 0
    a.send(BIG, "b")
    later = Direct(b.mail, 999, ("b", 0, 0), lambda *_: (0, [0]), lambda record: None)
    a.mail.send(m.packed(m.VALUE, run=999, tag="a/0/0/", words=b"j", data=b"1"), 1)
    assert later.recv("a", 0, 0, "", None) == 1  # what the run before it did not receive is dropped
    a.mail.settle()
    assert a.lends == 0


def test_what_cannot_be_received_is_said(gpu: Gpu) -> None:
    a, b = ranks()
    a.send(BIG, "b")
    b.recv("a")
    a.send(BIG, "b")
    with pytest.raises(DTypeError, match="expected an array of float64"):
        b.recv("a", np.float64)
    a.send(BIG, "b")
    gpu.refuses = True
    with pytest.raises(
        DataError, match="recv: an array on another process's GPU cannot be read: cudaError"
    ):
        b.recv("a")
    a.mail.settle()
    assert a.lends == 0
