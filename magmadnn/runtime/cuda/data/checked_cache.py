"""Copies of arrays on a device that serve again, each made when it is needed.

Those of arrays that may be written are compared with the array while they serve. Whoever takes such an array
again computes with the copy that is there, and at the end asks whether the array is still what was copied:
its digest is taken by threads meanwhile. Where it is not, the copy is renewed, what was computed is thrown
away, and it is computed again.
"""

from __future__ import annotations

import weakref

from magmadnn.backends.cuda import device_memory
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice, PendingChecks
from magmadnn.memory.unchanging import ReadOnlyKey, looks_of

from .block import Block
from .fingerprint import Fingerprint
from .upload import upload

LEAST_BYTES = 1 << 16  # less is copied each time


class Copied:
    """The copy of an array, made by `settle` or by whoever brings it.

    Nothing here keeps an array alive but what `take` gives.

    Attributes:
        block: its memory.
    """

    def __init__(self, array: Array, block: Block) -> None:
        self.block = block
        self._found = PendingChecks()
        self._array: weakref.ref[Array] | None = None  # what has to be copied yet
        self._is_there = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.block.nbytes

    @property
    def missing(self) -> Array | None:
        """The array, if the copy has to be made yet."""
        return None if self._array is None else self._array()

    def take(self, array: Array) -> OnDevice:
        """The copy, while that is held; to be settled."""
        if not self._is_there:
            self._want(array)
        return OnDevice(
            array.shape, array.dtype.newbyteorder("="), self.block.address, self.block.device,
            (self.block, array), self._found, self,
        )  # fmt: skip

    def _want(self, array: Array) -> None:
        self._array = weakref.ref(array)
        self._found.forget()

    def brought(self) -> None:
        """The copy is there, or will be for all that is launched from now on."""
        self._array, self._is_there = None, True

    def make(self) -> None:
        """Make the copy, if it has to be made yet."""
        if (array := self.missing) is not None:
            upload(device_memory(self.block.device), self.block.address, array)
            self.brought()

    def begin(self) -> None:
        """Begin to look at the array."""

    def settle(self) -> bool:
        """See to it that the copy is what the array is; whether it was, or was never made before."""
        self.make()
        return True


class ImmutableCopy(Copied):
    """The copy of an array that nobody may write."""

    def __init__(self, array: Array, note: ReadOnlyKey, block: Block) -> None:
        super().__init__(array, block)
        self._note = note

    def is_like(self, array: Array) -> bool:
        """Whether the copy is this array's."""
        return self._note.is_still(array)


class ValidatedCopy(Copied):
    """The copy of an array, and of others that lie at the same place and look alike.

    With each copy the digest of the array is taken, and from then on the copy is relied on until an array
    turns out to be another; from then on it is made in each call.
    """

    def __init__(self, array: Array, block: Block) -> None:
        super().__init__(array, block)
        self._looks = looks_of(array)
        self._digest: bytes | None = None  # of what lies there
        self._unsure: weakref.ref[Array] | None = None  # of which the digest is to be taken
        self._fingerprint: Fingerprint | None = None
        self._changes = False  # it was written between two calls, and so will be again

    @staticmethod
    def can(array: Array) -> bool:
        """Whether arrays like this are worth it."""
        return array.nbytes >= LEAST_BYTES and array.flags.forc

    def is_like(self, array: Array) -> bool:
        """Whether the copy may be this array's."""
        return looks_of(array) == self._looks

    def take(self, array: Array) -> OnDevice:
        """The copy, while that is held; to be settled."""
        self._is_there = self._digest is not None
        self._fingerprint = None
        self._unsure = None if self._changes else weakref.ref(array)
        return super().take(array)

    def begin(self) -> None:
        """Begin to look at the array."""
        array = None if self._unsure is None else self._unsure()
        if array is not None and self._fingerprint is None:
            self._fingerprint = Fingerprint(array)

    def settle(self) -> bool:
        """See to it that the copy is what the array is; whether it was, or was never made before."""
        self.make()
        self.begin()
        if self._fingerprint is None:
            return True
        known, self._digest = self._digest, self._fingerprint.result()
        array = None if self._unsure is None else self._unsure()
        self._unsure = self._fingerprint = None
        same = known in (None, self._digest)
        if not same and array is not None:
            self._digest, self._changes = None, True
            self._want(array)
            self.make()
        return same
