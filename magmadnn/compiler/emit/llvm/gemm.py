"""Matrix products: C = alpha * op(A) op(B) + beta * C, row-major, with an epilogue folded in.

The order of the loops, from the outside::

    for rows of A in blocks (a block stays in the second-level cache)
      for columns of B in blocks (all of them, unless sums need scratch memory)
        for k in blocks
          [copy the block of A]
          for columns in panels of one tile (a panel stays in the first-level cache)
            [copy the panel of B, turned if B is stored transposed]
            for rows in tiles: the tile                                      (gemm_tile.py)
            [after the last block of k: the epilogue, while the panel's sums are in the cache]

What is computed, exactly: each element is one chain `sum = fma(a, b, sum)` from 0 in the order of k;
then `sum` itself, or with alpha and beta `fma(beta, C, alpha * sum)` (`alpha * sum` if beta = 0, C
unread); then the epilogue. Blocks, tiles, copies, vector width, threads and transposes do not enter, so
they never change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import FLOATS, Code, item_bytes
from .gemm_loops import Blocking, Epilogue, Nest, a_panel_stride, default_blocking
from .gemm_tile import largest_tile
from .kernel import ALIGNMENT, Frame
from .target import Target

_SLOTS = ("row0", "row1", "column0", "column1", "k", "a", "lda", "b", "ldb", "c", "ldc")


@dataclass(frozen=True)
class Gemm:
    """The kernel C = op(A) op(B), or alpha * op(A) op(B) + beta * C, for rows and columns of C.

    Slots: `row0, row1, column0, column1`, the part of C to compute; `k`; `a, lda, b, ldb, c, ldc`, the
    addresses of the whole matrices and the elements from row to row; if scaled `alpha, beta`, addresses
    of numbers of the same dtype; then those of the epilogue.

    Attributes:
        dtype: float32 or float64, of everything.
        transpose_a: A is stored [k, m] rather than [m, k].
        transpose_b: B is stored [n, k] rather than [k, n].
        scaled: whether there are alpha and beta.
        epilogue: what is done to the elements last.
        blocking: how the loops are cut; None: by the target's caches.
    """

    dtype: str
    transpose_a: bool = False
    transpose_b: bool = False
    scaled: bool = False
    epilogue: Epilogue | None = None
    blocking: Blocking | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        scale = ("alpha", "beta") if self.scaled else ()
        return (*_SLOTS, *scale, *(self.epilogue.slots if self.epilogue else ()))

    def blocking_for(self, target: Target) -> Blocking:
        """The blocking in use on `target`."""
        item = item_bytes(FLOATS[self.dtype])
        return self.blocking or default_blocking(target, largest_tile(target, item), item)

    def scratch_bytes(self, target: Target) -> int:
        """Scratch memory that the kernel needs."""
        return layout(self, target)["bytes"]

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        item = FLOATS[self.dtype]
        starts = layout(self, target)
        scratch = {name: frame.scratch.at(at).viewed(item) for name, at in starts.items()}
        Nest(
            code,
            frame,
            largest_tile(target, item_bytes(item)),
            self.blocking_for(target),
            scratch,
            (self.transpose_a, self.transpose_b),
            self.scaled,
            self.epilogue,
        ).write()


def layout(gemm: Gemm, target: Target) -> dict[str, int]:
    """Where in scratch memory lie a panel of B, a block of A, the last panel's sums and further sums."""
    item = item_bytes(FLOATS[gemm.dtype])
    tile, blocking = largest_tile(target, item), gemm.blocking_for(target)
    depth = blocking.max_depth(gemm.scaled)
    panels = 1 if gemm.transpose_b else blocking.group
    sizes = {
        "panel": (depth + tile.lanes) * tile.columns * panels,
        "block": blocking.rows // tile.rows * a_panel_stride(tile, depth),
        "edge": blocking.rows * tile.columns,
        "sums": blocking.rows * blocking.columns if gemm.scaled else 0,
    }
    starts, at = dict[str, int](), 0
    for name, size in sizes.items():
        starts[name] = at
        at += -(-size * item // ALIGNMENT) * ALIGNMENT
    return {**starts, "bytes": at}
