"""What may be put: arrays, bytes and JSON values, as raw buffers with a few words about them; no pickle."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from magmadnn.errors import DataError, DTypeError, quoted
from magmadnn.memory.dtypes import refuse_masked

Packed = tuple[bytes, Any]
"""Words about the data, and the data as something with a buffer."""


def pack(value: Any) -> Packed:
    """A value as words and buffer; the buffer is the value's own memory where it can be.

    Arrays are NumPy's, CuPy's (copied to the host) or what NumPy reads by `__array__`, of numbers, booleans,
    fixed texts or records. They keep their order of bytes. Tuples within JSON values become lists.

    Raises:
        DTypeError: it is something else, an array of Python objects, or a dict with a key that is no text,
            which JSON would make one.
        DataError: elements of an array are masked.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raw = memoryview(value)
        return b"b", raw.cast("B") if raw.c_contiguous else memoryview(raw.tobytes())
    refuse_masked("put", value)
    kind = "a"
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        value, kind = value.get(), "c"
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(array.shape)
        return _words(kind, array.shape, array.dtype), array.reshape(-1).view(np.uint8).data
    try:
        text = json.dumps(value, allow_nan=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DTypeError(
            f"put: a {type(value).__name__} cannot be put: {error}; give an array, bytes or JSON values"
        ) from error
    if (key := _key_that_changes(value)) is not None:
        raise DTypeError(
            f"put: the key {quoted(key[0])} of a dict would become a text, as JSON has no other keys; give "
            "texts, or a list of pairs"
        )
    return b"j", memoryview(text.encode())


def _key_that_changes(value: Any) -> tuple[Any] | None:
    """The first key of a dict in JSON values that is no text, in a tuple; None if there is none."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return (key,)
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return None
    return next((found for one in value if (found := _key_that_changes(one)) is not None), None)


def unpack(words: bytes, data: Any, begin: int = 0) -> Any:
    """The value whose bytes are those of `data` from `begin` on.

    An array lies in `data`, which must be writable for the array to be.

    Raises:
        DataError: it is nothing that `pack` made.
    """
    try:
        kind, shape, dtype, size = _parsed(words)
        if kind == "b":
            return bytes(memoryview(data)[begin:])
        if kind == "j":
            return json.loads(bytes(memoryview(data)[begin:]))
        if size != len(data) - begin:
            raise ValueError(f"{len(data) - begin} bytes where {size} are needed")
        array: Any = np.ndarray(shape, dtype, data, begin)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"get: what arrived is no tuple: {quoted(words)}: {error}") from error
    return _on_gpu(array) if kind == "c" else array


def shaped(words: bytes, flat: Any) -> Any:
    """The array, on a GPU, whose bytes are those of an array of uint8 there."""
    _, shape, dtype, _ = _parsed(words)
    return flat.view(dtype).reshape(shape)


def words_of(array: Any) -> bytes:
    """What `pack` says of an array on a GPU, without its data.

    Raises:
        DTypeError: it is an array of Python objects.
    """
    return _words("c", array.shape, array.dtype)


def array_of(tag: str, value: Any, dtype: Any) -> Any:
    """The value if it is an array of a dtype, where one is asked for.

    Raises:
        DTypeError: it is of another.
    """
    if dtype is not None and getattr(value, "dtype", None) != np.dtype(dtype):
        got = getattr(value, "dtype", type(value).__name__)
        raise DTypeError(f"get: tag {tag!r}: expected an array of {np.dtype(dtype)}, got {got}")
    return value


@lru_cache(maxsize=1024)
def _words(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    if dtype.hasobject:
        raise DTypeError(
            f"put: arrays of Python objects cannot be put, got dtype {dtype}; give numbers, bytes or "
            "JSON values"
        )
    text = dtype.str
    if dtype.names:
        text = json.dumps(np.lib.format.dtype_to_descr(dtype))
    elif dtype.kind == "V":  # bfloat16 and the like, which are bytes without meaning by `str`
        text = dtype.name
    return f"{kind}{','.join(map(str, shape))}|{text}".encode()


@lru_cache(maxsize=1024)
def _parsed(words: bytes) -> tuple[str, tuple[int, ...], Any, int]:
    """Kind of a value; of an array also shape, dtype and bytes."""
    text = words.decode()
    if text in ("b", "j"):
        return text, (), None, 0
    if text[:1] not in ("a", "c"):
        raise ValueError("unknown kind")
    sizes, _, name = text[1:].partition("|")
    shape, dtype = tuple(int(part) for part in sizes.split(",") if part), _dtype(name)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("an array of objects, or of a negative size")
    return text[0], shape, dtype, prod(shape) * dtype.itemsize


def _dtype(text: str) -> np.dtype[Any]:
    if text.startswith("["):
        named: np.dtype[Any] = np.lib.format.descr_to_dtype(_descr(json.loads(text)))
        return named
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # bfloat16 and others are known by name once it is loaded

        other: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
        return other


def _descr(fields: list[Any]) -> list[tuple[Any, ...]]:
    """Fields of a record as NumPy describes them, of which JSON has made lists."""
    return [
        (name, _descr(kind) if isinstance(kind, list) else kind, *map(tuple, shape))
        for name, kind, *shape in fields
    ]


def _on_gpu(array: Any) -> Any:
    try:
        import cupy
    except ImportError:
        return array
    return cupy.asarray(array)
