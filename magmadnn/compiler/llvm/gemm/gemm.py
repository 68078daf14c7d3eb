"""Matrix products: C = op(A) op(B), row-major, with an epilogue folded in.

The order of the loops, from the outside::

    for columns of B in blocks (all of them, unless sums need scratch memory)
      for rows of A in blocks (a block stays in the second-level cache)
        for k in blocks
          [copy the block of A]
          for columns in panels of one tile (a panel stays in the first-level cache)
            [copy the panel of B, turned if B is stored transposed; once for all rows, unless it is too large]
            for rows in tiles                                                (panel.py, strip.py)
              the tile, which announces some of the next panel of B          (register_tile, cache_hints)
              [after the last block of k: the epilogue                       (finish.py)]

Where threads compute parts of C, the factor that all parts read was copied before for all of them
(`shared.py`), if the product is large.

Sums that wait for the next block of k lie in scratch memory, those of a tile side by side. In C, whose rows
are often a power of two apart, a tile would load sums from the places in pages where the one before it has
just stored its own, and wait for that: 5 percent of the time of such a product.

What is computed, exactly: each element is one chain `sum = fma(a, b, sum)` from 0 in the order of k;
then the epilogue. Blocks, tiles, copies, vector width, threads and transposes do not enter, so
they never change a bit. Factors of half precision become float32 in the copies, with the same chain; but
on CPUs with AVX512-BF16 a chain of products of two factors in bfloat16 goes by pairs (`dots.py`).
"""

from __future__ import annotations

from dataclasses import replace

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.ir.builder import FLOATS, Code, item_bytes
from magmadnn.compiler.llvm.ir.frame import ALIGNMENT, Frame
from magmadnn.compiler.llvm.ir.target import Target

from .blocking import Blocking, block_elements, default_blocking
from .finish import Finishing
from .loops import Nest
from .packing.read import readers_of
from .register_tile import Tile, largest_tile

_ADDRESS = 8  # bytes


def tile_for(gemm: Gemm, target: Target) -> Tile:
    """The register tile in use on `target`; parts of C are best cut at multiples of it."""
    chosen = gemm.blocking.tile if isinstance(gemm.blocking, Blocking) else None
    return chosen or largest_tile(target, item_bytes(FLOATS[gemm.dtype]))


def blocking_for(gemm: Gemm, target: Target) -> Blocking:
    """The blocking in use on `target`."""
    tile = tile_for(gemm, target)
    if isinstance(gemm.blocking, Blocking):
        found = gemm.blocking.whole(tile)
    else:
        found = default_blocking(target, tile, item_bytes(FLOATS[gemm.dtype]))
    return replace(found, kept_bytes=0) if gemm.shared == "b" else found


def gemm_scratch_bytes(gemm: Gemm, target: Target) -> int:
    """Scratch memory that the kernel needs."""
    return layout(gemm, target)["bytes"]


def gemm_used_bytes(gemm: Gemm, target: Target, rows: int, columns: int, k: int) -> int:
    """About how much of it a product of these sizes touches."""
    item = item_bytes(FLOATS[gemm.dtype])
    tile, blocking = tile_for(gemm, target), blocking_for(gemm, target)
    high, deep = min(rows, blocking.rows), min(k, blocking.max_depth)
    panels = 1 if gemm.transpose_b else max(blocking.group, blocking.far_group)
    elements = deep * tile.columns * panels + high * tile.columns
    elements += 0 if gemm.shared == "a" else high * deep
    elements += high * min(columns, blocking.columns) if k > deep else 0
    is_kept = rows > high and k * columns * item <= blocking.kept_bytes
    elements += k * columns if is_kept else 0
    return min(elements * item, gemm_scratch_bytes(gemm, target))


def write_gemm(gemm: Gemm, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    item = FLOATS[gemm.dtype]
    starts = layout(gemm, target)
    scratch = {name: frame.scratch.at(at).viewed(item) for name, at in starts.items()}
    Nest(
        code,
        frame,
        tile_for(gemm, target),
        blocking_for(gemm, target),
        scratch,
        (gemm.transpose_a, gemm.transpose_b),
        readers_of(gemm, target),
        gemm.shared,
        gemm.joined,
        Finishing(gemm),
    ).write()


def layout(gemm: Gemm, target: Target) -> dict[str, int]:
    """Where in scratch memory lie copies of B and A, sums of the last panel and of others, kept copies.

    And of a factor of joined axes the addresses of rows and the distances of columns.
    """
    item = item_bytes(FLOATS[gemm.dtype])
    tile, blocking = tile_for(gemm, target), blocking_for(gemm, target)
    panels = 1 if gemm.transpose_b else max(blocking.group, blocking.far_group)
    sizes = {
        "panel": (blocking.max_depth + tile.lanes) * tile.columns * panels,
        "block": block_elements(tile, blocking, gemm.load_a is not None),
        "edge": blocking.rows * tile.columns,
        "sums": blocking.rows * blocking.columns,
        "kept": blocking.kept_bytes // item + tile.lanes * tile.columns,
    }
    sizes = {name: count * item for name, count in sizes.items()}
    if gemm.joined_a:
        sizes |= {"rows": blocking.rows * _ADDRESS, "columns": blocking.max_depth * _ADDRESS}
    if gemm.joined_b:
        sizes |= {"rows of b": blocking.max_depth * _ADDRESS}
        sizes |= {"columns of b": panels * tile.columns * _ADDRESS}
    starts, at = dict[str, int](), 0
    for name, size in sizes.items():
        starts[name] = at
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return {**starts, "bytes": at}
