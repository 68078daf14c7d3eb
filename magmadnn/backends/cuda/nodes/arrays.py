"""Functions among what is launched: of NumPy's interface on arrays that lie on a device, and of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class DeviceArray(NamedTuple):
    """Where an array lies on a device.

    Attributes:
        address: of its first element.
        shape, strides, dtype: as NumPy's, strides in bytes.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ArrayNode:
    """A function of arrays, given to the engine's stream by a library that has NumPy's interface (CuPy).

    Attributes:
        title: what it computes.
        arrays: what it is given.
        run: the function, of those arrays as the library sees them; it writes results where they belong.
        after: as for `KernelNode`.
    """

    title: str
    arrays: tuple[DeviceArray, ...]
    run: Callable[[Sequence[Any]], None]
    after: tuple[int, ...] = ()

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given."""
        return tuple(array.address for array in self.arrays)


@dataclass(frozen=True)
class HostNode:
    """A function of the host, which waits for the device where it reads what lies there.

    Attributes:
        title: what it computes.
        run: the function.
        after: as for `KernelNode`.
    """

    title: str
    run: Callable[[], None]
    after: tuple[int, ...] = ()
