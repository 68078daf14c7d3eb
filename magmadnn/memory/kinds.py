"""The four kinds of memory."""

from __future__ import annotations

from enum import Enum

from magmadnn.errors import ArgumentError, UnknownNameError


class Kind(Enum):
    """Where the bytes of a `MemoryManager` are, and who sees them.

    Attributes:
        HOST: in the machine's memory only.
        DEVICE: on one device only; the host sees copies.
        MANAGED: a copy on each side, brought up to date when the side that is read is stale. The copy on
            the device is made on first use there, so that this kind works without a GPU.
        CUDA_MANAGED: one block that both sides see; CUDA's unified memory moves the pages.
    """

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    CUDA_MANAGED = "cuda_managed"

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    @classmethod
    def of(cls, kind: object) -> Kind:
        """A kind from itself or its name.

        Raises:
            ArgumentError: if there is no such kind.
        """
        if isinstance(kind, Kind):
            return kind
        names = {k.name: k for k in Kind}
        if not isinstance(kind, str):
            raise ArgumentError(
                f"kind: expected one of {', '.join(names)}, got {kind!r} of type {type(kind).__name__}"
            )
        if kind.upper() not in names:
            raise UnknownNameError.of("kind of memory", kind, names)
        return names[kind.upper()]


HOST, DEVICE, MANAGED, CUDA_MANAGED = Kind.HOST, Kind.DEVICE, Kind.MANAGED, Kind.CUDA_MANAGED
