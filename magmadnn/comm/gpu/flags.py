"""Meetings of streams of several processes: each counts in the others' memory, and waits for their counts.

The streams' front ends write and wait (`cuStreamWriteValue32`, `cuStreamWaitValue32`), so a meeting needs no
multiprocessor. A sum by NCCL does, and has to wait for one where a product has all of them: then copies that
should go beside the product begin after it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

from magmadnn.errors import CommunicationError

PATIENCE: Final = 60.0  # seconds without a count of a rank that others wait for
_BUSY: Final = 0.005  # seconds in which the end of short work is looked for without a pause
_PAUSE: Final = 0.0005
_LOOK: Final = 0.5  # seconds between two looks at the counts
_AT_LEAST, _WITH_BARRIER = 0, 0  # what is waited for; earlier writes are seen before a count is


class Flags:
    """The counts of one rank.

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
        self._group, self._driver, self._count = group, driver, 0
        self._beside: Any = None
        self._own = group._cupy.zeros(group.size, "uint32")
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
        self._theirs = {r: _place(x, group.rank) for r, x in self._others.items()}
        self._mine = {r: _place(self._own, r) for r in self._others}

    def tried(self) -> bool:
        """Whether counts arrive, on all ranks. Collective; nothing waits for what may not come."""
        stream, problem = self._group._stream, not self._usable
        if not problem:
            try:
                self._tell(stream.ptr)
                stream.synchronize()
            except (RuntimeError, AttributeError):
                problem = True
        if any(self._group.exchange(problem)):
            return False
        counts = [int(count) for count in self._own.get()]
        problem = any(counts[rank] != self._count for rank in self._others)
        if any(self._group.exchange(problem)):
            return False
        try:
            self._wait(stream.ptr)
            stream.synchronize()
        except (RuntimeError, AttributeError):
            problem = True
        return not any(self._group.exchange(problem))

    def meet(self, stream: int) -> None:
        """Let a stream wait until the streams of all ranks are here."""
        self._tell(stream)
        self._wait(stream)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait on the host for work of this rank's streams, which may wait for counts of others.

        Args:
            done: whether the work has been done.

        Raises:
            CommunicationError: if a rank whose count is behind has not counted for `PATIENCE` seconds; names
                it.
        """
        start = moved = looked = time.monotonic()
        last: list[int] | None = None
        while not done():
            now = time.monotonic()
            if now - start > _BUSY:
                time.sleep(_PAUSE)
            if now - looked < min(_LOOK, PATIENCE / 4):
                continue
            looked, counts = now, self._arrived()
            if counts != last:
                last, moved = counts, now
            behind = [
                r for r in self._others if 0 < (self._count - counts[r]) & 0xFFFFFFFF < 1 << 31
            ]
            if behind and now - moved > PATIENCE:
                where = ", ".join(f"rank {r} is at {counts[r]}" for r in behind)
                raise CommunicationError(
                    f"copies among GPUs: rank {self._group.rank} is at meeting {self._count} and waits since "
                    f"{now - moved:.0f} s, {where}: it failed or does something else; start the workers "
                    f"again, as with w.restart()"
                )

    def _arrived(self) -> list[int]:
        """The counts here, read beside streams that wait."""
        if self._beside is None:
            self._beside = self._group._cupy.cuda.Stream(non_blocking=True)
        return [int(count) for count in self._own.get(stream=self._beside)]

    def _tell(self, stream: int) -> None:
        self._count = (self._count + 1) & 0xFFFFFFFF
        for place in self._theirs.values():
            self._call("cuStreamWriteValue32_v2", stream, place, _WITH_BARRIER)

    def _wait(self, stream: int) -> None:
        for place in self._mine.values():
            self._call("cuStreamWaitValue32_v2", stream, place, _AT_LEAST)

    def _call(self, name: str, stream: int, address: ctypes.c_uint64, how: int) -> None:
        status = getattr(self._driver, name)(
            ctypes.c_void_p(stream), address, ctypes.c_uint32(self._count), ctypes.c_uint(how)
        )
        if status:
            raise RuntimeError(f"{name} gives {status}")


def _place(array: Any, number: int) -> ctypes.c_uint64:
    """Where a count of an array of 32-bit numbers lies."""
    return ctypes.c_uint64(int(array.data.ptr) + 4 * number)
