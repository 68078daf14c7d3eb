"""Sums by a kernel that writes into the memory of other GPUs, emulated: each rank is a thread."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.comm.gpu.peer_sum import PeerCall, PeerSum
from magmadnn.comm.gpu.sum_kernel import (
    MOST_RANKS,
    NUMBERS,
    THREADS,
)
from tests.comm.test_peers import Ndarray
from tests.runtime.cuda.emulator import Emulator, needs_compiler, run_launch

BLOCKS, HALF_BYTES = 3, 3 << 10
DTYPES: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
pytestmark = needs_compiler


def array(values: Any) -> Ndarray:
    return np.ascontiguousarray(values).view(Ndarray)


class Cupy:
    """One rank's: kernels are this process's code, a copy of it for each rank."""

    def __init__(self, engine: Emulator, images: dict[str, bytes]) -> None:
        self._engine, self._images = engine, images
        self.cuda = SimpleNamespace(get_current_stream=lambda: self.stream)
        self.stream: Any = None
        self.calls: list[str] = []

    def asarray(self, values: Any) -> Ndarray:
        return array(values)

    def zeros(self, shape: Any, dtype: str) -> Ndarray:
        return array(np.zeros(shape, dtype))

    def RawModule(self, code: str, options: Any) -> Any:
        names = [name for name in ("sum_once", "sum_twice", "pass_once") if f" {name}(" in code]
        if code not in self._images:
            self._images[code] = self._engine.compile(code, ())
        found = dict(zip(names, self._engine.load(self._images[code], names), strict=True))

        def get(name: str) -> Any:
            def run(grid: Any, block: Any, words: Any, stream: Any) -> None:
                self.calls.append(name)
                assert stream.ptr in (5, 6)
                numbers = [int(w.data.ptr if isinstance(w, Ndarray) else w) for w in words]
                run_launch(found[name], (*grid, 1, 1), (MOST_RANKS, 1, 1), numbers)

            run.kernel = SimpleNamespace(ptr=found[name])  # type: ignore[attr-defined]
            return run

        return SimpleNamespace(get_function=get)


@pytest.fixture(scope="module")
def images() -> Any:
    return Emulator(), {}


def ranks_of(images: Any, ranks: int) -> list[PeerSum]:
    inboxes = [array(np.full(2 * HALF_BYTES, 0xCB, np.uint8)) for _ in range(ranks)]
    flags = [array(np.zeros((2, BLOCKS, MOST_RANKS), np.uint32)) for _ in range(ranks)]
    return [
        PeerSum(Cupy(*images), r, ranks, inboxes, flags, half_bytes=HALF_BYTES, blocks=BLOCKS)
        for r in range(ranks)
    ]


def together(sums: list[PeerSum], calls: Any) -> None:
    """All ranks' calls, each rank's in a thread; one that fails or waits for ever fails the test."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            for call in calls(rank):
                if isinstance(call[2], PeerCall):
                    sums[rank].begin(5, *call)
                else:
                    sums[rank].add(5, *call)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(len(sums))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank waits for others that do not come"
    assert not errors, errors


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.long), 8])
@pytest.mark.parametrize(("dtype", "stored"), NUMBERS)
def test_sums_of_all_ranks(
    images: Any, dtype: str, stored: str, ranks: int, monkeypatch: Any
) -> None:
    """Calls of several sizes, some in place, some that begin between packs: the same bits on all ranks."""
    monkeypatch.setattr("magmadnn.comm.gpu.peer_sum._FEW_BYTES", 1 << 10)
    draw, sums = np.random.default_rng(ranks), ranks_of(images, ranks)
    counts = [1, 7, 700, 3, 5000, 64, 2048, 129, 4096]
    sources, results, expected = [], [], []
    for number, count in enumerate(counts):
        values = draw.normal(size=(ranks, count + 1)).astype(DTYPES[dtype])
        from_one = int(number % 3 == 1)  # begins between two packs
        own = [array(one)[from_one : from_one + count] for one in values]
        in_order = own[0].astype(stored if dtype == "float64" else np.float32)
        for one in own[1:]:
            in_order = in_order + one.astype(in_order.dtype)
        expected.append(in_order.astype(DTYPES[stored]))
        in_place = dtype == stored and number % 2 == 0
        results.append(own if in_place else [array(np.empty(count, DTYPES[stored])) for _ in own])
        sources.append(own)

    def calls(rank: int) -> Any:
        for source, result, count in zip(sources, results, counts, strict=True):
            yield source[rank].data.ptr, result[rank].data.ptr, count, dtype, stored

    together(sums, calls)
    for found, total in zip(results, expected, strict=True):
        for one in found:
            assert np.asarray(one).tobytes() == np.asarray(total).tobytes()
    used = set(sums[0]._cupy.calls)
    assert used == ({"sum_once"} if ranks == 2 else {"sum_once", "sum_twice"})


def test_a_graph_gets_calls_as_kernels(images: Any) -> None:
    """The function, blocks and arguments that calls on a stream begin with."""
    ranks, count, draw = 3, 700, np.random.default_rng(8)
    sums = ranks_of(images, ranks)
    given = [array(draw.normal(size=(ranks, count)).astype(np.float32)) for _ in range(ranks)]
    kinds = ("float32", "float32", True), ("float32", "float32", False), ("", "", False)
    found = [[array(np.zeros((ranks, count), np.float32)) for _ in range(ranks)] for _ in kinds]

    def run(rank: int) -> None:
        for (*dtypes, own), results in zip(kinds, found, strict=True):
            places = given[rank].data.ptr, results[rank].data.ptr
            call = PeerCall(count if dtypes[0] else 4 * count, *dtypes, own)
            one = sums[rank].kernel_of(*places, call)
            assert one.grid == (BLOCKS, 1, 1) and one.block == (THREADS, 1, 1)
            run_launch(one.function, one.grid, (MOST_RANKS, 1, 1), one.arguments)

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    total = given[0] + given[1] + given[2]
    for rank in range(ranks):
        parts, whole, passed = (np.asarray(one[rank]) for one in found)
        np.testing.assert_array_equal(parts[0], total[rank])
        np.testing.assert_array_equal(whole[0], total[0])
        np.testing.assert_array_equal(passed, [one[0] for one in given])


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("dtype", "stored"), NUMBERS)
def test_each_rank_gets_a_sum_of_its_own(images: Any, dtype: str, stored: str, ranks: int) -> None:
    """Calls of several sizes, beside sums that all get, as inboxes are shared."""
    draw, sums = np.random.default_rng(ranks), ranks_of(images, ranks)
    counts, wide = [1, 40, 700, 333, 2048], dtype if dtype == "float64" else "float32"
    sources, results, expected = [], [], []
    for count in counts:
        given = [
            array(draw.normal(size=(ranks, count)).astype(DTYPES[dtype])) for _ in range(ranks)
        ]
        total = given[0].astype(wide)
        for one in given[1:]:
            total = total + one.astype(wide)
        expected.append(total.astype(DTYPES[stored]))
        sources.append(given)
        results.append([array(np.empty(count, DTYPES[stored])) for _ in range(ranks)])
    whole = [array(np.empty((ranks, n), DTYPES[stored])) for n in counts for _ in range(ranks)]

    def calls(rank: int) -> Any:
        for number, (source, result, count) in enumerate(
            zip(sources, results, counts, strict=True)
        ):
            yield source[rank].data.ptr, result[rank].data.ptr, count, dtype, stored, True
            all_of_them = whole[number * ranks + rank]
            yield source[rank].data.ptr, all_of_them.data.ptr, ranks * count, dtype, stored

    together(sums, calls)
    for number, (found, total) in enumerate(zip(results, expected, strict=True)):
        for rank, one in enumerate(found):
            assert np.asarray(one).tobytes() == np.asarray(total[rank]).tobytes()
            all_of_them = np.asarray(whole[number * ranks + rank])
            assert all_of_them.tobytes() == np.asarray(total).tobytes()


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_rank_gets_bytes_of_all_others(images: Any, ranks: int) -> None:
    """The same of each, or others: sizes that are whole packs and that are not, longer than an inbox too."""
    draw, sums = np.random.default_rng(ranks), ranks_of(images, ranks)
    calls_of, checks = [], []
    for nbytes in (16, 1, 4096, 333, 48, 20000):
        for own in (False, True):
            shape = (ranks, nbytes) if own else (nbytes,)
            given = [array(draw.integers(0, 256, shape, np.uint8)) for _ in range(ranks)]
            found = [array(np.zeros((ranks, nbytes), np.uint8)) for _ in range(ranks)]
            calls_of.append((given, found, nbytes, own))
            checks += [(found[r], [g[r] if own else g for g in given]) for r in range(ranks)]

    def calls(rank: int) -> Any:
        for given, found, nbytes, own in calls_of:
            call = PeerCall(nbytes, "", "", own)
            yield given[rank].data.ptr, found[rank].data.ptr, call

    together(sums, calls)
    for found, expected in checks:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_bfloat16_that_is_no_number_stays_none(images: Any) -> None:
    sums = ranks_of(images, 2)
    values = np.array([np.nan, np.inf, -np.inf, np.inf], ml_dtypes.bfloat16)
    own = [array(values), array(np.array([1, 1, 1, -np.inf], ml_dtypes.bfloat16))]
    together(sums, lambda rank: [(own[rank].data.ptr, own[rank].data.ptr, 4, "bfloat16")])
    for one in own:
        np.testing.assert_array_equal(
            np.asarray(one).astype(np.float32), [np.nan, np.inf, -np.inf, np.nan]
        )


def test_a_pair_without_a_kernel_is_known() -> None:
    assert PeerSum.can_add("float32") and PeerSum.can_add("bfloat16", "float32")
    assert not PeerSum.can_add("float16") and not PeerSum.can_add("int64")
    assert ctypes.sizeof(ctypes.c_uint64 * (2 * MOST_RANKS)) == 128  # struct Gpus


def test_calls_on_two_streams_come_one_after_the_other(images: Any) -> None:
    """What is not in a graph waits for the call before it, if that was on another stream."""

    class Stream(SimpleNamespace):
        def record(self) -> str:
            return f"end on {self.name}"

        def wait_event(self, event: str) -> None:
            asked.append(f"{self.name} waits for {event}")

    asked: list[str] = []
    sums = ranks_of(images, 2)
    x = [array(np.array([1.5, 2.5, -3.0], np.float32)) for _ in sums]
    streams = [Stream(ptr=5, name="a"), Stream(ptr=5, name="a"), Stream(ptr=6, name="b")]

    def run(rank: int) -> None:
        for stream in streams:
            sums[rank]._cupy.stream = stream
            sums[rank].add_now(x[rank], x[rank])

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(asked) == ["b waits for end on a"] * 2
    for one in x:  # added to itself three times
        np.testing.assert_array_equal(np.asarray(one), np.array([12.0, 20.0, -24.0], np.float32))
