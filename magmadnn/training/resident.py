"""A model's data on its GPU: copied there at the door, so that all that follows happens there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from magmadnn.compiler.kernels.formula import DTYPES
from magmadnn.data._structure import is_mapped
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.room import Room
from magmadnn.memory.unchanging import Unchanging

if TYPE_CHECKING:
    from .model import Model

# Copies of arrays that nobody may write, which serve again.
Kept = list[tuple[Unchanging, OnDevice]]
_kept: WeakKeyDictionary[Model, dict[str, Kept]] = WeakKeyDictionary()


def resident(model: Model, what: str, arrays: Sequence[Array], device: int) -> list[Array]:
    """The arrays as copies on the device; as they are if one is mapped from a file or there is no room.

    Those that nobody may write are copied once, and stay there until `what` is done with others.
    """
    before = _kept.setdefault(model, {}).pop(what, [])
    host = [a for a in arrays if isinstance(a, np.ndarray)]
    if any(is_mapped(a) or a.dtype.name not in DTYPES or not a.size for a in host):
        return list(arrays)
    known = {id(a): there for a in host for note, there in before if note.is_still(a)}
    new = sum(a.nbytes for a in host if id(a) not in known)
    held = _bytes(before)
    needed = new + sum(there.nbytes for there in known.values())
    if new and needed > Room(device, lambda: held).nbytes:
        return list(arrays)
    del before
    try:
        found, _kept[model][what] = _placed(arrays, device, known)
    except OutOfMemoryError:  # somebody else took what was free
        return list(arrays)
    return found


def _placed(
    arrays: Sequence[Array], device: int, known: dict[int, OnDevice]
) -> tuple[list[Array], Kept]:
    from magmadnn.executor.cuda.arrays import copied

    found: list[Any] = []
    kept: Kept = []
    for array in arrays:
        there: Any = array
        if isinstance(array, np.ndarray):
            note = Unchanging.of(array)
            there = known.get(id(array))
            if there is None:
                there = replace(copied(array, device), fixed=note is not None)
            if note is not None:
                kept.append((note, there))
        found.append(there)
    return found, kept


def _bytes(kept: Kept) -> int:
    return sum(there.nbytes for _, there in kept)
