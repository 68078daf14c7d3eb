"""One plan for many sizes: what becomes of regions is found out once, with symbols in place of widths.

A network that is a little wider than the last one has the same regions, phases and kernels; only numbers in
them differ. So the passes over regions run once with a symbol in place of each number of `LEAST` or more that
is a size of some value, and later programs fill in theirs. The passes take symbols for any size, as they do
for `batch`; what else they decided by numbers is noted, and a program for which one of these decisions would
come out differently is planned by itself.

Such decisions are:

- which sizes are equal: those that are have one symbol;
- which products of sizes are equal: where two of different formulas are one number, nothing is filled in;
- whether a size is below a number: `regions/open_sizes.py`;
- which movements are views: compared with those of the program at hand;
- which sizes are made of others, such as 784 of 28 and 28, or told by an attribute: they have to be so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.draft import Draft, copied, named
from magmadnn.compiler.regions.open_sizes import Answer, noted_answers
from magmadnn.compiler.stand_ins import MOST_SYMBOLS
from magmadnn.errors import MagmaDNNError, ShapeError
from magmadnn.graph.dim import Dim, Shape, Size, divide, product, substitute
from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec

from .look import LEAST, NotComparedError, is_open, is_shape, structure_of

_MOST = 32  # structures that are kept
_MOST_TEMPLATES = 4  # of one structure, for sizes that are decided upon differently
_LARGEST = 1 << 24  # bytes of a stand-in: some movements copy theirs
MARK = "size "  # what names of symbols begin with: no symbol of a user's program does

Run = Callable[[Program], Draft]


@dataclass(frozen=True)
class Template:
    """A draft with symbols, and the sizes that may be filled in.

    Attributes:
        draft: after the passes over regions.
        opened: the program that they began with.
        settled: sizes without a symbol of their own: their place among those of the look, and what they are.
        answers: whether sizes are below numbers.
        products: sizes and products of sizes that have symbols, all of them different,
        others: and those that have none.
    """

    draft: Draft
    opened: Program
    settled: tuple[tuple[int, Size], ...]
    answers: tuple[Answer, ...]
    products: tuple[Dim, ...]
    others: frozenset[Size]


@dataclass
class _Known:
    """What is kept of one structure; `ops`: while they are kept, no other op has their id."""

    ops: tuple[object, ...]
    templates: list[Template]


_known: OrderedDict[Hashable, _Known] = OrderedDict()
_lock = ProcessLock()


def planned(program: Program, run: Run, way: Hashable) -> Draft:
    """What the passes over regions make of a program: run, or filled into what they made of another.

    The first program of a structure is planned by itself, so that nothing is done twice for what never
    comes again. The second one is planned with symbols, and the third finds these.

    Args:
        program: after the passes over programs.
        run: the passes over regions.
        way: what else the result depends on.
    """
    try:
        look = structure_of(program)
    except NotComparedError:
        return run(program)
    if not look.sizes:
        return run(program)
    known = _of_structure((way, look.key), program)
    if known is None:
        return run(program)
    for template in tuple(known.templates):
        if (found := _filled(template, program, look.sizes)) is not None:
            return found
    made = None
    if len(known.templates) < _MOST_TEMPLATES:
        made = template_of(program, look.sizes, run)
    found = None if made is None else _filled(made, program, look.sizes)
    if made is None or found is None:
        return run(program)
    known.templates.append(made)
    return found


def _of_structure(key: Hashable, program: Program) -> _Known | None:
    """What is known of programs like this one; None, and noted, where it is the first."""
    with _lock:
        known = _known.get(key)
        if known is None:
            _known[key] = _Known(tuple(dict.fromkeys(node.op for node in program.nodes())), [])
            if len(_known) > _MOST:
                _known.popitem(last=False)
        else:
            _known.move_to_end(key)
    return known


# --- making ---------------------------------------------------------------------------------------


def template_of(
    program: Program,
    sizes: Sequence[int],
    run: Run,
    *,
    fixed: Container[int] = (),
    names: bool = False,
) -> Template | None:
    """What passes make of a program with symbols for its sizes; None where it cannot have any.

    Args:
        program: of one structure.
        sizes: its numbers.
        run: the passes.
        fixed: numbers that get no symbol.
        names: whether nodes and scopes keep their names.
    """
    if any(s.startswith(MARK) for node in program.nodes() for s in node.spec.symbols):
        return None
    hints = _named(sizes)
    terms: dict[int, Size] = {n: n if n in fixed else Dim.symbol(s) for s, n in hints.items()}
    opened = _opened(program, terms, names)
    while isinstance(opened, Node):
        known = _settled(opened, terms, hints)
        terms = {n: substitute(term, known) for n, term in terms.items()}
        opened = _opened(program, terms, names)
    free = {s for term in terms.values() if isinstance(term, Dim) for s in term.symbols}
    own = {s for node in opened.nodes() for s in node.spec.symbols}
    if not free or len(own) > MOST_SYMBOLS:
        return None
    with noted_answers(hints) as answers:
        draft = run(opened)
    products = set(_products(opened, draft))
    symbolic = tuple(p for p in products if isinstance(p, Dim) and p.symbols & free)
    settled = tuple((k, terms[n]) for k, n in enumerate(sizes) if terms[n] != Dim.symbol(_name(k)))
    others = frozenset(products.difference(symbolic))
    return Template(draft, opened, settled, tuple(answers), symbolic, others)


def _name(place: int) -> str:
    return f"{MARK}{place}"


def _named(sizes: Sequence[int]) -> dict[str, int]:
    """Sizes by the names of their symbols."""
    return {_name(place): number for place, number in enumerate(sizes)}


def _opened(program: Program, terms: Mapping[int, Size], names: bool) -> Program | Node:
    """A program of other nodes, with terms for sizes; or a node whose rule for shapes does not hold."""
    new: dict[Node, Node] = {}
    for node in program.nodes():
        shape = node.shape if node.op is CONSTANT else _with(node.shape, terms)
        spec = Spec(shape, node.dtype)
        attributes = _terms_in(node, terms)
        inputs = tuple(new[i] for i in node.inputs)
        if not _holds(node, inputs, spec, attributes):
            return node
        value = node.value if node.op is CONSTANT else None
        called = (str(node.name), value, named(node)) if names else ("", value, ())
        new[node] = Node(node.op, inputs, spec, attributes, *called, None)
    outputs = tuple(new[n] for n in program.outputs)
    return Program(outputs, tuple((new[t], new[v]) for t, v in program.updates))


def _settled(node: Node, terms: Mapping[int, Size], hints: Mapping[str, int]) -> Mapping[str, Size]:
    """What symbols have to be for the rule of a node to hold.

    The largest size of a reshape follows from the others, such as 784 from 28 and 28; those of other results
    from what the rule gives, such as 40 for 20 and 20. Where there is no rule for symbols, they are numbers.
    """
    own = [size for n in (node, *node.inputs) for size in n.shape if is_open(size)]
    used = {
        s for size in own if isinstance(t := terms[size], Dim) for s in t.symbols & hints.keys()
    }
    largest = max(own)
    symbol = terms[largest]
    if _reshapes(node) and isinstance(symbol, Dim) and symbol.is_symbol:
        shapes = [node.shape, node.inputs[0].shape]
        side, other = shapes if largest in shapes[0] else reversed(shapes)
        rest = list(side)
        rest.remove(largest)
        try:
            term = divide(product(_with(other, terms)), product(_with(tuple(rest), terms)))
        except ShapeError:
            term = symbol
        if _may_be(symbol, term):
            return {str(symbol): term}
    if isinstance(node.op, Op):
        given = [Spec(_with(i.shape, terms), i.dtype) for i in node.inputs]
        found = _inferred(node.op, given, _terms_in(node, terms))
        for size, term in zip(node.shape, () if found is None else found.shape, strict=False):
            symbol = terms.get(size, size) if isinstance(size, int) else size
            bare = isinstance(symbol, Dim) and symbol.is_symbol and str(symbol) in hints
            if bare and _may_be(symbol, term):
                return {str(symbol): term}
    return {s: hints[s] for s in used}


def _terms_in(node: Node, terms: Mapping[int, Size]) -> Mapping[str, Any]:
    """The attributes of a node, with terms in its shape."""
    given = node.attributes.items()
    return MappingProxyType({k: _with(v, terms) if is_shape(v, node) else v for k, v in given})


def _may_be(symbol: Size, term: Size) -> bool:
    """Whether a symbol can stand for a term: one that does not depend on it, and is right for all sizes."""
    if not isinstance(term, Dim):
        return True
    return str(symbol) not in term.symbols and term.never_negative


def _reshapes(node: Node) -> bool:
    """Whether a movement keeps the number of elements."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.MOVEMENT or len(node.inputs) != 1:
        return False
    return product(node.inputs[0].shape) == product(node.shape)


def _holds(node: Node, inputs: Sequence[Node], spec: Spec, attributes: Mapping[str, Any]) -> bool:
    """Whether an op's rule gives just this, and a stand-in of it is small."""
    if spec == node.spec and all(
        i.spec == o.spec for i, o in zip(inputs, node.inputs, strict=True)
    ):
        return True
    if Layouts.bytes_of(spec) > _LARGEST:
        return False
    if _reshapes(node) and product(inputs[0].shape) != product(spec.shape):
        return False  # which rules leave to NumPy
    if not moves_any_size(node):
        return False
    given = [i.spec for i in inputs]
    return not isinstance(node.op, Op) or _inferred(node.op, given, attributes) == spec


def moves_any_size(node: Node) -> bool:
    """Whether the NumPy function of a movement takes stand-ins of its operands.

    Those of users may ask for even sizes, say; a stand-in may be too small for a number in an attribute.
    """
    op = node.op
    if not isinstance(op, Op) or op.kind is not OpKind.MOVEMENT:
        return True
    own = str(getattr(op.numpy, "__module__", "")).startswith("magmadnn.")
    given = [v for v in node.attributes.values() if not is_shape(v, node)]
    return own and all(abs(number) < LEAST for number in _integers(given))


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _integers(inner)


def _inferred(op: Op, given: Sequence[Spec], attributes: Mapping[str, Any]) -> Spec | None:
    """What the rule of an op gives for operands with symbols; None where they do not fit."""
    try:
        return op.infer(given, attributes)
    except MagmaDNNError:
        return None


def _with(shape: Shape, terms: Mapping[int, Size]) -> Shape:
    return tuple(terms.get(size, size) if isinstance(size, int) else size for size in shape)


def _products(opened: Program, draft: Draft) -> Iterator[Size]:
    """Sizes and products of sizes that passes compare: of axes of a value, and of a region's matrix."""
    shapes = {node.shape for node in (*opened.nodes(), *draft.program.nodes())}
    shapes |= {(*region.rows, region.columns) for region in draft.regions}
    for shape in shapes:
        yield from shape
        yield product(shape[:-1])
        for axis in range(len(shape)):
            yield product(shape[axis:])


# --- filling --------------------------------------------------------------------------------------


def numbers_of(template: Template, sizes: Sequence[int]) -> dict[str, int] | None:
    """The numbers of symbols; None where a program with these sizes would be decided differently."""
    numbers = _named(sizes)
    if any(sizes[place] != substitute(term, numbers) for place, term in template.settled):
        return None
    if any(answer.of(numbers) != answer.is_below for answer in template.answers):
        return None
    values = {p.substitute(numbers) for p in template.products}
    if len(values) < len(template.products) or not values.isdisjoint(template.others):
        return None
    return numbers


def _filled(template: Template, program: Program, sizes: Sequence[int]) -> Draft | None:
    """The draft of a program with these sizes; None where it would be decided differently."""
    numbers = numbers_of(template, sizes)
    if numbers is None:
        return None
    new = dict(zip(template.opened.nodes(), program.nodes(), strict=True))
    return filled(template, new, numbers)


def filled(
    template: Template, new: Mapping[Node, Node], numbers: Mapping[str, int]
) -> Draft | None:
    """The draft of other nodes, by these of the template; None where not the same values are views."""
    layouts = template.draft.layouts.laid_out(new)
    return None if layouts is None else copied(template.draft, new, layouts, numbers)
