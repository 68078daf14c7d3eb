"""Plans of steps that differ in sizes only, filled in for steps whose graph was not made.

`sizes.py` fills in what the passes over regions found out, once those over the program have run. Here all
passes are left out, and the program too: a `LaterProgram` says which structure it has, its sizes and leaves.

That needs more than one program of a structure. Two with different sizes are made; if they are the same but
for these (constants included, so that no 1 / width stands in one), a third run of the passes has symbols in
place of the sizes that differed. It counts if, filled in for both, it is in all respects what the passes made
of them. What could still be decided by other sizes is left to the passes: ops that do not say that any size
is the same to them (`Op.any_size`), operands of many elements, constants that are or are not computed before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.kernels.rows import NARROW_ROW, SHORT_ROW
from magmadnn.compiler.program.simplify import LARGEST_CONSTANT
from magmadnn.compiler.regions.draft import Draft, named, renewed
from magmadnn.graph.dim import Dim, Shape, Size, dims_of, product, substitute
from magmadnn.graph.node import CONSTANT, Node, follows_sizes
from magmadnn.graph.op import MANY_ELEMENTS, Op, OpKind
from magmadnn.graph.program import LaterProgram
from magmadnn.graph.spec import Spec

from .look import NotComparedError, structure_of
from .sizes import MARK, Run, Template, filled, moves_any_size, numbers_of, template_of

_MOST = 64  # structures, and ranges of their sizes, that are kept
_MOST_TEMPLATES = 4  # of one structure


@dataclass(frozen=True)
class _Whole:
    """A template whose program is of all passes.

    Attributes:
        template: as of `sizes.py`.
        sized: nodes that symbols stand in: in their shapes or attributes.
        known: products of known sizes, which have to be below `MANY_ELEMENTS`,
        large: and some that have to be too large for constants that are computed beforehand.
    """

    template: Template
    sized: frozenset[Node]
    known: tuple[Dim, ...]
    large: tuple[Dim, ...]


@dataclass
class _Made:
    """What was made of one structure, in one range of sizes.

    Attributes:
        look: of its program, but for sizes.
        sizes: of one,
        draft: and what the passes made of it, over leaves without values.
        leaves: of that draft.
        wholes: templates that were found to be right.
        tries: how many were made.
    """

    look: Hashable
    sizes: tuple[int, ...]
    draft: Draft
    leaves: tuple[Node, ...]
    wholes: list[_Whole] = field(default_factory=list)
    tries: int = 0


_made: OrderedDict[Hashable, _Made] = OrderedDict()
_lock = ProcessLock()


def filled_in(program: LaterProgram, way: Hashable) -> Draft | None:
    """The draft of a program that was not made; None where it has to be.

    Args:
        program: that was not made.
        way: what else the result depends on.
    """
    key = _key_of(program, way)
    with _lock:
        made = _made.get(key)
        if made is None:
            return None
        _made.move_to_end(key)
        wholes = tuple(made.wholes)
    found = (_of_leaves(whole, program.leaves, program.sizes) for whole in wholes)
    return next((draft for draft in found if draft is not None), None)


def note(
    program: LaterProgram,
    draft: Draft,
    bare: tuple[Draft, tuple[Node, ...]],
    run: Run,
    way: Hashable,
) -> None:
    """Learn from what the passes made of a program, so that others of its structure need not be made.

    Args:
        program: that had to be made.
        draft: what the passes made of it.
        bare: the same over leaves without values, and these.
        run: the passes.
        way: what else the result depends on.
    """
    key = _key_of(program, way)
    try:
        structure = structure_of(program, names=True)
    except NotComparedError:
        return
    with _lock:
        made = _made.get(key)
        if made is None:
            _made[key] = _Made(structure.key, program.sizes, *bare)
            if len(_made) > _MOST:
                _made.popitem(last=False)
            return
    same = made.look == structure.key and structure.sizes == program.sizes
    if not same or made.tries >= _MOST_TEMPLATES or program.sizes == made.sizes:
        return
    made.tries += 1
    whole = _whole_of(program, made.sizes, run)
    if whole is None:
        return
    if _is_right(whole, made.leaves, made.sizes, made.draft):
        if _is_right(whole, program.leaves, program.sizes, draft):
            made.wholes.append(whole)
    else:  # the next one may decide as this one does
        made.sizes, (made.draft, made.leaves) = program.sizes, bare


def _key_of(program: LaterProgram, way: Hashable) -> Hashable:
    """Equal for programs of one structure for which passes most often answer `is_below` alike."""
    ranges = tuple((n >= NARROW_ROW) + (n > SHORT_ROW) for n in program.sizes)
    return way, program.like, ranges


def _is_right(whole: _Whole, leaves: Sequence[Node], sizes: Sequence[int], expected: Draft) -> bool:
    """Whether it gives what the passes gave."""
    found = _of_leaves(whole, leaves, sizes)
    return found is not None and described(found) == described(expected)


def _whole_of(program: LaterProgram, others: Sequence[int], run: Run) -> _Whole | None:
    """All passes, of symbols for the sizes that are not those of another program; None where it cannot be."""
    if not all(map(_takes_any_size, program.nodes())):
        return None
    fixed = {n for n, other in zip(program.sizes, others, strict=True) if n == other}
    template = template_of(program, program.sizes, run, fixed=fixed, names=True)
    if template is None:
        return None
    sized, large = set(), []
    for node in (*template.opened.nodes(), *template.draft.program.nodes()):
        dims = dims_of((node.shape, *node.attributes.values()))
        if any(s.startswith(MARK) for dim in dims for s in dim.symbols):
            if not isinstance(node.op, Op) and (node.op is CONSTANT or follows_sizes(node)):
                return None  # a number in a program with numbers
            if isinstance(node.op, Op) and all(i.op is CONSTANT for i in node.inputs):
                large.append(product(node.shape))
            sized.add(node)
    totals = {product(node.shape) for node in template.opened.nodes()}
    each = _of_sizes(totals), _of_sizes(large)
    return _Whole(template, frozenset(sized), *each)


def _of_sizes(products: Iterable[Size]) -> tuple[Dim, ...]:
    """Those that are known as soon as symbols have numbers."""
    dims = dict.fromkeys(p for p in products if isinstance(p, Dim))
    return tuple(dim for dim in dims if all(s.startswith(MARK) for s in dim.symbols))


def _takes_any_size(node: Node) -> bool:
    if not isinstance(node.op, Op):
        return True
    if node.op.kind is OpKind.MOVEMENT and not moves_any_size(node):
        return False
    return node.op.any_size


def _of_leaves(whole: _Whole, leaves: Sequence[Node], sizes: Sequence[int]) -> Draft | None:
    """The draft over these leaves; None where it would be decided differently."""
    template = whole.template
    numbers = numbers_of(template, sizes)
    if numbers is None or any(p.bind(numbers) >= MANY_ELEMENTS for p in whole.known):
        return None
    if any(p.bind(numbers) <= LARGEST_CONSTANT for p in whole.large):
        return None
    new: dict[Node, Node] = {}
    shapes: dict[int, Shape] = {}
    for leaf, given in zip(template.opened.leaves, leaves, strict=True):
        if _with(leaf.shape, numbers, shapes) != given.shape or leaf.dtype != given.dtype:
            return None
        new[leaf] = given
    for node in template.draft.program.nodes():
        if node in new:
            continue
        if node not in whole.sized:
            new[node] = renewed(node, new)
            continue
        attributes: Mapping[str, Any] = node.attributes
        if attributes:
            attributes = MappingProxyType(
                {k: substitute(v, numbers) for k, v in attributes.items()}
            )
        spec = Spec(_with(node.shape, numbers, shapes), node.dtype)
        inputs = tuple([new[i] for i in node.inputs])
        new[node] = Node(
            node.op, inputs, spec, attributes, node.name, node.value, node.path, node.origin
        )
    return filled(template, new, numbers)


def _with(shape: Shape, numbers: Mapping[str, int], known: dict[int, Shape]) -> Shape:
    """A shape with numbers for symbols; most nodes share theirs."""
    if id(shape) not in known:
        known[id(shape)] = substitute(shape, numbers)
    return known[id(shape)]


def described(draft: Draft) -> list[Any]:
    """All that a draft says, in words: equal for drafts that differ in their leaves' values only."""
    numbers = {node: k for k, node in enumerate(draft.program.nodes())}
    lines: list[Any] = [str(draft), str(draft.program)]
    for work in draft.work:
        region, lowered = work.region, work.lowered
        lines.append([numbers[n] for n in (*region.nodes, *work.placed)])
        lines.append(sorted(numbers[n] for n in region.numbers | region.elements))
        if lowered is not None:
            used = (*lowered.reads, *lowered.writes)
            lines.append([(slot, numbers[node], spread) for slot, node, spread in used])
            lines += [repr(lowered.kernel), lowered.numbers, lowered.shapes]
    layouts = draft.layouts
    for node in numbers:
        array = layouts.arrays[node]
        lines.append((numbers[layouts.bases[node]], *array.shape, *array.strides, array.dtype))
    lines += [(str(node.name), named(node)) for node in numbers]
    lines += [np.asarray(node.value).tobytes() for node in numbers if node.op is CONSTANT]
    return lines
