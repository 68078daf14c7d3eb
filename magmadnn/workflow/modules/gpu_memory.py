"""Arrays on GPUs that go straight from a module to another on the same machine, from memory to memory.

The first one to a rank goes through the host. Beside it the rank is asked whether it can read this process's
GPU memory (CUDA IPC). From its yes on the sender lends it a copy, so that `send` still returns at once. Who
receives reads that by a copy engine and says when it has.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Collection
from typing import Any

from magmadnn.comm.gpu.ipc import Mapped, exported, library
from magmadnn.errors import DataError, DeviceError
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.mail import Mail
from magmadnn.workflow.tuples.payload import shaped

_PROBE = 1 << 10  # bytes


class ModuleMail:
    """Messages between modules, of a rank for all of its runs; those about lent memory are dealt with here.

    Args:
        mail: for these only.
        near: ranks on this machine.

    """

    def __init__(self, mail: Mail, near: Collection[int] = ()) -> None:
        self._mail, self._near = mail, set(near)
        self._came: deque[tuple[int, m.Message]] = deque()
        self._reads: dict[int, bool | None] = {}  # by rank; None: it has been asked
        self._lent: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    @property
    def lent(self) -> int:
        """Bytes that others have not read yet."""
        return sum(int(array.nbytes) for array in self._lent.values())

    def send(self, raw: bytes, to: int) -> None:
        """Send a message of a run."""
        self._mail.send(raw, to)

    def receive(self) -> tuple[int, m.Message] | None:
        """The next message of a run, and who sent it; None where none has come."""
        self.settle()
        return self._came.popleft() if self._came else None

    def settle(self) -> None:
        """Deal with what came about lent memory; messages of runs are kept."""
        while (found := self._mail.receive()) is not None:
            source, message = found[0], m.Message(found[1])
            if message.operation == m.CAN_READ:
                raw = m.packed(m.READS, flags=int(_can_read(message.data)), request=message.request)
                self._mail.send(raw, source)
            elif message.operation == m.READS:
                self._reads[source] = bool(message.flags)
                self._lent.pop(message.request, None)
            elif message.operation == m.RETURNED:
                self._lent.pop(message.request, None)
            else:
                self._came.append((source, message))

    def lend(self, value: Any, to: int) -> tuple[int, bytes] | None:
        """Lend a rank a copy of an array: a number and where it lies; None where it goes through the host."""
        if not _is_lent(value) or to not in self._near or to == self._mail.comm.Get_rank():
            return None
        self.settle()
        if to not in self._reads:
            self._reads[to] = None
            if (asked := self._exported(_pattern(value))) is not None:
                self._mail.send(m.packed(m.CAN_READ, request=asked[0], data=asked[1]), to)
        return self._exported(value) if self._reads[to] else None

    def _exported(self, value: Any) -> tuple[int, bytes] | None:
        made = _exported(value)
        if made is None:
            return None
        number = next(self._numbers)
        self._lent[number], where = made
        return number, where

    def borrowed(self, source: int, message: m.Message) -> Any:
        """A copy, on this process's GPU, of an array that was lent to it."""
        try:
            flat = _read(message.data)
        except RuntimeError as error:
            raise DataError(
                f"recv: an array on another process's GPU cannot be read: {error}; send it as array.get()"
            ) from error
        finally:
            self.give_back(source, message)
        return shaped(message.words, flat)

    def give_back(self, source: int, message: m.Message) -> None:
        """Say that a message is done with; the memory of a lent array is the sender's again."""
        if message.operation == m.LENT:
            self._mail.send(m.packed(m.RETURNED, request=message.request), source)


def _is_lent(value: Any) -> bool:
    """Whether a value is an array of CuPy that is worth it."""
    return (
        hasattr(value, "__cuda_array_interface__")
        and hasattr(value, "get")
        and int(value.nbytes) > m.SMALL
    )


def _pattern(value: Any) -> Any:
    """Bytes on the GPU of an array, by which another process finds out whether it reads them."""
    import cupy

    with value.device:
        return cupy.arange(_PROBE, dtype="uint8")


def _exported(value: Any) -> tuple[Any, bytes] | None:
    """A copy of an array, and how others find it; None where this GPU's memory cannot be exported."""
    import cupy

    try:
        driver = library()
        with value.device:
            copy = value.copy(order="C")
            cupy.cuda.get_current_stream().synchronize()
            handle, offset = exported(cupy, driver, copy)
    except (OSError, RuntimeError, DeviceError):
        return None
    return copy, json.dumps([handle, offset, int(copy.nbytes)]).encode()


def _read(where: Any) -> Any:
    """The bytes that another process has exported, copied to this one's GPU."""
    import cupy

    handle, offset, size = json.loads(bytes(where))
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    made = cupy.empty(size, "uint8")
    mapped = Mapped(cupy, int(made.device.id))
    try:
        source = mapped.address(handle, offset)
        runtime.memcpyAsync(made.data.ptr, source, size, runtime.memcpyDefault, stream.ptr)
        stream.synchronize()
    finally:
        mapped.close()
    return made


def _can_read(where: Any) -> bool:
    """Whether this process reads what another has exported."""
    try:
        found = _read(where).get()
    except (ImportError, OSError, RuntimeError, ValueError):
        return False
    return bytes(found) == bytes(k % 256 for k in range(_PROBE))
