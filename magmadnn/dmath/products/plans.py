"""Ways to compute C = A B on workers, each as three layouts: of A and B when they are multiplied, and of
C's terms.

A worker multiplies block (i, l) of A by block (l, j) of B where it holds both and block (i, j) of C in
these layouts. So a plan is right if each triple is with one worker only (with copies of C: with each that
holds (i, j)), and everything else is a change of layout: bringing the operands, and adding the terms of C
up where the result lies.

Sources: SUMMA's stationary forms (van de Geijn, Watts, 1997); 3-D grids (Agarwal et al., 1995); rings without
broadcasts (dMath, section III-D, a variant of Fox, Otto, Hey, 1987); index arithmetic for any layouts
(Brock, Golin, 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import Literal

from magmadnn.dmath.layouts.layout import Layout, even_cuts

Way = Literal["fetch", "ring a", "ring b", "ring c"]


@dataclass(frozen=True)
class ProductPlan:
    """One way to compute a product.

    Attributes:
        name: for people.
        a: where A lies when it is multiplied, [m, k].
        b: where B lies, [k, n].
        c: where C's terms come into being, [m, n]; partial if several workers add to a block.
        target: where the result goes.
        way: "fetch" brings operands first; "ring b" passes the blocks of B from worker to worker while
            others are multiplied, so that no worker ever has all of B ("ring a" those of A, "ring c" the
            sums).
        pace: how much longer products of columns of C take than the copies of what they need, where they are
            to be made of whole sums as their columns come; 0 to cut the axis of sums as operands lie.
        mixed: share of the rows of each block of C (columns, where A lies by columns) that are made of terms
            while blocks come, where the others are made of whole sums once all is there; 0 for terms only.
    """

    name: str
    a: Layout
    b: Layout
    c: Layout
    target: Layout
    way: Way = "fetch"
    pace: float = 0.0
    mixed: float = 0.0

    def tasks(self, worker: int) -> Iterator[tuple[int, int, int]]:
        """Places (i, j, l) that a worker multiplies, those of one block of C together, l rising."""
        rows, columns = self.c.grid
        depth = self.a.grid[1]
        have_a, have_b = set(self.a.held[worker]), set(self.b.held[worker])
        for block in self.c.held[worker]:
            i, j = divmod(block, columns)
            for l in range(depth):  # noqa: E741 - the axis' usual letter
                if i * depth + l in have_a and l * columns + j in have_b:
                    yield i, j, l
        assert rows >= 0

    @property
    def whole(self) -> bool:
        """Whether each term of C is the whole sum."""
        return self.a.grid[1] == 1 and not self.c.partial

    def work(self, worker: int) -> int:
        """Multiplications and additions of a worker."""
        total, depth, columns = 0, self.a.grid[1], self.b.grid[1]
        for i, j, l in self.tasks(worker):  # noqa: E741
            (m0, m1), (k0, k1) = self.a.boxes[i * depth + l]
            n0, n1 = self.b.boxes[l * columns + j][1]
            total += 2 * (m1 - m0) * (k1 - k0) * (n1 - n0)
        return total


def _union(layout: Layout, axis: int) -> tuple[tuple[int, ...], ...]:
    """For each place along an axis of a grid of blocks, the workers that hold any block there."""
    rows, columns = layout.grid
    found: list[tuple[int, ...]] = []
    for place in range(layout.grid[axis]):
        blocks = (
            [place * columns + j for j in range(columns)]
            if axis == 0
            else [i * columns + place for i in range(rows)]
        )
        found.append(tuple(sorted({w for block in blocks for w in layout.holders[block]})))
    return tuple(found)


def _sums(
    shape: tuple[int, int],
    cuts: tuple[tuple[int, ...], tuple[int, ...]],
    holders: tuple[tuple[int, ...], ...],
    workers: int,
) -> Layout:
    """A layout of terms; not partial where each block has one worker."""
    return Layout(shape, cuts, holders, workers, partial=any(len(h) > 1 for h in holders))


@lru_cache(maxsize=512)
def c_stays(k: int, c: Layout, target: Layout) -> ProductPlan:
    """Each worker computes whole blocks of C: it needs their rows of A and columns of B."""
    (m, n), w = c.shape, c.workers
    a = Layout((m, k), (c.cuts[0], (0, k)), _union(c, 0), w)
    b = Layout((k, n), ((0, k), c.cuts[1]), _union(c, 1), w)
    return ProductPlan("C stays", a, b, c, target)


def a_stays(a: Layout, n: int, target: Layout | None) -> ProductPlan:
    """Each worker multiplies its own blocks of A: it needs their rows of B, and makes terms of rows of C."""
    (m, k), w = a.shape, a.workers
    b = Layout((k, n), (a.cuts[1], (0, n)), _union(a, 1), w)
    c = _sums((m, n), (a.cuts[0], (0, n)), _union(a, 0), w)
    return ProductPlan("A stays", a, b, c, target or scattered(c))


def b_stays(m: int, b: Layout, target: Layout | None) -> ProductPlan:
    """Each worker multiplies its own blocks of B: it needs their columns of A, and makes terms of columns
    of C.
    """
    (k, n), w = b.shape, b.workers
    a = Layout((m, k), ((0, m), b.cuts[0]), _union(b, 0), w)
    c = _sums((m, n), ((0, m), b.cuts[1]), _union(b, 1), w)
    return ProductPlan("B stays", a, b, c, target or scattered(c))


@lru_cache(maxsize=512)
def grid(
    m: int,
    k: int,
    n: int,
    counts: tuple[int, int, int],
    order: tuple[int, int, int],
    workers: int,
    used: tuple[int, ...] = (),
) -> tuple[Layout, Layout, Layout]:
    """Layouts of A, B and C's terms on a grid of pm x pk x pn workers.

    Args:
        m: rows of C.
        k: columns of A.
        n: columns of C.
        counts: (pm, pk, pn).
        order: the axes of the grid in the order in which workers are numbered, the last one fastest.
        workers: how many there are in all.
        used: the workers of the grid; empty for the first ones.
    """
    pm, pk, pn = counts

    def worker(place: tuple[int, int, int]) -> int:
        number = 0
        for axis in order:
            number = number * counts[axis] + place[axis]
        return used[number] if used else number

    cuts = even_cuts(m, pm), even_cuts(k, pk), even_cuts(n, pn)
    i, l, j = range(pm), range(pk), range(pn)  # noqa: E741
    held_a = tuple(tuple(worker((x, y, z)) for z in j) for x, y in product(i, l))
    held_b = tuple(tuple(worker((x, y, z)) for x in i) for y, z in product(l, j))
    held_c = tuple(tuple(worker((x, y, z)) for y in l) for x, z in product(i, j))
    a = Layout((m, k), (cuts[0], cuts[1]), tuple(map(_sorted, held_a)), workers)
    b = Layout((k, n), (cuts[1], cuts[2]), tuple(map(_sorted, held_b)), workers)
    c = _sums((m, n), (cuts[0], cuts[2]), tuple(map(_sorted, held_c)), workers)
    return a, b, c


def _sorted(workers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(workers))


def grids(workers: int) -> Iterator[tuple[int, int, int]]:
    """All (pm, pk, pn) of this many workers."""
    for pm in range(1, workers + 1):
        if workers % pm == 0:
            for pk in range(1, workers // pm + 1):
                if workers // pm % pk == 0:
                    yield pm, pk, workers // pm // pk


def orders(counts: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Orders of a grid's axes that number the workers differently."""
    found: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for order in permutations(range(3)):
        first, second, third = order
        found.setdefault(tuple(axis for axis in order if counts[axis] > 1), (first, second, third))
    return list(found.values())


def scattered(c: Layout) -> Layout:
    """Where sums go if nothing else is asked: the rows of each block are dealt to the workers that have
    terms of it.
    """
    if not c.partial:
        return c
    parts = max(len(h) for h in c.holders)
    rows, columns = c.grid
    cuts, holders = [0], []
    for i in range(rows):
        low, high = c.cuts[0][i : i + 2]
        cuts += [low + cut for cut in even_cuts(high - low, parts)[1:]]
        for part in range(parts):
            row = [c.holders[i * columns + j] for j in range(columns)]
            holders += [(h[part % len(h)],) for h in row]
    return Layout(c.shape, (tuple(cuts), c.cuts[1]), tuple(holders), c.workers)


def grid_layouts(
    m: int, k: int, n: int, counts: tuple[int, int, int]
) -> tuple[Layout, Layout, Layout]:
    """Layouts of A, B and C, one holder for each block, on which a pm x pk x pn grid sends least.

    The copies that the grid needs are dealt out: workers of one fibre share a block.
    """
    a, b, c = grid(m, k, n, counts, (0, 1, 2), prod(counts))
    return (
        scattered(Layout(a.shape, a.cuts, a.holders, a.workers, True)),
        scattered(Layout(b.shape, b.cuts, b.holders, b.workers, True)),
        scattered(c),
    )
