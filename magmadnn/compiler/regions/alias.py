"""fold: which new values of variables are written straight over the old ones.

What is done to the elements of a product (bias, activation, its gradient, the update of the weights) joined
the product's region in `fuse`; here it is decided whether the update needs memory of its own.

Outputs are computed first, with the variables as they are. A region that writes a variable comes after every
other region that reads it, and after all calls of NumPy: those may raise, and then nothing must have
changed. Inside it, the variable may be read element by element only, in the walk that also writes it.
"""

from __future__ import annotations

from dataclasses import replace

from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.stages import product_of, walks_of
from magmadnn.graph.node import Node
from magmadnn.graph.program import Program

from .dependencies import in_order
from .draft import Draft
from .region import Region, RegionKind


def fold(draft: Draft) -> Draft:
    """Write updates over the variables themselves wherever nobody needs the old values any more."""
    program, regions, layouts = draft.program, draft.regions, draft.layouts
    known = draft.dependencies
    early = known.early(program.outputs)
    position = {region: (region not in early, k) for k, region in enumerate(regions)}
    before = known.before
    chosen: dict[Node, Node] = {}
    for target, value in program.updates:
        region = known.home.get(value)
        if region is None or region.kind is RegionKind.CALL or region in early:
            continue
        if not is_safe(target, value, region, layouts, program):
            continue
        calls = {r for r in regions if r.kind is RegionKind.CALL}
        earlier = calls | {r for r in regions if known.reads(r, target)}
        trial = {**before, region: before[region] | (earlier - {region})}
        if in_order(trial, position) is not None:
            before = trial
            chosen[value] = target
    extra = {r: needs - known.before[r] for r, needs in before.items() if needs - known.before[r]}
    return replace(draft, before=extra, in_place=chosen)


def is_safe(
    target: Node,
    value: Node,
    region: Region,
    layouts: Layouts,
    program: Program,
) -> bool:
    """Whether the region that computes `value` may write it over `target`, as far as it goes itself."""
    if region.numbers and _is_read_again(target, value, region, layouts):
        return False  # a walk over a row after the one that stores would read what is new
    if region.kind is RegionKind.GEMM and _reads_in_product(region, target, layouts):
        return False  # elements that are stored already would be read again for others
    if sum(v is value for _, v in program.updates) > 1:
        return False
    others = {layouts.bases[v] for t, v in program.updates if v is not value}
    if target in others:
        return False
    own = [i for n in region.nodes for i in n.inputs if layouts.bases[i] is target]
    return all(layouts.is_whole(i) and i.shape == value.shape for i in own)


def _is_read_again(target: Node, value: Node, region: Region, layouts: Layouts) -> bool:
    """Whether a region with numbers of rows reads a variable when its new value may be stored already."""
    readers = {n for n in region.nodes if any(layouts.bases[i] is target for i in n.inputs)}
    if not readers:
        return False
    if region.kind is not RegionKind.ROWS:
        return True
    if value not in region.numbers:
        return _is_read_later(value, readers, region, layouts)
    made_of, stack = {value}, [value]
    while stack:
        fresh = {layouts.bases[i] for i in stack.pop().inputs} - made_of
        made_of |= fresh
        stack.extend(fresh & region.numbers)
    return not readers <= made_of & region.numbers


def _is_read_later(value: Node, readers: set[Node], region: Region, layouts: Layouts) -> bool:
    """Whether a walk after that which stores `value` computes anew what some of `readers` begin."""
    walks = walks_of(region, layouts)
    tainted: set[Node] = set()
    for node in region.nodes:
        bases = {layouts.bases[i] for i in node.inputs}
        if node in readers or bases & (tainted - region.numbers):
            tainted.add(node)
    # a number that is no reduction follows the walk
    return any(node not in walks or walks[node] > walks[value] for node in tainted)


def _reads_in_product(region: Region, target: Node, layouts: Layouts) -> bool:
    return any(layouts.bases[i] is target for i in product_of(region).inputs)
