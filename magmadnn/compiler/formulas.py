"""Formulas of nodes: what compiled code can do, and what it computes.

A formula is a nested tuple (see `kernels.formula`); `promotion` puts in what NumPy converts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import RESULT, LibraryCall
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.scalar import trace
from magmadnn.memory.dtypes import as_dtype, is_complex, is_floating

from .kernels.formula import DTYPES, FLOATS, HALVES, REAL_FUNCTIONS, Formula, constant, frozen
from .promotion import Part, promoted

_SUMMED = ("int32", "int64", "float32", "float64")  # what sums of picked rows are of
_COUNTED = ("uint8", "int32", "int64")  # what rows are numbered with
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}  # of primitives
_SLOW = REAL_FUNCTIONS - {"divide", "sqrt"}
_FEW = 4  # primitives of a cheap node
_COMPUTED = frozenset(map(as_dtype, DTYPES))
_CONVERSIONS = {
    (as_dtype(source), as_dtype(goal))
    for source, goal in [
        *(("float32", h) for h in HALVES),
        *((h, f) for h in HALVES for f in FLOATS),
    ]
}


def compilable(node: Node) -> bool:
    """Whether compiled code can do a node: it knows its dtypes and every primitive of its formula."""
    op = node.op
    if any(is_complex(n.dtype) for n in (node, *node.inputs)):
        return False
    if isinstance(op, Op) and op.kind in (OpKind.MOVEMENT, OpKind.GATHER):
        return _moves(node, op)
    if converts_half(node):
        return True
    if isinstance(op, Op) and op.library is not None and op.library.whole:
        return _is_whole(node, op.library)
    if not isinstance(op, Op) or not _COMPUTED.issuperset(n.dtype for n in (node, *node.inputs)):
        return False
    if op.kind is OpKind.POINTWISE:
        return op.scalar is not None and _is_written(node)
    if op.kind is OpKind.SCATTER:
        return node.dtype.name in _SUMMED and node.inputs[1].dtype.name in _COUNTED
    if op.kind is OpKind.RANDOM:
        return op.draws == "uniform" and node.dtype.name in ("float32", "float64")
    if any(i.dtype != node.dtype for i in node.inputs):
        return False
    if op.kind is OpKind.KERNEL:
        return op.kernel is not None and node.dtype.name in op.kernel.dtypes
    if op.kind is OpKind.LIBRARY:
        return op.library is not None and _is_stack(node, op.library)
    if op.kind is OpKind.REDUCTION:
        return is_floating(node.dtype) or node.dtype == np.int64
    return is_floating(node.dtype) and op.kind is OpKind.CONTRACTION


def _is_whole(node: Node, call: LibraryCall) -> bool:
    """Whether a function of whole arrays takes the operands: all of one of its dtypes, but for bytes."""
    dtypes = {k: n.dtype for k, n in enumerate(node.inputs)} | {RESULT: node.dtype}
    numbers = [dtypes.pop(k) for k in call.one_byte]
    (one, *others) = dict.fromkeys(dtypes.values())
    return all(d == np.uint8 for d in numbers) and not others and one.name in call.dtypes


def _is_stack(node: Node, call: LibraryCall) -> bool:
    """Whether a library takes the operands: of its dtypes, and as many matrices as the result, or one."""
    stacks = (i.shape[:-2] for i in node.inputs)
    fit = all(s == node.shape[:-2] or all(size == 1 for size in s) for s in stacks)
    return fit and node.dtype.name in call.dtypes


def _is_written(node: Node) -> bool:
    """Whether there is a formula for operands of these dtypes."""
    return _depth(_raw(node), tuple(i.dtype for i in node.inputs), node.dtype) is not None


def depth_of(node: Node) -> int:
    """How deep the ops of a pointwise node lie in each other, conversions included; 0 where NumPy does it."""
    if not compilable(node):
        return 0
    return _depth(_raw(node), tuple(i.dtype for i in node.inputs), node.dtype) or 0


def times_written(node: Node) -> tuple[int, ...]:
    """How often each operand of a pointwise node stands in its formula."""
    raw = _raw(node)
    return tuple(_count(raw, number) for number in range(len(node.inputs)))


@lru_cache(maxsize=4096)
def _count(raw: Formula, number: int) -> int:
    """How often an argument stands in a formula."""
    if raw[0] == "argument":
        return int(raw[1] == number)
    return sum(_count(part, number) for part in raw[1:] if isinstance(part, tuple))


@lru_cache(maxsize=4096)
def _depth(raw: Formula, dtypes: tuple[np.dtype[Any], ...], dtype: np.dtype[Any]) -> int | None:
    """That of a formula over operands of these dtypes; None where there is none."""
    given = [Part(("argument", k), d.name) for k, d in enumerate(dtypes)]
    made = promoted(raw, given, dtype.name)
    return None if made is None else _levels(made)


def _levels(formula: Formula) -> int:
    """How many formulas lie in each other."""
    inner = [_levels(a) for a in formula[1:] if isinstance(a, tuple)]
    return 1 + max(inner) if inner else 0


def converts_half(node: Node) -> bool:
    """Whether a node rounds float32 to half precision, or widens halves; more is not compiled of them."""
    op = node.op
    if len(node.inputs) != 1 or not isinstance(op, Op) or op.scalar is None:
        return False
    if op.kind is not OpKind.POINTWISE:
        return False
    ends = (node.inputs[0].dtype, node.dtype)
    return ends in _CONVERSIONS and _raw(node) == ("cast", ("argument", 0), node.dtype.name)


def converts(node: Node) -> bool:
    """Whether a pointwise node only changes the dtype."""
    raw = _raw(node)
    return bool(raw[0] == "cast" and raw[1] == ("argument", 0))


def is_pointwise(node: Node) -> bool:
    """Whether a node computes element by element."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.POINTWISE


def is_contraction(node: Node) -> bool:
    """Whether a node sums products over axes of its operands."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.CONTRACTION


def is_sum(node: Node) -> bool:
    """Whether a node adds two values."""
    if not is_pointwise(node) or len(node.inputs) != 2:
        return False
    return _raw(node) == ("add", ("argument", 0), ("argument", 1))


def combines(node: Node) -> str | None:
    """How a pointwise node combines its two operands, in their order: "+", "-" or "*"; None for otherwise."""
    if not is_pointwise(node) or len(node.inputs) != 2:
        return None
    name, *args = _raw(node)
    return _SIGNS.get(name) if args == [("argument", 0), ("argument", 1)] else None


def cuts_at_zero(node: Node) -> bool:
    """Whether a node gives its operand where that is positive, and 0 elsewhere."""
    if not is_pointwise(node) or len(node.inputs) != 1:
        return False
    name, *args = _raw(node)
    is_zero = len(args) == 2 and args[1][0] == "constant" and args[1][1] == 0
    return name == "maximum" and args[0] == ("argument", 0) and is_zero


def is_rounding(node: Node) -> bool:
    """Whether a node rounds float32 to half precision."""
    return node.dtype.name in HALVES and converts_half(node)


def widens(node: Node) -> bool:
    """Whether a node makes float32 of halves."""
    return node.dtype == np.float32 and node.inputs[:1] != () and converts_half(node)


def _moves(node: Node, op: Op) -> bool:
    """Whether a movement or gather copies elements as they are; their dtype need not be known then."""
    sources = node.inputs
    if op.kind is OpKind.GATHER:
        sources = node.inputs[:1]
        if node.inputs[1].dtype.name not in _COUNTED:
            return False
    return bool(sources) and all(s.dtype == node.dtype for s in sources)


def formula_of(node: Node, operands: Sequence[Formula]) -> Formula:
    """The formula of a pointwise node over the formulas of its operands, in the node's dtype."""
    given = [Part(f, i.dtype.name) for f, i in zip(operands, node.inputs, strict=True)]
    made = promoted(_raw(node), given, node.dtype.name)
    assert made is not None
    return made


def operations(node: Node) -> int:
    """How many primitives the formula of a pointwise node has; conversions do not count."""
    op = node.op
    return _length(_raw(node)) if isinstance(op, Op) and op.scalar is not None else 1


def is_cheap(node: Node) -> bool:
    """Whether a pointwise node is a few operations that take about as long as an addition."""
    return operations(node) <= _FEW and _SLOW.isdisjoint(_names(_raw(node)))


def _names(formula: Formula) -> Iterator[str]:
    yield formula[0]
    for part in formula[1:]:
        if isinstance(part, tuple):
            yield from _names(part)


def _length(formula: Formula) -> int:
    name, *args = formula
    own = name not in ("argument", "constant", "cast")
    return own + sum(_length(a) for a in args if isinstance(a, tuple))


def _raw(node: Node) -> Formula:
    """The formula over numbered arguments."""
    assert isinstance(node.op, Op) and node.op.scalar is not None
    settings = node.attributes.items()
    return _traced(node.op.scalar, len(node.inputs), tuple((k, repr(v), v) for k, v in settings))


@lru_cache(maxsize=4096)
def _traced(scalar: Callable[..., Any], count: int, settings: tuple[Any, ...]) -> Formula:
    """The same of a function, with settings that are told apart by their text: 1, 1.0 and True are equal."""
    return _tagged(frozen(trace(scalar, count, **{key: value for key, _, value in settings})))


def _tagged(formula: Formula) -> Formula:
    name, *args = formula
    if name == "constant":
        return constant(args[0])
    return (name, *(_tagged(a) if isinstance(a, tuple) else a for a in args))
