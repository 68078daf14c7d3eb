"""Plans of programs that are built alike are made once: the passes run for the first, others take a copy.

Scientists train the same network with many seeds, folds and rates. Each model has nodes and variables of its
own, so a plan cannot be shared; but a copy over other leaves takes a few percent of the time of the passes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.regions.draft import Alike, Draft
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.program import Program

from .copied import named, over_leaves
from .look import NotComparedError, look_of

_MOST = 32  # templates that are kept
_LONGEST = 2_000  # nodes of a program whose template is kept: longer ones take memory, and seldom come again
_LEAVES = (VARIABLE, PLACEHOLDER)


@dataclass(frozen=True)
class _Template:
    """A draft over leaves without values, and what its key relies on.

    Attributes:
        draft: after all passes.
        leaves: its variables and placeholders, as the given program has them.
        ops: those of the given program: while they are kept, no other op has their id.
        alike: what all drafts from it are known by.
    """

    draft: Draft
    leaves: tuple[Node, ...]
    ops: tuple[object, ...]
    alike: Alike


_templates: OrderedDict[Hashable, _Template] = OrderedDict()
_lock = ProcessLock()


def drafted(program: Program, run: Callable[[Program], Draft], way: Hashable) -> Draft:
    """What `run` makes of a program: run, or a copy of what it made of one that was built alike.

    Args:
        program: what is compiled.
        run: the passes.
        way: what else the result depends on.
    """
    if len(program.nodes()) > _LONGEST:
        return run(program)
    try:
        key = (way, look_of(program))
    except NotComparedError:
        return run(program)
    leaves = [node for node in program.nodes() if node.op in _LEAVES]
    with _lock:
        found = _templates.get(key)
        if found is not None:
            _templates.move_to_end(key)
    if found is not None:
        found.alike.has_others = True
        made = over_leaves(found.draft, dict(zip(found.leaves, leaves, strict=True)))
        return replace(made, alike=found.alike)
    draft = replace(run(program), alike=Alike())
    assert draft.alike is not None
    bare = {node: _bare(node) for node in leaves}
    ops = tuple(dict.fromkeys(node.op for node in program.nodes()))
    template = _Template(over_leaves(draft, bare), tuple(bare.values()), ops, draft.alike)
    with _lock:
        _templates[key] = template
        if len(_templates) > _MOST:
            _templates.popitem(last=False)
    return draft


def _bare(node: Node) -> Node:
    """A variable or placeholder without a value, so that what is kept keeps no memory alive."""
    return Node(node.op, (), node.spec, node.attributes, str(node.name), None, named(node), None)
