"""Arrays that nobody may write: what was found out about one, or copied from it, stays true."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ReadOnlyKey:
    """One array at one place, remembered without keeping it alive."""

    def __init__(self, array: Array, owner: Array) -> None:
        self._owner = weakref.ref(owner)
        self._looks = looks_of(array)

    @classmethod
    def of(cls, array: Array) -> ReadOnlyKey | None:
        """A note of the array; None where it, or memory that it is a view of, may be written."""
        owner = _owner(array)
        return None if owner is None else cls(array, owner)

    def is_still(self, array: Array) -> bool:
        """Whether `array` is the one that was noted, and still nobody may write it."""
        owner = _owner(array)
        return owner is not None and owner is self._owner() and looks_of(array) == self._looks


class Noted:
    """A set of arrays that nobody may write; others are never in it."""

    def __init__(self) -> None:
        self._notes: dict[int, ReadOnlyKey] = {}

    def __contains__(self, array: Array) -> bool:
        note = self._notes.get(array.ctypes.data) if isinstance(array, np.ndarray) else None
        return note is not None and note.is_still(array)

    def add(self, array: Array) -> None:
        """Remember the array, if nobody may write it."""
        note = ReadOnlyKey.of(array) if isinstance(array, np.ndarray) else None
        if note is not None:
            self._notes[array.ctypes.data] = note


def _owner(array: Array) -> Array | None:
    """The array whose memory it is, if neither it nor any view in between may be written."""
    one: Any = array
    while isinstance(one, np.ndarray) and not one.flags.writeable:
        if one.base is None:
            return one
        one = one.base
    return None


def looks_of(array: Array) -> tuple[Any, ...]:
    """Where an array lies, and how."""
    return (array.ctypes.data, array.shape, array.strides, array.dtype)
