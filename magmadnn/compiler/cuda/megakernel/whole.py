"""Steps of a small network as one kernel of one block: text.

What would be launches are parts, in levels: parts of a level do not depend on each other, and all threads
wait for each other between two levels. Threads are dealt out to the parts of a level by warps, so that small
parts lie beside each other. Values lie in shared memory: what is read before it is written is copied there
first, and what was written is copied back at the end. A kernel may run many steps, whose batches it fetches
itself, each while the step before it runs (`whole_feed.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.function import Part
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Grid

from .feed import Feed
from .places import Argument, GlobalAddress, text_of

LIBRARY = r"""
namespace whole {
template <class T> __device__ __forceinline__ void begin_copy(T *to, const T *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) >= 4) {
    const u32 goal = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
      ::"r"(goal), "l"(from), "n"(sizeof(T)) : "memory");
    return;
  }
#endif
  *to = *from;
}
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
}  // namespace whole
// An address of whatever type is asked for.
struct At {
  char *at;
  template <class T> __device__ __forceinline__ operator T *() const { return (T *)at; }
};
"""


_COUNTED = """  const i64 start = first[0], left = first[1] - start, steps = left < most ? left : most;
"""
_LOOP = """#pragma unroll 1
  for (i64 step = 0; step < steps; ++step) {
"""
_END = """  }
  if (threadIdx.x == 0) first[0] = start + steps;
"""


LANES = (
    f"  const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / {WARP}, 0), "
    f"lane = threadIdx.x % {WARP};\n"
)


@dataclass(frozen=True)
class Piece:
    """What would be a launch.

    Attributes:
        part: what is computed.
        grid: blocks that it would have,
        block: and threads of each.
        arguments: a value for each of the part's slots.
    """

    part: Part
    grid: Grid
    block: Grid
    arguments: tuple[Argument, ...]

    @property
    def warps(self) -> int:
        """Warps that it would have."""
        return self.grid[0] * self.grid[1] * self._warps_of_block

    @property
    def _warps_of_block(self) -> int:
        return -(-self.block[0] * self.block[1] // WARP)

    def call(self, name: str, first: int, warps: int) -> str:
        """Its call, by warps from `first` on of a block of `warps`."""
        (across, down, _), (width, height, _) = self.grid, self.block
        arguments = ", ".join(map(text_of, self.arguments))
        threads = self._warps_of_block * WARP
        begin = f"(warp + {warps - first}) % {warps}" if first else "warp"
        loop = (
            f"for (u32 w = {begin}; w < {self.warps}; w += {warps})"
            if self.warps > warps
            else f"if (const u32 w = {begin}; w < {self.warps})"
        )
        return f"""    {loop} {{
      const u32 v = w * {WARP} + lane, thread = v % {threads}, block = v / {threads};
      const Index at = {{block % {across}, block / {across}, 0}};
      const Index in = {{thread % {width}, thread / {width}, 0}};
      {name}(at, in, {{{width}, {height}, 1}}, {{{across}, {down}, 1}}, {arguments});
    }}
"""


@dataclass(frozen=True)
class Copied:
    """A value in shared memory.

    Attributes:
        outside: where it lies before and after.
        offset: in shared memory, in bytes.
        nbytes: its size.
        comes: whether it is copied into shared memory before the first step,
        goes: and back after the last.
    """

    outside: GlobalAddress
    offset: int
    nbytes: int
    comes: bool
    goes: bool

    def text(self, back: bool, threads: int) -> str:
        """A loop that copies it; what comes need not have arrived when the loop ends."""
        # Its place in shared memory is as far from a multiple of 16 as its address is.
        unit = next(n for n in (16, 4, 1) if not (self.offset % n or self.nbytes % n))
        kind = {16: "Vec<u32, 4>", 4: "u32", 1: "u8"}[unit]
        here, there = (
            f"({kind} *)(memory + {self.offset})",
            f"({kind} *)({text_of(self.outside)}).at",
        )
        copied = (
            f"({there})[i] = ({here})[i]" if back else f"whole::begin_copy({here} + i, {there} + i)"
        )
        loop = f"for (u32 i = threadIdx.x; i < {self.nbytes // unit}; i += {threads})"
        return f"#pragma unroll 1\n  {loop} {copied};\n"


@dataclass(frozen=True)
class WholeVariant:
    """Steps by one block.

    Slots: the addresses that pieces, values and feeds name by number; then, where there are many steps,
    `first`, the address of two numbers, of batches before, which is brought up to date, and of batches in
    all; and `most`, how many steps to run.

    Attributes:
        levels: pieces in order.
        copies: values in shared memory.
        feeds: what is fetched for each step; none where the kernel is one step of what lies there already.
        threads: of the block.
        outside: how many addresses there are.
        shared_bytes: for values.
        repeats: whether there are many steps; otherwise one, and neither `first` nor `most`.
    """

    levels: tuple[tuple[Piece, ...], ...]
    copies: tuple[Copied, ...]
    feeds: tuple[Feed, ...]
    threads: int
    outside: int
    shared_bytes: int
    repeats: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        numbers = ("first", "most") if self.repeats else ()
        return (*(f"p{k}" for k in range(self.outside)), *numbers)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the text needs beside `PRELUDE`."""
        parts = [piece.part for level in self.levels for piece in level]
        return (
            *dict.fromkeys(text for p in parts for text in getattr(p, "libraries", ())),
            LIBRARY,
        )

    def text(self, name: str) -> str:
        """The kernel, and the functions that it is made of."""
        parts, names = self.functions(name)
        parameters = [f"char *p{k}" for k in range(self.outside)]
        parameters += ["i64 *first", "i64 most"] if self.repeats else []
        head = f"__launch_bounds__({self.threads}, 1) {name}({', '.join(parameters)})"
        return f"""{parts}extern "C" __global__ void {head} {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}{LANES}{_COUNTED if self.repeats else ""}{self.run(names)}{self.copied(back=True)}}}
"""

    def functions(self, name: str) -> tuple[str, dict[Part, str]]:
        """The functions that the kernel is made of: their text, and their names."""
        pieces = [piece for level in self.levels for piece in level]
        names = {p: f"{name}_{k}" for k, p in enumerate(dict.fromkeys(p.part for p in pieces))}
        return "".join(part.function(symbol).part() for part, symbol in names.items()), names

    def run(self, names: dict[Part, str]) -> str:
        """All steps, from values that lie outside to new ones in shared memory."""
        loop, end = (_LOOP, _END) if self.repeats else ("", "")
        fetched = f"{self.copied(back=False)}{self._fed('declared')}  whole::wait_for_copies();\n"
        return f"{fetched}  __syncthreads();\n{loop}{self._steps(names)}{end}"

    def copied(self, back: bool) -> str:
        """Loops that copy what comes, or goes."""
        wanted = [c for c in self.copies if (c.goes if back else c.comes)]
        return "".join(copy.text(back, self.threads) for copy in wanted)

    def _fed(self, what: str) -> str:
        first, texts = 0, []
        for number, feed in enumerate(self.feeds):
            texts.append(getattr(feed, what)(number, first, self.threads))
            first += -(-feed.rows * feed.columns // WARP) * WARP
        return "".join(texts)

    def _steps(self, names: dict[Part, str]) -> str:
        wait = "    __syncthreads();\n"
        levels = [self._level(level, names) + wait for level in self.levels]
        return self._fed("stored") + levels[0] + self._fed("begun") + "".join(levels[1:])

    def _level(self, level: Sequence[Piece], names: dict[Part, str]) -> str:
        warps, first, text = self.threads // WARP, 0, ""
        for piece in level:
            text += piece.call(names[piece.part], first % warps, warps)
            first += piece.warps
        return text
