"""Calls of NCCL on addresses, which a graph of CUDA may capture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from magmadnn.backends.cuda.nodes.among_gpus import Kind, OwnKernel
from magmadnn.comm.arrays import dtype_of
from magmadnn.comm.communicator import Communicator
from magmadnn.errors import CommunicationError

from .elements import DTYPES, OPS
from .moving import Moves
from .peer_sum import MOST_BYTES, PeerCall, PeerSum


class CapturedCalls(ABC):
    """What a group of GPUs does within graphs; see `Gpus`.

    Attributes:
        rank: this one's number.
        size: ranks.
    """

    rank: int
    size: int
    _comm: Any
    _cupy: Any
    _device: int

    def __init__(self) -> None:
        self._prepared: set[tuple[Kind, int, str, str]] = set()
        self._moved: set[tuple[Moves, int, str]] = set()
        self._sums: dict[bool, PeerSum | None] = {}  # for calls within graphs, and for others

    @abstractmethod
    def _host(self) -> Communicator:
        """The same ranks' communicator of the host."""

    @abstractmethod
    def _group(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """Calls that NCCL carries out at the same time."""

    def can_add(self, dtype: str, stored: str) -> bool:
        """Whether one call adds up elements of a dtype and stores sums as another; all ranks ask together."""
        if dtype == stored:
            return dtype in DTYPES
        return PeerSum.can_add(dtype, stored) and self._peer_sum(True) is not None

    def _peer_sum(self, captured: bool) -> PeerSum | None:
        """Sums through the memory of the other GPUs; collective at first.

        Those within graphs have an inbox of their own: other calls may run beside a graph.
        """
        if captured not in self._sums:
            with self._cupy.cuda.Device(self._device):  # where inboxes shall lie
                self._sums[captured] = PeerSum.among(self)
        return self._sums[captured]

    def _own_sum(
        self, kind: str, count: int, dtype: str, stored: str, captured: bool = True
    ) -> PeerSum | None:
        """What does a call in place of NCCL: where NCCL cannot, or takes longer."""
        adds = kind in ("sum", "scatter")
        if kind in ("gather", "exchange"):
            count *= self.size
        elif not adds or not PeerSum.can_add(dtype, stored):
            return None
        is_small = count * dtype_of(dtype).itemsize <= MOST_BYTES
        return self._peer_sum(captured) if is_small or dtype != stored else None

    def _own_call(
        self, kind: Kind, count: int, dtype: str, stored: str
    ) -> tuple[PeerSum, PeerCall] | None:
        """What does a call within graphs in place of NCCL, and which call of it; None where NCCL does."""
        own, to_each = self._own_sum(kind, count, dtype, stored), kind in ("scatter", "exchange")
        if own is None:
            return None
        if kind in ("sum", "scatter"):
            return own, PeerCall(count, dtype, stored, to_each)
        return own, PeerCall(count * dtype_of(dtype).itemsize, "", "", to_each)

    def prepare(self, kind: Kind, count: int, dtype: str, stored: str) -> None:
        """Make a first call of so many elements: NCCL then joins the GPUs, which it cannot while captured.

        All ranks call it, in one order; the calls are compared.

        Raises:
            CommunicationError: if ranks are about to make different calls.
        """
        if (kind, count, dtype, stored) in self._prepared:
            return
        self._compare(kind, [kind, count, dtype, stored], "{1} {2} by {0}")
        longer = count if kind == "sum" else count * self.size
        source, result = (self._cupy.zeros(longer, dtype_of(name)) for name in (dtype, stored))
        stream = self._cupy.cuda.get_current_stream()
        self.call_on(stream.ptr, kind, source.data.ptr, result.data.ptr, count, dtype, stored)
        stream.synchronize()
        self._prepared.add((kind, count, dtype, stored))

    def _compare(self, kind: Kind, call: Any, text: str) -> None:
        """Look whether all ranks make the same call; `text` says what one is, for the error.

        Raises:
            CommunicationError: if they do not.
        """
        told = self._host().exchange(call)
        if any(one != told[0] for one in told):
            calls = "; ".join(f"rank {rank} {text.format(*one)}" for rank, one in enumerate(told))
            raise CommunicationError(f"{kind}: ranks are about to capture different calls: {calls}")

    def prepare_moves(self, moves: Moves, count: int, dtype: str) -> None:
        """Make a first call of such rows, as `prepare` does.

        Raises:
            CommunicationError: if ranks are about to make different calls.
        """
        if (moves, count, dtype) in self._moved:
            return
        self._compare("move", [moves, count, dtype], "rows of {1} {2} by {0}")
        rows = max((max(end, at + end - first) for _, first, end, _, at in moves), default=1)
        source, result = (self._cupy.zeros(rows * count, dtype_of(dtype)) for _ in range(2))
        stream = self._cupy.cuda.get_current_stream()
        self.move_on(stream.ptr, moves, source.data.ptr, result.data.ptr, count, dtype)
        stream.synchronize()
        self._moved.add((moves, count, dtype))

    def move_on(
        self, stream: int, moves: Moves, source: int, result: int, count: int, dtype: str
    ) -> None:
        """Give a stream, which may be captured, the messages of this rank.

        Args:
            stream: CUDA's.
            moves: rows of all ranks, from whom to whom.
            source: address of the rows that this rank has.
            result: address of those that it gets.
            count: elements of a row,
            dtype: and theirs.
        """
        step, element = count * dtype_of(dtype).itemsize, DTYPES[dtype]
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        for one, first, end, to, at in moves:
            many = (end - first) * count
            if one == self.rank:
                calls.append((self._comm.send, (source + first * step, many, element, to, stream)))
            if to == self.rank:
                calls.append((self._comm.recv, (result + at * step, many, element, one, stream)))
        if calls and count:
            self._group(calls)

    def own_kernel(
        self, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> OwnKernel | None:
        """The kernel that does a prepared call, None where NCCL does it; arguments as for `call_on`."""
        found = self._own_call(kind, count, dtype, stored)
        return None if found is None else found[0].kernel_of(source, result, found[1])

    def call_on(
        self, stream: int, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> None:
        """Give a stream, which may be captured, a call of all ranks.

        Args:
            stream: CUDA's.
            kind: what each rank gets; see `KINDS`.
            source: address of what this rank gives.
            result: address of what it gets.
            count: of elements,
            dtype: and theirs,
            stored: and those of sums, with `kind` as given to `prepare` before.
        """
        if (found := self._own_call(kind, count, dtype, stored)) is not None:
            found[0].begin(stream, source, result, found[1])
            return
        element = DTYPES[dtype]
        if kind == "sum":
            self._comm.allReduce(source, result, count, element, OPS["sum"], stream)
        elif kind == "gather":
            self._comm.allGather(source, result, count, element, stream)
        elif kind == "scatter":
            self._comm.reduceScatter(source, result, count, element, OPS["sum"], stream)
        else:
            step = count * dtype_of(dtype).itemsize
            parts = [(source + r * step, result + r * step, r) for r in range(self.size)]
            self._group(
                [(self._comm.send, (own, count, element, r, stream)) for own, _, r in parts]
                + [(self._comm.recv, (other, count, element, r, stream)) for _, other, r in parts]
            )
