"""Which factor of a product is copied once for all of its parts, and how that copying is cut for threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.gemm import blocking_for, tile_for
from magmadnn.compiler.llvm.gemm.packing.shared import Panels, SharedLayout, shared_layout
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.regions.draft import Lowered
from magmadnn.graph.op import Array

_SHARES = 4  # parts of a copy for each thread
_LEAST_PRODUCTS = 100_000_000  # below, a phase more costs as much as copies save


@dataclass(frozen=True)
class SharedFactor:
    """A factor that all parts of a product read, in a copy.

    Attributes:
        side: which one, "a" or "b".
        product: the step, which reads the copy.
        copying: what makes the copy.
        layout: how it lies in memory.
    """

    side: str
    product: Lowered
    copying: Lowered
    layout: SharedLayout

    def parts(self, values: Mapping[str, int], room: Array, threads: int) -> list[dict[str, int]]:
        """The slots of each part of the copying; `values`: those of the product, without a copy."""
        layout = self.layout
        common = {
            "length": values["row1" if self.side == "a" else "column1"], "k": values["k"],
            "steps": layout.steps, "block": layout.block, "source": values[self.side],
            "ld": values[f"ld{self.side}"], "goal": room.ctypes.data,
        }  # fmt: skip
        count = min(threads * _SHARES, layout.panels)
        ends = [layout.panels * number // count for number in range(count + 1)]
        return [{**common, "first": first, "last": last} for first, last in pairwise(ends)]

    def slots(self, room: Array) -> dict[str, int]:
        """The slots of the product that say where the copy lies."""
        return {self.side: room.ctypes.data, f"ld{self.side}": self.layout.block}


def shared_factor(lowered: Lowered, values: Mapping[str, int], by_row: bool) -> SharedFactor | None:
    """The factor that all parts of a product read, if it can be shared.

    Args:
        lowered: the product.
        values: its slots.
        by_row: whether parts are rows of C, which all read B, or columns, which read A.
    """
    gemm = lowered.kernel
    if not isinstance(gemm, Gemm) or gemm.load_a is not None or gemm.load_b is not None:
        return None
    if by_row and gemm.transpose_b:
        return None
    if values["row1"] * values["column1"] * values["k"] < _LEAST_PRODUCTS:
        return None
    side, length = ("b", values["column1"]) if by_row else ("a", values["row1"])
    turned = gemm.transpose_a and not by_row
    panels = Panels(gemm.dtype, side, turned, tile_for(gemm, host()))
    mine = [read for read in lowered.reads if read[0] == side]
    others = [read for read in lowered.reads if read[0] != side]
    return SharedFactor(
        side,
        replace(lowered, kernel=replace(gemm, shared=side), reads=tuple(others)),
        Lowered(panels, tuple(("source", *read[1:]) for read in mine), ()),
        shared_layout(panels, blocking_for(gemm, host()).depth, length, values["k"]),
    )
