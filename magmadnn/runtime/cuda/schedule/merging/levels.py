"""Which launches become one: those of a level, none of which waits for another.

The longest way through the launches says how many levels there are, and which launches have no choice. Any
other goes where it adds least to the time: multiprocessors take a level's blocks in rounds, and a level
that needs one round more takes longer. Threads of a level's blocks are as many as those of its widest launch,
and share the registers: a launch that wants more than are left for each keeps values in memory, so that is
rounds too. Among equals the earliest. So weight gradients, which nobody waits for before the next step, come
together at its end, and small things where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.cuda.fused.merged import registers_of
from magmadnn.compiler.cuda.fused.summed import Summed
from magmadnn.compiler.cuda.gemm.cut import Sizes, outer_cuts
from magmadnn.compiler.cuda.gemm.gemm import GemmVariant, is_short_of_bandwidth
from magmadnn.compiler.cuda.text.variant import REGISTERS, RESERVED_BYTES, Chip, Launch
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.runtime.cuda.schedule.hazards import Edges, readers_of

_THREADS = 2048  # that a multiprocessor holds


@dataclass(frozen=True)
class Load:
    """What the launches of a level need together.

    Attributes:
        blocks: of all of them.
        threads: of a block: the most that any has,
        registers: as those of a thread,
        shared_bytes: and shared memory of a block.
    """

    blocks: int = 0
    threads: int = 32
    registers: int = 1
    shared_bytes: int = 0

    def beside(self, launch: Launch) -> Load:
        """With another launch."""
        blocks, threads = math.prod(launch.grid), math.prod(launch.block)
        registers = registers_of(launch.variant)
        return self.together(Load(blocks, threads, registers, launch.shared_bytes))

    def together(self, other: Load) -> Load:
        """What both need."""
        return Load(
            self.blocks + other.blocks,
            max(self.threads, other.threads),
            max(self.registers, other.registers),
            max(self.shared_bytes, other.shared_bytes),
        )

    def resident(self, chip: Chip) -> int:
        """Blocks that share a multiprocessor."""
        most = min(_THREADS // self.threads, REGISTERS // (self.threads * self.registers))
        return max(min(most, chip.shared_bytes // (self.shared_bytes + RESERVED_BYTES)), 1)

    def rounds(self, chip: Chip) -> float:
        """Rounds in which multiprocessors take the blocks; less than a whole one counts as one.

        They count for more where a single block wants more registers than there are.
        """
        rounds = max(self.blocks / (chip.processors * self.resident(chip)), 1.0)
        return rounds * max(self.threads * self.registers / REGISTERS, 1.0)


@dataclass(frozen=True)
class _Level:
    """Launches of a level: products whose tiles depend on each other, and what the others need."""

    load: Load = Load()
    products: tuple[tuple[Sizes, int], ...] = ()

    def beside(self, launch: Launch, sharing: bool) -> _Level:
        """With another launch."""
        if not sharing or (variant := outer_of(launch)) is None:
            return replace(self, load=self.load.beside(launch))
        product = (variant.sizes, ITEM_BYTES[variant.kernel.dtype])
        return replace(self, products=(*self.products, product))

    def rounds(self, chip: Chip) -> float:
        """Rounds in which multiprocessors take the blocks."""
        load = self.load
        if self.products:
            sizes, item = tuple(s for s, _ in self.products), max(i for _, i in self.products)
            cuts = outer_cuts(sizes, item, chip.processors, chip.shared_bytes) or ()
            for cut, one in zip(cuts, sizes, strict=False):
                nbytes = cut.shared_bytes(False, item)
                blocks = cut.blocks(*one[:2])
                load = load.together(Load(blocks, cut.threads, cut.registers, nbytes))
        return load.rounds(chip)


def outer_of(launch: Launch) -> GemmVariant | None:
    """A product with whole k in shared memory that is short of bandwidth."""
    variant = launch.variant.product if isinstance(launch.variant, Summed) else launch.variant
    if not isinstance(variant, GemmVariant) or not variant.cut.whole_k:
        return None
    return variant if is_short_of_bandwidth(variant) else None


def load_of(launches: Sequence[Launch]) -> Load:
    """What launches need together."""
    load = Load()
    for launch in launches:
        load = load.beside(launch)
    return load


def levels_of(
    launches: Sequence[Launch], edges: Edges, chip: Chip, sharing: bool = False
) -> list[int]:
    """The level of each launch, higher than those of all that it waits for.

    Args:
        launches: in an order in which they can run.
        edges: for each those that it waits for; see `edges_of`.
        chip: what they run on.
        sharing: whether weight gradients of a level share large tiles, and the largest launches choose first.
    """
    window = _Window(edges)
    loads = [_Level() for _ in range(max(window.last, default=-1) + 1)]
    free = []
    for number, launch in enumerate(launches):
        if window.first[number] == window.last[number]:
            loads[window.first[number]] = loads[window.first[number]].beside(launch, sharing)
        else:
            free.append(number)
    if sharing:
        free.sort(key=lambda k: (-_size(launches[k]), k))
    for number in free:
        choices = range(window.first[number], window.last[number] + 1)
        at = min(choices, key=lambda at: (_added(loads[at], launches[number], chip, sharing), at))
        window.settle(number, at)
        loads[at] = loads[at].beside(launches[number], sharing)
    return window.first


class _Window:
    """The first and the last level that each launch may have, as long as those that it waits for are lower.

    Args:
        edges: for each launch those that it waits for.
    """

    def __init__(self, edges: Edges) -> None:
        self._edges, self._readers = edges, readers_of(edges)
        self.first = [0] * len(edges)
        for number, after in enumerate(edges):
            self.first[number] = 1 + max((self.first[k] for k in after), default=-1)
        self.last = [max(self.first, default=0)] * len(edges)
        for number in reversed(range(len(edges))):
            for other in edges[number]:
                self.last[other] = min(self.last[other], self.last[number] - 1)

    def settle(self, number: int, at: int) -> None:
        """Give a launch its level, which narrows those of launches before and behind it."""
        self.first[number] = self.last[number] = at
        behind, before = [number], [number]
        while behind:
            k = behind.pop()
            for other in self._readers[k]:
                if self.first[other] <= self.first[k]:
                    self.first[other] = self.first[k] + 1
                    behind.append(other)
        while before:
            k = before.pop()
            for other in self._edges[k]:
                if self.last[other] >= self.last[k]:
                    self.last[other] = self.last[k] - 1
                    before.append(other)


def _size(launch: Launch) -> int:
    """Threads of all its blocks."""
    return math.prod(launch.grid) * math.prod(launch.block)


def _added(load: _Level, launch: Launch, chip: Chip, sharing: bool) -> float:
    """Rounds that a launch adds to a level."""
    return load.beside(launch, sharing).rounds(chip) - load.rounds(chip)
