"""Named arrays as one safetensors file, and back.

Layout: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape and byte range),
then the values, little-endian, in C order, without gaps. The header is checked here, before the library
sees the bytes, by rules at least as strict as the library's.

Source: the safetensors format, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, CheckpointError, DTypeError, quoted

from .plain_json import decode

Array = NDArray[Any]

HEADER_BYTES = 16 * 2**20
_RANK = 64  # NumPy's limit
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of this name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def plain_array(array: Array, what: str) -> Array:
    """`array` as a C-ordered array of the machine's byte order; a copy only if it is not one.

    Raises:
        DTypeError: a dtype that files do not hold; the message calls the array `what`.
    """
    dtype = _plain(array.dtype)
    if dtype is None:
        known = ", ".join(_DTYPES.values())
        raise DTypeError(f"{what}: expected one of {known}, got dtype {array.dtype.name}")
    # The library takes a pointer: an array with strides would be saved in the wrong order.
    return np.asarray(array, dtype, order="C")


@cache  # to ask NumPy for a name takes two microseconds
def _plain(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype in the machine's byte order; None of one that files do not hold."""
    return dtype_of(dtype.name) if dtype.name in _DTYPES.values() else None


def little_endian_bytes(array: Array) -> bytes:
    """The bytes of an array that `plain_array` returned, least significant byte first."""
    return (array if sys.byteorder == "little" else array.byteswap()).tobytes()


def tensors_to_bytes(tensors: Mapping[str, Array]) -> bytes:
    """The bytes of a safetensors file; the same for the same tensors.

    Raises:
        ArgumentError: a name that is not a non-empty str, or is reserved.
        DTypeError: a dtype that the file does not hold.
    """
    from safetensors.numpy import save

    arrays = {}
    for name, array in tensors.items():
        if not isinstance(name, str) or not name.isprintable() or name in ("", "__metadata__"):
            raise ArgumentError(f"tensors: expected a printable name, got {name!r}")
        arrays[name] = plain_array(array, f"tensor {name!r}")
    data: bytes = save(arrays)
    if int.from_bytes(data[:8], "little") > HEADER_BYTES:
        raise ArgumentError(
            f"tensors: names and shapes of {len(arrays)} take over {HEADER_BYTES} bytes"
        )
    return data


def tensors_from_bytes(data: bytes, where: str) -> dict[str, Array]:
    """The arrays of a safetensors file, writable and of their own memory.

    Raises:
        CheckpointError: `check_header` fails, or a bool that is neither 0 nor 1; names the file `where`.
    """
    import safetensors

    check_header(data, where)
    deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
    try:
        entries = deserialize(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{where}: not a valid safetensors file: {error}") from error
    tensors = {}
    for name, entry in entries:
        array = np.frombuffer(entry["data"], dtype_of(_DTYPES[entry["dtype"]]))
        if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            raise CheckpointError(
                f"{where}: tensor {quoted(name)}: a bool must be stored as 0 or 1"
            )
        array = array if sys.byteorder == "little" else array.byteswap()
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def tensors_within(data: Array, where: str) -> dict[str, Array]:
    """The arrays of a safetensors file that lies in memory as uint8 [size]; they share that memory.

    Raises:
        CheckpointError: as `tensors_from_bytes`.
    """
    tensors, begin = {}, 8 + int.from_bytes(bytes(data[:8]), "little")
    for name, entry in check_header(data, where).items():
        dtype, (first, last) = dtype_of(_DTYPES[entry["dtype"]]), entry["data_offsets"]
        values = data[begin + first : begin + last]
        if dtype == np.bool_ and (values > 1).any():
            raise CheckpointError(
                f"{where}: tensor {quoted(name)}: a bool must be stored as 0 or 1"
            )
        array = values.view(dtype)
        array = array if array.flags.aligned else array.copy()
        array = array if sys.byteorder == "little" else array.byteswap()
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def check_header(data: bytes | Array, where: str) -> dict[str, Any]:
    """Checks everything that the header says before anything is done with it; its entries by name.

    Raises:
        CheckpointError: a length, name, dtype, shape or byte range that cannot be.
    """
    size = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or size > min(HEADER_BYTES, len(data) - 8):
        raise CheckpointError(
            f"{where}: expected a safetensors header of at most {max(0, len(data) - 8)} bytes, got "
            f"{size}; the file is truncated or foreign"
        )
    header = decode(bytes(data[8 : 8 + size]), f"{where} (header)", HEADER_BYTES)
    _check_metadata(header.pop("__metadata__", {}), where)
    ranges = sorted(_byte_range(name, entry, where) for name, entry in header.items())
    end = 0
    for first, last, name in ranges:
        if first != end:
            raise CheckpointError(
                f"{where}: tensor {quoted(name)}: expected its bytes from {end}, got {first}; "
                "they overlap or leave a gap"
            )
        end = last
    if end != len(data) - 8 - size:
        raise CheckpointError(
            f"{where}: expected {end} bytes of values, got {len(data) - 8 - size}; the file is "
            "truncated or has something appended"
        )
    return header


def _byte_range(name: str, entry: Any, where: str) -> tuple[int, int, str]:
    """The checked (first, last, name) of one header entry."""
    where = f"{where}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: expected dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _DTYPES:
        raise CheckpointError(
            f"{where}: expected a dtype of {', '.join(_DTYPES)}, got {quoted(code)}"
        )
    if not _are_sizes(shape) or len(shape) > _RANK:
        raise CheckpointError(
            f"{where}: expected a shape of sizes from 0 to 2**63 - 1, got {quoted(shape)}"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: expected two byte offsets, got {quoted(offsets)}")
    itemsize = dtype_of(_DTYPES[code]).itemsize
    if math.prod(max(1, size) for size in shape) * itemsize >= 2**63:  # NumPy refuses it too
        raise CheckpointError(
            f"{where}: expected fewer than 2**63 bytes, got shape {quoted(shape)}"
        )
    nbytes = math.prod(shape) * itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{where}: expected {nbytes} bytes for {code} {quoted(shape)}, got offsets {quoted(offsets)}"
        )
    return offsets[0], offsets[1], name


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )


def _check_metadata(metadata: Any, where: str) -> None:
    texts = isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    if not texts:
        raise CheckpointError(f"{where}: expected texts in __metadata__, got {quoted(metadata)}")
