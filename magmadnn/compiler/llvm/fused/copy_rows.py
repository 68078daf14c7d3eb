"""The kernel that copies rows of an array from all over memory: bytes as they are.

The processor sees no pattern in rows that lie anywhere, so the lines of a row some way ahead are announced
while one is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import I8, I64, Array, Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_LINE = 64  # bytes, of a cache
_WORD = 8
PIECE_WORDS = 3


@dataclass(frozen=True)
class CopyRows:
    """result[i + shift] = source[order[i]] for part of the rows of the piece of the number of the batch.

    Slots: `pieces`, address of `PIECE_WORDS` for each: its first row i, how many rows, and the row of
    the result for the first; `part, parts`, which part of how many; `ahead`, rows; `order`, int64;
    `source, result`, addresses; `source_row, result_row, row_bytes`, bytes from row to row of both, and
    of a row.
    """

    slots = (
        "pieces", "part", "parts", "ahead", "order", "source", "source_row", "result", "result_row",
        "row_bytes",
    )  # fmt: skip

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        order, nbytes = frame.array("order", I64), frame.integer("row_bytes")
        source, step = frame.array("source", I8), frame.integer("source_row")
        result, distance = frame.array("result", I8), frame.integer("result_row")
        piece = frame.array("pieces", I64).at(frame.batch * PIECE_WORDS)
        start, count, shift = piece[0], piece[1], piece[2] - piece[0]
        part, parts = frame.integer("part"), frame.integer("parts")
        last = start + count * (part + 1) // parts
        with code.loop(start + count * part // parts, last) as row:
            later = code.smaller(row + frame.integer("ahead"), last - 1)
            following = source.at(order[later] * step)
            origin, goal = source.at(order[row] * step), result.at((row + shift) * distance)
            with code.choose(nbytes >= _LINE) as (wide, narrow):
                with wide:
                    _write_lines(code, following, origin, goal, nbytes)
                with narrow:
                    _write_words(code, origin, goal, nbytes)


def _write_lines(code: Code, following: Array, origin: Array, goal: Array, nbytes: Value) -> None:
    """Whole lines, and the last one, some of it a second time."""
    whole = nbytes - nbytes % _LINE
    with code.loop(0, whole, _LINE) as at:
        code.prefetch(following, at, written=False)
        goal.put(at, origin.vector(at, _LINE))
    with code.when(whole < nbytes):
        goal.put(nbytes - _LINE, origin.vector(nbytes - _LINE, _LINE))


def _write_words(code: Code, origin: Array, goal: Array, nbytes: Value) -> None:
    """Words, and bytes that are left."""
    whole = nbytes - nbytes % _WORD
    with code.loop(0, whole, _WORD) as at:
        goal.put(at, origin.vector(at, _WORD))
    with code.loop(whole, nbytes) as at:
        goal[at] = origin[at]
