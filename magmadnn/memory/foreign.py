"""Arrays of other libraries that lie on a GPU: as they are there, or copied to the host."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_memory
from magmadnn.errors import ShapeError

from .dtypes import as_dtype

_CUDA = 2  # kDLCUDA of dlpack.h
_IN_ORDER = (None, 0, 1)  # streams: none, and the default one as PyTorch and the interface call it


def as_array(value: Any) -> NDArray[Any]:
    """`np.asarray`, also for arrays of CuPy and PyTorch that lie on a GPU: one copy to the host.

    Raises:
        DTypeError: if magmadnn has no such dtype.
        ShapeError: if lists in a list differ in length.
        DeviceError: if there is no such device.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ShapeError(
            f"a {type(value).__name__} of {len(value)} does not make an array: its parts differ in shape"
        ) from error
    except TypeError:  # what these libraries raise, so that nothing is copied unnoticed
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            raise
    dtype, shape = as_dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides") or packed_strides(shape, dtype.itemsize)
    if not math.prod(shape):
        return np.empty(shape, dtype)
    reach = [stride * (size - 1) for stride, size in zip(strides, shape, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + dtype.itemsize
    start = interface["data"][0] + low
    flat: NDArray[Any] = np.empty(high - low, np.uint8)
    settle(value, number := _number(value))
    memory = device_memory(number)
    memory.copy_to_host(flat, start)
    found = np.ndarray(shape, dtype, flat, -low, strides)
    return found if found.flags.c_contiguous else found.copy()


@dataclass(eq=False)
class PendingChecks:
    """What is known of an array's values, and what somebody wants to know before they are relied on.

    Attributes:
        finite: whether none was found to be NaN or infinite.
        below: all integers were found to be at least 0 and below this.
        wants_finite, wants_below: the same, to be looked at yet.
    """

    finite: bool = False
    below: int | None = None
    wants_finite: bool = False
    wants_below: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is something to be looked at."""
        return self.wants_finite or self.wants_below is not None

    def found(self) -> None:
        """What was wanted is so."""
        self.finite |= self.wants_finite
        self.below = self.below if self.wants_below is None else self.wants_below
        self.wants_finite, self.wants_below = False, None

    def forget(self) -> None:
        """The values are others: what was known is to be looked at again."""
        self.wants_finite |= self.finite
        self.wants_below = self.below if self.wants_below is None else self.wants_below
        self.finite, self.below = False, None


class Copy(Protocol):
    """A copy of an array of the host, which may have to be made yet, or may have changed since."""

    @property
    def missing(self) -> NDArray[Any] | None:
        """The array, if the copy has to be made yet."""
        ...

    def make(self) -> None:
        """Make it, if it has to be made yet."""
        ...

    def brought(self) -> None:
        """Somebody has made the copy, or it will be there for all that is launched from now on."""
        ...

    def begin(self) -> None:
        """Begin to look at the array; what is done meanwhile may be in vain."""
        ...

    def settle(self) -> bool:
        """Bring the copy to what the array is; whether it was that already."""
        ...


@dataclass(frozen=True, eq=False)
class OnDevice:
    """An array on a GPU, in C order, with as much of an ndarray as rows need.

    Attributes:
        shape, dtype: as usual.
        place: address of its first element; all that was begun on the device before is done.
        device: number of the device.
        owner: what holds the memory.
        looks: what is known of its values.
        copy: where it is a copy that may have to be settled before its values are those that are meant.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: int
    device: int
    owner: object
    looks: PendingChecks = field(default_factory=PendingChecks)
    copy: Copy | None = None

    @property
    def address(self) -> int:
        """The address of its first element, where its values now are those that are meant."""
        if self.copy is not None:
            self.copy.settle()
        return self.place

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> OnDevice:
        """Rows that follow each other, where they lie."""
        first, last, _ = rows.indices(len(self))
        step = self.dtype.itemsize * math.prod(self.shape[1:])
        shape = (max(last - first, 0), *self.shape[1:])
        place = self.place + first * step
        return OnDevice(shape, self.dtype, place, self.device, self.owner, copy=self.copy)

    def fill_from(self, array: Any) -> None:
        """Copy an array of this shape and dtype here, behind all that was launched.

        One on the device must be held until that is done.
        """
        memory = device_memory(self.device)
        if isinstance(array, OnDevice):
            memory.copy_on_device(self.place, array.address, self.nbytes)
        else:
            flat = np.ascontiguousarray(array).reshape(-1)
            memory.copy_to_device(self.place, flat.view(np.uint8))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """A copy on the host."""
        found = np.empty(self.shape, self.dtype)
        if found.size:
            memory = device_memory(self.device)
            memory.copy_to_host(found.reshape(-1).view(np.uint8), self.address)
        return found if dtype is None else found.astype(dtype)


def on_device(
    value: Any, device: int, dtype: np.dtype[Any] | None = None, in_order: bool = False
) -> OnDevice | None:
    """The array where it lies, if that is this device, in C order and, where that is given, of this dtype.

    With `in_order` it is only to be read by copies on the device, behind what was begun there.
    """
    if isinstance(value, OnDevice):
        fits = value.device == device and (dtype is None or dtype == value.dtype)
        return value if fits else None
    interface = None if isinstance(value, np.ndarray) else _interface(value)
    if interface is None or _number(value) != device:
        return None
    found, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    if dtype is not None and dtype != found:
        return None
    if interface.get("strides") not in (None, packed_strides(shape, found.itemsize)):
        return None
    if hasattr(value, "block_until_ready") or not in_order or _is_apart(value, interface):
        settle(value, device)
    return OnDevice(shape, found, interface["data"][0], device, value)


def settle(value: Any, device: int) -> None:
    """Wait for what another library has begun to write, on its own threads (JAX) and on the device."""
    if hasattr(value, "block_until_ready"):
        value.block_until_ready()
    device_memory(device).wait()


def _is_apart(value: Any, interface: dict[str, Any]) -> bool:
    """Whether what is being written there may be in no order with copies: on a stream of its own."""
    stream = interface.get("stream")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):  # whose interface tells of none
        stream = torch.cuda.current_stream(value.device).cuda_stream
    return stream not in _IN_ORDER


def _interface(value: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = getattr(value, "__cuda_array_interface__", None)
    return found


def is_foreign(value: Any) -> bool:
    """Whether it is an array on a GPU."""
    return not isinstance(value, np.ndarray) and _interface(value) is not None


def _number(value: Any) -> int:
    """The device that an array is on."""
    if not hasattr(value, "__dlpack_device__"):
        return 0
    kind, number = (int(n) for n in value.__dlpack_device__())
    return number if kind == _CUDA else 0


def packed_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of C order, in bytes."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
