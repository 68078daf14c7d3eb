"""`MemoryManager`: typed elements over bytes of one kind on one device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, DTypeLike, NDArray

from magmadnn.errors import ArgumentError, DTypeError, IndexOutOfRangeError

from . import transfers
from .dtypes import as_dtype
from .kinds import Kind
from .pool import DeviceSource
from .sides import ElsewhereSides, ForeignBlock, LateSides, Side, Sides

Array = NDArray[Any]
_BYTES = np.dtype(np.uint8)


class Addressing(Protocol):
    """Something that holds addresses of memory."""

    def memory_moves(self, memory: MemoryManager) -> None:
        """Be told that a memory's bytes are given back."""


_USERS: WeakSet[Addressing] = WeakSet()


def addressed_by(user: Addressing) -> None:
    """Tell `user` of each memory whose bytes are given back, as long as it lives."""
    _USERS.add(user)


class MemoryManager:
    """`size` elements of one dtype, in memory of one kind on one device. New memory holds zeros.

    Args:
        size: number of elements, at least 0.
        dtype: element type (see `magmadnn.memory.DTYPES`).
        kind: HOST, DEVICE, MANAGED or CUDA_MANAGED (see `Kind`).
        device: its number, from 0. HOST does not use it, and MANAGED not before its first use there.
        zeroed: False for who writes all elements before anybody reads one: they hold anything then.

    Raises:
        ArgumentError: if size or device is no integer of at least 0, or there is no such kind.
        DTypeError: if magmadnn has no such element type.
        DeviceError: if kind is DEVICE or CUDA_MANAGED and there is no such device; says why.
        OutOfMemoryError: if there is not that much memory.
    """

    __slots__ = ("__weakref__", "_dtype", "_frame", "_size", "sides")

    def __init__(
        self,
        size: int,
        dtype: DTypeLike = "float32",
        kind: Kind | str = Kind.MANAGED,
        device: int = 0,
        *,
        zeroed: bool = True,
    ) -> None:
        self._size, self._dtype = _count("size", size), as_dtype(dtype)
        self._frame: Array | None = None
        nbytes = self._size * self._dtype.itemsize
        self.sides = Sides(Kind.of(kind), _count("device", device), nbytes, zeroed=zeroed)

    @classmethod
    def of(cls, size: int, dtype: np.dtype[Any], kind: Kind, device: int) -> MemoryManager:
        """New memory that holds anything, of arguments that were looked at before.

        Raises:
            DeviceError, OutOfMemoryError: as for a new MemoryManager.
        """
        self = cls.__new__(cls)
        self._size, self._dtype, self._frame = size, dtype, None
        self.sides = Sides(kind, device, size * dtype.itemsize, zeroed=False)
        return self

    @classmethod
    def of_source(
        cls, size: int, dtype: np.dtype[Any], source: DeviceSource, device: int
    ) -> MemoryManager:
        """The same on a device, whose memory was looked up before."""
        self = cls.__new__(cls)
        self._size, self._dtype, self._frame = size, dtype, None
        self.sides = Sides.on_device(source, device, size * dtype.itemsize)
        return self

    @classmethod
    def late(
        cls, size: int, dtype: np.dtype[Any], device: int, make: Callable[[], MemoryManager]
    ) -> MemoryManager:
        """DEVICE memory whose elements are computed when they are first asked for.

        Args:
            size: number of elements.
            dtype: element type.
            device: number of the device.
            make: gives such memory, which becomes this one; the first who wants an address calls it, and the
                next one again where it raises an error.
        """
        self = cls.__new__(cls)
        self._size, self._dtype, self._frame = size, dtype, None
        self.sides = LateSides(device, size * dtype.itemsize, lambda: _block_of(make()))
        return self

    @classmethod
    def adopt(cls, array: Array, kind: Kind | str = Kind.MANAGED, device: int = 0) -> MemoryManager:
        """Take over a contiguous ndarray without copying it; both see each other's changes.

        Args:
            array: contiguous in any order of its axes; its elements count in memory order.
            kind: HOST or MANAGED.
            device: as for a new MemoryManager.

        Raises:
            ArgumentError: if the array is not contiguous, or the kind has no host side of its own.
        """
        kind = Kind.of(kind)
        if kind not in (Kind.HOST, Kind.MANAGED):
            raise ArgumentError(
                f"MemoryManager.adopt: an ndarray can become HOST or MANAGED memory, not {kind.name}; "
                "make new memory and use copy_from"
            )
        self = cls.__new__(cls)
        self._size, self._dtype, self._frame = array.size, as_dtype(array.dtype), None
        if not (array.flags.forc and array.flags.aligned and array.dtype == self._dtype):
            raise ArgumentError(
                "MemoryManager.adopt: expected a contiguous, aligned array in native byte order, got "
                f"shape {array.shape} with strides {array.strides}; use np.ascontiguousarray"
            )
        line = array if array.ndim == 1 else array.reshape(-1, order="A")
        data = line.view(_BYTES)
        self.sides = Sides(kind, _count("device", device), array.nbytes, data)
        return self

    @classmethod
    def adopt_device(
        cls, address: int, size: int, dtype: DTypeLike, device: int, owner: object
    ) -> MemoryManager:
        """DEVICE memory on a block of another library, without copying it.

        Args:
            address: of the first element.
            size: number of elements.
            dtype: element type.
            device: number of the device that the block is on.
            owner: kept as long as the memory, so that the block is.

        Raises:
            DeviceError: if there is no such device.
        """
        self = cls.__new__(cls)
        self._size, self._dtype, self._frame = _count("size", size), as_dtype(dtype), None
        nbytes = self._size * self._dtype.itemsize
        block = ForeignBlock(address, owner)
        self.sides = Sides(Kind.DEVICE, _count("device", device), nbytes, block=block)
        self.sides.sync()  # what the other library has begun to write comes first
        return self

    def is_new_again(self) -> bool:
        """Whether nobody has this DEVICE memory but who asks, in one place; it counts as new then."""
        return self.sides.renew(self)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, counted once where there is a copy on each side."""
        return self.sides.nbytes

    @property
    def kind(self) -> Kind:
        """Kind of memory."""
        return self.sides.kind

    @property
    def device(self) -> int:
        """Number of the device."""
        return self.sides.device

    @property
    def host_valid(self) -> bool:
        """Whether the host side holds the values of now."""
        return self.sides.host_valid

    @property
    def device_valid(self) -> bool:
        """Whether the device side holds the values of now."""
        return self.sides.device_valid

    @property
    def writable(self) -> bool:
        """False for memory taken over from an array that must not be written."""
        return self.sides.writable

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return (
            f"MemoryManager(size={self.size}, dtype={self.dtype.name!r}, kind={self.kind.name}, "
            f"device={self.device})"
        )

    def host(self, write: bool = False) -> Array:
        """The elements as the host sees them, brought up to date: a view, not a copy.

        Args:
            write: give a view that can be written, and take the device's copy as stale from now on.
                Once the device has been used again, ask for a new view before writing more.

        Raises:
            DeviceError: for DEVICE, which the host cannot see.
            ArgumentError: if memory taken over from a read-only array is to be written.
        """
        elements = self.sides.host(write).view(self._dtype)
        elements.flags.writeable = write
        return elements

    def update_host(self, write: bool = False) -> None:
        """Bring the host side up to date; arguments and errors as for `host`."""
        self.sides.host(write)

    def host_pointer(self, write: bool = False) -> int:
        """The address of the host side, brought up to date; arguments and errors as for `host`."""
        return int(self.sides.host(write).ctypes.data)

    def device_pointer(self, write: bool = False) -> int:
        """The address of the device side, brought up to date.

        Args:
            write: take the host's copy as stale from now on.

        Raises:
            DeviceError: for HOST, or if there is no device.
            ArgumentError: if memory taken over from a read-only array is to be written.
        """
        self.sides.lent |= write
        return self.sides.address(write)

    def overwritten_on_device(self) -> int:
        """The address of the device side for a caller that writes all elements there now, and no later.

        The host's copy is stale; nothing is copied.

        Raises:
            DeviceError, ArgumentError: as `device_pointer`.
        """
        if not self.sides.device_valid:
            self.sides.forget("device")
        return self.sides.address(write=True)

    @property
    def version(self) -> int | None:
        """A number that no memory had before; another one whenever the elements may have been written.

        None where nobody can tell: others have an address to write to.
        """
        return None if self.sides.lent else self.sides.version

    def sync(self) -> None:
        """Make both sides hold the values of now, and wait until the device is done.

        A device side that was never used is not made, so this does nothing without a GPU.
        """
        self.sides.sync()

    def move_to(self, device: int) -> None:
        """Have the device side on another device; addresses on the one before are no longer this memory's.

        Args:
            device: its number.

        Raises:
            ArgumentError: if the kind is not MANAGED, whose host side keeps the values on the way.
        """
        if self.kind is not Kind.MANAGED:
            raise ArgumentError(
                f"move_to: {self.kind.name} memory stays on device {self.device}; copy_from it into "
                f"memory of device {device}"
            )
        self.sides.move_to(_count("device", device))

    def leave_device(self) -> None:
        """Have the values of MANAGED memory on the host only; addresses on the device are no longer its own.

        Memory of another kind stays as it is. The next use on the device takes memory there anew.
        """
        self.sides.leave_device()

    def prefetch(self, side: Side) -> None:
        """Begin to bring `side`, "host" or "device", up to date in the background.

        The next use of this memory waits for it; so does `sync`. For CUDA_MANAGED this is advice to move
        the pages.

        Raises:
            ArgumentError: if this kind has no such side.
            DeviceError: if there is no device.
        """
        if side not in ("host", "device"):
            raise ArgumentError(f'prefetch: side must be "host" or "device", got {side!r}')
        self.sides.prefetch(side)

    def fill(self, value: float | bool) -> None:
        """Set every element, on the device if its side is valid and on the host otherwise.

        Raises:
            ArgumentError: if the dtype cannot hold the value.
        """
        transfers.fill(self.sides, self._element(value).tobytes())

    def zero(self) -> None:
        """Set every element to zero."""
        transfers.fill(self.sides, bytes(self._dtype.itemsize))

    def get(self, index: int) -> Any:
        """One element, as a NumPy scalar. On DEVICE that is a transfer: `copy_from` many at once.

        Raises:
            IndexOutOfRangeError: if there is no such element; negative ones count from the end.
        """
        at = self._position("get", index)
        if self.kind is not Kind.DEVICE:
            return self.host()[at]
        one = MemoryManager(1, self._dtype, Kind.HOST)
        one.copy_from(self, at, 1)
        return one.host()[0]

    def set(self, index: int, value: float | bool) -> None:
        """Set one element. On DEVICE that is a transfer.

        Raises:
            IndexOutOfRangeError: if there is no such element; negative ones count from the end.
            ArgumentError: if the dtype cannot hold the value.
        """
        at = self._position("set", index)
        self.copy_from(self._element(value).reshape(1), to=at)

    def copy_from(
        self,
        src: MemoryManager | ArrayLike,
        begin: int = 0,
        size: int | None = None,
        to: int = 0,
    ) -> None:
        """Copy elements of `src`, of any kind and device, into this memory.

        Args:
            src: a MemoryManager or an array (its elements in C order) of the same dtype.
            begin: the first element to copy.
            size: how many; all from `begin` where it is left out.
            to: the element here that the first one goes to.

        Raises:
            ArgumentError: if the elements are not there, or do not fit.
            DTypeError: if the dtypes differ.
        """
        source = src if isinstance(src, MemoryManager) else _adopted(src)
        if source.dtype != self._dtype:
            raise DTypeError(
                f"copy_from: the source holds {source.dtype.name} but this memory holds "
                f"{self._dtype.name}; convert it with astype"
            )
        begin, to = _count("begin", begin), _count("to", to)
        size = max(source.size - begin, 0) if size is None else _count("size", size)
        _check_range("the source", begin, size, source.size)
        _check_range("this memory", to, size, self._size)
        item = self._dtype.itemsize
        transfers.copy(self.sides, to * item, source.sides, begin * item, size * item)

    def frame(self) -> Array:
        """An ndarray laid out as the elements, whose strides and addresses count but not its values.

        It is the host side itself where there is one, whether or not that is valid, and must not be
        touched for DEVICE. Views are made by NumPy's own rules from it.
        """
        if self._frame is None:
            if self.kind is Kind.DEVICE:
                self._frame = _nothing(self._size, self._dtype)
            else:
                self._frame = self.sides.peek().view(self._dtype)
        return self._frame

    def set_aside(self) -> None:
        """Give the bytes back, as the values lie somewhere else; reads and writes are refused now.

        Whoever holds addresses (`addressed_by`) is told.
        """
        for user in list(_USERS):
            user.memory_moves(self)
        self.sides, self._frame = ElsewhereSides(self.kind, self.device), None

    def bring_back(self) -> None:
        """Have bytes again after `set_aside`: zeros."""
        if self.is_aside:
            nbytes = self._size * self._dtype.itemsize
            self.sides = Sides(self.kind, self.device, nbytes)

    @property
    def is_aside(self) -> bool:
        """Whether the values lie somewhere else."""
        return isinstance(self.sides, ElsewhereSides)

    def __reduce__(self) -> tuple[Any, ...]:
        values = MemoryManager(self._size, self._dtype, Kind.HOST)
        values.copy_from(self)
        return _restored, (values.host().tobytes(), self._dtype.name, self.kind.name, self.device)

    def __copy__(self) -> MemoryManager:
        twin = MemoryManager(self._size, self._dtype, self.kind, self.device)
        twin.copy_from(self)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryManager:
        return self.__copy__()

    def _position(self, method: str, index: int) -> int:
        at = operator.index(index)
        if not -self._size <= at < self._size:
            raise IndexOutOfRangeError(
                f"MemoryManager.{method}: index {index} is out of bounds for {self._size} elements"
            )
        return at % self._size

    def _element(self, value: object) -> Array:
        try:
            element = np.zeros((), self._dtype)
            element[()] = value
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(
                f"an element of {self._dtype.name} cannot be {value!r}: {error}"
            ) from error
        return element


@lru_cache(maxsize=256)
def _nothing(size: int, dtype: np.dtype[Any]) -> Array:
    """The frame of all DEVICE memory of so many elements, as it only counts how they lie."""
    return as_strided(np.empty(1, dtype), (size,), (dtype.itemsize,), writeable=False)


def _restored(data: bytes, dtype: str, kind: str, device: int) -> MemoryManager:
    """A MemoryManager from its pickle."""
    elements = np.frombuffer(data, as_dtype(dtype))
    memory = MemoryManager(elements.size, dtype, kind, device)
    memory.copy_from(elements)
    return memory


def _block_of(memory: MemoryManager) -> ForeignBlock:
    """The device's side of a memory, which lives as long as that is used."""
    return ForeignBlock(memory.device_pointer(), memory)


def _adopted(array: ArrayLike) -> MemoryManager:
    """An array as the source of a copy."""
    return MemoryManager.adopt(np.ascontiguousarray(array), Kind.HOST)


def _count(name: str, value: Any) -> int:
    """An argument that counts something.

    Raises:
        ArgumentError: if it is no integer of at least 0.
    """
    if type(value) is int and value >= 0:
        return value
    try:
        number = -1 if isinstance(value, (bool, np.bool)) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(f"memory: {name} must be an integer of at least 0, got {value!r}")
    return number


def _check_range(what: str, first: int, count: int, size: int) -> None:
    if first + count > size:
        raise ArgumentError(
            f"copy_from: elements {first} to {first + count} of {what} were asked for, which has {size}"
        )
