"""What a device's memory must be able to do: a dozen calls on addresses and bytes."""

from __future__ import annotations

from typing import Protocol

from magmadnn.backends.cpu.host import Bytes


class DeviceMemory(Protocol):
    """Memory of one device. Addresses are integers; an offset is added to them in bytes."""

    @property
    def name(self) -> str:
        """Such as `device 0`, for messages."""
        ...

    @property
    def total(self) -> int:
        """All bytes of the device, which it is asked for once: some drivers take milliseconds to tell."""
        ...

    def allocate(self, nbytes: int) -> int:
        """The address of a new block, holding anything. Raises MemoryError where it is full."""
        ...

    def allocate_managed(self, nbytes: int) -> int:
        """The address of a new block that host and device both see."""
        ...

    def free(self, address: int) -> None:
        """Give a block of either kind back."""
        ...

    def copy_to_device(self, to: int, source: Bytes, hold: object = None) -> None:
        """Copy from the host; with `hold` in the background, and that is held until `wait`."""
        ...

    def copy_beside(self, to: int, source: Bytes) -> None:
        """Begin to copy from the host beside all else that runs, in no order with it.

        The source stays as it is until the same thread has called `wait_beside`.
        """
        ...

    def wait_beside(self) -> None:
        """Return once all that this thread began by `copy_beside` is done."""
        ...

    def pinned(self, nbytes: int) -> Bytes:
        """Memory of the host that copies to and from the device are fastest with; holding anything."""
        ...

    def copy_to_host(self, to: Bytes, source: int, hold: object = None) -> None:
        """Copy to the host; with `hold` in the background, and that is held until `wait`."""
        ...

    def copy_on_device(self, to: int, source: int, nbytes: int) -> None:
        """Copy between blocks that do not overlap, also of two devices."""
        ...

    def fill(self, to: int, pattern: bytes, count: int) -> None:
        """Write a pattern `count` times, one after the other."""
        ...

    def prefetch_managed(self, address: int, nbytes: int, to_device: bool) -> None:
        """Advise to move a managed block to one side, before it is used there."""
        ...

    def wait(self) -> None:
        """Return once everything that was started on the device is done."""
        ...

    def trim(self) -> None:
        """Take back what libraries beside this one keep of the memory without using it."""
        ...

    def free_and_total(self) -> tuple[int | None, int]:
        """Free bytes now, where they are known, and all bytes of the device."""
        ...


def fill_by_doubling(memory: DeviceMemory, to: int, pattern: bytes, nbytes: int) -> None:
    """Spread a pattern that stands at `to` over `nbytes`, by copies of twice the size each."""
    done = len(pattern)
    while done < nbytes:
        step = min(done, nbytes - done)
        memory.copy_on_device(to + done, to, step)
        done += step
