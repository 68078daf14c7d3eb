"""What kernels of small matrices share: groups of threads, each with a matrix and room in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.library.moved import parameters
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Launch, Variant, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES

LARGEST = 64  # rows and columns
_THREADS = 128  # of a block that has several groups
_BOARD = 16  # elements that threads of several warps show each other


def fits(*sizes: int) -> bool:
    """Whether such kernels compute matrices of so many rows and columns: by sizes alone."""
    return max(sizes) <= LARGEST


@dataclass(frozen=True)
class Group:
    """Threads of which each has a row or a column of a matrix.

    Attributes:
        dtype: of the elements.
        size: rows or columns.
        elements: room of the matrix in shared memory.
    """

    dtype: str
    size: int
    elements: int

    @property
    def lanes(self) -> int:
        """Threads of a group: a power of two, at least one for each row or column."""
        return max(1 << (self.size - 1).bit_length(), 4)

    @property
    def is_wide(self) -> bool:
        """Whether they are several warps, which are a block then."""
        return self.lanes > WARP

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes if self.is_wide else _THREADS

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block: each group's matrix and board."""
        return self.threads // self.lanes * (self.elements + _BOARD) * ITEM_BYTES[self.dtype]

    @property
    def sync(self) -> str:
        """What lets the threads see what others have written."""
        return "__syncthreads();" if self.is_wide else "__syncwarp();"

    def head(self, name: str, slots: tuple[str, ...]) -> str:
        """The beginning of a function with parameters for these slots.

        `x0` and `x1` are operands, `result` and `faults` are written; others are integers. It defines
        `lane`, the thread's place in its group; `base`, the group's first thread in its warp; `matrix`,
        `is_there`, whether there is such a matrix; `room`, and `board` behind it. Where groups have parts of
        the right sides of a matrix, with a slot `parts` for how many each has, `part` is which.
        """
        item, lanes = MEMORY[self.dtype], self.lanes
        read, written = f"const {item} *", f"{item} *"
        kinds = parameters(slots, x0=read, x1=read, result=written, faults="i64 *")
        matrix = f"(i64)blockIdx.x * {self.threads // lanes} + threadIdx.x / {lanes}"
        which = f"  const i64 matrix = {matrix};\n  const bool is_there = matrix < matrices;"
        if "parts" in slots:
            which = f"""  const i64 which = {matrix}, matrix = which / parts, part = which % parts;
  const bool is_there = matrix < matrices;"""
        return f"""extern "C" __global__ void {name}({kinds}) {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  const u32 lane = threadIdx.x % {lanes}, base = threadIdx.x % {WARP} / {lanes} * {lanes};
{which}
  {item} *const room = ({item} *)memory + threadIdx.x / {lanes} * {self.elements + _BOARD};
  {item} *const board = room + {self.elements};
  bool wrong = false;
"""

    def seen(self, made: str, value: str, lane: str, slot: str) -> str:
        """The statement that gives all threads, under a name, the value that one of them has.

        Args:
            made: the name.
            value: an expression, of the elements' dtype.
            lane: whose.
            slot: a place on the board, another than that of the statement before.
        """
        item = MEMORY[self.dtype]
        if not self.is_wide:
            return f"const {item} {made} = __shfl_sync(0xffffffffu, {value}, (int)(base + {lane}));"
        return (
            f"if ((int)lane == (int)({lane})) board[{slot}] = {value};\n    {self.sync}\n"
            f"    const {item} {made} = board[{slot}];"
        )

    def launch(self, variant: Variant, values: Mapping[str, int]) -> Launch:
        """A launch with a group for each matrix, or each of its parts."""
        groups = values["matrices"] * (values["parts"] if "parts" in variant.slots else 1)
        blocks = -(-groups // (self.threads // self.lanes))
        arguments = arguments_of(variant, values)
        return Launch(variant, (blocks, 1, 1), (self.threads, 1, 1), arguments, self.shared_bytes)


def group_of_square(dtype: str, n: int) -> Group:
    """Threads with room for n x n elements, in rows of n + 1, so that these begin in different banks."""
    return Group(dtype, n, n * (n + 1))


TAIL = """  if (wrong && is_there) faults[0] = 1;
}
"""


def root_of(dtype: str) -> str:
    """The function that is a square root of numbers of a dtype."""
    return "sqrt" if dtype == "float64" else "sqrtf"
