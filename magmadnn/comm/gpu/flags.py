"""Meetings of streams of several processes: each writes flags into the others' memory, and waits for theirs.

The streams' front ends write and wait (`cuStreamBatchMemOp`), so a meeting needs no multiprocessor. A sum by
NCCL does, and has to wait for one where a product has all of them: then copies that should go beside the
product begin after it.

A flag is 1 from the moment at which the other rank has come until this one has seen it. So all meetings are
given to streams alike, and a graph of CUDA may hold one. A rank that goes on may come to the next meeting
before this one has put its flags back: meetings that follow each other have different flags.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

from magmadnn.backends.cuda.stream_flags import BYTES, MemoryCall, waits, writes
from magmadnn.errors import CommunicationError

PATIENCE: Final = 60.0  # seconds in which nothing moves while a rank is waited for
SETS: Final = 3  # of flags: for the begin of a phase, and two that take turns after it
_BUSY: Final = 0.005  # seconds in which the end of short work is looked for without a pause
_PAUSE: Final = 0.0005
_LOOK: Final = 0.5  # seconds between two looks at the flags


class Flags:
    """The flags of one rank.

    Attributes:
        count: meetings that streams were given.

    Args:
        group: of the GPUs' ranks.
        driver: libcuda.
        described: of an own array, what another process needs to see it.
        view: the array here.
    """

    def __init__(
        self,
        group: Any,
        driver: Any,
        described: Callable[[Any], list[Any]],
        view: Callable[[Any], Any],
    ) -> None:
        self._group, self._driver = group, driver
        self.count = 0
        self._beside: Any = None
        self._own = group._cupy.zeros(SETS * group.size, "uint32")
        group._cupy.cuda.get_current_stream().synchronize()
        problem, handle = "", list[Any]()
        try:
            handle = described(self._own)
        except RuntimeError as error:
            problem = str(error)
        self._others: dict[int, Any] = {}
        found = group.exchange([problem, handle])
        self._usable = not any(bad for bad, _ in found)
        if self._usable:
            try:
                others = {r: view(one) for r, (_, one) in enumerate(found) if r != group.rank}
            except RuntimeError:
                others, self._usable = {}, False
            self._others = others
        self._calls = [self._calls_of(number) for number in range(SETS)]

    def _calls_of(self, number: int) -> Any:
        """What a stream is given for a meeting: tell all others, wait for all, put the own flags back."""
        size, rank = self._group.size, self._group.rank
        theirs = [_place(x, number * size + rank) for x in self._others.values()]
        mine = [_place(self._own, number * size + other) for other in self._others]
        calls = [*writes(theirs, 1), *waits(mine, 1), *writes(mine, 0)]
        return (MemoryCall * len(calls))(*calls)

    def tried(self) -> bool:
        """Whether flags arrive, on all ranks. Collective; nothing waits for what may not come."""
        stream, problem, told = self._group._stream, not self._usable, len(self._others)
        if not problem:
            try:
                self._give(stream.ptr, 0, 0, told)
                stream.synchronize()
            except (RuntimeError, AttributeError):
                problem = True
        if any(self._group.exchange(problem)):
            return False
        arrived = self._own.get()
        problem = any(int(arrived[rank]) != 1 for rank in self._others)
        if any(self._group.exchange(problem)):
            return False
        try:
            self._give(stream.ptr, 0, told, 2 * told)
            stream.synchronize()
        except (RuntimeError, AttributeError):
            problem = True
        return not any(self._group.exchange(problem))

    def meet(self, stream: int, number: int) -> None:
        """Let a stream, which may be captured, wait until the streams of all ranks are here.

        Args:
            stream: of this rank.
            number: of the flags, below `SETS`; all ranks give the same, and another one than at the meeting
                before.
        """
        self.count += 1
        self._give(stream, number, 0, len(self._calls[number]))

    def wait_for(self, done: Callable[[], bool], open_phases: Callable[[], int]) -> None:
        """Wait on the host for work of this rank's streams, which may wait for flags of others.

        Args:
            done: whether the work has been done.
            open_phases: how many phases that end with a meeting have been begun and are not done.

        Raises:
            CommunicationError: if for `PATIENCE` seconds no flag and no phase has changed while one is open
                to which a rank has not come; names it.
        """
        start = moved = looked = time.monotonic()
        last: tuple[list[int], int] | None = None
        while not done():
            now = time.monotonic()
            if now - start > _BUSY:
                time.sleep(_PAUSE)
            if now - looked < min(_LOOK, PATIENCE / 4):
                continue
            looked, flags, phases = now, self._arrived(), open_phases()
            if (flags, phases) != last:
                last, moved = (flags, phases), now
            size = self._group.size
            missing = [r for r in self._others if not any(flags[r::size])] if phases else []
            if missing and now - moved > PATIENCE:
                where = ", ".join(map(str, missing))
                raise CommunicationError(
                    f"copies among GPUs: rank {self._group.rank} has been given {self.count} meetings and "
                    f"waits since {now - moved:.0f} s for rank {where}: it failed or does something else; "
                    "start the workers again, as with w.restart()"
                )

    def _arrived(self) -> list[int]:
        """The flags here, read beside streams that wait."""
        if self._beside is None:
            self._beside = self._group._cupy.cuda.Stream(non_blocking=True)
        return [int(flag) for flag in self._own.get(stream=self._beside)]

    def _give(self, stream: int, number: int, first: int, count: int) -> None:
        """Give a stream some of the calls of a meeting."""
        if not count:
            return
        place = ctypes.addressof(self._calls[number]) + first * ctypes.sizeof(MemoryCall)
        status = self._driver.cuStreamBatchMemOp_v2(
            ctypes.c_void_p(stream), ctypes.c_uint(count), ctypes.c_void_p(place), ctypes.c_uint(0)
        )
        if status:
            raise RuntimeError(f"cuStreamBatchMemOp gives {status}")


def _place(array: Any, number: int) -> int:
    """Where a flag of an array of 32-bit numbers lies."""
    return int(array.data.ptr) + BYTES * number
