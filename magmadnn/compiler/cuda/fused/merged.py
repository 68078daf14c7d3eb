"""Several kernels as one: each takes a range of the blocks.

What a launch costs does not depend on what it does, so launches that need not wait for each other become
one. The texts of the parts are the same as alone, and so are the bits of their results: each is put into a
struct whose members `blockIdx`, `threadIdx`, `blockDim` and `gridDim` hide CUDA's. Parts in a row that only
differ in their arguments are one call, since each call takes as long to compile as the kernel alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.variant import Grid, Launch, Variant

_HEAD = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?')
_INLINE = "__device__ __forceinline__ void "
_FEW_REGISTERS = 64


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
        lines, first = ["  const u32 block = blockIdx.x, thread = threadIdx.x;"], 0
        for number, same in self._same():
            lines.append(self._call(number, same, kinds[self.parts[number].variant], first))
            first += same * self.parts[number].blocks
        slots = ", ".join(f"i64 {slot}" for slot in self.slots)
        bounds = f"__launch_bounds__({self.threads}, {self.resident})"
        head = f'extern "C" __global__ void {bounds} {name}({slots}) {{'
        return "\n".join(("".join(structs) + head, *lines, "}\n"))

    def _same(self) -> list[tuple[int, int]]:
        """Parts in a row that only differ in their arguments: the first one's number, and how many."""
        found: list[tuple[int, int]] = []
        for number, part in enumerate(self.parts):
            if found and self.parts[found[-1][0]] == part:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((number, 1))
        return found

    def _call(self, number: int, same: int, kind: str, first: int) -> str:
        """The blocks, from `first` on, of some parts that are the same: the text is there once."""
        part = self.parts[number]
        x, y, z = part.block
        across, down, deep = part.grid
        own = f"block - {first}u"
        which, at = (
            (f"({own}) / {part.blocks}u", f"(({own}) % {part.blocks}u)")
            if same > 1
            else ("0", f"({own})")
        )

        def given(slot: str) -> str:
            value = f"{slot}_{number + same - 1}"
            for k in reversed(range(same - 1)):
                value = f"which == {k}u ? {slot}_{number + k} : {value}"
            return f"Given{{{value}}}"

        arguments = ", ".join(given(slot) for slot in part.variant.slots)
        return f"""  if (block < {first + same * part.blocks}u) {{
    {kind} part;
    const u32 which = {which};
    part.blockIdx = {{{at} % {across}u, {at} / {across}u % {down}u, {at} / {across * down}u}};
    part.threadIdx = {{thread % {x}u, thread / {x}u % {y}u, thread / {x * y}u}};
    part.gridDim = {{{across}, {down}, {deep}}};
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
    """One launch in place of several that may run at the same time."""
    if len(launches) == 1:
        return launches[0]
    parts = tuple(MergedPart(one.variant, one.grid, one.block) for one in launches)
    variant = Merged(parts, resident)
    return Launch(
        variant,
        (sum(part.blocks for part in parts), 1, 1),
        (variant.threads, 1, 1),
        tuple(argument for one in launches for argument in one.arguments),
        max(one.shared_bytes for one in launches),
    )
