"""Calls among GPUs of one machine that reach each other's memory, by kernels of our own (`sum_kernel`).

For few bytes it takes a fraction of NCCL's time. Sums of bfloat16 that are stored as float32 are exact up to
the rounding of float32, at half the bytes. A GPU whose others do not come waits, as with NCCL.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from magmadnn.backends.cuda.nodes.among_gpus import OwnKernel
from magmadnn.comm.gpu.elements import name_of
from magmadnn.comm.gpu.peers import PeerCopies
from magmadnn.comm.gpu.sum_kernel import (
    MOST_RANKS,
    NUMBERS,
    PACK,
    THREADS,
    Numbers,
    text_of,
    text_of_passes,
)

Array = Any
BLOCKS: Final = 64  # of every call, as they keep count of meetings: few enough to leave others room
HALF_BYTES: Final = 12 << 20  # of an inbox
MOST_BYTES: Final = 8 << 20  # of a call that is quicker than NCCL's
# Up to so many bytes, or ranks, each sends all it has: one meeting, of two ranks without more bytes.
_FEW_BYTES: Final = 256 << 10
_FEW_RANKS: Final = 2


class PeerCall(NamedTuple):
    """What all ranks do in one call, whatever the addresses.

    Attributes:
        items: elements that each gets; without dtypes bytes that it gets of each.
        dtype: of elements, "" where bytes are given,
        stored: and of sums.
        own: whether each rank gets others.
    """

    items: int
    dtype: str
    stored: str
    own: bool


class PeerSum:
    """What one rank's GPU adds up with the others', or gets from them.

    All ranks make the same calls in one order; calls follow each other on the device. Made by `among`.

    Args:
        cupy: the module.
        rank, ranks: which of how many.
        inboxes: of all ranks, of 2 * `half_bytes` bytes each.
        flags: of all ranks, uint32 [2, blocks, MOST_RANKS], of zeros at first.
        half_bytes: of an inbox.
        blocks: of every call.
    """

    def __init__(
        self, cupy: Any, rank: int, ranks: int, inboxes: list[Array], flags: list[Array],
        half_bytes: int = HALF_BYTES, blocks: int = BLOCKS,
    ) -> None:  # fmt: skip
        self._cupy, self._rank, self._ranks = cupy, rank, ranks
        self._half_bytes, self._blocks = half_bytes, blocks
        self._kept = inboxes, flags
        places = np.zeros((2, MOST_RANKS), np.uint64)
        for row, arrays in zip(places, (inboxes, flags), strict=True):
            row[:ranks] = [int(one.data.ptr) for one in arrays]
        self._places = cupy.asarray(places)
        self._meetings = cupy.zeros(blocks, "uint32")
        self._last: Any = None  # the stream of the last call outside of graphs
        self._modules: dict[tuple[str, str], Any] = {}
        self._call_of = lru_cache(256)(self._new_call)

    @staticmethod
    def among(group: Any) -> PeerSum | None:
        """The sums of a group; None where a GPU cannot reach another's memory. Collective."""
        if not 1 < group.size <= MOST_RANKS:
            return None
        peers = PeerCopies.among(group)
        if peers is None:
            return None
        cupy = group._cupy
        own = cupy.zeros(2 * HALF_BYTES, "uint8"), cupy.zeros((2, BLOCKS, MOST_RANKS), "uint32")
        cupy.cuda.get_current_stream().synchronize()
        shared = peers.share(own)  # others have come to here, so their flags are zeros
        inboxes, flags = ([pair[k] for pair in shared] for k in range(2))
        made = PeerSum(cupy, group.rank, group.size, inboxes, flags)
        cupy.cuda.get_current_stream().synchronize()
        return made

    @staticmethod
    def can_add(dtype: str, result: str | None = None) -> bool:
        """Whether there is a kernel for sums of this dtype, stored as `result`; None for the same."""
        return (dtype, result or dtype) in NUMBERS

    def add(
        self,
        stream: int,
        source: int,
        result: int,
        count: int,
        dtype: str,
        stored: str | None = None,
        own: bool = False,
    ) -> None:
        """Give a stream, which may be captured, the sum of all ranks.

        Args:
            stream: CUDA's.
            source: address of this rank's elements.
            result: address of the sums; may be `source` where dtypes are the same.
            count: of elements that each gets.
            dtype: of elements.
            stored: of sums; None for `dtype`.
            own: whether each rank gets a sum of its own: `source` has `count` elements for each in turn.
        """
        self.begin(stream, source, result, PeerCall(count, dtype, stored or dtype, own))

    def kernel_of(self, source: int, result: int, call: PeerCall) -> OwnKernel:
        """The launch that `begin` makes."""
        kernel, words = self._call_of(*call)
        numbers = source, result, *(int(word) for word in words)
        grid, block = (self._blocks, 1, 1), (THREADS, 1, 1)
        return OwnKernel(kernel.kernel.ptr, grid, block, numbers)

    def begin(self, stream: int, source: int, result: int, call: PeerCall) -> None:
        """Give a stream, which may be captured, a call.

        Args:
            stream: CUDA's.
            source: address of what this rank gives: `call.items` elements, or bytes without dtypes; with
                `call.own` so many for each rank in turn.
            result: address of the sums, as for `add`; without dtypes of what each rank gives, in their order.
            call: the same on all ranks.
        """
        kernel, words = self._call_of(*call)
        words = (np.uint64(source), np.uint64(result), *words)
        on = SimpleNamespace(ptr=stream)  # all that CuPy asks of a stream
        kernel((self._blocks,), (THREADS,), words, stream=on)

    def _new_call(
        self, count: int, dtype: str, stored: str, own: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """The kernel for so many elements (bytes without dtypes), and its arguments behind two addresses."""
        numbers = NUMBERS.get((dtype, stored))
        packs = -(-count * (1 if numbers is None else numbers.item) // PACK)
        at_once = numbers is None or own or self._ranks <= _FEW_RANKS or packs * PACK <= _FEW_BYTES
        chunk = self._chunk(packs, None if at_once else numbers)
        places = (np.uint64(int(one.data.ptr)) for one in (self._places, self._meetings))
        before = np.int64(count), *places, np.int64(self._half_bytes)
        rank = np.int32(self._rank)
        if not at_once:
            return self._kernel("sum_twice", dtype, stored), (*before, np.int64(chunk), rank)
        kernel = self._kernel("pass_once" if numbers is None else "sum_once", dtype, stored)
        return kernel, (*before, np.int64(chunk), np.int64(count if own else 0), rank)

    def add_now(self, source: Array, result: Array) -> None:
        """`add` on CuPy's current stream, behind earlier calls on other streams; outside of graphs."""
        stream = self._cupy.cuda.get_current_stream()
        if self._last is not None and self._last.ptr != stream.ptr:
            stream.wait_event(self._last.record())
        names = name_of(source.dtype), name_of(result.dtype)
        self.add(stream.ptr, int(source.data.ptr), int(result.data.ptr), source.size, *names)
        self._last = stream

    def _chunk(self, packs: int, numbers: Numbers | None) -> int:
        """Packs that are passed on at a time: as many as there are, or as an inbox has room for.

        With `numbers` ranks send each other sums of these, each those of its part.
        """
        if numbers is None:
            parts, room = 1, self._half_bytes // PACK // self._ranks
        else:
            parts = self._blocks * self._ranks
            room = self._half_bytes // PACK // (1 + numbers.packs_of_sums) // parts * parts
        chunks = max(-(-packs // room), 1)  # of the same length, as all of a chunk is sent
        return max(-(-packs // (chunks * parts)), 1) * parts

    def _kernel(self, name: str, dtype: str, stored: str) -> Any:
        if (key := (dtype, stored)) not in self._modules:
            ranks = self._ranks
            code = text_of(NUMBERS[key], ranks) if key in NUMBERS else text_of_passes(ranks)
            self._modules[key] = self._cupy.RawModule(code=code, options=("--std=c++17",))
        return self._modules[key].get_function(name)
