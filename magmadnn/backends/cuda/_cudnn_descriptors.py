"""Descriptors of cuDNN's graph interface: what its operations, engines and plans are told and asked.

Numbers are those of cudnn_graph.h of cuDNN 9, which keeps them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_char, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from magmadnn.errors import DeviceError

# cudnnBackendDescriptorType_t
POINTWISE, CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN = range(6)
FORWARD, OF_FILTERS, OF_INPUTS, ELEMENTWISE = 10, 11, 12, 13  # operations
GRAPH, POINTERS, TENSOR, DEVICE = 15, 16, 17, 38

# cudnnBackendAttributeType_t, and how a value of it lies in memory
HANDLE, DATA_TYPE, BOOLEAN, INTEGER, REAL, DOUBLE, ADDRESS = 0, 1, 2, 3, 4, 5, 6
CONVOLUTION_MODE, HEURISTICS_MODE, NUMERICAL_NOTE, POINTWISE_MODE, DESCRIPTOR = 7, 8, 11, 14, 15
TEXT = 24
_WORDS: dict[int, Any] = {
    HANDLE: c_void_p,
    BOOLEAN: ctypes.c_bool,
    INTEGER: c_int64,
    REAL: ctypes.c_float,
    DOUBLE: ctypes.c_double,
    ADDRESS: c_void_p,
    DESCRIPTOR: c_void_p,
    TEXT: c_char,
}

_NOT_SUPPORTED = 3000  # the first of statuses that say so; they end before the next thousand
_LONGEST = 1024  # bytes of the library's words about an error


def said_of(library: Any) -> str:
    """What the library says of its last error, in this thread; nothing where it says nothing."""
    if not hasattr(library, "cudnnGetLastErrorString"):
        return ""
    words = ctypes.create_string_buffer(_LONGEST)
    library.cudnnGetLastErrorString(words, c_size_t(_LONGEST))
    return words.value.decode(errors="replace")


def check(library: Any, name: str, status: int) -> None:
    """Raise if a function gave another status than 0.

    Raises:
        DeviceError: with the status, and what the library says of it.
    """
    if status:
        said = said_of(library)
        raise DeviceError(
            f"the device failed: {name} of cuDNN gives status {status}{f': {said}' if said else ''}"
        )


class Descriptor:
    """One descriptor; it is destroyed with this object.

    Args:
        library: cuDNN, as `ctypes.CDLL` gives it.
        kind: what it describes.
    """

    def __init__(self, library: Any, kind: int) -> None:
        self._library, self.address = library, c_void_p()
        self._held: list[Any] = []  # what it refers to
        self._call("cudnnBackendCreateDescriptor", c_int(kind), byref(self.address))
        self._end = weakref.finalize(self, library.cudnnBackendDestroyDescriptor, self.address)

    def set(self, name: int, kind: int, *values: Any) -> None:
        """Tell it the values of an attribute."""
        given = [v.address if isinstance(v, Descriptor) else v for v in values]
        words = _array(kind, len(given))(*given)
        self._held += [v for v in values if isinstance(v, Descriptor)]
        self._call(
            "cudnnBackendSetAttribute", self.address, c_int(name), c_int(kind),
            c_int64(len(given)), words,
        )  # fmt: skip

    def end(self) -> None:
        """Have it checked; nothing can be told it any more."""
        self._call("cudnnBackendFinalize", self.address)

    def ends(self) -> bool:
        """The same; False where the library does not support what is described."""
        status = self._library.cudnnBackendFinalize(self.address)
        if status // 1000 * 1000 == _NOT_SUPPORTED:
            return False
        check(self._library, "cudnnBackendFinalize", status)
        return True

    def numbers(self, name: int, kind: int, most: int) -> list[int]:
        """Up to so many values of an attribute."""
        words, count = _array(kind, most)(), c_int64()
        self._call(
            "cudnnBackendGetAttribute", self.address, c_int(name), c_int(kind), c_int64(most),
            byref(count), words,
        )  # fmt: skip
        return list(words[: min(count.value, most)])

    def fill(self, name: int, goals: Sequence[Descriptor]) -> int:
        """Fill descriptors with what an attribute refers to; how many there are."""
        words, count = (c_void_p * len(goals))(*(g.address for g in goals)), c_int64()
        self._call(
            "cudnnBackendGetAttribute", self.address, c_int(name), c_int(DESCRIPTOR),
            c_int64(len(goals)), byref(count), words,
        )  # fmt: skip
        return min(count.value, len(goals))

    def _call(self, name: str, *arguments: Any) -> None:
        check(self._library, name, getattr(self._library, name)(*arguments))


def _array(kind: int, count: int) -> Any:
    """The type of so many values; those of the library's own numbers are C integers."""
    return _WORDS.get(kind, c_int) * max(count, 1)
