"""What every communicator can do: training, matrices and workflows are written against this protocol.

A communicator is a group of `size` workers, numbered 0 to `size - 1`; this process or thread is number
`rank`. All methods but `send` and `recv` are collective: every rank of the group calls them, in the same
order, with arguments that fit. Arrays are C-contiguous: NumPy's on communicators of the host, CuPy's on
those of a GPU.

Sums are in a fixed order for a given number of ranks: two runs give the same bits. Sums whose bits do not
depend on the number of ranks are made on top, by `magmadnn.parallel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

Array: TypeAlias = Any
"""A C-contiguous array of NumPy or CuPy."""
Json: TypeAlias = Any
"""None, bool, int, float, str, or lists and dicts of these."""
Reduction: TypeAlias = Literal["sum", "max", "min", "prod"]
Wire: TypeAlias = Literal["float16", "bfloat16"]


@runtime_checkable
class Request(Protocol):
    """A call under way."""

    def wait(self) -> Array:
        """Block until the call has ended; its result, the same each time."""
        ...

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """A group of workers that exchange arrays.

    Collectives of floating-point arrays take `wire`, the dtype in which elements travel (None: as they are).
    What `start_...` is given may not be changed before its `Request` has been waited for.
    """

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    def all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Array:
        """Reduce over ranks: out = sum of source over all ranks, element by element, on every rank.

        `out` may be `source`.
        """
        ...

    def reduce_scatter(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Array:
        """Reduce over ranks; rank r keeps its rows: `counts[r]` of the first axis (None: an equal share)."""
        ...

    def all_gather(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        wire: Wire | None = None,
    ) -> Array:
        """Rows of all ranks, one after the other along the first axis.

        Rank r gives `counts[r]` rows; without `counts`, all give as many.
        """
        ...

    def broadcast(self, array: Array, *, root: int = 0, wire: Wire | None = None) -> Array:
        """Fill `array` of every rank with that of `root`, in place."""
        ...

    def all_to_all(
        self,
        parts: Sequence[Array],
        out: Sequence[Array] | None = None,
        *,
        wire: Wire | None = None,
    ) -> list[Array]:
        """Send `parts[r]` to each rank r; what came from each rank. Parts may be empty or of any size.

        Without `out`, parts arrive in the shape and dtype in which they were sent.
        """
        ...

    def send(self, array: Array, to: int, *, tag: int = 0) -> None:
        """Send to one rank. Returns when `array` may be changed."""
        ...

    def recv(self, out: Array, source: int, *, tag: int = 0) -> Array:
        """Receive from one rank into `out`; shape and dtype are those that were sent."""
        ...

    def shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Array:
        """Ring shift: send to rank (rank + by) mod size, receive from (rank - by) mod size."""
        ...

    def start_all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Request:
        """`all_reduce` that returns at once."""
        ...

    def start_send(self, array: Array, to: int, *, tag: int = 0) -> Request:
        """`send` that returns at once."""
        ...

    def start_recv(self, out: Array, source: int, *, tag: int = 0) -> Request:
        """`recv` that returns at once."""
        ...

    def start_shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Request:
        """`shift` that returns at once."""
        ...

    def exchange(self, value: Json) -> list[Json]:
        """Small values of all ranks, by rank: settings, digests, decisions. Not for data."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        ...

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """New groups of the ranks of equal `color`, numbered by `key`, then by rank.

        Ranks whose `color` is None are in no group and get None.
        """
        ...

    def close(self) -> None:
        """Free what the group holds. A closed communicator refuses every call."""
        ...
