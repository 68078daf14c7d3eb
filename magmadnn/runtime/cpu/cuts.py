"""Where rows or columns of a step are cut for threads; factors of products that are copied for all parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.gemm import blocking_for, tile_for
from magmadnn.compiler.llvm.gemm.packing.shared import Panels, SharedLayout, shared_layout
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.lower.row_blocks import RowBlocks
from magmadnn.compiler.regions.draft import Lowered
from magmadnn.graph.op import Array

Part = tuple[float, dict[str, int]]  # what it costs, and the slots that differ from the whole
LEAST_ELEMENTS = 20_000  # of a part at least: see `tasks.py`
STACK_STEP = 16  # matrices of a stack, at a multiple of which it is cut: a vector takes as many
_STACK_WORK = 100_000  # multiply-adds of a part of a stack, at least
# Steps of k for each row (or column) that parts share out, from which on a product is deep.
_DEEP = 4
_DEEP_PRODUCTS = 4_000_000  # of a deep product at least
_SHARE = 1.5  # the next part is what is left over threads times this: parts shrink towards the end


def even_ends(length: int, step: int, parts: int) -> list[int]:
    """Where equal parts of `length` end: multiples of `step`, about."""
    ends = [min(round(length * k / parts / step) * step, length) for k in range(1, parts)]
    return sorted({*ends, length} - {0})


def even_parts(rows: int, columns: int, threads: int) -> list[tuple[int, int]]:
    """Rows of a matrix that is only copied, in one part for each thread if it is large enough."""
    parts = max(1, min(threads, rows * columns // LEAST_ELEMENTS))
    return list(pairwise(rows * k // parts for k in range(parts + 1)))


def shrinking_ends(length: int, step: int, threads: int, least: float) -> list[int]:
    """Where parts of `length` end: multiples of `step`, each part smaller than the one before.

    Threads that take parts in turn end at about the same time, whatever held one of them up, and yet few
    parts are needed. None is smaller than `least`, about.
    """
    ends, at = list[int](), 0
    while at < length:
        size = max((length - at) / (threads * _SHARE), least)
        at += max(round(size / step), 1) * step
        if length - at < least / 2:
            at = length
        ends.append(min(at, length))
    return ends


def is_deep(values: Mapping[str, int], by_row: bool) -> bool:
    """Whether a product sums so many steps of k that reading factors counts beside multiplying.

    Each part reads one factor as a whole, from memory: so there should be few parts, and a copy of that
    factor for all of them would cost more than it saves. Gradients of filters are such products.

    Args:
        values: the slots of the product.
        by_row: whether its parts are rows of C, or columns.
    """
    rows, columns, k = values["row1"], values["column1"], values["k"]
    shared_out = rows if by_row else columns
    return rows * columns * k >= _DEEP_PRODUCTS and k >= _DEEP * shared_out


def _stack_ends(count: int, threads: int, work: float) -> list[int]:
    """Where parts of a stack of matrices end, whose functions take so many multiply-adds together."""
    parts = work / _STACK_WORK
    if threads == 1 or parts < 2 or count < 2:
        return [count]
    step = STACK_STEP if count >= STACK_STEP * threads else 1
    return shrinking_ends(count, step, threads, max(step, count / parts))


def parts_of_stack(values: Mapping[str, int], threads: int) -> list[Part]:
    """The parts of a step that calls a library's function for each matrix of a stack."""
    count, n = values["row1"], values["width"]
    each = n * max(n * n, values["rows"] * values["columns"])
    ends = _stack_ends(count, threads, count * each)
    cost = each / LEAST_ELEMENTS
    return [(cost * (b - a), {"row0": a, "row1": b}) for a, b in pairwise((0, *ends))]


def parts_of_blocks(blocks: RowBlocks, threads: int) -> list[Part]:
    """The parts of a reduction in blocks: about as many in all as there are threads, each of whole blocks."""
    name = "outer" if isinstance(blocks.first, Columns) else "row"
    counts = [values[f"{name}1"] for values in blocks.values]
    parts: list[Part] = []
    for values, count in zip(blocks.values, counts, strict=True):
        each = values["row1"] * values["column1"] if name == "outer" else values["column1"]
        cost = count * each / LEAST_ELEMENTS
        share = max(round(threads * count / sum(counts)), 1)
        parts += [
            (cost * (end - start) / count, {**values, f"{name}0": start, f"{name}1": end})
            for start, end in pairwise((0, *even_ends(count, 1, min(share, count))))
        ]
    return parts


def halves(part: Part, name: str, length: int, step: int) -> list[Part]:
    """A part of a product cut once more, across, at a multiple of `step`, if it is worth two.

    Tiles are up to 48 columns wide, so a matrix has few of them: of 11 one thread would compute six, and
    another wait for the sixth.
    """
    cost, slots = part
    ends = even_ends(length, step, 2 if cost >= 2 else 1)
    return [
        (cost * (end - start) / length, {**slots, f"{name}0": start, f"{name}1": end})
        for start, end in pairwise((0, *ends))
    ]


# --- factors that are copied once -----------------------------------------------------------------


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
