"""Nodes of the compute graph, and the few kinds of node that are no mathematics.

A `Node` is immutable and is compared by identity. Leaves hold values: a constant an array, a variable a
`Storage` (a Tensor) that keeps its value between runs, a placeholder nothing until it is fed.

Two kinds steer what a graph does when it is compiled: `phase` has one branch for training and one for
prediction, and `update` passes its operand through and, in training, gives a variable a new value
(running statistics). So one graph serves both, and nothing about it is kept outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from magmadnn.errors import DTypeError, GraphError, MagmaDNNError, ShapeError
from magmadnn.memory.dtypes import as_dtype, refuse_masked

from .dim import Dim, Inner, Size, substitute
from .flattening import flatten, needed, unflatten
from .op import Array, Op, OpKind, as_arrays, is_number
from .operators import Operators
from .signature import OpWords, shape_text
from .spec import Spec


class Storage(Protocol):
    """What a variable holds its value in."""

    def read(self) -> Array:
        """The value on the host; not to be changed."""
        ...

    def write(self, value: Array) -> None:
        """Set the value."""
        ...


@dataclass(frozen=True)
class Structural:
    """A kind of node that is no mathematics."""

    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _structural, (self.name,)  # there is one of each


CONSTANT = Structural("constant")
VARIABLE = Structural("variable")
PLACEHOLDER = Structural("placeholder")
SIZE = Structural("size")  # a dimension as a number; attribute `dim`
PLACES = Structural("places")  # 0, 1, ... up to a dimension; attribute `dim`
PHASE = Structural("phase")  # inputs: training branch, prediction branch
UPDATE = Structural("update")  # inputs: passed through, variable, its new value


def _structural(name: str) -> Structural:
    kinds = (CONSTANT, VARIABLE, PLACEHOLDER, SIZE, PLACES, PHASE, UPDATE)
    return next(kind for kind in kinds if kind.name == name)


_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})
_path: ContextVar[tuple[object, ...]] = ContextVar("magmadnn_scope", default=())


@dataclass(frozen=True, eq=False, slots=True, repr=False, weakref_slot=True)
class Node(Operators):
    """One operation on earlier nodes: op, inputs, attributes, and the Spec of the result."""

    __magmadnn_priority__: ClassVar[int] = 0

    op: Op | Structural
    inputs: tuple[Node, ...]
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=lambda: _NO_ATTRIBUTES)
    name: object = ""  # anything whose str() is its name: a layer may get its name later
    value: Any = None
    path: tuple[object, ...] = field(default_factory=_path.get)  # the scopes, outermost first
    origin: Any = None  # the call of a layer that made this node; opaque here

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Node:
        return record(op, as_nodes(op.words, operands), attributes)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Ints and symbolic dimensions."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.spec.ndim

    @property
    def label(self) -> str:
        """The name, or the op's name where it has none."""
        return str(self.name) or self.op.name

    @property
    def scope(self) -> str:
        """Where the node belongs, for instance in `encoder/dense_1`, as its scopes are called now."""
        return "/".join(map(str, self.path))

    def __repr__(self) -> str:
        return f"<{self.label}: {self.spec}>"

    def __getstate__(self) -> list[Any]:
        return flatten(topological([self], needed), self)[0]

    def __setstate__(self, entries: list[Any]) -> None:
        unflatten(entries, Node, self)


class SharedGraph:
    """Nodes that are copied and pickled as one graph: what several need is there once afterwards too."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)

    def __getstate__(self) -> tuple[list[Any], list[int]]:
        entries, numbers = flatten(topological(self.nodes, needed))
        return entries, [numbers[node] for node in self.nodes]

    def __setstate__(self, state: tuple[list[Any], list[int]]) -> None:
        made = unflatten(state[0], Node)
        self.nodes = [made[number] for number in state[1]]


Op.in_graphs = Node


def record(op: Op, inputs: Sequence[Node], attributes: Mapping[str, Any]) -> Node:
    """Check, infer, and make the node; nothing is computed."""
    settled, spec = op.inferred([n.spec for n in inputs], attributes)
    kept = MappingProxyType(dict(settled)) if settled else _NO_ATTRIBUTES
    return Node(op, tuple(inputs), spec, kept)


def as_nodes(words: OpWords, operands: Sequence[Any]) -> list[Node]:
    """Operands as nodes: handles give theirs, arrays and numbers become constants."""
    found = [None if is_number(x) else handle_node(x) for x in operands]
    if None not in found:
        return [n for n in found if n is not None]
    values = [
        x if n is None else np.empty(0, n.dtype) for x, n in zip(operands, found, strict=True)
    ]
    arrays = as_arrays(words, values)
    return [constant(a) if n is None else n for a, n in zip(arrays, found, strict=True)]


def handle_node(value: Any) -> Node | None:
    """The node of a Node or of a handle that has one; None for anything else."""
    node = value if isinstance(value, Node) else getattr(value, "node", None)
    return node if isinstance(node, Node) else None


def node_of(value: Any) -> Node | None:
    """The node of a handle or array; None for a Python number."""
    if is_number(value):
        return None
    node = handle_node(value)
    if node is None:
        refuse_masked("constant", value)
        return constant(np.asarray(value))
    return node


def constant(value: Any) -> Node:
    """A node that holds a copy of an array, in this machine's order of bytes."""
    array = np.array(value)
    array = array.astype(as_dtype(array.dtype), copy=False)  # kernels read the bytes as they lie
    array.flags.writeable = False
    return Node(CONSTANT, (), Spec(array.shape, array.dtype), value=array)


def variable(name: object, spec: Spec, storage: Storage) -> Node:
    """A node whose value is kept in `storage` between runs."""
    return Node(VARIABLE, (), spec, name=name, value=storage)


def placeholder(name: object, spec: Spec) -> Node:
    """A node that is fed."""
    return Node(PLACEHOLDER, (), spec, name=name)


def size(dim: Any, dtype: object) -> Node:
    """A dimension, or a polynomial of them, as a scalar."""
    if isinstance(dim, int):
        return constant(np.asarray(dim, as_dtype(dtype)))
    return Node(SIZE, (), Spec((), as_dtype(dtype)), MappingProxyType({"dim": dim}))


def places(dim: Any) -> Node:
    """0, 1, ..., dim - 1 in int64, for a dimension or a polynomial of them."""
    if isinstance(dim, int):
        return constant(np.arange(dim))
    return Node(PLACES, (), Spec((dim,), as_dtype(np.int64)), MappingProxyType({"dim": dim}))


def follows_sizes(node: Node) -> bool:
    """Whether the value of a node is known as soon as sizes are; then `value_for` gives it."""
    return node.op is SIZE or node.op is PLACES


def value_for(node: Node, sizes: Mapping[str, int]) -> Array:
    """The value of a node that `follows_sizes`."""
    count = node.attributes["dim"].bind(sizes)
    return np.asarray(count if node.op is SIZE else np.arange(count), node.dtype)


def phase(training: Node, prediction: Node) -> Node:
    """`training` while training, `prediction` otherwise.

    Raises:
        ShapeError, DTypeError: if the two differ in shape or dtype.
    """
    if training.shape != prediction.shape:
        raise ShapeError(
            f"phase: training gives shape {shape_text(training.shape)} but prediction "
            f"{shape_text(prediction.shape)}; make them equal"
        )
    if training.dtype != prediction.dtype:
        raise DTypeError(
            f"phase: training gives {training.dtype.name} but prediction {prediction.dtype.name}; "
            "cast one of them"
        )
    return Node(PHASE, (training, prediction), training.spec)


def update(passed: Node, target: Node, value: Node) -> Node:
    """`passed`; while training, also gives the variable `target` the new value `value`.

    Raises:
        GraphError: if `target` is no variable.
        ShapeError, DTypeError: if `value` has another shape or dtype than it.
    """
    if target.op is not VARIABLE:
        raise GraphError(f"update: expected a variable, got {target!r}")
    check_fits(target, value, "its new value has")
    return Node(UPDATE, (passed, target, value), passed.spec)


def check_fits(target: Node, value: Node, words: str = "expected") -> None:
    """Check that `value` has the shape and dtype of a variable.

    Raises:
        ShapeError, DTypeError: naming the variable.
    """
    if target.shape != value.shape:
        raise ShapeError(
            f"variable {target.label}: it has shape {shape_text(target.shape)}, "
            f"but {words} {shape_text(value.shape)}; make them equal"
        )
    if target.dtype != value.dtype:
        raise DTypeError(
            f"variable {target.label}: it has {target.dtype.name}, "
            f"but {words} {value.dtype.name}; cast it"
        )


def scope(entry: object) -> scoped:
    """Nodes made inside belong to `entry`, a name or a layer, which errors and profiles then tell.

    `str(entry)` is asked for when text is made, so a layer may get its final name after its nodes.
    """
    return scoped((*_path.get(), entry))


def scopes() -> tuple[object, ...]:
    """The scopes that nodes made now belong to, outermost first."""
    return _path.get()


class scoped:
    """Nodes made inside belong to exactly `path`, whatever the scope outside."""

    __slots__ = ("_outer", "_path")

    def __init__(self, path: tuple[object, ...]) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._outer = _path.set(self._path)

    def __exit__(self, *_: object) -> None:
        _path.reset(self._outer)


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operation on inputs of the same Specs; the node itself where they are its own."""
    if inputs == node.inputs:
        return node
    of = (node.spec, node.attributes, node.name, node.value, node.path, node.origin)
    return Node(node.op, inputs, *of)


def with_name(value: Any, name: str) -> Any:
    """A copy of a node that plans call so; what is no node stays."""
    return replace(value, name=name) if isinstance(value, Node) else value


def with_origin(node: Node, origin: object) -> Node:
    """A copy of `node` that knows which call made it."""
    of = (node.spec, node.attributes, node.name, node.value, node.path)
    return Node(node.op, node.inputs, *of, origin)


Children = Callable[[Node], tuple[Node, ...]]
Updated = tuple[Node, Node]  # a variable and its new value


def topological(outputs: Iterable[Node], children: Children | None = None) -> list[Node]:
    """Every node that `outputs` need, inputs before users, in an order that depends on the graph only."""
    order: list[Node] = []
    done: set[Node] = set()
    stack = list(outputs)[::-1]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        inputs = children(node) if children else node.inputs
        waiting = [i for i in inputs if i not in done]
        if waiting:
            stack += waiting[::-1]
        else:
            done.add(node)
            order.append(stack.pop())
    return order


def rebuild(
    outputs: Sequence[Node],
    replacements: Mapping[Node, Node],
    given: Mapping[str, Size] = _NO_ATTRIBUTES,
) -> list[Node]:
    """`outputs` over a graph in which some nodes are replaced; untouched parts are shared.

    Symbolic dimensions of a replaced node take the sizes of its replacement, everywhere, and those in `given`
    take the sizes there.

    Raises:
        ShapeError, DTypeError: if a replacement does not fit, or what is computed from it.
    """
    sizes = dict(given)
    for old, fresh in replacements.items():
        _match(old, fresh, sizes)
    new: dict[Node, Node] = dict(replacements)
    for node in topological(outputs):
        if node not in new:
            with naming_scope(node):
                fresh = _renewed(node, tuple(new[i] for i in node.inputs), sizes)
                if fresh is not node and node.origin is not None:
                    fresh = replace(fresh, origin=node.origin.renewed(new))
                new[node] = fresh
    return [new[node] for node in outputs]


def _match(old: Node, new: Node, sizes: dict[str, Size]) -> None:
    """Note in `sizes` what the symbols of `old` become when `new` takes its place."""
    whole = f"expected {shape_text(old.shape)}, got {shape_text(new.shape)}"
    if old.ndim != new.ndim:
        raise ShapeError(f"{old.label}: expected {old.ndim} axes, got {new.ndim}: {whole}")
    for axis, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
        expected = before
        if isinstance(before, Dim):
            expected = sizes.setdefault(str(before), after) if before.is_symbol else before
        if expected != after:
            raise ShapeError(f"{old.label}: axis {axis} must be {expected}, got {after}: {whole}")


def _renewed(node: Node, inputs: tuple[Node, ...], sizes: Mapping[str, Size]) -> Node:
    """The same operation on other inputs and sizes, its Spec inferred again where it changes."""
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    if same and not sizes:
        return node
    attributes = MappingProxyType({k: substitute(v, sizes) for k, v in node.attributes.items()})
    if same and attributes == node.attributes:
        return node
    if follows_sizes(node):
        with scoped(node.path):
            dim = attributes["dim"]
            return size(dim, node.dtype) if node.op is SIZE else places(dim)
    spec = _inferred(node, inputs, attributes)
    return replace(node, inputs=inputs, spec=spec, attributes=attributes)


def _inferred(node: Node, inputs: Sequence[Node], attributes: Mapping[str, Any]) -> Spec:
    """What a node's Spec becomes on other inputs."""
    if isinstance(node.op, Op):
        return node.op.infer([n.spec for n in inputs], attributes)
    if node.op is PHASE:
        return phase(*inputs).spec
    if node.op is UPDATE:
        return update(*inputs).spec
    return node.spec


@contextmanager
def naming_scope(node: Node) -> Iterator[None]:
    """Errors raised inside say where `node` belongs."""
    try:
        yield
    except MagmaDNNError as error:
        if not node.scope:
            raise
        raise type(error)(f"{error} (in {node.scope})") from error


def resolve_phase(outputs: Sequence[Node], training: bool) -> tuple[list[Node], list[Updated]]:
    """The graph of one phase, without `phase` and `update` nodes, and the updates that it makes.

    Outside training there are no updates. Where a variable is updated several times, as by a layer that is
    called twice, each update starts from what the one before has left; all else reads the variable as it was,
    which includes what earlier updates have passed on.
    """

    def children(node: Node) -> tuple[Node, ...]:
        if node.op is PHASE:
            return (node.inputs[0 if training else 1],)
        return node.inputs[:1] if node.op is UPDATE and not training else node.inputs

    order = topological(outputs, children)
    if not any(map(differs_by_phase, order)):
        return list(outputs), []
    new: dict[Node, Node] = {}
    updates: dict[Node, Node] = {}
    left: dict[Node, set[Node]] = {}  # of each variable, what its updates so far have passed on
    for node in order:
        inputs = tuple(new[i] for i in children(node))
        if node.op is PHASE or node.op is UPDATE:
            new[node] = inputs[0]
        else:
            new[node] = _in_phase(_renewed(node, inputs, {}), training)
        if node.op is UPDATE and training:
            passed, target, value = inputs
            ends = left.setdefault(target, {target})
            updates[target] = (
                _after(updates[target], ends, target, value) if target in updates else value
            )
            ends.update(_down_to(ends, passed))
    return [new[node] for node in outputs], list(updates.items())


def _after(earlier: Node, ends: Set[Node], target: Node, value: Node) -> Node:
    """An update's value from `earlier` on; `ends`, the target among them, read the variable as it was."""
    new = {target: earlier}
    for node in _down_to(ends, value):
        if node not in new:
            new[node] = (
                node if node in ends else with_inputs(node, tuple(new[i] for i in node.inputs))
            )
    return new[value]


def _down_to(ends: Set[Node], node: Node) -> list[Node]:
    """What a node is computed from, as `topological`, no further than to nodes of `ends`."""
    return topological([node], lambda n: () if n in ends else n.inputs)


def differs_by_phase(node: Node) -> bool:
    """Whether a node is for one phase, or has a graph inside it."""
    op = node.op
    return op.kind is OpKind.LOOP if isinstance(op, Op) else op is PHASE or op is UPDATE


def _in_phase(node: Node, training: bool) -> Node:
    """The node with the graph inside it, if it has one, as that of one phase."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.LOOP:
        return node
    found = {
        key: value.in_phase(training) if isinstance(value, Inner) else value
        for key, value in node.attributes.items()
    }
    return node if found == node.attributes else replace(node, attributes=MappingProxyType(found))
