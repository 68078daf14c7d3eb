"""The launches of a run as text: what runs, on how many blocks, and what waits for what."""

from __future__ import annotations

import re
from collections.abc import Sequence

from magmadnn.backends.cuda.engine import ArrayNode, HostNode, LibraryNode
from magmadnn.compiler.cuda.fused.chained import Chained
from magmadnn.compiler.cuda.fused.merged import Merged
from magmadnn.compiler.cuda.fused.summed import Summed
from magmadnn.compiler.cuda.gemm.gemm import GemmVariant
from magmadnn.compiler.cuda.gemm.stacked import StackedProduct
from magmadnn.compiler.cuda.gemm.tiled import TiledProduct
from magmadnn.compiler.cuda.megakernel.whole import WholeVariant
from magmadnn.compiler.cuda.text.variant import Grid, Variant

from .launch import Item


def listing(items: Sequence[Item], after: Sequence[tuple[int, ...]]) -> str:
    """A line for each launch, one more for each kernel that was merged into it; no addresses."""
    lines: list[str] = []
    for number, (item, edges) in enumerate(zip(items, after, strict=True)):
        behind = f"; after {', '.join(map(str, edges))}" if edges else ""
        if isinstance(item.what, LibraryNode | ArrayNode | HostNode):
            lines.append(f"{number}: {item.what.title}{behind}")
            continue
        one = item.what
        shared = f", {one.shared_bytes} bytes shared" if one.shared_bytes else ""
        blocks = f"{_sizes(one.grid)} blocks of {_sizes(one.block)} threads{shared}"
        lines.append(f"{number}: {_own(one.variant)}: {blocks}{behind}")
        if isinstance(one.variant, Merged):
            lines += [f"   {_own(p.variant)}: {_sizes(p.grid)} blocks" for p in one.variant.parts]
    return "\n".join(lines)


def _sizes(sizes: Grid) -> str:
    """Without what is 1 at the end."""
    return re.sub(r"( x 1)+$", "", " x ".join(map(str, sizes)))


def _own(variant: Variant) -> str:
    """What a kernel of our own is."""
    if isinstance(variant, Merged):
        return f"{len(variant.parts)} kernels merged"
    if isinstance(variant, Chained):
        return f"chain of {_own(variant.first)}, {_own(variant.rows)}, {_own(variant.last)}"
    if isinstance(variant, Summed):
        return f"{_own(variant.product)} with sums of columns"
    if isinstance(variant, GemmVariant):
        return _product(variant)
    if isinstance(variant, StackedProduct):
        return f"stack of {variant.count}, each {_product(variant.product)}"
    if isinstance(variant, WholeVariant):
        parts = sum(map(len, variant.levels))
        return f"one kernel of {parts} parts in {len(variant.levels)} levels"
    name = type(variant).__name__.removesuffix("Variant").lower()
    return f"own kernel ({name})"


def _product(variant: GemmVariant | TiledProduct) -> str:
    """What a product of our own is."""
    text = f"own product {_sizes(variant.sizes)} in {variant.arithmetic}"
    if isinstance(variant, GemmVariant):
        return text
    rows = ", rows picked" if variant.picked else ""
    return f"{text}, tiles {_sizes((*variant.block, 1))}{rows}"
