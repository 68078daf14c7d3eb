"""Keep what you've seen: blocks that came in for one product serve the next, such as those of a backward
pass.

dMath, section III-C and figure 3 (b). Kept blocks know the version of the array that they are copies of, so
that a write to the array makes them useless at once. Every worker decides alike, from layouts and numbers
of bytes that all of them know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic


@dataclass
class _Entry:
    """Copies of parts of an array: of `number`, at `version`, as the view `view` shows it.

    Attributes:
        rounded: the dtype that elements were rounded to; the array's where they were not.
    """

    number: int
    version: int
    view: str
    parts: Parts
    rounded: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes on the worker that keeps most."""
        return self.parts.layout.most * self.parts.dtype.itemsize


@dataclass
class Kept:
    """Blocks of operands that may serve again, under a budget; the oldest go first.

    Attributes:
        budget_bytes: for each worker. 0 keeps nothing.
        saved_bytes: what this worker would have been sent otherwise.
    """

    budget_bytes: int = 0
    saved_bytes: int = 0
    _entries: list[_Entry] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, on the worker that keeps most."""
        return sum(entry.nbytes for entry in self._entries)

    def set_budget(self, budget_bytes: int) -> None:
        """Change the budget; what no longer fits is dropped."""
        self.budget_bytes = budget_bytes
        self._shrink()

    def better(self, x: Parts, wire: np.dtype[Any] | None = None) -> list[Layout]:
        """Layouts of kept copies of an array, as `x` shows it, that serve where `wire` does."""
        return [_as(entry, x).layout for entry in self._alive(x, wire)]

    def fetched(self, x: Parts, layout: Layout, wire: np.dtype[Any] | None, keep: bool) -> Parts:
        """`x` in another layout, from kept copies if less has to be sent from them."""
        cost = int(traffic(x.layout, layout).sum())
        best, least = x, cost
        for entry in self._alive(x, wire):
            copy = _as(entry, x)
            again = int(traffic(copy.layout, layout).sum())
            if again < least:
                best, least = copy, again
        if best is not x:
            rank = x.team.rank
            saved = (
                traffic(x.layout, layout)[:, rank].sum()
                - traffic(best.layout, layout)[:, rank].sum()
            )
            self.saved_bytes += int(saved) * x.dtype.itemsize
        made = remap(best, layout, wire=wire, share=True)
        if keep and cost and best is x:
            self.add(x, made, wire)
        return made

    def keep_passed(
        self, x: Parts, blocks: dict[int, Array], dtype: np.dtype[Any] | None = None
    ) -> None:
        """Keep what came by in a ring, as `dtype`: every worker has seen all blocks of `x`."""
        everyone = x.layout.active
        whole = Layout(x.shape, x.layout.cuts, (everyone,) * len(x.layout.holders), x.team.size)
        dtype = x.dtype if dtype is None else dtype
        self.add(x, Parts(x.team, whole, dtype, blocks), dtype)

    def add(self, x: Parts, made: Parts, wire: np.dtype[Any] | None = None) -> None:
        """Keep parts of an array, rounded to `wire` if that is not None; blocks of `x` itself as copies."""
        blocks = {
            n: block.copy() if any(block is own for own in x.blocks.values()) else block
            for n, block in made.blocks.items()
        }
        copied = Parts(x.team, made.layout, made.dtype, blocks)
        rounded = x.dtype if wire is None else wire
        entry = _Entry(x.data.number, x.data.version, x.view, copied, rounded)
        same = x.data.number, x.view, rounded
        self._entries = [e for e in self._entries if (e.number, e.view, e.rounded) != same]
        if entry.nbytes <= self.budget_bytes:
            self._entries.append(entry)
            self._shrink()

    def _shrink(self) -> None:
        while self._entries and self.nbytes > self.budget_bytes:
            self._entries.pop(0)

    def _alive(self, x: Parts, wire: np.dtype[Any] | None) -> list[_Entry]:
        """Entries of this array at its present version, rounded to `wire` or not; older ones are dropped."""
        self._entries = [
            e for e in self._entries if e.number != x.data.number or e.version == x.data.version
        ]
        mine = [e for e in self._entries if e.number == x.data.number and _fits(e.view, x.view)]
        return [e for e in mine if e.rounded in (x.dtype, wire)]


def _fits(kept: str, asked: str) -> bool:
    """Views are alike, or one is the other transposed."""
    return kept.removesuffix("T") == asked.removesuffix("T")


def _as(entry: _Entry, x: Parts) -> Parts:
    return entry.parts if entry.view == x.view else entry.parts.transposed()
