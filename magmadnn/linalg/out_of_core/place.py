"""What a device must do: copies that run beside the arithmetic, and products and factors of strips.

Arrays lie row by row. What is computed runs in order; copies to and from the device run beside it, each
direction in order. A mark stands for all that was asked for before it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = Any  # NumPy's, or CuPy's on a GPU
Mark = Any
HostArray = NDArray[Any]


class Place(Protocol):
    """A device that strips are computed on.

    Attributes:
        name: for messages.
    """

    name: str

    def free_bytes(self) -> int:
        """How much memory may be used where no limit is given."""
        ...

    def workspace(self, rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        """Bytes that `eliminate` of so large a strip and `factor` of its square want for themselves."""
        ...

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Array:
        """An array [count] that holds anything.

        Raises:
            OutOfMemoryError: if there is no room.
        """
        ...

    def hold(self, array: HostArray) -> None:
        """Pin an array of the host, so that copies are fast; where that is not possible they are slow."""
        ...

    def close(self) -> None:
        """Wait for all copies and give back what `hold` pinned."""
        ...

    # --- order ------------------------------------------------------------------------------------

    def upload(self, to: Array, source: HostArray, after: list[Mark]) -> Mark:
        """Begin a copy to the device, once the marks are reached."""
        ...

    def download(self, to: HostArray, source: Array) -> Mark:
        """Begin a copy to the host, once all is done that is asked for by now."""
        ...

    def computed(self) -> Mark:
        """A mark behind all that is computed."""
        ...

    def follow(self, mark: Mark) -> None:
        """Compute what is asked for from now on after a mark."""
        ...

    # --- arithmetic -------------------------------------------------------------------------------

    def subtract(self, c: Array, a: Array, b: Array, *, flip_a: bool, flip_b: bool) -> None:
        """c [m, n] less a b, or less a^H b or a b^H for operands that are flipped."""
        ...

    def factor(self, a: Array) -> Array:
        """Write L with L L^H = a into the lower triangle of a [n, n].

        Returns:
            [1], 0, or the order of the first leading minor that is not positive.
        """
        ...

    def solve_behind(self, x: Array, lower: Array) -> None:
        """x [m, n] becomes x L^-H, with the lower triangle L of [n, n]."""
        ...

    def solve(self, x: Array, a: Array, *, lower: bool, unit: bool, flip: bool) -> None:
        """x [n, k] becomes T^-1 x, by a triangle T of a [n, n]; T^-H x where it is flipped."""
        ...

    def eliminate(self, a: Array, spare: Array) -> HostArray:
        """Write L and U with P a = L U into a [m, n], m >= n.

        Args:
            a: the strip.
            spare: [m * n], overwritten.

        Returns:
            [n] on the host: which row was exchanged with row 0, 1, ..., counted from 0.
        """
        ...

    def reorder(self, a: Array, order: HostArray, spare: Array) -> None:
        """The rows of a [m, n] become its rows `order`; `spare` [at least m * n] is overwritten."""
        ...

    def exchange(self, a: Array, order: HostArray) -> None:
        """Bring the rows of a into an order in which few of them move."""
        ...

    def total(self, a: Array) -> Array:
        """[1], the sum of all elements, which is not finite where one of them is not."""
        ...

    def values(self, parts: list[Array]) -> list[Any]:
        """Numbers [1] that were computed, on the host; waits for them."""
        ...
