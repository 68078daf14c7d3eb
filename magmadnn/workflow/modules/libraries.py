"""Functions of C and Fortran libraries as modules: they get a struct, see `native/magmadnn_workflow.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.errors import DataError, DTypeError, MagmaDNNError, WorkflowError

from .context import Context

# The numbers of element types in the header.
DTYPES = ("uint8", "int32", "int64", "float32", "float64", "complex64", "complex128")

_PUT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
)
_GET = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int
)


class Struct(ctypes.Structure):
    """`magmadnn_context` of the header, field by field."""

    _fields_ = (
        ("version", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("copy", ctypes.c_int32),
        ("copies", ctypes.c_int32),
        ("iteration", ctypes.c_int32),
        ("comm", ctypes.c_int32),
        ("argc", ctypes.c_int32),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("folder", ctypes.c_char_p),
        ("put", _PUT),
        ("get", _GET),
    )


def run_library(path: Path, symbol: str, context: Context) -> None:
    """Call a library's function; 0 means that it ended well.

    Raises:
        WorkflowError: it gave another number.
        MagmaDNNError: a put or get in it failed and it returned.
    """
    try:
        function = getattr(ctypes.CDLL(str(path)), symbol)
    except (OSError, AttributeError) as error:
        raise WorkflowError(f"library {path.name}: {error}") from error
    function.restype, function.argtypes = ctypes.c_int, [ctypes.POINTER(Struct)]
    failures: list[BaseException] = []
    args = (ctypes.c_char_p * (len(context.args) + 1))(*(a.encode() for a in context.args), None)
    struct = Struct(
        1,
        context.rank,
        context.size,
        context.copy,
        context.copies,
        context.iteration,
        context.comm.py2f(),
        len(context.args),
        args,
        str(context.folder).encode(),
        _PUT(_guarded(failures, -1, lambda *a: _put(context, *a))),
        _GET(_guarded(failures, -1, lambda *a: _get(context, *a))),
    )
    code = function(ctypes.byref(struct))
    if code:
        if failures:
            raise failures[-1]
        raise WorkflowError(f"library {path.name}: {symbol} returned {code}")


def _guarded(
    failures: list[BaseException], bad: int, call: Callable[..., int]
) -> Callable[..., int]:
    """An exception cannot pass through C: it is kept, and the call gives a number that says so."""

    def guarded(*arguments: Any) -> int:
        try:
            return call(*arguments)
        except (MagmaDNNError, UnicodeDecodeError, MemoryError) as error:
            failures.append(error)
            return bad

    return guarded


def _view(data: int | None, count: int, dtype: int) -> Any:
    if not 0 <= dtype < len(DTYPES) or count < 0 or (data is None and count):
        raise DTypeError(
            f"put or get: expected an element type 0 to {len(DTYPES) - 1}, got {dtype}"
        )
    kind = np.dtype(DTYPES[dtype])
    if not count:
        return np.empty(0, kind)
    block = (ctypes.c_char * (count * kind.itemsize)).from_address(data or 0)
    return np.frombuffer(memoryview(block), kind)


def _put(context: Context, tag: bytes, data: int | None, count: int, dtype: int) -> int:
    context.put(tag.decode(), _view(data, count, dtype))
    return 0


def _get(context: Context, tag: bytes, data: int | None, most: int, dtype: int, flags: int) -> int:
    """Elements that came; -2: nothing is there. `flags`: 1 waits, 2 leaves it for others."""
    name = tag.decode()
    out = _view(data, most, dtype)
    take, wait = not flags & 2, bool(flags & 1)
    if wait:
        value = context.get(name) if take else context.read(name)
    else:
        value = context.try_get(name) if take else context.try_read(name)
    if value is None:
        return -2
    array = np.asarray(value).reshape(-1)
    if array.dtype != out.dtype:
        raise DTypeError(f"get: tag {name!r}: expected {out.dtype}, got {array.dtype}")
    if array.size > out.size:
        raise DataError(
            f"get: tag {name!r}: has {array.size} elements, there is room for {out.size}"
        )
    out[: array.size] = array
    return int(array.size)
