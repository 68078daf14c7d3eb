"""select: which kernel does each region, and which of its values are stored."""

from __future__ import annotations

from dataclasses import replace

from magmadnn.compiler.regions.draft import Draft, Work
from magmadnn.compiler.regions.region import BY_PYTHON, RegionKind, product_of
from magmadnn.graph.node import Node

from .kernels_of import lower, main_result


def select(draft: Draft) -> Draft:
    """Steps in the order of their phases: a kernel for each region, or the NumPy function of a call."""
    needed = _needed(draft)
    work = []
    for region in sorted(draft.regions, key=lambda r: draft.phases[r]):
        stored = tuple(n for n in region.nodes if n in needed)
        called = region.kind in BY_PYTHON
        lowered = None if called else lower(region, draft.layouts, stored, draft.in_place)
        gemm = region.kind is RegionKind.GEMM
        bare = gemm and main_result(region, stored, draft.in_place) not in stored
        room = product_of(region) if bare else None
        work.append(Work(region, stored, lowered, draft.phases[region], room))
    return replace(draft, work=tuple(work))


def _needed(draft: Draft) -> set[Node]:
    """Nodes whose values are read by other regions, or at the end."""
    home, bases = draft.dependencies.home, draft.layouts.bases
    needed = {bases[root] for root in draft.program.roots}
    for region in draft.regions:
        for node in region.nodes:
            read = (bases[operand] for operand in node.inputs)
            needed.update(base for base in read if home.get(base) is not region)
    return needed
