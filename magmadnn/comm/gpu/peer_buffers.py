"""Pieces of memory on the GPUs of ranks, which other ranks of the machine read and write by peer copies.

Whoever opens a buffer gets an address at which its own GPU copies, through CUDA's memory of other processes
(IPC); in the process of the owner it is the address itself. Nothing here says whose turn it is: ranks tell
each other by small messages of the host, after `done`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np

from magmadnn.backends.cuda import array_library, device_engine, device_memory
from magmadnn.comm.communicator import Communicator
from magmadnn.errors import DeviceError, MagmaDNNError
from magmadnn.memory import Kind, MemoryManager

from .ipc import Mapped, exported_at, library

_PROCESS: Final = uuid.uuid4().hex  # with the number of the process, as forks have it too
_WORD: Final = 8  # bytes of what a rank writes to try a buffer
_ALIGNMENT: Final = 256  # bytes between the beginnings of pieces
_LEAST: Final = 2 << 20  # bytes: CUDA puts less into one piece of memory with other allocations


class PeerBuffers:
    """Memory of this rank that others open, and of others that this rank has opened.

    Attributes:
        own: addresses of this rank's buffers.
        of: for each rank that was opened the addresses of its buffers, for copies by this rank.
        copied: bytes that this rank has copied.
    """

    def __init__(self, device: int, sizes: Sequence[int], rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._device, self._engine = device, device_engine(device)
        self._memory = device_memory(device)
        starts, end = placed([max(size, 1) for size in (*sizes, _WORD * ranks)])
        # One allocation, and no small one, so that CUDA has one handle for all of it.
        self._held = MemoryManager(max(end, _LEAST), np.uint8, Kind.DEVICE, device)
        base = self._held.device_pointer(write=True)
        *self.own, self._tried = [base + start for start in starts]
        self.of: dict[int, list[int]] = {}
        self.copied = 0
        self._mapped = Mapped(array_library(), device)

    @classmethod
    def among(
        cls, comm: Communicator, device: int | None, sizes: Sequence[int], opened: Collection[int]
    ) -> PeerBuffers | str:
        """The buffers of all ranks; on all of them why not, where one cannot be opened, or a GPU is missing.

        Collective. Each buffer that is opened is tried: a word is read, and another one written.

        Args:
            comm: of the host.
            device: number of this rank's GPU; None if it has none.
            sizes: bytes of this rank's buffers.
            opened: ranks whose buffers this one reads and writes.
        """
        buffers: PeerBuffers | None = None
        words: list[Any] = []
        problem = ""
        try:
            if device is None:
                raise DeviceError("a rank computes on the CPU")
            buffers = cls(device, sizes, comm.rank, comm.size)
            buffers._try(buffers._tried, [comm.rank + 1] * comm.size)
            words = [buffers._described(address) for address in (*buffers.own, buffers._tried)]
        except (OSError, RuntimeError, MagmaDNNError) as error:
            problem = f"rank {comm.rank}: {error}"
        told = comm.exchange([problem, list(opened), words])
        if buffers is None or any(bad for bad, _, _ in told):
            return str(next(bad for bad, _, _ in told if bad))
        try:
            for rank in opened:
                buffers._open(rank, told[rank][2])
        except (OSError, RuntimeError, MagmaDNNError) as error:
            problem = f"rank {comm.rank}: {error}"
        if problems := [bad for bad in comm.exchange(problem) if bad]:
            return str(problems[0])
        expected = [
            -(rank + 1) if comm.rank in theirs else comm.rank + 1
            for rank, (_, theirs, _) in enumerate(told)
        ]
        try:
            arrived = buffers._read(buffers._tried, comm.size) == expected
        except (OSError, RuntimeError, MagmaDNNError):
            arrived = False
        there = comm.exchange(arrived)
        return (
            buffers
            if all(there)
            else f"what is written to rank {there.index(False)} does not arrive"
        )

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Begin to copy between addresses, of this rank's GPU or of buffers, after all that it was given."""
        if nbytes:
            self._engine.copy(to, source, nbytes)
            self.copied += nbytes

    def launch(self, copies: Callable[[], None], nbytes: int) -> None:
        """The same for copies that somebody else gives to this rank's GPU, of so many bytes."""
        copies()
        self.copied += nbytes

    def done(self) -> None:
        """Wait until all that this GPU was given is done: others may be told."""
        self._memory.wait()  # the engine's stream and the one of copies between addresses

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's buffers."""
        return self._held.nbytes

    # --- addresses of others ----------------------------------------------------------------------

    def _described(self, address: int) -> list[Any]:
        """An address for other ranks: within this process, and by CUDA's handle where there is one."""
        cupy = array_library()
        here = [_PROCESS, os.getpid(), address]
        if cupy is None:
            return [*here, None, 0]
        with cupy.cuda.Device(self._device):
            return [*here, *exported_at(cupy, library(), address, "a buffer")]

    def _open(self, rank: int, words: Sequence[Any]) -> None:
        """Have the addresses of a rank's buffers, and try its last one.

        Raises:
            DeviceError: where its memory cannot be reached from here.
            RuntimeError: likewise, of CUDA.
        """
        *buffers, tried = [self._address(one) for one in words]
        if self._read(tried, self._ranks)[self._rank] != rank + 1:
            raise DeviceError(f"memory of rank {rank} holds something else")
        self._try(tried + _WORD * self._rank, [-(self._rank + 1)])
        self.of[rank] = buffers

    def _address(self, described: Sequence[Any]) -> int:
        process, number, address, handle, offset = described
        if (process, number) == (_PROCESS, os.getpid()):
            return int(address)
        if handle is None:
            raise DeviceError("a rank's memory cannot be seen by other processes")
        return self._mapped.address(handle, int(offset))

    def _try(self, to: int, numbers: Sequence[int]) -> None:
        """Write to a buffer as `copy` does."""
        values = np.array(numbers, np.int64).view(np.uint8)
        staged = MemoryManager(values.size, np.uint8, Kind.DEVICE, self._device)
        address = staged.device_pointer(write=True)
        self._memory.copy_to_device(address, values)
        self._engine.copy(to, address, values.size)
        self._engine.wait()

    def _read(self, source: int, count: int) -> list[int]:
        found = np.zeros(count, np.int64)
        staged = MemoryManager(found.nbytes, np.uint8, Kind.DEVICE, self._device)
        address = staged.device_pointer(write=True)
        self._engine.copy(address, source, found.nbytes)
        self._engine.wait()
        self._memory.copy_to_host(found.view(np.uint8), address)
        return [int(one) for one in found]


def place_of(device: int) -> tuple[str, str]:
    """Which GPU of the machine this is, whatever number it has here, and which process uses it.

    Devices that are no GPUs can wait for each other within a process too: each is told of as one of its own.
    """
    cupy: Any = array_library()
    process = f"{_PROCESS} {os.getpid()}"
    if cupy is None:
        return f"{process} {device}", f"{process} {device}"
    return str(cupy.cuda.runtime.deviceGetPCIBusId(device)), process


def gpu_of(device: int | None) -> str:
    """A GPU among those of all machines: the same text for all processes that have it; empty for none."""
    return "" if device is None else f"{socket.gethostname()} {place_of(device)[0]}"


def placed(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of so many bytes begin, one behind the other and aligned, and where the last one ends."""
    starts, end = list[int](), 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end
