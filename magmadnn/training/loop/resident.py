"""A model's data on its GPU: copied there at the door, so that all that follows happens there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from magmadnn.compiler.kernels.formula import KEPT
from magmadnn.data._structure import is_mapped
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.room import ALWAYS_THERE, Room
from magmadnn.memory.unchanging import ReadOnlyKey

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.block import Block
    from magmadnn.training.model.model import Model


@cache
def _is_kept(dtype: np.dtype[Any]) -> bool:
    """Whether kernels read data of this dtype."""
    return dtype.name in KEPT


class Kept(Protocol):
    """The copy of an array of the host, which may serve again."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        ...

    @property
    def block(self) -> Block:
        """Its memory, which another copy may take once this one is not used any more."""
        ...

    def is_like(self, array: Array) -> bool:
        """Whether the copy is this array's, or may be."""
        ...

    def take(self, array: Array) -> OnDevice:
        """The copy."""
        ...


_kept: WeakKeyDictionary[Model, dict[str, list[Kept]]] = WeakKeyDictionary()


def resident(model: Model, what: str, arrays: Sequence[Array], device: int) -> list[Array]:
    """The arrays as copies on the device; as they are if one is mapped from a file or there is no room.

    Copies stay there until `what` is done with others. Those of arrays that nobody may write serve again; so
    do those that `fit` made of others, if these are what they were (`ValidatedCopy`).
    """
    before = _kept.setdefault(model, {}).pop(what, [])
    host = [a for a in arrays if isinstance(a, np.ndarray)]
    if any(is_mapped(a) or not _is_kept(a.dtype) or not a.size for a in host):
        return list(arrays)
    known = {id(a): kept for a in host for kept in before if kept.is_like(a)}
    new = sum(a.nbytes for a in host if id(a) not in known)
    held = sum(kept.nbytes for kept in before)
    stays = sum(kept.nbytes for kept in known.values())
    room = Room(device, lambda: held)
    # To ask what is free takes milliseconds: not for little, nor for what takes the place of as much.
    asks = new > held - stays and new > ALWAYS_THERE
    if (asks or room.is_limited) and new + stays > room.nbytes:
        return list(arrays)
    blocks = [kept.block for kept in before if kept not in known.values()]
    del before
    try:
        taken = [_taken(a, known.get(id(a)), blocks, device, what == "fit") for a in arrays]
    except OutOfMemoryError:  # somebody else took what was free
        return list(arrays)
    _kept[model][what] = [kept for _, kept in taken if kept is not None]
    return [there for there, _ in taken]


def _taken(
    array: Array, known: Kept | None, blocks: list[Block], device: int, watched: bool
) -> tuple[Any, Kept | None]:
    """An array on the device, and what may serve again; a new copy may take one of the blocks."""
    if not isinstance(array, np.ndarray):
        return array, None
    if known is not None:
        return known.take(array), known
    from magmadnn.runtime.cuda.data.arrays import copied
    from magmadnn.runtime.cuda.data.block import Block
    from magmadnn.runtime.cuda.data.checked_cache import ImmutableCopy, ValidatedCopy

    note = ReadOnlyKey.of(array)
    if note is None and not (watched and ValidatedCopy.can(array)):
        return copied(array, device), None
    fitting = [number for number, block in enumerate(blocks) if block.nbytes == array.nbytes]
    block = blocks.pop(fitting[0]) if fitting else Block(array.nbytes, device)
    kept: Kept = ValidatedCopy(array, block) if note is None else ImmutableCopy(array, note, block)
    return kept.take(array), kept


def settle_all(arrays: Iterable[object]) -> None:
    """Bring copies on the device to what their arrays are."""
    for array in arrays:
        if isinstance(array, OnDevice) and array.copy is not None:
            array.copy.settle()
