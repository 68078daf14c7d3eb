"""The ways to cut the loops of a product that a measurement may choose from; all give the same bits."""

from __future__ import annotations

from magmadnn.compiler.kernels.gemm import Gemm

from .gemm import blocking_for, tile_for
from .gemm_loops import Cut
from .target import Target

RULE = "by rule"
_DEPTHS = (
    1.0,
    0.75,
)  # of the rule's; a deeper block passes over C less often, a shallower one stays in L1


def cuts(gemm: Gemm, target: Target, rows: int, k: int) -> dict[str, int]:
    """What the slot `cuts` is for each way, by name; the emitter's own rule comes first.

    Args:
        gemm: the product.
        target: the machine.
        rows: of the part of C that is computed at a time.
        k: steps of the sum.
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
    return found


def _copies(gemm: Gemm) -> list[tuple[bool, bool]]:
    """Whether A and B are copied; what is converted, and what is stored transposed of B, always is."""
    ways = [(False, False), (False, True), (True, True)]
    always_a, always_b = gemm.load_a is not None, gemm.transpose_b or gemm.load_b is not None
    return [(a, b) for a, b in ways if (a or not always_a) and (b or not always_b)]
