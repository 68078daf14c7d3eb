"""fold: which new values of variables are written straight over the old ones.

What is done to the elements of a product (bias, activation, its gradient, the update of the weights) joined
the product's region in `fuse`; here it is decided whether the update needs memory of its own.

Outputs are computed first, with the variables as they are, and so is all that may raise
(`Dependencies.early`): nothing must have changed then. A region that writes a variable comes after every
other region that reads it. Inside it, the variable may be read element by element only, in the walk that also
writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.region import product_of, walks_of
from magmadnn.graph.node import Node
from magmadnn.graph.program import Program

from .dependencies import Dependencies, in_order
from .draft import Draft
from .region import BY_PYTHON, Region, RegionKind


def fold(draft: Draft) -> Draft:
    """Write updates over the variables themselves wherever nobody needs the old values any more."""
    chosen = _Choices(draft)
    chosen.take(_candidates(draft, chosen.known, chosen.early))
    known, before = chosen.known.before, chosen.before
    extra = {r: needs - known[r] for r, needs in before.items() if needs - known[r]}
    return replace(draft, before=extra, in_place=chosen.in_place)


Update = tuple[Node, Node, Region]  # a variable, its new value, and the region that computes it


class _Choices:
    """Updates that are written in place, and what must run before what therefore."""

    def __init__(self, draft: Draft) -> None:
        self.known = draft.dependencies
        self.early = self.known.early(draft.program.outputs)
        self.before = self.known.before
        self.in_place: dict[Node, Node] = {}
        self._position = {r: (r not in self.early, k) for k, r in enumerate(draft.regions)}

    def take(self, updates: Sequence[Update]) -> None:
        """Choose, in order, each update that makes no circle; mostly all of them can be, and at once."""
        trial = dict(self.before)
        for target, _, region in updates:
            trial[region] = trial[region] | (self.known.readers(target) - {region})
        if in_order(trial, self._position) is not None:
            self.before = trial
            self.in_place |= {value: target for target, value, _ in updates}
        elif len(updates) > 1:
            half = len(updates) // 2
            self.take(updates[:half])
            self.take(updates[half:])


def _candidates(draft: Draft, known: Dependencies, early: set[Region]) -> list[Update]:
    """The updates whose regions may write them over their variables."""
    is_alone, found = alone(draft.program, draft.layouts), []
    for target, value in draft.program.updates:
        region = known.home.get(value)
        if region is None or region.kind in BY_PYTHON or region in early:
            continue
        if is_alone(target, value) and is_safe(target, value, region, draft.layouts):
            found.append((target, value, region))
    return found


def alone(program: Program, layouts: Layouts) -> Callable[[Node, Node], bool]:
    """What tells of an update whether its value is of no other, nor its variable's old value."""
    times = Counter(value for _, value in program.updates)
    bases = Counter(layouts.bases[value] for _, value in program.updates)

    def is_alone(target: Node, value: Node) -> bool:
        return times[value] == 1 and bases[target] == (layouts.bases[value] is target)

    return is_alone


def is_safe(target: Node, value: Node, region: Region, layouts: Layouts) -> bool:
    """Whether the region that computes `value` may write it over `target`, as far as it goes itself."""
    if region.numbers and _is_read_again(target, value, region, layouts):
        return False  # a walk over a row after the one that stores would read what is new
    if region.kind is RegionKind.GEMM and _reads_in_product(region, target, layouts):
        return False  # elements that are stored already would be read again for others
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
