"""Plans of programs that are built alike are made once: the passes run for the first, others take a copy.

Scientists train the same network with many seeds, folds and rates. Each model has nodes and variables of its
own, so a plan cannot be shared; but a copy over other leaves takes a few percent of the time of the passes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from magmadnn.backends.cpu.forks import ProcessLock, cached_property
from magmadnn.compiler.regions.draft import Alike, Draft, named, over_leaves
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.program import LaterProgram, Program

from .look import LONGEST, NotComparedError, look_of
from .other_sizes import filled_in, note

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

    @cached_property
    def read(self) -> list[int]:
        """Numbers of the leaves that the draft's program reads, in its order."""
        kinds, numbers = (PLACEHOLDER, VARIABLE), self._numbers
        return [numbers[node] for node in self.draft.program.nodes() if node.op in kinds]

    @cached_property
    def written(self) -> list[int]:
        """Numbers of those that it writes."""
        return [self._numbers[target] for target, _ in self.draft.program.updates]

    @property
    def _numbers(self) -> dict[Node, int]:
        return {leaf: number for number, leaf in enumerate(self.leaves)}


@dataclass(frozen=True)
class LaterDraft:
    """A draft that is copied when somebody looks into it.

    Attributes:
        template: what it is copied from.
        leaves: those of the program that it is of.
    """

    template: _Template
    leaves: tuple[Node, ...]

    @property
    def alike(self) -> Alike:
        """What all drafts from the template are known by."""
        return self.template.alike

    def made(self) -> Draft:
        """The copy."""
        new = dict(zip(self.template.leaves, self.leaves, strict=True))
        return replace(over_leaves(self.template.draft, new), alike=self.alike)

    @property
    def placeholders(self) -> list[Node]:
        """What the copy's program reads of what is fed."""
        return [self.leaves[k] for k in self.template.read if self.leaves[k].op is PLACEHOLDER]

    @property
    def variables(self) -> list[Node]:
        """Variables that it reads."""
        return [self.leaves[k] for k in self.template.read if self.leaves[k].op is VARIABLE]

    @property
    def changed(self) -> list[Node]:
        """Variables that it writes."""
        return [self.leaves[k] for k in self.template.written]


_templates: OrderedDict[Hashable, _Template] = OrderedDict()
_alike: OrderedDict[Hashable, Alike] = OrderedDict()  # of drafts that were filled in
_lock = ProcessLock()


def drafted(
    program: Program, run: Callable[[Program], Draft], way: Hashable, *, fill: bool = True
) -> Draft | LaterDraft:
    """What `run` makes of a program: run, or a copy of what it made of one that was built alike.

    Args:
        program: what is compiled.
        run: the passes.
        way: what else the result depends on.
        fill: whether what was found out for other sizes may be filled in.
    """
    keys: list[Hashable] = []
    later = program if isinstance(program, LaterProgram) else None
    if later is not None:
        keys.append((way, later.like, later.sizes))
    found = _found(keys)
    if found is None and later is not None:
        other = filled_in(later, way) if fill else None
        if other is not None:
            return replace(other, alike=_alike_of(keys[0]))
        if later.made.leaves != later.leaves:  # for sizes decided which there are
            return drafted(later.made, run, way, fill=fill)
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
        return LaterDraft(found, leaves)
    draft = replace(run(program), alike=Alike())
    assert draft.alike is not None
    bare = {node: _bare(node) for node in leaves}
    ops = tuple(dict.fromkeys(node.op for node in program.nodes()))
    template = _Template(over_leaves(draft, bare), tuple(bare.values()), ops, draft.alike)
    _keep(keys, template)
    if later is not None and fill:
        note(later, draft, (template.draft, template.leaves), run, way)
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


def _alike_of(key: Hashable) -> Alike:
    """What drafts that were filled in for these sizes are known by."""
    with _lock:
        found = _alike.pop(key, None)
        _alike[key] = found or Alike()
        _alike[key].has_others = found is not None
        if len(_alike) > _MOST:
            _alike.popitem(last=False)
        return _alike[key]


def _bare(node: Node) -> Node:
    """A variable or placeholder without a value, so that what is kept keeps no memory alive."""
    return Node(node.op, (), node.spec, node.attributes, str(node.name), None, named(node), None)
