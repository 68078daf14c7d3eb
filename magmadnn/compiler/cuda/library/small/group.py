"""What kernels of small matrices share: groups of threads, each with a matrix and room in shared memory."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Launch, Variant, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES

LARGEST = 32  # rows and columns
_THREADS = 128


def fits(*sizes: int) -> bool:
    """Whether such kernels compute matrices of so many rows and columns: by sizes alone."""
    return max(sizes) <= LARGEST


def lanes_of(size: int) -> int:
    """Threads of a group that has a row or a column of so many in each."""
    return max(1 << (size - 1).bit_length(), 4)


def shared_bytes_of(dtype: str, lanes: int, room: int) -> int:
    """Shared memory of a block whose groups have room for so many elements each."""
    return _THREADS // lanes * room * ITEM_BYTES[dtype]


def head_of(name: str, kinds: str, dtype: str, lanes: int, room: int) -> str:
    """The beginning of a function.

    It defines `lane`, the thread's place in its group; `base`, the group's first thread in its warp;
    `matrix`, `is_there`, whether there is such a matrix; and `room`.
    """
    item = MEMORY[dtype]
    return f"""extern "C" __global__ void {name}({kinds}) {{
  SHARED_MEMORY({shared_bytes_of(dtype, lanes, room)})
{BEGIN}  const u32 lane = threadIdx.x % {lanes}, base = threadIdx.x % {WARP} / {lanes} * {lanes};
  const i64 matrix = (i64)blockIdx.x * {_THREADS // lanes} + threadIdx.x / {lanes};
  const bool is_there = matrix < matrices;
  {item} *const room = ({item} *)memory + threadIdx.x / {lanes} * {room};
  bool wrong = false;
"""


TAIL = """  if (wrong && is_there) faults[0] = 1;
}
"""


def root_of(dtype: str) -> str:
    """The function that is a square root of numbers of a dtype."""
    return "sqrt" if dtype == "float64" else "sqrtf"


def from_lane(value: str, lane: str) -> str:
    """The value that another thread of the group has."""
    return f"__shfl_sync(0xffffffffu, {value}, (int)(base + {lane}))"


def launch(
    variant: Variant, dtype: str, lanes: int, room: int, values: Mapping[str, int]
) -> Launch:
    """A launch with a group for each matrix."""
    blocks = -(-values["matrices"] // (_THREADS // lanes))
    return Launch(
        variant, (blocks, 1, 1), (_THREADS, 1, 1), arguments_of(variant, values),
        shared_bytes_of(dtype, lanes, room),
    )  # fmt: skip
