"""absorb: what follows a library's function element by element becomes part of the call.

A convolution with its bias and activation is one call where the target's library has such a function
(`Op.absorbs`). What is a multiple and a sum by vectors, as a normalisation by known statistics is at
prediction, counts as one too: the scale goes into the filters. Intermediate values must have no other reader;
so a normalisation by statistics of the result itself stays what it is.

It is done where a pass over memory is saved: where a result is cut at 0 or added to another, or where
whatever reads it would not have done the rest on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import Any

from magmadnn.compiler.formulas import combines, cuts_at_zero, is_pointwise, widens
from magmadnn.graph.dim import Shape
from magmadnn.graph.epilogue import Epilogue
from magmadnn.graph.node import Node, scoped, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import parts

from .simplify import simplify


class _Does(Enum):
    """What a step does to a result."""

    WIDENS = "halves become float32"
    RAISES = "a vector is added"
    LOWERS = "a vector is subtracted"
    SCALES = "it is multiplied by a vector"
    JOINS = "another result is added"
    CUTS = "what is negative becomes 0"


_WITH_VECTORS = {"+": _Does.RAISES, "-": _Does.LOWERS, "*": _Does.SCALES}


@dataclass(frozen=True)
class _Step:
    """A node that does something to a result, and what it reads besides.

    Attributes:
        node: which.
        does: what.
        other: the vector or the other result.
        shape: that a vector has as the call takes it.
    """

    node: Node
    does: _Does
    other: Node | None = None
    shape: Shape = ()


def absorb(program: Program, libraries: Collection[str] = ()) -> Program:
    """Make calls of a library's functions that do what follows them.

    Args:
        program: whose ops are those of the target already.
        libraries: names of functions of whole arrays that the target's libraries have.
    """
    nodes = program.nodes()
    makers = {n: make for n in nodes if (make := _maker(n, libraries)) is not None}
    if not makers:
        return program
    readers, roots, claimed = program.readers, set(program.roots), set[Node]()
    ends: dict[Node, tuple[Node, list[_Step]]] = {}
    chains = {first: list(_steps(first, readers, roots)) for first in makers}
    instead = dict(_with_vectors(first, chains[first], make) for first, make in makers.items())
    for first in reversed(list(makers)):  # what is added to a result is there when that is computed
        free = _before(claimed, chains[first])
        steps = _accepted(first, free, readers, claimed, makers[first], instead)
        if steps:
            claimed |= {step.node for step in steps}
            ends[steps[-1].node] = first, steps
    new: dict[Node, Node] = {}
    for node in nodes:
        made: Node | None = None
        if node in ends:
            first, steps = ends[node]
            with scoped(first.path):
                made = makers[first](new[first], _epilogue(steps, new))
        # None where what is added did not become what it was seen as
        new[node] = made or with_inputs(node, tuple(new[i] for i in node.inputs))
    return simplify(program.with_roots([new[root] for root in program.roots]))


def _maker(node: Node, libraries: Collection[str]) -> Any:
    if not isinstance(node.op, Op):
        return None
    return next((make for name, make in node.op.absorbs.items() if name in libraries), None)


def _before(claimed: set[Node], steps: list[_Step]) -> list[_Step]:
    """The steps up to the first that belongs to another call."""
    return list(takewhile(lambda step: step.node not in claimed, steps))


def _with_vectors(first: Node, steps: list[_Step], make: Any) -> tuple[Node, Node]:
    """The last value that is made of a call by vectors only, and what computes it in one call."""
    some = list(takewhile(lambda step: step.does not in (_Does.JOINS, _Does.CUTS), steps))
    made = make(first, _epilogue(some)) if some else None
    return (some[-1].node, made) if made is not None else (first, first)


def _accepted(
    first: Node,
    steps: list[_Step],
    readers: Mapping[Node, list[Node]],
    claimed: set[Node],
    make: Any,
    instead: Mapping[Node, Node],
) -> list[_Step]:
    """The most steps behind a call that are worth it and that the library's function takes; or none.

    What is added to a result may be another call's with its vectors, and is seen as that.
    """
    for count in range(len(steps), 0, -1):
        some = steps[:count]
        if _pays(some, readers, claimed) and make(first, _epilogue(some, instead)) is not None:
            return some
    return []


def _steps(first: Node, readers: Mapping[Node, list[Node]], roots: set[Node]) -> Iterator[_Step]:
    """What is done to a result, one after the other."""
    at, done, of_models = first, _Does.WIDENS, _is_of_models(first)
    while at not in roots and len(readers[at]) == 1 and done != _Does.CUTS:
        (reader,) = readers[at]
        step = _step(reader, at, of_models)
        if step is None:
            return
        if (step.does == _Does.WIDENS) != (at is first and widens(reader)):
            return
        if done == _Does.JOINS and step.does != _Does.CUTS:
            return
        yield step
        at, done = reader, step.does


def _is_of_models(node: Node) -> bool:
    """Whether a call is one for each of many models, which have vectors of their own."""
    library = node.op.library if isinstance(node.op, Op) else None
    return library is not None and library.of_models


def _step(node: Node, at: Node, of_models: bool) -> _Step | None:
    if widens(node):
        return _Step(node, _Does.WIDENS)
    if node.shape != at.shape or node.dtype != at.dtype:
        return None
    if cuts_at_zero(node):
        return _Step(node, _Does.CUTS)
    does = combines(node)
    if does is None or node.inputs[0] is node.inputs[1]:
        return None
    other = node.inputs[node.inputs[0] is at]
    if does == "-" and other is not node.inputs[1]:
        return None
    if _is_vector(other, at, of_models):
        shape = (at.shape[0], at.shape[-1]) if of_models else at.shape[-1:]
        return _Step(node, _WITH_VECTORS[does], other, shape) if other.dtype == at.dtype else None
    if does == "+" and other.spec == at.spec:
        return _Step(node, _Does.JOINS, other)
    return None


def _is_vector(other: Node, at: Node, of_models: bool) -> bool:
    """Whether a value has one element for each column of another; or that for each model."""
    *ones, last = other.shape or (0,)
    if of_models and other.ndim == at.ndim and other.shape[0] == at.shape[0]:
        del ones[0]
    return last == at.shape[-1] and all(n == 1 for n in ones)


def _pays(steps: list[_Step], readers: Mapping[Node, list[Node]], claimed: set[Node]) -> bool:
    """Whether a pass over memory is saved."""
    if any(step.does in (_Does.JOINS, _Does.CUTS) for step in steps):
        return True
    behind = readers[steps[-1].node]
    vectors = [step for step in steps if step.does != _Does.WIDENS]
    return bool(vectors) and all(n in claimed or not is_pointwise(n) for n in behind)


def _epilogue(steps: list[_Step], new: Mapping[Node, Node] | None = None) -> Epilogue:
    """All steps as one, with other nodes in place of some."""
    done = Epilogue()
    for step in steps:
        other = None if step.other is None else (new or {}).get(step.other, step.other)
        done = _with(done, step.does, other, step.shape)
    return done


def _with(done: Epilogue, does: _Does, other: Node | None, shape: Shape) -> Epilogue:
    if does == _Does.CUTS:
        return replace(done, positive=True)
    if does == _Does.JOINS:
        return replace(done, added=other)
    if does == _Does.WIDENS or other is None:
        return done
    vector = _vector(other, shape)
    if does == _Does.SCALES:
        shift = None if done.shift is None else done.shift * vector
        return replace(
            done, scale=vector if done.scale is None else done.scale * vector, shift=shift
        )
    if done.shift is None:
        return replace(done, shift=-vector if does == _Does.LOWERS else vector)
    return replace(done, shift=done.shift - vector if does == _Does.LOWERS else done.shift + vector)


def _vector(other: Node, shape: Shape) -> Node:
    """A value as a vector of that shape: [columns], or [models, columns], where models may share it."""
    last = other.shape[-1:]
    if len(shape) == 1 or other.shape[:-1] == (shape[0], *[1] * (other.ndim - 2)):
        return parts().reshape(other, shape)
    return parts().broadcast_to(parts().reshape(other, last), shape)
