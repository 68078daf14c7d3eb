"""What is told to NCCL, on a stand-in for CuPy whose arrays are NumPy's and whose NCCL is simulated ranks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.comm import simulate
from magmadnn.comm.gpu.peer_sum import MOST_BYTES, PeerSum
from magmadnn.errors import (
    CommunicationError,
    DeviceError,
    DTypeError,
    MissingExtraError,
    ShapeError,
)

KINDS = {1: np.uint8, 2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64}
KINDS[9] = ml_dtypes.bfloat16  # what CuPy passes on without a name


class Ndarray(np.ndarray):
    """NumPy's array with what CuPy's has beside."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0], device_id=0)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=np.asarray(self).flags.c_contiguous)


def array(values: Any) -> Any:
    return np.asarray(values).view(Ndarray)


def memory(pointer: int, count: int, kind: int) -> Any:
    """The elements at an address."""
    import ctypes

    size = np.dtype(KINDS[kind]).itemsize * count
    raw = (ctypes.c_char * size).from_address(pointer)
    return np.frombuffer(raw, KINDS[kind])


REDUCE: dict[int, Any] = {0: "sum", 1: "prod", 2: "max", 3: "min"}


class FakeNccl:
    """NCCL's group: each call carried out by a simulated communicator, at once or at the end of the group."""

    def __init__(self, size: int, number: bytes, rank: int) -> None:
        self.inner = LOCAL.comm
        assert (number, size, rank) == (b"\x07\xfd\x05", self.inner.size, self.inner.rank)
        LOCAL.groups = None

    def _do(self, call: Any) -> None:
        if LOCAL.groups is None:
            call()
        else:
            LOCAL.groups.append(call)

    def allReduce(self, s: int, r: int, n: int, kind: int, op: int, stream: int) -> None:
        x = memory(s, n, kind).copy()
        memory(r, n, kind)[...] = self.inner.all_reduce(x, op=REDUCE[op])

    def reduceScatter(self, s: int, r: int, n: int, kind: int, op: int, stream: int) -> None:
        x = memory(s, n * self.inner.size, kind).copy()
        memory(r, n, kind)[...] = self.inner.reduce_scatter(x, op=REDUCE[op])

    def reduce(self, s: int, r: int, n: int, kind: int, op: int, root: int, stream: int) -> None:
        def call() -> None:
            total = self.inner.all_reduce(memory(s, n, kind).copy(), op=REDUCE[op])
            if root == self.inner.rank:
                memory(r, n, kind)[...] = total

        self._do(call)

    def allGather(self, s: int, r: int, n: int, kind: int, stream: int) -> None:
        memory(r, n * self.inner.size, kind)[...] = self.inner.all_gather(memory(s, n, kind).copy())

    def broadcast(self, s: int, r: int, n: int, kind: int, root: int, stream: int) -> None:
        def call() -> None:
            mine = (
                memory(s, n, kind).copy() if root == self.inner.rank else np.empty(n, KINDS[kind])
            )
            memory(r, n, kind)[...] = self.inner.broadcast(mine, root=root)

        self._do(call)

    def bcast(self, buffer: int, n: int, kind: int, root: int, stream: int) -> None:
        self.inner.broadcast(memory(buffer, n, kind), root=root)

    def send(self, s: int, n: int, kind: int, to: int, stream: int) -> None:
        self._do(lambda: self.inner.send(memory(s, n, kind), to))

    def recv(self, r: int, n: int, kind: int, source: int, stream: int) -> None:
        self._do(lambda: self.inner.recv(memory(r, n, kind), source))

    def check_async_error(self) -> int:
        return 0

    def destroy(self) -> None:
        pass


LOCAL = threading.local()


def group_end() -> None:
    calls, LOCAL.groups = LOCAL.groups, None
    for call in calls:
        call()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(
        PeerSum, "among", lambda group: None
    )  # GPUs do not reach each other's memory
    stream: Any = SimpleNamespace(
        ptr=1,
        wait_event=lambda event: None,
        record=lambda: SimpleNamespace(done=True),
        synchronize=lambda: None,
    )

    class Stream:
        def __init__(self, **options: Any) -> None:
            assert options == {"non_blocking": True, "priority": -1}
            vars(self).update(vars(stream))

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    cupy, cuda, nccl = (ModuleType(n) for n in ("cupy", "cupy.cuda", "cupy.cuda.nccl"))
    fields: dict[str, Any] = {
        "available": True,
        "get_unique_id": lambda: bytes((7, 253, 5)),
        "NcclCommunicator": FakeNccl,
        "groupStart": lambda: setattr(LOCAL, "groups", []),
        "groupEnd": group_end,
    }
    vars(nccl).update(fields)
    bus = {"of": lambda: f"0000:{LOCAL.comm.rank:02d}"}
    runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetPCIBusId=lambda d: bus["of"]())
    vars(cuda).update(nccl=nccl, runtime=runtime, Stream=Stream, get_current_stream=lambda: stream)
    cuda.Device = lambda number: on_device(number)  # type: ignore[attr-defined]
    vars(cupy).update(
        cuda=cuda,
        ndarray=Ndarray,
        empty=lambda shape, dtype: array(np.empty(shape, dtype)),
        empty_like=lambda x: array(np.empty_like(np.asarray(x))),
        bus=bus,
    )
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    return cupy


@contextmanager
def on_device(number: int) -> Iterator[None]:
    """As CuPy's: what is made within lies there."""
    LOCAL.device = number
    try:
        yield
    finally:
        LOCAL.device = None


def on_ranks(size: int, body: Any) -> list[Any]:
    def run(comm: Any) -> Any:
        from magmadnn.comm.gpu import NcclCommunicator

        LOCAL.comm = comm
        return body(NcclCommunicator(comm))

    return simulate(size, run)


def test_all_calls(fake: ModuleType) -> None:
    def given(rank: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        x = np.random.default_rng(rank).integers(-50, 50, shape)
        return array(x.astype(dtype))

    def body(gpu: Any) -> None:
        rank, size = gpu.rank, gpu.size
        every = np.stack([np.asarray(given(r, (6, 2))) for r in range(size)])
        total = every.sum(axis=0)
        np.testing.assert_array_equal(gpu.all_reduce(given(rank, (6, 2))), total)
        np.testing.assert_array_equal(gpu.all_reduce(given(rank, (6, 2)), wire="bfloat16"), total)
        half = given(rank, (6, 2), ml_dtypes.bfloat16)
        got = gpu.all_reduce(half)
        assert got.dtype == half.dtype and np.array_equal(got.astype(float), total)
        np.testing.assert_array_equal(
            gpu.all_reduce(given(rank, (6, 2)), op="min"), every.min(axis=0)
        )
        np.testing.assert_array_equal(
            gpu.reduce_scatter(given(rank, (6, 2))), total[2 * rank : 2 * rank + 2]
        )
        counts, ends = [1, 0, 5], [0, 1, 1, 6]
        np.testing.assert_array_equal(
            gpu.reduce_scatter(given(rank, (6, 2)), counts=counts, wire="float16"),
            total[ends[rank] : ends[rank + 1]],
        )
        np.testing.assert_array_equal(gpu.all_gather(given(rank, (6, 2))), np.concatenate(every))
        rows = given(rank, (counts[rank], 2))
        np.testing.assert_array_equal(
            gpu.all_gather(rows, counts=counts),
            np.concatenate([np.asarray(given(r, (counts[r], 2))) for r in range(size)]),
        )
        x = given(rank, (3,))
        assert gpu.broadcast(x, root=1, wire="float16") is x
        np.testing.assert_array_equal(x, given(1, (3,)))
        np.testing.assert_array_equal(
            gpu.shift(given(rank, (3,)), by=-1), given((rank + 1) % 3, (3,))
        )
        came = gpu.all_to_all([array(np.full((r, 2), 10 * rank + r)) for r in range(size)])
        for r, one in enumerate(came):
            np.testing.assert_array_equal(one, np.full((rank, 2), 10 * r + rank))
        request = gpu.start_all_reduce(given(rank, (6, 2)))
        np.testing.assert_array_equal(request.wait(), total)
        assert request.done()
        if rank < 2:
            x = array(np.arange(4.0))
            gpu.send(x, 1) if rank == 0 else gpu.recv(x, 0)
        gpu.barrier()
        assert gpu.exchange(rank) == [0, 1, 2]
        gpu.close()
        with pytest.raises(ValueError, match="closed"):
            gpu.all_reduce(x)

    on_ranks(3, body)


def test_small_sums_go_through_the_memory_of_other_gpus(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where GPUs reach it: few bytes, and in any size what is rounded to travel; NCCL does the rest."""
    asked: list[Any] = []

    class Sums:
        def add_now(self, source: Any, result: Any) -> None:
            asked.append((source.dtype.name, result.dtype.name, source.size))
            result[...] = 7

        def begin(self, stream: int, source: int, result: int, call: Any) -> None:
            asked.append(tuple(call))

    def among(group: Any) -> Sums:
        assert LOCAL.device == 0  # the group's, whichever is current
        return Sums()

    monkeypatch.setattr(PeerSum, "among", among)
    most = MOST_BYTES // 4

    def body(comm: Any) -> None:
        small, large = (array(np.ones(n, np.float32)) for n in (most, most + 1))
        assert (comm.all_reduce(small) == 7).all() and (comm.all_reduce(large) == 2).all()
        assert (comm.all_reduce(large, wire="bfloat16") == 7).all()
        assert (comm.all_reduce(small, op="max") == 1).all()
        assert (comm.all_reduce(array(np.ones(3, np.float16))) == 2).all()
        assert comm.can_add("bfloat16", "float32") and not comm.can_add("float16", "float32")
        comm.call_on(1, "sum", 0, 0, most + 1, "bfloat16", "float32")

    on_ranks(2, body)
    one = [("float32", "float32", most), ("bfloat16", "float32", most + 1)]
    assert sorted(map(str, asked)) == sorted(
        map(str, 2 * [*one, (most + 1, "bfloat16", "float32", False)])
    )


def test_a_call_is_compared_once(fake: ModuleType) -> None:
    def same(gpu: Any) -> int:
        before = []
        for _ in range(3):
            gpu.all_reduce(array(np.ones(2)))
            before.append(gpu._control._count)
        return before[2] - before[1]

    assert on_ranks(2, same) == [1, 1]  # NCCL's own stand-in only: no exchange beside

    def other(gpu: Any) -> None:
        gpu.all_reduce(array(np.ones(2 + gpu.rank)))

    with pytest.raises(
        CommunicationError, match=r"all_reduce float64 \(2,\) sum  at test_nccl.py:"
    ):
        on_ranks(2, other)


def test_a_gpu_used_twice_is_told(fake: ModuleType) -> None:
    fake.bus["of"] = lambda: "0000:41"
    with pytest.raises(DeviceError, match="ranks 0 and 1 both use GPU 0000:41"):
        on_ranks(2, lambda gpu: None)


def test_refusals(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(gpu: Any) -> None:
        with pytest.raises(DTypeError, match="arrays of CuPy, got ndarray"):
            gpu.all_reduce(np.ones(1))
        with pytest.raises(DTypeError, match="does not know elements of complex64"):
            gpu.all_reduce(array(np.ones(1, np.complex64)))
        with pytest.raises(ShapeError, match="does not divide among 2 ranks"):
            gpu.reduce_scatter(array(np.ones(3)))
        with pytest.raises(ValueError, match="NCCL has no tags"):
            gpu.send(array(np.ones(1)), 0, tag=1)

    on_ranks(2, body)
    monkeypatch.setattr(fake.cuda.nccl, "available", False)
    with pytest.raises(MissingExtraError, match=r"communication among GPUs needs NCCL, .*cuda13"):
        on_ranks(2, lambda gpu: None)
