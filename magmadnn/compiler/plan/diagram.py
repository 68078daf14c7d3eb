"""A native plan as a diagram: a box for each kernel, and for what it reads that no kernel made."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph.drawing.diagram import Diagram, leaf_box
from magmadnn.graph.drawing.layered import Box
from magmadnn.graph.node import CONSTANT, Node

from .listing import layer_of, reads_of, title_of
from .native_plan import NativePlan

_LETTERS = 34
_KERNEL, _CALL = "#fef3c7", "#fee2e2"  # yellow, and red for what NumPy does


def diagram_of_plan(plan: NativePlan, sizes: Mapping[str, int]) -> Diagram:
    """Boxes of kernels in running order, with nodes, phase, layer, and what is written in place."""
    bases = plan.layouts.bases
    made: dict[Node, Box] = {}
    leaves: dict[Node, Box] = {}
    boxes: list[Box] = []
    for work in plan.work:
        inputs: dict[Box, None] = {}
        for node in reads_of(plan, work):
            base = bases[node]
            if base not in made and base not in leaves:
                if base.op is CONSTANT and base.value.size == 1:
                    continue
                leaves[base] = leaf_box(base)
                boxes.append(leaves[base])
            inputs[made.get(base) or leaves[base]] = None
        box = _box(plan, work, sizes, tuple(inputs))
        boxes.append(box)
        made |= dict.fromkeys(work.needed, box)
    return Diagram(tuple(boxes), _LETTERS)


def _box(plan: NativePlan, work: Work, sizes: Mapping[str, int], inputs: tuple[Box, ...]) -> Box:
    title = title_of(work, sizes)
    kernel, _, names = title.partition("] ")
    written = [f"{plan.in_place[n].label}" for n in work.needed if n in plan.in_place]
    about = [f"phase {work.phase}", layer_of(work)]
    lines = (
        names,
        ", ".join(filter(None, about)),
        f"writes {', '.join(written)}" if written else "",
    )
    tip = "; ".join(filter(None, [title, *about, lines[2]]))
    called = work.lowered is None and work.region.kind is not RegionKind.LOOP
    fill = _CALL if called else _KERNEL
    return Box(f"{kernel}]", lines, tip, fill, inputs)
