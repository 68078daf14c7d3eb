"""What a loop does in each step: a graph over placeholders of its own, in an attribute of the loop's node.

A node of kind LOOP has three groups of operands: what its carried values begin with, the arrays whose slices
along axis 0 the steps take, and what is the same in all steps. It has several results, each of which a node
of kind RESULT gives: the carried values after the last step, the outputs of all steps one after the other,
values of all steps that a gradient reads, and the carried values before each step. What nobody asks for is
not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType

from .dim import Dim, Inner, Size, dims_of, substitute
from .node import PLACEHOLDER, Node, SharedGraph, rebuild, resolve_phase, scoped, with_inputs
from .op import Op, OpKind
from .program import Program
from .spec import Spec


class _OfStep:
    """What stands for the value of a placeholder of a body."""


_OF_STEP = _OfStep()
_GROUPS = ("carried", "sliced", "captured", "new", "outputs", "saved")  # of a body's nodes


@dataclass(frozen=True, eq=False)
class Body(Inner):
    """The graph of a step.

    Attributes:
        carried: placeholders of the values that go from step to step, as they are before it,
        sliced: of the slices that it takes,
        captured: and of what is the same in all steps.
        new: the carried values after it.
        outputs: what is kept of each step.
        saved: values on their way to these that a gradient reads rather than compute them again.
    """

    carried: tuple[Node, ...]
    sliced: tuple[Node, ...]
    captured: tuple[Node, ...]
    new: tuple[Node, ...]
    outputs: tuple[Node, ...]
    saved: tuple[Node, ...] = ()
    _phases: dict[bool, Body] = field(default_factory=dict, init=False)

    def __getstate__(self) -> tuple[SharedGraph, list[int]]:
        groups = [getattr(self, name) for name in _GROUPS]
        return SharedGraph([node for group in groups for node in group]), [len(g) for g in groups]

    def __setstate__(self, state: tuple[SharedGraph, list[int]]) -> None:
        nodes = iter(state[0].nodes)
        own = {name: tuple(islice(nodes, n)) for name, n in zip(_GROUPS, state[1], strict=True)}
        vars(self).update(own, _phases={})

    @property
    def inputs(self) -> tuple[Node, ...]:
        """All placeholders, in the order of the loop's operands."""
        return (*self.carried, *self.sliced, *self.captured)

    @property
    def kept(self) -> tuple[Node, ...]:
        """What a step may keep: outputs, values for the gradient, and what was carried into it."""
        return (*self.outputs, *self.saved, *self.carried)

    @property
    def program(self) -> Program:
        """Carried values after a step, its outputs, and values for the gradient."""
        return Program((*self.new, *self.outputs, *self.saved))

    def over(self, roots: Sequence[Node]) -> Body:
        """The same with other roots, in the order of those of `program`."""
        count, end = len(self.carried), len(roots) - len(self.saved)
        new, outputs, saved = roots[:count], roots[count:end], roots[end:]
        return replace(self, new=tuple(new), outputs=tuple(outputs), saved=tuple(saved))

    def spec(self, index: int, length: Size) -> Spec:
        """Shape and dtype of a result of the loop."""
        if index < len(self.carried):
            return self.carried[index].spec
        one = self.kept[index - len(self.carried)].spec
        return Spec((length, *one.shape), one.dtype)

    def operand_specs(self, length: Size) -> list[Spec]:
        """Shapes and dtypes of the loop's operands."""
        stacked = [Spec((length, *node.shape), node.dtype) for node in self.sliced]
        return [
            *(n.spec for n in self.carried),
            *stacked,
            *(n.spec for n in self.captured),
        ]

    def substitute(self, sizes: Mapping[str, Size]) -> Body:
        """See `Inner`."""
        if not any(dim.symbols & sizes.keys() for dim in self.dims()):
            return self
        new: dict[Node, Node] = {}
        for node in self.inputs:
            with scoped(node.path):
                new[node] = of_step(node.name, Spec(substitute(node.shape, sizes), node.dtype))
        roots = rebuild(self.program.outputs, new, sizes)
        groups = (self.carried, self.sliced, self.captured)
        carried, sliced, captured = (tuple(new[n] for n in group) for group in groups)
        return replace(self, carried=carried, sliced=sliced, captured=captured).over(roots)

    def in_phase(self, training: bool) -> Body:
        """See `Inner`; the same at each call, so that equal loops stay equal."""
        if training not in self._phases:
            before = self.program.outputs
            roots, _ = resolve_phase(before, training)
            same = all(a is b for a, b in zip(roots, before, strict=True))
            self._phases[training] = self if same else self.over(roots)
        return self._phases[training]

    def dims(self) -> Iterator[Dim]:
        """See `Inner`."""
        for node in (*self.inputs, *self.program.nodes()):
            yield from dims_of((node.shape, *node.attributes.values()))

    def __repr__(self) -> str:
        kept = ", ".join(str(n.spec) for n in self.inputs)
        count = sum(isinstance(node.op, Op) for node in self.program.nodes())
        return f"body({kept}; {count} operations)"


def of_step(name: object, spec: Spec) -> Node:
    """A placeholder of a body, which has a value in the steps of its loop only."""
    return Node(PLACEHOLDER, (), spec, name=name, value=_OF_STEP)


def is_of_step(node: Node) -> bool:
    """Whether a node is a placeholder of a body."""
    return node.op is PLACEHOLDER and isinstance(node.value, _OfStep)


def is_loop(node: Node) -> bool:
    """Whether a node runs a body."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.LOOP


def is_result(node: Node) -> bool:
    """Whether a node is one of several results of its operand."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.RESULT


def body_of(loop: Node) -> Body:
    """The body of a node that is a loop."""
    body = loop.attributes["body"]
    assert isinstance(body, Body)
    return body


def nodes_inside(program: Program) -> Iterator[Node]:
    """The nodes of a program, those of the bodies of its loops included."""
    for node in program.nodes():
        yield node
        if is_loop(node):
            yield from nodes_inside(body_of(node).program)


def with_bodies(program: Program, run: Callable[[Program], Program]) -> Program:
    """The program with `run` applied to the bodies of its loops, and to the bodies in these."""
    if not any(map(is_loop, program.nodes())):
        return program
    bodies: dict[Body, Body] = {}
    new: dict[Node, Node] = {}
    for node in program.nodes():
        fresh = node
        if is_loop(node):
            body = body_of(node)
            if body not in bodies:
                bodies[body] = body.over(run(with_bodies(body.program, run)).outputs)
            fresh = replace(
                node, attributes=MappingProxyType({**node.attributes, "body": bodies[body]})
            )
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = with_inputs(fresh, inputs)
    return program.with_roots([new[root] for root in program.roots])
