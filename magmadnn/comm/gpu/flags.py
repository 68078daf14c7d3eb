"""Meetings of streams of several processes: each counts in the others' memory, and waits for their counts.

The streams' front ends write and wait (`cuStreamWriteValue32`, `cuStreamWaitValue32`), so a meeting needs no
multiprocessor. A sum by NCCL does, and has to wait for one where a product has all of them: then copies that
should go beside the product begin after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

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

    def _tell(self, stream: int) -> None:
        self._count = (self._count + 1) & 0xFFFFFFFF
        for array in self._others.values():
            self._call("cuStreamWriteValue32_v2", stream, array, self._group.rank, _WITH_BARRIER)

    def _wait(self, stream: int) -> None:
        for rank in self._others:
            self._call("cuStreamWaitValue32_v2", stream, self._own, rank, _AT_LEAST)

    def _call(self, name: str, stream: int, array: Any, place: int, how: int) -> None:
        address = ctypes.c_uint64(int(array.data.ptr) + 4 * place)
        status = getattr(self._driver, name)(
            ctypes.c_void_p(stream), address, ctypes.c_uint32(self._count), ctypes.c_uint(how)
        )
        if status:
            raise RuntimeError(f"{name} gives {status}")
