"""Kernels that bring matrices where a function works on them, and look at their elements.

What is NaN or infinite sets a word and becomes 0: no function of the library is to loop over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.moves import FAULTS

from .surroundings import THREADS, launch_of

_TILE, _PADDED = 32, 33  # rows and columns of a tile that is turned; elements of its rows
_SMALL = 1024  # elements of matrices that are turned without tiles


def parameters(slots: tuple[str, ...], **kinds: str) -> str:
    """The parameters of a function, integers but for those of other kinds."""
    return ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in slots)


@dataclass(frozen=True)
class Turned:
    """goal[k][j, i] = source[k][i, j]: matrices as the library counts; a word is set for NaN or infinity.

    Slots: `matrices`; `height, width`, of a matrix of the source; `x0` and `x0_step`, from one to the next;
    `goal` and `goal_step`; `faults`.

    Attributes:
        dtype: of the elements.
        tiled: whether tiles of a matrix go through shared memory, for large ones.
    """

    dtype: str
    tiled: bool
    slots = ("matrices", "height", "width", "x0_step", "x0", "goal", "goal_step", FAULTS)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return _TILE * _PADDED * ITEM_BYTES[self.dtype] if self.tiled else 0

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, x0=f"const {item} *", goal=f"{item} *", faults="i64 *")
        head = f'extern "C" __global__ void {name}({kinds}) {{\n'
        if not self.tiled:
            return f"""{head}{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = height * width, inside = at % size;
  if (at >= matrices * size) return;
  const {item} x = x0[at / size * x0_step + inside % height * width + inside / height];
  const bool good = x - x == 0;
  if (!good) faults[0] = 1;
  goal[at / size * goal_step + inside] = good ? x : {item}(0);
}}
"""
        return f"""{head}  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  {item} *const tile = ({item} *)memory;
  const i64 across = (width + {_TILE - 1}) / {_TILE}, down = (height + {_TILE - 1}) / {_TILE};
  const i64 matrix = blockIdx.x / (across * down), number = blockIdx.x % (across * down);
  const i64 row = number / across * {_TILE}, column = number % across * {_TILE};
  const u32 lane = threadIdx.x % {_TILE}, first = threadIdx.x / {_TILE};
  const {item} *const from = x0 + matrix * x0_step;
  {item} *const to = goal + matrix * goal_step;
  for (u32 k = first; k < {_TILE}; k += {THREADS // _TILE}) {{
    if (row + k >= height || column + lane >= width) continue;
    const {item} x = from[(row + k) * width + column + lane];
    const bool good = x - x == 0;
    if (!good) faults[0] = 1;
    tile[k * {_PADDED} + lane] = good ? x : {item}(0);
  }}
  __syncthreads();
  for (u32 k = first; k < {_TILE}; k += {THREADS // _TILE})
    if (column + k < width && row + lane < height)
      to[(column + k) * height + row + lane] = tile[lane * {_PADDED} + k];
}}
"""


def turned(dtype: str, values: Mapping[str, int]) -> Launch:
    """A launch that turns matrices, with values of its slots."""
    height, width, matrices = (values[slot] for slot in ("height", "width", "matrices"))
    if height * width <= _SMALL:
        return launch_of(Turned(dtype, False), matrices * height * width, values)
    variant = Turned(dtype, True)
    blocks = matrices * -(-height // _TILE) * -(-width // _TILE)
    arguments = arguments_of(variant, values)
    return Launch(variant, (blocks, 1, 1), (THREADS, 1, 1), arguments, variant.shared_bytes)


@dataclass(frozen=True)
class Copied:
    """goal[k] = source[k], matrices of `height` times `width` elements; a word is set for NaN or infinity.

    Slots: as those of `Turned`.

    Attributes:
        dtype: of the elements.
        part: "all", or the triangle that is looked at: "lower", "upper".
    """

    dtype: str
    part: str = "all"
    slots = ("matrices", "height", "width", "x0_step", "x0", "goal", "goal_step", FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, x0=f"const {item} *", goal=f"{item} *", faults="i64 *")
        place = {
            "all": "",
            "lower": "inside % width > inside / width || ",
            "upper": "inside % width < inside / width || ",
        }[self.part]
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = height * width, inside = at % size;
  if (at >= matrices * size) return;
  const {item} x = x0[at / size * x0_step + inside];
  const bool good = {place}x - x == 0;
  if (!good) faults[0] = 1;
  goal[at / size * goal_step + inside] = good ? x : {item}(0);
}}
"""


def copied(dtype: str, values: Mapping[str, int], part: str = "all") -> Launch:
    """A launch that copies matrices, with values of its slots."""
    count = values["matrices"] * values["height"] * values["width"]
    return launch_of(Copied(dtype, part), count, values)
