"""Arrays whose rows are made when they are asked for: data beyond memory, such as files of images.

They have as much of an ndarray as rows need. What knows nothing of them gets all rows at once from NumPy
(`np.asarray`), which is right, and takes the memory that they were to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = NDArray[np.int64]

_READ_BYTES = 32 << 20  # that are made at a time where all are gone through


@dataclass(frozen=True, eq=False)
class OnDemand:
    """Rows of a function, of one shape and dtype.

    Attributes:
        shape: of all rows.
        dtype: of the elements.
        read: rows with these numbers, in this order, as a new array; by any thread, by several at once.
        numbers: for each row its number for `read`; None: the same.
        digests: of each number of `read`, bytes that stand for its values; None where nobody has looked.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Rows], Array]
    numbers: Rows | None = None
    digests: tuple[bytes, ...] | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all elements would take."""
        return self.size * self.dtype.itemsize

    @property
    def rows_at_once(self) -> int:
        """Rows of some megabytes, at least one."""
        row = self.dtype.itemsize * math.prod(self.shape[1:])
        return max(1, _READ_BYTES // max(row, 1))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """These rows, made now; by a slice, a number, numbers or a mask."""
        chosen = self._known(np.arange(len(self))[rows])
        if not chosen.ndim:
            one: Array = self.read(chosen.reshape(1))[0]
            return one
        return self.read(chosen) if len(chosen) else np.empty((0, *self.shape[1:]), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All rows, made now."""
        found = self[:]
        return found if dtype is None else found.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: all rows, made now."""
        return np.asarray, (self[:],)

    def __deepcopy__(self, memo: object) -> OnDemand:
        """Nobody changes it."""
        return self

    def chosen(self, rows: Rows) -> OnDemand:
        """Rows with these numbers, to be made when they are asked for."""
        known = self._known(np.asarray(rows, np.int64))
        return replace(self, shape=(len(known), *self.shape[1:]), numbers=known)

    def changed(
        self, change: Callable[[Array], Array], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> OnDemand:
        """What a function makes of the rows, each for itself; `shape` and `dtype` are of one that is made."""
        read = self.read
        return replace(
            self,
            shape=(len(self), *shape),
            dtype=dtype,
            read=lambda rows: change(read(rows)),
            digests=None,
        )

    def row_digests(self) -> list[bytes] | None:
        """Of each row, in order."""
        if self.digests is None:
            return None
        every = range(len(self)) if self.numbers is None else self.numbers.tolist()
        return [self.digests[number] for number in every]

    def _known(self, rows: Rows) -> Rows:
        return rows if self.numbers is None else self.numbers[rows]


def choose_rows(array: Array, rows: Rows) -> Array:
    """Rows with these numbers: a copy, or, of rows on demand, such."""
    if isinstance(array, OnDemand):
        found: Any = array.chosen(rows)
        return found  # no ndarray, and typed as one
    return array[rows]
