"""Plans of programs that are built alike are made once: the passes run for the first, others take a copy.

Scientists train the same network with many seeds, folds and rates. Each model has nodes and variables of its
own, so a plan cannot be shared; but a copy over other leaves takes a few percent of the time of the passes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.regions.draft import Alike, Draft
from magmadnn.graph.node import Node
from magmadnn.graph.program import LaterProgram, Program

from .copied import named, over_leaves
from .look import LONGEST, NotComparedError, look_of

_MOST = 64  # keys whose templates are kept


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
    keys: list[Hashable] = []
    if isinstance(program, LaterProgram):
        keys.append((way, program.like, program.sizes))
    found = _found(keys)
    if found is None:
        if len(program.nodes()) > LONGEST:
            return run(program)
        try:
            keys.append((way, look_of(program)))
        except NotComparedError:
            return run(program)
        found = _found(keys)
    leaves = program.leaves
    if found is not None:
        found.alike.has_others = True
        made = over_leaves(found.draft, dict(zip(found.leaves, leaves, strict=True)))
        return replace(made, alike=found.alike)
    draft = replace(run(program), alike=Alike())
    assert draft.alike is not None
    bare = {node: _bare(node) for node in leaves}
    ops = tuple(dict.fromkeys(node.op for node in program.nodes()))
    template = _Template(over_leaves(draft, bare), tuple(bare.values()), ops, draft.alike)
    _keep(keys, template)
    return draft


def _found(keys: Sequence[Hashable]) -> _Template | None:
    """The template of one of these keys; it is kept under all of them then."""
    with _lock:
        found = next((_templates[key] for key in keys if key in _templates), None)
    if found is not None:
        _keep(keys, found)
    return found


def _keep(keys: Sequence[Hashable], template: _Template) -> None:
    """Keep a template; the oldest go where there are many."""
    with _lock:
        for key in keys:
            _templates[key] = template
            _templates.move_to_end(key)
        while len(_templates) > _MOST:
            _templates.popitem(last=False)


def _bare(node: Node) -> Node:
    """A variable or placeholder without a value, so that what is kept keeps no memory alive."""
    return Node(node.op, (), node.spec, node.attributes, str(node.name), None, named(node), None)
