"""How products of stacks are cut into tiles that pass through shared memory (`staged.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from magmadnn.compiler.cuda.text.variant import REGISTERS, RESERVED_BYTES, Chip
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.gemm import Finish, Gemm

from .arithmetic import ARITHMETIC
from .sized import SizedProduct, constants, is_countable, sized

_DEEP = 128  # bytes of k of a stage
_STEP = 16
_SHORT_K = 256  # for which all of B's k is kept
_LEAST = 64  # columns, and sums where they are long
_WIDE = 8  # halves that are copied together, where all lie so
_SHORT = 128  # rows, columns or sums of products of halves that bandwidth limits, whatever the others are;
_MOST_OPERATIONS = 3e8  # up to which others are taken
_BESIDE = 2  # blocks that are to share a multiprocessor,
_THREADS = 512  # and threads of those of halves
# 16 rows and 8 columns of a warp, times; warps over rows and columns.
_STAGED_TILES = ((4, 4, 2, 4), (2, 4, 4, 2), (2, 4, 2, 4), (2, 4, 2, 2))
_LOOPED_TILES = ((2, 4, 1, 4), (2, 4, 2, 2))


@dataclass(frozen=True)
class TiledProduct(SizedProduct):
    """A product of a stack.

    Attributes:
        tile: rows and columns of a warp, in units of 16 and 8.
        warps: of a block, over rows and columns.
        stages: tiles of k in shared memory; 0 where a block keeps its columns of B and goes through rows,
        split: of which there are so many parts, each for a block.
        picked: whether lines of A are rows of a larger array.
        each: elements that are copied together.
    """

    tile: tuple[int, int]
    warps: tuple[int, int]
    stages: int
    split: int = 1
    picked: bool = False
    each: int = 4

    arithmetic = "tf32"

    @property
    def item(self) -> int:
        """Bytes of an element of the factors."""
        return ITEM_BYTES[self.kernel.halves or self.kernel.dtype]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * math.prod(self.warps)

    @property
    def blocks(self) -> int:
        """Blocks of one product of the stack."""
        across = -(-self.sizes[1] // self.block[1])
        return across * (-(-self.sizes[0] // self.block[0]) if self.stages else self.split)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the result that a tile has, in elements."""
        return 16 * self.tile[0] * self.warps[0], 8 * self.tile[1] * self.warps[1]

    @property
    def lines(self) -> int:
        """Lines of the left factor as it is stored: m of [m, k], k of [k, m]."""
        return self.sizes[2] if self.kernel.transpose_a else self.sizes[0]

    @property
    def registers(self) -> int:
        """Registers of a thread: all that are there for it beside the other blocks."""
        return REGISTERS // (self.threads * self.resident)

    @property
    def resident(self) -> int:
        """Blocks of it that share a multiprocessor, where that has as much as the largest ones have."""
        return _THREADS // self.threads if self.kernel.halves else _BESIDE

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: tiles of both operands, and where lines lie."""
        rows, columns = self.block
        if self.stages:
            chunks = -(-self.sizes[2] * self.item // _DEEP)
            return min(self.stages, chunks) * (rows + columns) * _DEEP + 8 * rows * self.picked
        deep = -(-self.sizes[2] // _STEP) * _STEP
        return deep * (2 * (rows + 8) + columns + 8) * self.item + 8 * deep * self.picked

    def types(self, name: str) -> str:
        """Structs of its slots, sizes and formulas, and the type of all of it: `NAME_type`."""
        numbers = self.numbers() | {
            "STAGES": self.stages,
            "DEEP": _DEEP // self.item,
            "EACH": self.each,
            "SPLIT": self.split,
            "PICKED": self.picked,
        }
        numbers |= dict(zip(("MT", "NT"), self.tile, strict=True))
        numbers |= dict(zip(("WM", "WN"), self.warps, strict=True))
        numbers |= {"STEPS": -(-self.sizes[2] // _STEP)}
        numbers |= dict.fromkeys(("EARLY_A", "EARLY_B", "EARLY_FINISH", "EAGER"), False)
        kind = "Staged" if self.stages else "Looped"
        return f"""{self.slots_text(name, "i64")}
struct {name}_shape {{ typedef {self.kinds["a"]} Stored; {constants(numbers)} }};
{self.finish(name)}typedef gemm::{kind}<{name}_shape, gemm::{ARITHMETIC["tf32"]}, {name}_finish> {name}_type;
"""


def tiled(
    kernel: Gemm, values: Mapping[str, int], count: int, chip: Chip, steps: tuple[int, ...]
) -> TiledProduct | None:
    """The product of a stack of `count` in TF32, or of halves; None where it has not what these kernels take.

    Args:
        kernel: what is computed, of float32.
        values: of the slots of one product.
        count: of products.
        chip: what it runs on.
        steps: elements from one matrix of a factor to the next, of both.
    """
    m, n, k = values["row1"], values["column1"], values["k"]
    if kernel.dtype != "float32" or n < _LEAST or m < _STEP:
        return None
    if kernel.halves is None and (kernel.load_a or kernel.load_b):
        return None
    if kernel.halves and min(m, n, k) > _SHORT and 2.0 * m * n * k > _MOST_OPERATIONS:
        return None
    if not isinstance(kernel.epilogue, Finish | None):
        return None
    looped = kernel.transpose_a and kernel.halves is None
    if looped and (kernel.transpose_b or k > _SHORT_K):
        return None
    if not looped and k < _LEAST:
        return None
    if not is_countable(kernel, values):
        return None
    own = sized(kernel, values)
    if any(dict(own.widths)[s] != 4 for s in "ab") or any(step % 4 for step in steps):
        return None
    lengths = (m if kernel.transpose_a else k, k if kernel.transpose_b else n)
    places = (values["lda"], values["ldb"], *steps, *lengths, values["a"] // 2, values["b"] // 2)
    wide = kernel.halves is not None and not any(number % _WIDE for number in places)
    each = _WIDE if wide else 4
    made = [
        replace(one, each=each)
        for shape in (_LOOPED_TILES if looped else _STAGED_TILES)
        for one in (_looped(own, shape, count, chip) if looped else _staged(own, shape))
        if replace(one, picked=True).shared_bytes <= chip.shared_bytes
    ]
    return min(made, key=lambda one: _cost(one, count, chip), default=None)


def _staged(own: SizedProduct, shape: tuple[int, int, int, int]) -> list[TiledProduct]:
    return [TiledProduct(**vars(own), tile=shape[:2], warps=shape[2:], stages=s) for s in (3, 2)]


def _looped(
    own: SizedProduct, shape: tuple[int, int, int, int], count: int, chip: Chip
) -> list[TiledProduct]:
    """A block for all rows of its columns, or for fewer where there are processors for more blocks."""
    most = -(-own.sizes[0] // (16 * shape[0] * shape[2]))
    wanted = -(-_BESIDE * chip.processors // count)
    return [
        TiledProduct(**vars(own), tile=shape[:2], warps=shape[2:], stages=0, split=split)
        for split in range(1, min(most, wanted) + 1)
    ]


def _cost(one: TiledProduct, count: int, chip: Chip) -> float:
    """Rounds in which multiprocessors take the blocks, times what a block reads; few stages wait longer."""
    fits = (chip.shared_bytes + RESERVED_BYTES) // (one.shared_bytes + RESERVED_BYTES)
    rounds = -(-count * one.blocks // (chip.processors * min(fits, one.resident)))
    rows, columns = one.block
    if one.stages:
        return rounds * (rows + columns) * (1 if one.stages > 2 else 1.2)
    tiles = -(-one.sizes[0] // rows)
    return rounds * (columns + -(-tiles // one.split) * rows)
