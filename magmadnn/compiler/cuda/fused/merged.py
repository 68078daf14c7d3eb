"""Several kernels as one: each takes a range of the blocks.

What a launch costs does not depend on what it does, so launches that need not wait for each other become
one. The texts of the parts are the same as alone, and so are the bits of their results: each is put into a
struct whose members `blockIdx`, `threadIdx`, `blockDim` and `gridDim` hide CUDA's. Parts that only differ in
their arguments and numbers of blocks are one call, since each call takes as long to compile as the kernel
alone. So all arguments are one array, of which each part reads its own.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.variant import Grid, Launch, Variant

_HEAD = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?')
_INLINE = "__device__ __forceinline__ void "
_FEW_REGISTERS = 64
MOST_ARGUMENTS = 4000  # of 8 bytes: CUDA has 32,764 bytes for those of a kernel


@dataclass(frozen=True)
class MergedPart:
    """A kernel within another.

    Attributes:
        variant: its text.
        grid: its blocks,
        block: and threads of each.
    """

    variant: Variant
    grid: Grid
    block: Grid

    @property
    def blocks(self) -> int:
        """How many there are."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Of a block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class Merged:
    """Kernels whose blocks are launched together, those of the first part first.

    Slots: the parts' own, each with the number of its part.

    Attributes:
        parts: the kernels.
        resident: blocks that are to share a multiprocessor.
    """

    parts: tuple[MergedPart, ...]
    resident: int = 1

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(f"{s}_{k}" for k, part in enumerate(self.parts) for s in part.variant.slots)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the parts need beside their texts."""
        found = (text for p in self.parts for text in getattr(p.variant, "libraries", ()))
        return tuple(dict.fromkeys(found))

    @property
    def threads(self) -> int:
        """Of a block."""
        return max(part.threads for part in self.parts)

    def text(self, name: str) -> str:
        """The function, and a struct for each of its parts."""
        kinds: dict[Variant, str] = {}
        structs = []
        for part in self.parts:
            if part.variant not in kinds:
                kinds[part.variant] = f"{name}_part{len(kinds)}"
                structs.append(inlined(part.variant, kinds[part.variant]))
        lines = ["  const u32 block = blockIdx.x, thread = threadIdx.x;"]
        first = begin = 0
        for number, run in enumerate(self._runs()):
            kind, table = kinds[run[0].variant], f"{name}_run{number}"
            if len(set(run)) > 1:
                structs.append(_table(run, table, first, begin))
                lines.append(_call_of_table(run, kind, table, first))
            else:
                lines.append(_call(run, kind, first, begin))
            first += sum(part.blocks for part in run)
            begin += sum(len(part.variant.slots) for part in run)
        given = f"const __grid_constant__ Arguments<{len(self.slots)}> given"
        bounds = f"__launch_bounds__({self.threads}, {self.resident})"
        head = f'extern "C" __global__ void {bounds} {name}({given}) {{'
        return "\n".join(("".join(structs) + head, *lines, "}\n"))

    def _runs(self) -> list[list[MergedPart]]:
        """Parts in a row that only differ in their arguments and their number of blocks."""
        runs = itertools.groupby(self.parts, key=_likeness)
        return [list(run) for _, run in runs]


def _likeness(part: MergedPart | Launch) -> tuple[Variant, Grid, int]:
    return part.variant, part.block, part.grid[2]


def _call(run: Sequence[MergedPart], kind: str, first: int, begin: int) -> str:
    """Parts that are the same: their blocks from `first` on, their arguments from `begin` on."""
    part, blocks = run[0], run[0].blocks
    across, down, _ = part.grid
    at, which = f"block - {first}u", f"{begin}"
    if len(run) > 1:
        at = f"(block - {first}u) % {blocks}u"
        which = f"{begin} + (block - {first}u) / {blocks}u * {len(part.variant.slots)}u"
    return f"""  if (block < {first + len(run) * blocks}u) {{
    const u32 begin = {which}, at = {at}, across = {across}u, down = {down}u;
{_begun(part, kind)}"""


def _table(run: Sequence[MergedPart], name: str, first: int, begin: int) -> str:
    """The first block of each part, where its arguments begin, and the first two sizes of its grid."""
    rows = []
    for part in run:
        rows.append(f"{{{first}u, {begin}u, {part.grid[0]}u, {part.grid[1]}u}}")
        first += part.blocks
        begin += len(part.variant.slots)
    return f"__constant__ const u32 {name}[{len(run)}][4] = {{{', '.join(rows)}}};\n"


def _call_of_table(run: Sequence[MergedPart], kind: str, table: str, first: int) -> str:
    """Parts with different numbers of blocks: a block looks for its part in their table."""
    return f"""  if (block < {first + sum(part.blocks for part in run)}u) {{
    u32 low = 0, high = {len(run)};
    while (high - low > 1) {{
      const u32 middle = (low + high) / 2;
      if ({table}[middle][0] <= block) low = middle;
      else high = middle;
    }}
    const u32 begin = {table}[low][1], at = block - {table}[low][0];
    const u32 across = {table}[low][2], down = {table}[low][3];
{_begun(run[0], kind)}"""


def _begun(part: MergedPart, kind: str) -> str:
    """The call of a part, of whose blocks this one is number `at`."""
    x, y, z = part.block
    deep = part.grid[2]
    count = len(part.variant.slots)
    arguments = ", ".join(f"Given{{given.at[begin + {k}]}}" for k in range(count))
    return f"""    {kind} part;
    part.blockIdx = {{at % across, at / across % down, at / (across * down)}};
    part.threadIdx = {{thread % {x}u, thread / {x}u % {y}u, thread / {x * y}u}};
    part.gridDim = {{across, down, {deep}}};
    part.blockDim = {{{x}, {y}, {z}}};
    if (thread < {part.threads}u) part.run({arguments});
    return;
  }}"""


def registers_of(variant: Variant) -> int:
    """Registers that a kernel wants for each thread, roughly."""
    return getattr(variant, "registers", _FEW_REGISTERS)


def inlined(variant: Variant, name: str) -> str:
    """A kernel as the function `run` of a struct."""
    return f"struct {name} : Place {{\n{_HEAD.sub(_INLINE, variant.text('run'))}}};\n"


def merge(launches: Sequence[Launch], resident: int = 1) -> Launch:
    """One launch in place of several that may run at the same time; those that are alike come together."""
    if len(launches) == 1:
        return launches[0]
    order = {kind: k for k, kind in reversed(list(enumerate(map(_likeness, launches))))}
    launches = sorted(launches, key=lambda one: order[_likeness(one)])
    parts = tuple(MergedPart(one.variant, one.grid, one.block) for one in launches)
    variant = Merged(parts, resident)
    return Launch(
        variant,
        (sum(part.blocks for part in parts), 1, 1),
        (variant.threads, 1, 1),
        tuple(argument for one in launches for argument in one.arguments),
        max(one.shared_bytes for one in launches),
    )
