"""Products of small matrices: tiles of results stay in registers, no library is called."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import I64, Value, item_bytes, vector
from magmadnn.compiler.llvm.side_by_side.lanes import in_blocks

from .arguments import LibraryArguments

_ROWS, _VECTORS = 8, 2  # of a tile, where there are registers for it


def write_gemm(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: every element is one chain of multiply-adds, whatever the tile."""
    code, item = arguments.code, arguments.item
    assert code.target is not None
    lanes = code.target.lanes(item_bytes(item))
    tile = _ROWS if code.target.vector_registers >= 32 else _ROWS // 2
    rows, columns, inner = arguments.rows, arguments.columns, arguments.width
    a, b = arguments.operand(0, matrix), arguments.operand(1, matrix)
    result = arguments.result(matrix)
    zero = code.lift(0.0, vector(item, lanes))

    def strip(column: Value, vectors: int, mask: Value | None = None) -> None:
        """All rows of so many vectors of columns."""

        def block(row: Value, height: int) -> None:
            held = [[code.variable(zero) for _ in range(vectors)] for _ in range(height)]
            with code.loop(0, inner) as p:
                right = [
                    b.vector(p * columns + column + k * lanes, lanes, mask) for k in range(vectors)
                ]
                for r, totals in enumerate(held):
                    factor = code.spread(a.at((row + r) * inner + p), lanes)
                    for total, one in zip(totals, right, strict=True):
                        total.value = code.fma(factor, one, total.value)
            for r, totals in enumerate(held):
                for k, total in enumerate(totals):
                    result.put((row + r) * columns + column + k * lanes, total.value, mask)

        in_blocks(code, 0, rows, tile, block)

    wide = columns // (lanes * _VECTORS) * (lanes * _VECTORS)
    whole = columns // lanes * lanes
    with code.loop(0, wide, lanes * _VECTORS) as column:
        strip(column, _VECTORS)
    with code.loop(wide, whole, lanes) as column:
        strip(column, 1)
    with code.when(whole < columns):
        strip(whole, 1, code.lane_numbers(lanes, I64) < columns - whole)
