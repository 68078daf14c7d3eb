"""Which launches become one: those of a level, none of which waits for another.

The longest way through the launches says how many levels there are, and which launches have no choice. Any
other goes where it adds least to the time: multiprocessors take a level's blocks in rounds, and a level
that needs one round more takes longer. Among equals the earliest. So weight gradients, which nobody waits
for before the next step, come together at its end, and small things where there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.emit.cuda.merged import registers_of
from magmadnn.compiler.emit.cuda.variant import Chip, Launch

from .chains import Edges

_THREADS = 2048  # that a multiprocessor holds,
_REGISTERS = 65536  # and its registers
_RESERVED = 1024  # bytes of shared memory that each block has beside its own


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
        x, y, z = launch.grid
        across, down, deep = launch.block
        return Load(
            self.blocks + x * y * z,
            max(self.threads, across * down * deep),
            max(self.registers, registers_of(launch.variant)),
            max(self.shared_bytes, launch.shared_bytes),
        )

    def resident(self, chip: Chip) -> int:
        """Blocks that share a multiprocessor."""
        most = min(_THREADS // self.threads, _REGISTERS // (self.threads * self.registers))
        return max(min(most, chip.shared_bytes // (self.shared_bytes + _RESERVED)), 1)

    def rounds(self, chip: Chip) -> float:
        """Rounds in which multiprocessors take the blocks; less than a whole one counts as one."""
        return max(self.blocks / (chip.processors * self.resident(chip)), 1.0)


def load_of(launches: Sequence[Launch]) -> Load:
    """What launches need together."""
    load = Load()
    for launch in launches:
        load = load.beside(launch)
    return load


def levels_of(launches: Sequence[Launch], edges: Edges, chip: Chip) -> list[int]:
    """The level of each launch, higher than those of all that it waits for.

    Args:
        launches: in an order in which they can run.
        edges: for each those that it waits for; see `edges_of`.
        chip: what they run on.
    """
    count = len(launches)
    first = [0] * count
    for number in range(count):
        first[number] = 1 + max((first[k] for k in edges[number]), default=-1)
    last = [max(first, default=0)] * count
    for number in reversed(range(count)):
        for other in edges[number]:
            last[other] = min(last[other], last[number] - 1)
    loads = [Load() for _ in range(max(first, default=0) + 1)]
    level = list(first)
    for number in range(count):
        if first[number] == last[number]:
            loads[first[number]] = loads[first[number]].beside(launches[number])
    for number in range(count):
        if first[number] == last[number]:
            continue
        lowest = 1 + max((level[k] for k in edges[number]), default=-1)
        choices = range(lowest, last[number] + 1)
        level[number] = min(choices, key=lambda at: (_added(loads[at], launches[number], chip), at))
        loads[level[number]] = loads[level[number]].beside(launches[number])
    return level


def _added(load: Load, launch: Launch, chip: Chip) -> float:
    """Rounds that a launch adds to a level."""
    return load.beside(launch).rounds(chip) - load.rounds(chip)
