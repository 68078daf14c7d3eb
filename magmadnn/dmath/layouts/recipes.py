"""Layouts as users write them: before the array's shape and the number of workers are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from magmadnn.dmath.layouts.layout import Layout, check_workers, even_cuts, replicated
from magmadnn.errors import ArgumentError, ShapeError, quoted


@runtime_checkable
class Recipe(Protocol):
    """What becomes a `Layout` once shape and workers are known."""

    def layout(self, shape: tuple[int, ...], workers: int) -> Layout:
        """The layout of an array of this shape over workers 0 to `workers - 1`."""
        ...


LayoutLike: TypeAlias = "Recipe | Layout | str | None"


@dataclass(frozen=True)
class OwnerRule:
    """A rule for who owns the block at each place of a grid, repeated in both directions; see `cyclic`."""

    counts: tuple[int, ...]
    first: int = 0

    def owner(self, place: Sequence[int]) -> int:
        """Worker of the block at this place: row-major in the repeated grid."""
        number = 0
        for at, count in zip(place, self.counts, strict=True):
            number = number * count + at % count
        return self.first + number


def cyclic(*counts: int, first: int = 0) -> OwnerRule:
    """Owners that repeat: the block at place (i, j) is on worker `first + (i mod p) * q + j mod q` for
    `cyclic(p, q)`.

    With blocks of one size this is the block-cyclic layout of ScaLAPACK.

    Args:
        counts: of workers along each axis.
        first: number of the first worker.
    """
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"cyclic: numbers of workers must be at least 1, got {count!r}")
    if not counts:
        raise ArgumentError("cyclic: give a number of workers for each axis, such as cyclic(2, 2)")
    return OwnerRule(tuple(counts), first)


@dataclass(frozen=True)
class Blocks:
    """Non-overlapping blocks with any owners.

    Blocks are of one size, those at the far edges may be smaller; or of any sizes, by `cuts`. Workers may
    own several blocks, or none.

    Attributes:
        shape: of a block; None for an axis that is not cut. Blocks beyond the array's edge are clipped.
        owners: `cyclic(p, q)`, or a worker's number for each block, in nested lists or an array [rows,
            columns]; a map that is larger than the grid of blocks is clipped too. None: blocks take turns,
            in row-major order.
        cuts: instead of `shape`: for each axis the indices at which it is cut, from 0 to its size.
    """

    shape: tuple[int | None, ...] | None = None
    owners: Any = None
    cuts: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if (self.shape is None) == (self.cuts is None):
            raise ArgumentError("Blocks: give the shape of a block or cuts=, and not both")
        if self.shape is not None:
            sizes = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
            object.__setattr__(self, "shape", sizes)
            for size in sizes:
                if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
                    raise ArgumentError(f"Blocks: sizes of blocks must be at least 1, got {size!r}")
        if self.cuts is not None:
            cuts = tuple(_whole_numbers("Blocks: cuts", cut) for cut in self.cuts)
            object.__setattr__(self, "cuts", cuts)
        if self.owners is not None and not isinstance(self.owners, OwnerRule):
            try:
                owners = np.asarray(self.owners)
            except ValueError:
                raise ShapeError(
                    "Blocks: rows of the owner map differ in length: it has a worker for each block"
                ) from None
            object.__setattr__(self, "owners", _nested(owners))

    def layout(self, shape: tuple[int, ...], workers: int) -> Layout:
        """The layout of an array of this shape; raises where blocks or owners do not fit."""
        cuts = self._cuts(shape)
        grid = tuple(len(cut) - 1 for cut in cuts)
        owners = self._owners(grid, workers)
        check_workers("Blocks", sorted(set(owners)), workers)
        return Layout(shape, cuts, tuple((owner,) for owner in owners), workers)

    def _cuts(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        given = self.cuts if self.cuts is not None else self.shape
        assert given is not None
        if len(given) != len(shape):
            raise ShapeError(
                f"Blocks: blocks of {len(given)} axes do not cover an array of {len(shape)}, shape {shape}"
            )
        if self.cuts is None:
            assert self.shape is not None
            return tuple(_clipped(size, n) for size, n in zip(self.shape, shape, strict=True))
        for axis, (cut, n) in enumerate(zip(self.cuts, shape, strict=True)):
            if not cut or cut[0] != 0 or cut[-1] != n or list(cut) != sorted(cut):
                raise ShapeError(
                    f"Blocks: cuts {quoted(list(cut))} do not cover axis {axis} of size {n}: "
                    f"they begin with 0, do not fall, and end with {n}"
                )
        return self.cuts

    def _owners(self, grid: tuple[int, ...], workers: int) -> list[int]:
        places = list(product(*map(range, grid)))
        if self.owners is None:
            return [number % workers for number in range(len(places))]
        if isinstance(self.owners, OwnerRule):
            if len(self.owners.counts) != len(grid):
                raise ShapeError(
                    f"Blocks: cyclic of {len(self.owners.counts)} axes does not fit a grid of "
                    f"blocks of {len(grid)}"
                )
            return [self.owners.owner(place) for place in places]
        owners = np.array(self.owners)
        if owners.dtype.kind not in "iu" and owners.size:
            raise ArgumentError(f"Blocks: owners must be numbers of workers, got {owners.dtype}")
        if owners.ndim != len(grid) or any(h < n for h, n in zip(owners.shape, grid, strict=True)):
            raise ShapeError(
                f"Blocks: an owner map of shape {owners.shape} does not cover the grid of blocks, {grid}"
            )
        return [int(owners[place]) for place in places]


def _nested(owners: np.ndarray[Any, Any]) -> Any:
    """Nested tuples of an array, which hash."""
    if owners.ndim == 0:
        return owners.item()
    return tuple(_nested(part) for part in owners)


def _clipped(size: int | None, n: int) -> tuple[int, ...]:
    size = max(n, 1) if size is None else size
    return (*range(0, max(n, 1), size), n)


def _whole_numbers(what: str, value: Any) -> tuple[int, ...]:
    """A tuple of integers, from any sequence or array of some.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        found = tuple(value)
        if all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in found):
            return tuple(map(int, found))
    raise ArgumentError(f"{what}= must be whole numbers such as (0, 1), got {quoted(value)}")


@dataclass(frozen=True)
class _Strips:
    """An array cut along one axis.

    Attributes:
        sizes: of the strips, one for each worker; None for sizes that differ by one at most.
        on: the workers, in order; None for all.
        block: instead of `sizes`: the width of strips that workers take in turn.
    """

    sizes: tuple[int, ...] | None = None
    on: tuple[int, ...] | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in ("sizes", "on"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, _whole_numbers(f"{name}: {field}", value))
        if self.sizes is not None and self.block is not None:
            raise ArgumentError(f"{name}: give sizes= or block=, not both")
        if self.block is not None:
            if not isinstance(self.block, (int, np.integer)) or self.block < 1:
                raise ArgumentError(
                    f"{name}: block must be a whole number from 1, got {quoted(self.block)}"
                )
        if self.on is not None and not self.on:
            raise ArgumentError(f"{name}: on= names no worker")

    def _axis(self, ndim: int) -> int:
        raise AssertionError

    def layout(self, shape: tuple[int, ...], workers: int) -> Layout:
        """The layout of an array of this shape."""
        name = type(self).__name__
        if not shape:
            raise ShapeError(f"{name}: an array without axes cannot be cut")
        on = self.on if self.on is not None else tuple(range(workers))
        check_workers(name, on, workers)
        axis = self._axis(len(shape))
        n = shape[axis]
        if self.block is not None:
            cut = _clipped(self.block, n)
        elif self.sizes is None:
            cut = even_cuts(n, len(on))
        else:
            if len(self.sizes) != len(on) or sum(self.sizes) != n or min(self.sizes) < 0:
                raise ShapeError(
                    f"{name}: sizes {quoted(list(self.sizes))} of {len(on)} workers do not cover "
                    f"axis {axis} of size {n}"
                )
            cut = (0, *(int(c) for c in np.cumsum(self.sizes)))
        cuts = tuple(cut if i == axis else (0, size) for i, size in enumerate(shape))
        holders = tuple((on[i % len(on)],) for i in range(len(cut) - 1))
        return Layout(shape, cuts, holders, workers)


@dataclass(frozen=True)
class Rows(_Strips):
    """Each worker has rows: the first axis is cut.

    Attributes:
        sizes: numbers of rows, one for each worker; None for numbers that differ by one at most.
        on: the workers, in order; None for all.
        block: instead of `sizes`: strips of this many rows, which workers take in turn.
    """

    def _axis(self, ndim: int) -> int:
        return 0


@dataclass(frozen=True)
class Columns(_Strips):
    """Each worker has columns: the last axis is cut. Attributes as those of `Rows`."""

    def _axis(self, ndim: int) -> int:
        return ndim - 1


@dataclass(frozen=True)
class Replicated:
    """A copy on each worker, which a write to the array writes too.

    Attributes:
        on: the workers; None for all.
    """

    on: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.on is not None:
            object.__setattr__(self, "on", _whole_numbers("Replicated: on", self.on))
            if not self.on:
                raise ArgumentError("Replicated: on= names no worker")
            for worker in self.on:
                if self.on.count(worker) > 1:
                    raise ArgumentError(
                        f"Replicated: on= names worker {worker} twice, and it has one copy; got "
                        f"{quoted(list(self.on))}"
                    )

    def layout(self, shape: tuple[int, ...], workers: int) -> Layout:
        """The layout of an array of this shape."""
        if self.on is not None:
            check_workers("Replicated", self.on, workers)
        return replicated(shape, workers, self.on)


SMALL_BYTES = 1 << 14  # arrays that stay whole under layout="auto"


@lru_cache(maxsize=1024)
def _resolved(recipe: Any, shape: tuple[int, ...], workers: int) -> Layout:
    made: Layout = recipe.layout(shape, workers)
    return made


def resolve(
    like: LayoutLike, shape: Sequence[int], workers: int, itemsize: int = 8, what: str = "layout"
) -> Layout:
    """The layout that the argument `layout=` of a function means.

    "auto" and None: rows over all workers; small arrays, and those without axes, as copies.

    Raises:
        ArgumentError: for what is no layout, or one of another set of workers.
        ShapeError: for a layout of another shape, or blocks that do not cover.
    """
    shape = tuple(int(n) for n in shape)
    if isinstance(like, Layout):
        if like.workers != workers:
            raise ArgumentError(
                f"{what}: a layout of {like.workers} workers is of another worker set, this one has {workers}"
            )
        if like.shape != shape:
            raise ShapeError(f"{what}: a layout of shape {like.shape} does not fit shape {shape}")
        return like
    if like is None or (isinstance(like, str) and like == "auto"):
        total = itemsize * int(np.prod(shape, dtype=np.int64))
        if not shape or (total <= SMALL_BYTES):
            return replicated(shape, workers)
        return _resolved(Rows(), shape, workers)
    if isinstance(like, type) and issubclass(like, (Rows, Columns, Replicated)):
        like = like()
    if isinstance(like, (str, type)) or not isinstance(like, Recipe):
        raise ArgumentError(
            f'{what}: expected a layout such as md.dmath.Rows() or "auto", got {quoted(like)}'
        )
    known: Any = like  # recipes hash, which a protocol cannot say
    made: Layout = _resolved(known, shape, workers)
    return made
