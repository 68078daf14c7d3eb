"""Copies of arrays that may be written: kept on a device, and compared with the array while they serve again.

Whoever takes an array again computes with the copy that is there, and at the end asks whether the array is
still what was copied: its digest is taken by threads meanwhile. Where it is not, the copy is renewed, what
was computed is thrown away, and it is computed again.
"""

from __future__ import annotations

import itertools
import weakref

from magmadnn.backends.cuda import device_memory
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import Looks, OnDevice
from magmadnn.memory.unchanging import looks_of

from .data import Block
from .fingerprint import Fingerprint
from .upload import upload

LEAST_BYTES = 1 << 16  # less is copied each time
_versions = itertools.count(1)


class Watched:
    """The copy of an array, and of others that lie at the same place and look alike.

    The first time an array is only copied; if it is taken again, its digest is taken too, and from then on
    the copy is relied on until an array turns out to be another. Nothing here keeps an array alive but what
    `take` gives.
    """

    def __init__(self, array: Array, device: int) -> None:
        self._looks, self._device = looks_of(array), device
        self._block = Block(array.nbytes, device)
        self.version = 0
        self._found = Looks()
        self._digest: bytes | None = None  # of what lies there
        self._again = False  # whether it was taken before
        self._relied: weakref.ref[Array] | None = None  # what has to be compared yet
        self._fingerprint: Fingerprint | None = None
        self._changes = False  # it was written between two calls, and so will be again

    @staticmethod
    def can(array: Array) -> bool:
        """Whether arrays like this are worth it."""
        return array.nbytes >= LEAST_BYTES and array.flags.forc

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._block.nbytes

    @property
    def place(self) -> int | None:
        """Its address; None where it is made anew before it is used."""
        return None if self._digest is None else self._block.address

    def is_like(self, array: Array) -> bool:
        """Whether the copy may be this array's."""
        return looks_of(array) == self._looks

    def take(self, array: Array) -> OnDevice:
        """The copy, while that is held; to be settled."""
        self._fingerprint = None
        self._relied = weakref.ref(array) if self._digest is not None else None
        if self._relied is None:
            self._copy(array)
            if self._again and not self._changes:
                self._digest = Fingerprint(array).result()
        self._again = True
        return OnDevice(
            array.shape, array.dtype.newbyteorder("="), self._block.address, self._device,
            (self._block, array), self._found, self,
        )  # fmt: skip

    def _copy(self, array: Array) -> None:
        self.version = next(_versions)
        self._found.forget()
        upload(device_memory(self._device), self._block.address, array)

    def begin(self) -> None:
        """Begin to look at the array."""
        array = self._array()
        if array is not None and self._fingerprint is None:
            self._fingerprint = Fingerprint(array)

    def settle(self) -> bool:
        """Renew the copy if the array is no longer what was copied; whether it was."""
        array = self._array()
        if array is None:
            return True
        self.begin()
        assert self._fingerprint is not None
        same = self._fingerprint.result() == self._digest
        self._relied = self._fingerprint = None
        if not same:
            self._digest, self._changes = None, True
            self._copy(array)
        return same

    def _array(self) -> Array | None:
        """What is relied on and was not compared yet."""
        return None if self._relied is None else self._relied()
