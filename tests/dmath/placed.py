"""A stand-in for GPUs where arrays lie at addresses that serve again, and phases are captured as calls on
addresses: what a graph does is the same, whatever lies there by then.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.replaying import Replays
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import within
from tests.dmath import shared_memory

Calls = list[tuple[str, Callable[[], None]]]
"""What a graph does: "compute", "copy", "wait" for copies, "order" copies after what is computed."""
_NOW = threading.local()  # what this rank captures: its calls, or nothing


def _captured() -> Calls | None:
    found: Calls | None = getattr(_NOW, "calls", None)
    return found


def there(array: np.ndarray) -> Callable[[], np.ndarray]:
    """The array that lies where this one does, without keeping this one."""
    place = array.__array_interface__["data"][0]
    shape, strides, dtype = array.shape, array.strides, array.dtype
    if not array.size:
        return lambda: np.empty(shape, dtype).view(Placed)
    size = dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))

    def found() -> np.ndarray:
        flat = np.frombuffer((ctypes.c_char * size).from_address(place), np.uint8)
        first = flat[: dtype.itemsize].view(dtype)
        return np.lib.stride_tricks.as_strided(first, shape, strides).view(Placed)

    return found


class Placed(shared_memory.Ndarray):
    """An array at an address; writes are captured."""

    def __setitem__(self, key: Any, value: Any) -> None:
        calls = _captured()
        if calls is None:
            super().__setitem__(key, value)
            return
        into = there(self[key])
        source = there(value) if isinstance(value, np.ndarray) else lambda: value
        calls.append(("compute", lambda: np.copyto(into(), source(), casting="unsafe")))


class _Block:
    """Memory that is given back when no array is left in it."""

    def __init__(self, at: int, size: int) -> None:
        self.__array_interface__ = {
            "data": (at, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


class Arena:
    """What a pool of memory does: blocks that were given back serve again, the last one first."""

    def __init__(self, size: int = 1 << 20) -> None:
        self._memory = np.full(size, 0xA5, np.uint8)
        self._top = -self._memory.ctypes.data % 256
        self._free: dict[int, list[int]] = defaultdict(list)

    def empty(self, shape: Any, dtype: Any) -> Placed:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = prod(shape) * np.dtype(dtype).itemsize
        taken = max(256, -(-size // 256) * 256)
        if self._free[taken]:
            at = self._free[taken].pop()
        else:
            at, self._top = self._memory.ctypes.data + self._top, self._top + taken
            assert self._top <= self._memory.size
        block = _Block(at, taken)
        weakref.finalize(block, self._free[taken].append, at)
        flat = np.asarray(block)
        flat[...] = 0xA5
        return flat[:size].view(dtype).reshape(shape).view(Placed)


class CapturedPeers(shared_memory.SharedPeers):
    """Copies among ranks that see where others' arrays lie, and hold none of them.

    Attributes:
        problem: why nothing can be captured.
        late: whether graphs compute as late as they may and copy at once; else it is the other way round.
    """

    nbytes = 0

    def __init__(self, comm: Communicator, board: dict[Any, Any], cublas: Any) -> None:
        super().__init__(comm, board)
        self._cublas, self._told = cublas, 0
        self.problem, self.late = "", False

    def share(self, arrays: Any) -> list[list[np.ndarray]]:
        self._calls += 1
        described = [there(array) for array in arrays]
        self._board[self._calls, self._comm.rank] = described
        self._comm.barrier()
        found = [self._board[self._calls, rank] for rank in range(self._comm.size)]
        return [
            list(arrays) if rank == self._comm.rank else [one() for one in theirs]
            for rank, theirs in enumerate(found)
        ]

    def begin(self) -> None:
        self._do(super().begin)

    def copy(self, out: np.ndarray, source: np.ndarray) -> None:
        calls, copy = _captured(), super().copy
        if calls is None:
            copy(out, source)
            return
        self._told += 1
        into, lies = there(out), there(source)
        calls.append(("copy", lambda: copy(into(), lies())))

    def follow(self) -> None:
        self._do(super().follow)

    def mark(self) -> int:
        return super().mark() if _captured() is None else self._told

    def wait(self, mark: int) -> None:
        wait = super().wait
        self._do(lambda: wait(mark), "wait")

    def end(self) -> None:
        self._do(super().end)

    def _do(self, call: Callable[[], None], kind: str = "order") -> None:
        calls = _captured()
        if calls is None:
            call()
        else:
            calls.append((kind, call))

    def capture(self, phase: Callable[[Any], None]) -> Callable[[], None] | None:
        if self.problem:
            raise NotImplementedError(self.problem)
        calls: Calls = []
        _NOW.calls, self._told = calls, 0
        try:
            phase(lambda *words: calls.append(("compute", partial(self._cublas.gemmEx, 1, *words))))
        finally:
            _NOW.calls = None

        def launch() -> None:
            waiting: list[Callable[[], None]] = []
            for kind, call in calls:
                if not self.late:
                    call()
                elif kind in ("compute", "wait"):
                    waiting.append(call)
                else:
                    if kind == "order":
                        for one in waiting:
                            one()
                        waiting.clear()
                    call()
                    self._at_once()
            for one in waiting:
                one()

        return launch

    def _at_once(self) -> None:
        """Make all copies that were given, before they are waited for."""
        shared_memory.SharedPeers.wait(self, len(self._copies))


def _add(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    calls = _captured()
    if calls is None:
        np.add(x, y, out=out)
        return
    left, right, into = there(x), there(y), there(out)
    calls.append(("compute", lambda: np.copyto(into(), left() + right())))


def team_of(comm: Communicator, board: dict[Any, Any], replays: Replays | None) -> Team:
    """A worker with memory of its own."""
    arena, cublas = Arena(), shared_memory.Cublas()
    cuda = SimpleNamespace(cublas=cublas, device=SimpleNamespace(get_cublas_handle=lambda: 0))
    library = SimpleNamespace(
        cuda=cuda,
        empty=arena.empty,
        ascontiguousarray=lambda x: np.ascontiguousarray(x).view(Placed),
        add=_add,
    )
    peers = CapturedPeers(comm, board, cublas)
    return Team(comm, library, peers=peers, replays=replays)


def placed_parts(team: Team, x: np.ndarray, layout: Layout) -> Parts:
    """This worker's blocks of `x`, in its memory."""
    whole = tuple((0, n) for n in x.shape)
    blocks = {}
    for n in layout.held[team.rank]:
        piece = x[within(layout.boxes[n], whole)]
        blocks[n] = team.xp.empty(piece.shape, x.dtype)
        blocks[n][...] = piece
    return Parts(team, layout, x.dtype, blocks)
