"""Tensors from other things: lists, numbers, arrays, DLPack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from magmadnn.memory import Kind, MemoryManager, as_dtype
from magmadnn.memory.dtypes import refuse_masked
from magmadnn.memory.foreign import is_foreign, packed_strides, settle

from .tensor import Tensor

_CUDA = 2  # kDLCUDA
_HOST_DEVICES = {1, 3}  # kDLCPU and kDLCUDAHost of dlpack.h


@checked_call
def asarray(
    obj: Any,
    dtype: DTypeLike | None = None,
    kind: Kind | str | None = None,
    device: int | None = None,
) -> Tensor:
    """A Tensor from a Tensor, ndarray, number, nested list, or anything with __array__ or DLPack.

    Memory is shared where dtype and kind allow it. Numbers and lists get NumPy's dtypes.

    Args:
        obj: the values.
        dtype: element type; that of the values where it is left out.
        kind: kind of memory; that of a Tensor, else MANAGED, where it is left out.
        device: number of the device; that of a Tensor, else 0, where it is left out.

    Raises:
        ShapeError: if a list is ragged.
        DTypeError: if magmadnn has no such dtype, for instance for text.
        ArgumentError: if the dtype cannot hold a value.
        DataError: if elements are masked, since there are values under the mask.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Tensor):
        tensor = obj if wanted in (None, obj.dtype) else obj.astype(wanted)
        return tensor.to(obj.kind if kind is None else kind, device)
    if hasattr(obj, "__dlpack__") and (not hasattr(obj, "__array__") or is_foreign(obj)):
        return asarray(from_dlpack(obj), wanted, kind, device)
    try:
        array = np.asarray(obj, wanted)
    except (ValueError, TypeError, OverflowError) as error:
        raise _worded(error) from error
    refuse_masked("asarray", obj)
    return Tensor.wrap(array, Kind.MANAGED if kind is None else kind, device or 0)


def _worded(error: Exception) -> Exception:
    if "inhomogeneous" in str(error):
        return ShapeError(f"asarray: rows of a list differ in length: {error}")
    if isinstance(error, OverflowError):
        return ArgumentError(f"asarray: {error}")
    return DTypeError(f"asarray: these values are no numbers: {error}")


def from_dlpack(x: Any) -> Tensor:
    """A Tensor on the memory of `x`, which offers DLPack; nothing is copied.

    Values on a CUDA device become a DEVICE Tensor, those on the host a MANAGED one.

    Raises:
        ArgumentError: if x does not offer DLPack.
        DTypeError: if magmadnn has no such dtype.
        DeviceError: if x is on a device of another kind, or does not say its address there.
    """
    if not hasattr(x, "__dlpack_device__"):
        raise ArgumentError(f"from_dlpack: a {type(x).__name__} does not offer DLPack; use asarray")
    kind, number = (int(n) for n in x.__dlpack_device__())
    if kind in _HOST_DEVICES:
        return Tensor.wrap(np.from_dlpack(x))
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None and kind == _CUDA and (library := array_library()) is not None:
        x = library.from_dlpack(x)
        interface = x.__cuda_array_interface__
    if interface is None:
        raise DeviceError(
            f"from_dlpack: device type {kind} of a {type(x).__name__} is neither the host nor CUDA; "
            "copy it to the host first"
        )
    return _on_device(x, interface, number)


def _on_device(owner: Any, interface: dict[str, Any], device: int) -> Tensor:
    """A DEVICE Tensor on the memory of another library, laid out as its interface says."""
    dtype, shape = as_dtype(interface["typestr"]), tuple(interface["shape"])
    if interface.get("strides") not in (None, packed_strides(shape, dtype.itemsize)):
        raise ArgumentError(
            f"from_dlpack: a {type(owner).__name__} of shape {shape} on device {device} is not "
            "contiguous; make it so first"
        )
    settle(owner, device)
    address, size = interface["data"][0], math.prod(shape)
    memory = MemoryManager.adopt_device(address, size, dtype, device, owner)
    return Tensor.over(memory, memory.frame().reshape(shape))
