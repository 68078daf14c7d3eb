"""The two sides of a memory: bytes on the host, bytes on a device, and which of them are valid."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, Literal
from weakref import getweakrefcount

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.backends.cpu.host import Bytes
from magmadnn.backends.cuda import DeviceMemory, device_memory
from magmadnn.errors import ArgumentError, DeviceError

from .kinds import Kind
from .pool import HOST_SOURCE, POOLS, DeviceSource, Lease, device_source, host_bytes

Side = Literal["host", "device"]

_versions = itertools.count(1)
_DEVICE_POOL = POOLS[Kind.DEVICE]
_updating = ProcessLock(
    reentrant=True
)  # one for all: held only while a side is made, or brought up to date


@dataclass(frozen=True)
class ForeignBlock:
    """A block on a device that belongs to another library, and what keeps it alive there."""

    block: int
    owner: object


class _Held:
    """Counts its references as `Sides.renew` counts those of a memory, its sides and their block."""

    def __init__(self, sides: _Held | None) -> None:
        self.sides, self.lease = sides, object()

    def is_held(self) -> tuple[int, int, int]:
        """Called as `MemoryManager.is_new_again`."""
        assert self.sides is not None
        return self.sides.count(self)

    def count(self, memory: object) -> tuple[int, int, int]:
        """Called as `Sides.renew`."""
        lease = self.lease
        return getrefcount(memory), getrefcount(self), getrefcount(lease)


def _held_once() -> tuple[int, int, int]:
    """What is counted where nobody else has them."""
    for part in [(_Held(_Held(None)), None)]:
        return part[0].is_held()
    raise AssertionError


_HELD_ONCE = _held_once()


class Sides:
    """Bytes of one kind.

    HOST has the host side only and DEVICE the device side only. MANAGED has both, each with a flag that
    says whether it is valid, and the device side is made when it is first used. CUDA_MANAGED is one
    block that both sides see, so both are always valid.

    Attributes:
        version: another number whenever bytes may have been written.
        lent: whether others were given an address that they may write to at any time.
    """

    __slots__ = (
        "_host",
        "_in_flight",
        "_lease",
        "_memory",
        "device",
        "device_valid",
        "host_valid",
        "kind",
        "lent",
        "nbytes",
        "version",
    )

    def __init__(
        self,
        kind: Kind,
        device: int,
        nbytes: int,
        host: Bytes | None = None,
        block: ForeignBlock | None = None,
        zeroed: bool = True,
    ) -> None:
        self.kind, self.device, self.nbytes = kind, device, nbytes
        self._lease: Lease | ForeignBlock | None = block
        self._memory: DeviceMemory | None = None
        self._in_flight = False
        self._host = host
        self.version = next(_versions)
        self.lent = block is not None or kind is Kind.CUDA_MANAGED
        self.host_valid = kind is not Kind.DEVICE
        self.device_valid = kind in (Kind.DEVICE, Kind.CUDA_MANAGED)
        if self.device_valid:
            self._lend_device_side(zeroed)
        elif host is None:
            self._host = host_bytes(POOLS[kind].lend(HOST_SOURCE, nbytes, zeroed))

    @classmethod
    def on_device(cls, source: DeviceSource, device: int, nbytes: int) -> Sides:
        """DEVICE bytes that hold anything, of a source that was looked up before; else as a new one.

        Raises:
            OutOfMemoryError: if there are none.
        """
        self = cls.__new__(cls)
        self.kind, self.device, self.nbytes = Kind.DEVICE, device, nbytes
        self._memory, self._host, self._in_flight, self.lent = source.memory, None, False, False
        self.host_valid, self.device_valid, self.version = False, True, next(_versions)
        self._lease = _DEVICE_POOL.lend(source, nbytes, False)
        return self

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory, opened on first use."""
        if self._memory is None:
            try:
                self._memory = device_memory(self.device)
            except DeviceError as error:
                hint = (
                    "work on its host side"
                    if self.kind is Kind.MANAGED
                    else "use HOST or MANAGED, which work without a GPU"
                )
                raise DeviceError(f"{self.kind.name} memory: {error}; {hint}") from error
        return self._memory

    @property
    def writable(self) -> bool:
        """False for bytes that came from an array that must not be written."""
        return self._host is None or bool(self._host.flags.writeable)

    def host(self, write: bool = False) -> Bytes:
        """The host's bytes, valid; with `write` the device's become stale.

        Raises:
            DeviceError: for DEVICE.
            ArgumentError: if they are to be written and must not.
        """
        if self._host is None:
            raise DeviceError(
                f"{self.kind.name} memory of device {self.device} cannot be seen by the host: "
                "copy_from it into HOST memory, or use MANAGED"
            )
        if self._in_flight:
            self.settle()
        if self.kind is Kind.CUDA_MANAGED:
            self.memory.wait()
        elif not self.host_valid:
            self._update(to_device=False)
        if write:
            if not self._host.flags.writeable:
                self.check_writable()
            self.version = next(_versions)
            self.device_valid = self.kind is Kind.CUDA_MANAGED
        return self._host

    def address(self, write: bool = False) -> int:
        """The address of the device's bytes, valid; with `write` the host's become stale.

        Raises:
            DeviceError: for HOST, or if there is no device.
            ArgumentError: if they are to be written and must not.
        """
        lease = self._lease
        if lease is not None and self.device_valid and not (write or self._in_flight):
            there: int = lease.block  # nothing is to be done, as at most calls
            return there
        if self.kind is Kind.HOST:
            raise DeviceError(
                "HOST memory has no device side: use MANAGED, or copy_from it into DEVICE memory"
            )
        self.settle()
        if not self.device_valid:
            self._update(to_device=True)
        if write:
            self.check_writable()
            self.version = next(_versions)
            self.host_valid = self.kind is Kind.CUDA_MANAGED
        return self._block()

    def peek(self) -> Bytes:
        """The host's bytes as they are, valid or not: for addresses, not for values."""
        assert self._host is not None, "DEVICE has no host side"
        return self._host

    def forget(self, side: Side) -> None:
        """Take `side` as valid, since all its bytes are overwritten there now."""
        self.settle()
        self.check_writable()
        if self.kind is Kind.MANAGED:
            if side == "device":
                self._make_device_side()
                self.device_valid = True
            else:
                self.host_valid = True

    def sync(self) -> None:
        """Bring the stale side up to date, where there is one, and wait for the device."""
        self.settle()
        if self._lease is None:
            return
        if self.kind is Kind.MANAGED:
            self._update(to_device=self.host_valid)
        self.memory.wait()

    def renew(self, memory: object) -> bool:
        """Whether nobody has a memory but who asks, and only it these sides of DEVICE; new then.

        Not so where others were given an address to write to.
        """
        lease = self._lease
        if self.lent or type(lease) is not Lease or self.kind is not Kind.DEVICE:
            return False
        if (getrefcount(memory), getrefcount(self), getrefcount(lease)) != _HELD_ONCE:
            return False
        self.version = next(_versions)
        return not getweakrefcount(memory)

    def move_to(self, device: int) -> None:
        """Have the device side of MANAGED on another device, by way of the host."""
        if device == self.device:
            return
        assert self.kind is Kind.MANAGED
        self.host()
        with _updating:
            self._lease = self._memory = None
            self.device, self.device_valid = device, False

    def leave_device(self) -> None:
        """Have the values on the host only, where it can have them; the device's block is given back."""
        if self.kind is not Kind.MANAGED or self._lease is None:
            return
        self.host()
        with _updating:
            self._lease, self.device_valid = None, False

    def prefetch(self, side: Side) -> None:
        """Begin to bring one side up to date, in the background."""
        to_device = side == "device"
        if (self.kind is Kind.HOST and to_device) or (self.kind is Kind.DEVICE and not to_device):
            raise ArgumentError(
                f"prefetch: {self.kind.name} memory has no {side} side; use MANAGED or CUDA_MANAGED"
            )
        if self.kind is Kind.CUDA_MANAGED:
            self.memory.prefetch_managed(self._block(), self.nbytes, to_device)
        elif self.kind is Kind.MANAGED:
            self.settle()
            self._update(to_device, background=True)

    def settle(self) -> None:
        """Wait for what `prefetch` has begun."""
        if self._in_flight:
            self.memory.wait()
            self._in_flight = False

    def check_writable(self) -> None:
        """Raises ArgumentError if these bytes must not be written."""
        if not self.writable:
            raise ArgumentError(
                "this memory was taken over from a read-only array and cannot be written; "
                "copy it first"
            )

    def _block(self) -> int:
        if self._lease is None:
            self._make_device_side()
        assert self._lease is not None
        address: int = self._lease.block
        return address

    def _make_device_side(self, zeroed: bool = True) -> None:
        with _updating:
            self._lend_device_side(zeroed)

    def _lend_device_side(self, zeroed: bool) -> None:
        if self._lease is None:
            managed = self.kind is Kind.CUDA_MANAGED
            memory: Any = self.memory  # each is equal to itself alone
            source = device_source(memory, managed)
            lease = POOLS[self.kind].lend(source, self.nbytes, zeroed)
            self._host = host_bytes(lease) if managed else self._host
            self._lease = lease

    def _update(self, to_device: bool, background: bool = False) -> None:
        """Copy the valid side of MANAGED memory to the other, unless that is valid too."""
        with _updating:
            if self.device_valid if to_device else self.host_valid:
                return
            host, address = self.peek(), self._block()
            hold = (host, self._lease) if background else None
            self._in_flight = background
            if to_device:
                self.memory.copy_to_device(address, host, hold)
                self.device_valid = True
            else:
                self.memory.copy_to_host(host, address, hold)
                self.host_valid = True


class ElsewhereSides(Sides):
    """No bytes: values of a memory that lie somewhere else."""

    def __init__(self, kind: Kind, device: int) -> None:
        super().__init__(kind, device, 0)

    def host(self, write: bool = False) -> Bytes:
        """Raises DeviceError: there is nothing here."""
        raise self._error()

    def address(self, write: bool = False) -> int:
        """Raises DeviceError, as `host`."""
        raise self._error()

    def forget(self, side: Side) -> None:
        """Raises DeviceError, as `host`."""
        raise self._error()

    def _error(self) -> DeviceError:
        return DeviceError(
            "these values lie in parts on several workers, and a training that would bring them together has "
            "not ended: make the model again, and load a checkpoint"
        )


class LateSides(Sides):
    """DEVICE bytes that are computed when they are first asked for.

    Args:
        device: its number.
        nbytes: how many.
        make: computes them.
    """

    __slots__ = ("_computing", "_make")

    def __init__(self, device: int, nbytes: int, make: Callable[[], ForeignBlock]) -> None:
        self.kind, self.device, self.nbytes = Kind.DEVICE, device, nbytes
        self._lease, self._memory, self._host = None, None, None
        self._in_flight, self.lent = False, False
        self.host_valid, self.device_valid, self.version = False, True, next(_versions)
        self._make: Callable[[], ForeignBlock] | None = make
        self._computing = ProcessLock()  # of its own: what is computed makes sides of other memory

    def _make_device_side(self, zeroed: bool = True) -> None:
        with self._computing:
            if self._make is not None:
                self._lease, self._make = self._make(), None
