"""Where the elements of an array lie: a grid of blocks, and which workers hold each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any

from magmadnn.errors import ArgumentError

Box = tuple[tuple[int, int], ...]
"""First index and the one after the last, along each axis."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How an array is spread over workers 0 to `workers - 1`.

    Each axis is cut at the indices `cuts[axis]`, from 0 to its size; blocks are numbered in row-major order
    of the grid that the cuts make. Equal layouts compare equal and hash alike.

    Attributes:
        shape: of the array.
        cuts: for each axis 0, the first indices of the second, third ... block, and the axis' size. Blocks
            may be empty.
        holders: for each block, the workers that hold it: one, or several for copies.
        workers: how many workers there are.
        partial: whether holders of a block hold terms of a sum rather than copies.
    """

    shape: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    workers: int
    partial: bool = False

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.cuts, self.holders, self.workers, self.partial)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Layout) and self._hash == other._hash and self._key == other._key

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(len(cut) - 1 for cut in self.cuts)

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """What each block covers, by block number."""
        spans = [list(pairwise(cut)) for cut in self.cuts]
        return tuple(product(*spans))

    @cached_property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the blocks that each worker holds, empty ones left out."""
        found: list[list[int]] = [[] for _ in range(self.workers)]
        for block, holders in enumerate(self.holders):
            if elements(self.boxes[block]):
                for worker in holders:
                    found[worker].append(block)
        return tuple(map(tuple, found))

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Workers that hold anything."""
        return tuple(w for w in range(self.workers) if self.held[w])

    @cached_property
    def replicated(self) -> bool:
        """Whether there are copies: a block that more than one worker holds."""
        return not self.partial and any(len(h) > 1 for h in self.holders)

    def elements(self, worker: int) -> int:
        """How many elements a worker holds."""
        return sum(elements(self.boxes[block]) for block in self.held[worker])

    @cached_property
    def most(self) -> int:
        """Elements on the worker that holds most."""
        return max((self.elements(w) for w in range(self.workers)), default=0)

    def block_at(self, places: Sequence[int]) -> int:
        """Number of the block at these places of the grid."""
        number = 0
        for place, count in zip(places, self.grid, strict=True):
            number = number * count + place
        return number

    def transposed(self, axes: Sequence[int]) -> Layout:
        """The layout of the array with its axes in another order, each block where it is."""
        return _transposed(self, tuple(axes))

    def transposed_blocks(self, axes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Old and new number of each block of `transposed(axes)`."""
        for new, place in enumerate(product(*(range(self.grid[a]) for a in axes))):
            old = [0] * len(axes)
            for position, axis in enumerate(axes):
                old[axis] = place[position]
            yield self.block_at(old), new

    def record(self) -> dict[str, Any]:
        """As JSON; `Layout.of_record` reads it. Blocks of one holder are a number each, and runs are kept
        short.
        """
        holders: list[Any] = [h[0] if len(h) == 1 else list(h) for h in self.holders]
        if len(holders) > 1 and all(h == holders[0] for h in holders):
            holders = [holders[0], len(holders)]
            return {**self._rest(), "all": holders}
        return {**self._rest(), "by": holders}

    def _rest(self) -> dict[str, Any]:
        rest: dict[str, Any] = {"shape": list(self.shape), "cuts": [list(c) for c in self.cuts]}
        return {**rest, "workers": self.workers, **({"partial": True} if self.partial else {})}

    @staticmethod
    def of_record(record: Any) -> Layout:
        """The layout that `record` wrote."""
        if "all" in record:
            holders = [record["all"][0]] * record["all"][1]
        else:
            holders = record["by"]
        return Layout(
            tuple(record["shape"]),
            tuple(map(tuple, record["cuts"])),
            tuple((h,) if isinstance(h, int) else tuple(h) for h in holders),
            record["workers"],
            record.get("partial", False),
        )

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.grid)) or "one"
        workers = ", ".join(map(str, self.active[:8])) + (", ..." if len(self.active) > 8 else "")
        kind = "partial sums" if self.partial else "copies" if self.replicated else "blocks"
        return f"{grid} {kind} on workers {workers or 'none'} of {self.workers}"


@lru_cache(maxsize=512)
def _transposed(layout: Layout, axes: tuple[int, ...]) -> Layout:
    places = list(product(*(range(layout.grid[a]) for a in axes)))
    back = [axes.index(i) for i in range(len(axes))]
    holders = tuple(layout.holders[layout.block_at([p[b] for b in back])] for p in places)
    return Layout(
        tuple(layout.shape[a] for a in axes),
        tuple(layout.cuts[a] for a in axes),
        holders,
        layout.workers,
        layout.partial,
    )


def elements(box: Box) -> int:
    """How many elements a box has."""
    return prod(high - low for low, high in box)


def even_cuts(size: int, parts: int) -> tuple[int, ...]:
    """An axis cut in parts whose sizes differ by one at most, longer ones first."""
    least, more = divmod(size, parts)
    return tuple(i * least + min(i, more) for i in range(parts + 1))


def replicated(shape: Sequence[int], workers: int, on: Sequence[int] | None = None) -> Layout:
    """The whole array on each of the workers `on` (None: on all)."""
    shape = tuple(shape)
    holders = tuple(range(workers)) if on is None else tuple(on)
    return Layout(shape, tuple((0, n) for n in shape), (holders,), workers)


def check_workers(what: str, owners: Sequence[int], workers: int) -> None:
    """Raises if a number is no worker's."""
    for owner in owners:
        if isinstance(owner, bool) or not isinstance(owner, int) or not 0 <= owner < workers:
            raise ArgumentError(
                f"{what}: owner {owner!r} names no worker, there are {workers}: give numbers from 0 "
                f"to {workers - 1}"
            )
