"""Graphs of launches: merged, each with edges to those that it waits for and no others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from magmadnn.backends.cuda.called import Course
from magmadnn.backends.cuda.engine import (
    AmongNode,
    ArrayNode,
    Engine,
    Graph,
    GraphNode,
    HostNode,
    KernelNode,
    LibraryNode,
    MatrixNode,
)
from magmadnn.compiler.cuda.fused.merged import MOST_ARGUMENTS, merge, registers_of
from magmadnn.compiler.cuda.gemm.cut import Sizes, outer_cuts
from magmadnn.compiler.cuda.gemm.gemm import GemmVariant, hastened
from magmadnn.compiler.cuda.text.variant import Chip, Launch, Variant
from magmadnn.compiler.dump import dump_kernel
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.runtime.cuda.code import chip_of, functions_of
from magmadnn.runtime.cuda.schedule.hazards import Span, edges_of, slack_of
from magmadnn.runtime.cuda.schedule.launch import Item, Touched, can_be_in_graph, touched_by
from magmadnn.runtime.cuda.schedule.listing import listing
from magmadnn.runtime.cuda.schedule.merging.chains import Unit, chains_of, joined
from magmadnn.runtime.cuda.schedule.merging.levels import levels_of, load_of, outer_of
from magmadnn.runtime.cuda.schedule.merging.library_groups import groups_around_libraries
from magmadnn.runtime.cuda.schedule.merging.stored_by_sums import stored_by_sums

PATIENT = 12  # launches behind which others come that nothing may be later than
_MANY_ROUNDS = 8  # in which multiprocessors take the blocks of a launch


class Launches(NamedTuple):
    """Launches in order, and those that each waits for."""

    items: list[Item]
    after: list[tuple[int, ...]]


def graph_of(engine: Engine, items: Sequence[Item], merges: bool = True) -> Graph:
    """A graph that does what these launches do one after the other."""
    (graph,) = graphs_of(engine, [items], merges=merges)
    return graph


def graphs_of(
    engine: Engine,
    several: Sequence[Sequence[Item]],
    beside: Sequence[Variant] = (),
    merges: bool = True,
) -> list[Graph]:
    """Such graphs, whose kernels are compiled together, and with those `beside` that will be wanted soon.

    Merged launches are kernels made for given sizes; without `merges` each launch is a kernel of its own.
    """
    chip = chip_of(engine)
    made = [
        [merged(part, chip) if merges else _unmerged(part) for part in cut_at_calls(items)]
        for items in several
    ]
    parts = [part for one in made for part in one]
    launches = [i.what for part in parts for i in part.items if isinstance(i.what, Launch)]
    functions_of(engine, [*(launch.variant for launch in launches), *beside])
    graphs: list[Graph] = []
    for one in made:
        pieces = [_piece(engine, part) for part in one]
        graphs.append(pieces[0] if len(pieces) == 1 else Course(pieces))
    return graphs


def variants_of(engine: Engine, items: Sequence[Item]) -> list[Variant]:
    """The kernels of such a graph, merged."""
    chip = chip_of(engine)
    made = [item for part in cut_at_calls(items) for item in merged(part, chip).items]
    return [item.what.variant for item in made if isinstance(item.what, Launch)]


def cut_at_calls(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Launches in runs that a graph can hold, and the calls between them that none can, each alone."""
    found: list[Sequence[Item]] = []
    for can_be_held, group in itertools.groupby(items, key=can_be_in_graph):
        run = list(group)
        found += [run] if can_be_held else [[item] for item in run]
    return found or [[]]


def _piece(engine: Engine, part: Launches) -> Graph:
    """A graph of launches, or the call that they are."""
    dump_kernel("graph.txt", partial(listing, part.items, part.after))
    call = part.items[0].what if part.items else None
    if isinstance(call, ArrayNode | HostNode) or (
        isinstance(call, MatrixNode) and not call.is_captured
    ):
        return engine.alone(call)
    return engine.graph(nodes_of(engine, part.items, part.after), _patient(part))


def _patient(part: Launches) -> frozenset[int]:
    """Launches that let others go first: those that could run much later without anything being later.

    So the rows of the next batch are fetched, and large weights updated, where the calls of a library leave
    room, not in front of those that the next layer waits for.
    """
    called = [item.what for item in part.items if isinstance(item.what, LibraryNode)]
    if all(isinstance(call, AmongNode) for call in called):  # these are kernels, mostly
        return frozenset()
    slacks = zip(part.items, slack_of(part.after), strict=True)
    return frozenset(
        k
        for k, (item, slack) in enumerate(slacks)
        if slack >= PATIENT and not isinstance(item.what, AmongNode)  # which other GPUs wait for
    )


def nodes_of(
    engine: Engine, items: Sequence[Item], edges: Sequence[tuple[int, ...]]
) -> list[GraphNode]:
    """Launches as nodes that come after those that `edges` says."""
    launches = [item.what for item in items if isinstance(item.what, Launch)]
    functions = functions_of(engine, (launch.variant for launch in launches))
    nodes: list[GraphNode] = []
    for item, after in zip(items, edges, strict=True):
        if isinstance(item.what, LibraryNode):
            nodes.append(replace(item.what, after=after))
        else:
            one = item.launch
            function = functions[one.variant]
            nodes.append(
                KernelNode(function, one.grid, one.block, one.shared_bytes, one.arguments, after)
            )
    return nodes


def merged(items: Sequence[Item], chip: Chip) -> Launches:
    """Fewer launches that do the same; what calls of the device's library come between stays apart."""
    if len(items) == 1 and not can_be_in_graph(items[0]):
        return Launches(list(items), [()])
    items = stored_by_sums(items, chip)
    groups = groups_around_libraries(items)
    if len(groups) == 1 and not _is_call(groups[0]):
        return _merged_kernels(items, chip)
    made, written = list[Item](), list[Span]()
    for group in groups:
        made += group if _is_call(group) else _merged_kernels(group, chip, written).items
        written += [span for item in group for span in item.writes]
    return _unmerged(made)


def _unmerged(items: Sequence[Item]) -> Launches:
    return Launches(list(items), edges_of([(item.reads, item.writes) for item in items]))


def _is_call(group: Sequence[Item]) -> bool:
    return any(isinstance(item.what, LibraryNode) for item in group)


def _merged_kernels(
    items: Sequence[Item], chip: Chip, written: Sequence[Span] | None = None
) -> Launches:
    """Fewer launches that do the same as these, which are all of kernels.

    With `written`, what is written before them in their graph, each of these launches waits there for what it
    has to and no more, which its own spans say; else for all that launches of its level have to.
    """
    edges = edges_of([(item.reads, item.writes) for item in items])
    launches = [item.launch for item in items]
    levels = _levels(chains_of(launches, edges, chip), items, launches, chip)
    if _share(levels.groups, launches, chip):
        units = chains_of(launches, edges, chip, True)
        for _ in range(2):  # tiles depend on what is known early, levels on tiles
            levels = _levels(units, items, launches, chip, True)
            beside = _beside(levels.groups, launches)
            launches = _prompt(items, levels, chip, beside, written)
    else:
        launches = _prompt(items, levels, chip, None, written)
    made, of_level = list[Item](), list[range]()
    for group in levels.groups:
        parts = [joined(unit, [launches[k] for k in unit], chip) for unit in group]
        rooms = with_room(parts, chip)
        of_level.append(range(len(made), len(made) + len(rooms)))
        for room in rooms:
            one = merge([parts[n] for n in room], load_of([parts[n] for n in room]).resident(chip))
            made.append(Item(one, *touched_by(items[k] for n in room for k in group[n])))
    after = [tuple(k for level in waits for k in of_level[level]) for waits in levels.after]
    return Launches(made, [after[n] for n, own in enumerate(of_level) for _ in own])


def with_room(parts: Sequence[Launch], chip: Chip) -> list[list[int]]:
    """The numbers of a level's launches in groups whose arguments a kernel can have.

    One of many rounds is alone: a launch is little beside it, and its blocks would get what others need.
    So is one that says so.
    """
    large, groups, count = list[list[int]](), list[list[int]](), 0
    for number, one in enumerate(parts):
        is_alone = getattr(one.variant, "is_alone", False)
        if is_alone or load_of([one]).rounds(chip) >= _MANY_ROUNDS:
            large.append([number])
            continue
        count += len(one.arguments)
        if count > MOST_ARGUMENTS or not groups:
            groups.append([])
            count = len(one.arguments)
        groups[-1].append(number)
    return [*large, *groups]


class _Levels(NamedTuple):
    """Units that become one launch, level by level; what they touch; and which levels each waits for."""

    groups: list[list[Unit]]
    touched: list[Touched]
    after: list[tuple[int, ...]]


def _levels(
    units: Sequence[Unit],
    items: Sequence[Item],
    launches: Sequence[Launch],
    chip: Chip,
    sharing: bool = False,
) -> _Levels:
    groups = _groups(units, items, launches, chip, sharing)
    touched = [touched_by(items[k] for unit in group for k in unit) for group in groups]
    return _Levels(groups, touched, edges_of(touched))


def _prompt(
    items: Sequence[Item],
    levels: _Levels,
    chip: Chip,
    beside: Mapping[int, tuple[Sizes, ...]] | None,
    written: Sequence[Span] | None,
) -> list[Launch]:
    """The launches, with products that read early what they may."""
    if written is None:
        before = _before(levels.groups, levels.after)
    else:
        units = [[unit] for group in levels.groups for unit in group]
        touched = [touched_by(items[k] for k in unit) for (unit,) in units]
        before = _before(units, edges_of(touched))
    return [item.launch for item in _hastened(items, before, chip, beside, written or ())]


def _share(groups: Sequence[Sequence[Unit]], launches: Sequence[Launch], chip: Chip) -> bool:
    """Whether weight gradients of a level are to share large tiles: those of all levels that have several."""
    found = []
    for group in groups:
        products = [one for unit in group for k in unit if (one := outer_of(launches[k]))]
        if len(products) > 1:
            sizes, item = tuple(one.sizes for one in products), ITEM_BYTES[products[0].kernel.dtype]
            cuts = outer_cuts(sizes, item, chip.processors, chip.shared_bytes)
            found.append(cuts is not None and cuts[0].is_large)
    return bool(found) and all(found)


def _groups(
    units: Sequence[Unit],
    items: Sequence[Item],
    launches: Sequence[Launch],
    chip: Chip,
    sharing: bool,
) -> list[list[Unit]]:
    """Units of a level together, level by level: those first that the next level waits for, and products."""
    ones = [joined(unit, [launches[k] for k in unit], chip) for unit in units]
    edges = edges_of([touched_by(items[k] for k in unit) for unit in units])
    levels = levels_of(ones, edges, chip, sharing)
    urgent = {other for after in edges for other in after if _is_next(other, after, levels)}
    groups: list[list[Unit]] = [[] for _ in range(max(levels, default=-1) + 1)]
    costs = [registers_of(one.variant) for one in ones]
    for number in sorted(range(len(units)), key=lambda k: (k not in urgent, -costs[k], k)):
        groups[levels[number]].append(units[number])
    return groups


def _is_next(other: int, after: tuple[int, ...], levels: Sequence[int]) -> bool:
    return levels[other] == max(levels[k] for k in after)


def _before(
    groups: Sequence[Sequence[Unit]], after: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """For each launch those that may not be done yet when it begins: of its unit, and of groups before."""
    found = {}
    for group, others in zip(groups, after, strict=True):
        outside = tuple(k for number in others for unit in groups[number] for k in unit)
        for unit in group:
            for place, k in enumerate(unit):
                found[k] = (*outside, *unit[:place])
    return found


def _beside(
    groups: Sequence[Sequence[Unit]], launches: Sequence[Launch]
) -> dict[int, tuple[Sizes, ...]]:
    """For each product that has whole k in shared memory the sizes of those in its group."""
    found = {}
    for group in groups:
        sizes = {
            k: product.sizes
            for unit in group
            for k in unit
            if (product := outer_of(launches[k])) is not None
        }
        for k in sizes:
            found[k] = tuple(size for other, size in sizes.items() if other != k)
    return found


def _hastened(
    items: Sequence[Item],
    before: Mapping[int, tuple[int, ...]] | Sequence[tuple[int, ...]],
    chip: Chip,
    beside: Mapping[int, tuple[Sizes, ...]] | None = None,
    written: Sequence[Span] = (),
) -> list[Item]:
    """Products that read early what no kernel writes over whose edge they come.

    A kernel begins once those in front of it let it, which they do when all that they waited for is done. So
    only what they write themselves is not there yet. Of each product there are at most two variants: with
    what most launches may read early, and with what all may.
    """
    found = {
        number: _early(item, [*written, *(w for k in before[number] for w in items[k].writes)])
        for number, item in enumerate(items)
        if isinstance(item.what, Launch) and isinstance(item.what.variant, GemmVariant)
    }
    sets: dict[Variant, list[frozenset[str]]] = {}
    for number, early in found.items():
        sets.setdefault(items[number].launch.variant, []).append(early)
    made = list(items)
    for number, early in found.items():
        launch = items[number].launch
        assert isinstance(launch.variant, GemmVariant)
        all_of_them = sets[launch.variant]
        most = Counter(all_of_them).most_common(1)[0][0]
        early = most if most <= early else frozenset.intersection(*all_of_them)
        others = None if beside is None else beside.get(number, ())
        made[number] = replace(items[number], what=hastened(launch, early, chip, others))
    return made


def _early(item: Item, fresh: Sequence[Span]) -> frozenset[str]:
    """What a product reads that is not among what is written just before."""
    a, b, *others = item.reads
    known = {"a": _apart([a], fresh), "b": _apart([b], fresh), "finish": _apart(others, fresh)}
    return frozenset(slot for slot, is_known in known.items() if is_known)


def _apart(spans: Sequence[Span], others: Sequence[Span]) -> bool:
    """Whether no two spans share memory."""
    return all(a[1] <= b[0] or b[1] <= a[0] for a in spans for b in others)
