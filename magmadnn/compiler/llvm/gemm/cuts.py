"""The ways to compute a product that a measurement may choose from; all give the same bits.

What a kernel is told when it runs (`Cut`): how deep and how high blocks are, what is copied, how many panels
at a time. What makes other code: the register tile and the width of its vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.ir.builder import FLOATS, item_bytes
from magmadnn.compiler.llvm.ir.target import Target

from .blocking import Cut, default_blocking
from .gemm import blocking_for, tile_for
from .register_tile import Tile

RULE = "by rule"
BETWEEN = "; "  # a tile and how its loops are cut, in the name of a way
_DEPTHS = (
    1.0,
    0.75,
)  # of the rule's; a deeper block passes over C less often, a shallower one stays in L1
_GROUPS = (1, 8)  # panels of B that are copied at a time, beside what the rule says
# Rows by vectors, by the number of registers, beside the largest tile: ones that fit sizes which it does
# not, and ones that load fewer elements of A or vectors of B for each FMA. Fewer than eight sums would wait
# for each other. With 16 registers tiles of one vector (12 x 1, 8 x 1) took 1.14 to 2.1 times as long.
_TILES = {16: ((4, 3), (5, 2), (4, 2)), 32: ((6, 4), (12, 2), (5, 4), (4, 4))}
_NARROWER = {64: ((6, 4), (12, 2))}  # by bytes of a vector: of half as many, with all registers
_WIDEST_JOINED = {16: 2, 32: 4}  # vectors across, by the number of registers


@dataclass(frozen=True)
class Way:
    """One way: the kernel, which may have a tile of its own, and what its slot `cuts` is."""

    gemm: Gemm
    word: int


def tile_words(tile: Tile, item: int) -> str:
    """A tile in words; `item`: bytes of an element."""
    return f"tile {tile.rows} x {tile.width} vectors of {tile.lanes * item} bytes"


def tiled(gemm: Gemm, target: Target) -> dict[str, Gemm]:
    """The product with each tile other than the largest one, by the tile in words."""
    item = item_bytes(FLOATS[gemm.dtype])
    largest = tile_for(replace(gemm, blocking=None), target)
    shapes = [
        *(Tile(r, w, largest.lanes) for r, w in _TILES.get(target.vector_registers, ())),
        *(Tile(r, w, largest.lanes // 2) for r, w in _NARROWER.get(target.vector_bytes, ())),
    ]
    made = {}
    for tile in shapes:
        blocking = replace(default_blocking(target, tile, item), tile=tile)
        made[tile_words(tile, item)] = replace(gemm, blocking=blocking)
    return made


def for_joined_rows(gemm: Gemm, target: Target, columns: int) -> Gemm:
    """A product whose A has joined axes, with the tile for so many columns.

    On x86 each row of such a tile has an address in one of 16 registers: eight rows by three vectors took
    twice as long as six by four. A tile as wide as C, where that is narrow, has no panel at its edge.
    """
    if not target.triple.startswith("x86_64"):
        return gemm
    item = item_bytes(FLOATS[gemm.dtype])
    lanes = target.lanes(item)
    width = min(-(-columns // lanes), _WIDEST_JOINED[target.vector_registers])
    tile = Tile(8 if width == 1 else 6, max(width, 1), lanes)
    return replace(gemm, blocking=replace(default_blocking(target, tile, item), tile=tile))


def ways(gemm: Gemm, target: Target, rows: int, k: int) -> dict[str, Way]:
    """All ways, by name; the emitter's own rule comes first. `cuts` explains the arguments."""
    found = _ways(gemm, target, rows, k)
    for words, other in tiled(gemm, target).items():
        found |= {f"{words}{BETWEEN}{n}": w for n, w in _ways(other, target, rows, k).items()}
    return found


def way_called(name: str, gemm: Gemm, target: Target, rows: int, k: int) -> Way:
    """The way of that name; the rule, where this product has none."""
    words, between, cut = name.rpartition(BETWEEN)
    kernel = tiled(gemm, target).get(words) if between else gemm
    word = None if kernel is None else _every_cut(kernel, target, rows, k).get(cut)
    return Way(gemm, 0) if kernel is None or word is None else Way(kernel, word)


def _ways(gemm: Gemm, target: Target, rows: int, k: int) -> dict[str, Way]:
    return {name: Way(gemm, word) for name, word in _every_cut(gemm, target, rows, k).items()}


def _every_cut(gemm: Gemm, target: Target, rows: int, k: int) -> Mapping[str, int]:
    return cuts(gemm, target, rows, k, grouped=True)


def cuts(gemm: Gemm, target: Target, rows: int, k: int, grouped: bool = False) -> dict[str, int]:
    """What the slot `cuts` is for each way to cut the loops, by name; the emitter's own rule comes first.

    Args:
        gemm: the product, with its tile.
        target: the machine.
        rows: of the part of C that is computed at a time.
        k: steps of the sum.
        grouped: whether copies of B are tried for several numbers of panels at a time.
    """
    blocking, high = blocking_for(gemm, target), tile_for(gemm, target).rows
    found, seen = {RULE: 0}, set[tuple[int, int, bool, bool]]()
    for share in _DEPTHS:
        depth = int(blocking.depth * share)
        for most in (blocking.rows, max(blocking.rows // 2 // high, 1) * high):
            for copy_a, copy_b in _copies(gemm):
                steps, blocks = max(1, (k + depth // 2) // depth), -(-rows // most)
                if (steps, blocks, copy_a, copy_b) in seen:
                    continue  # another way that comes to the same for this size
                seen.add((steps, blocks, copy_a, copy_b))
                name = f"depth {depth}, rows {most}{', copy A' * copy_a}{', copy B' * copy_b}"
                found[name] = Cut(depth, most, copy_a, copy_b).word
                for group in _GROUPS if grouped and copy_b and not gemm.transpose_b else ():
                    words = f"{name} {group} {'panels' if group > 1 else 'panel'} at a time"
                    found[words] = Cut(depth, most, copy_a, copy_b, group).word
    return found


def _copies(gemm: Gemm) -> list[tuple[bool, bool]]:
    """Whether A and B are copied; what is converted, and what is stored transposed of B, always is."""
    ways = [(False, False), (False, True), (True, True)]
    always_a, always_b = gemm.load_a is not None, gemm.transpose_b or gemm.load_b is not None
    return [(a, b) for a, b in ways if (a or not always_a) and (b or not always_b)]
