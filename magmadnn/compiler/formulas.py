"""Formulas of nodes, with the dtypes of their parts: what compiled code computes is what NumPy would.

A formula is a nested tuple (see `kernels.formula`). There, constants take the dtype of what they meet, and
numbers of several dtypes become the widest of them. NumPy promotes operands first, and wraps and rounds
after every op; so operands and results are cast here where that makes a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.scalar import trace
from magmadnn.graph.spec import is_floating

from .kernels.formula import DTYPES, HALVES, PRIMITIVES, REAL_FUNCTIONS, TRUTHS, Formula, frozen

_SUMMED = ("int32", "int64", "float32", "float64")  # what sums of picked rows are of
_FLOATS = ("float32", "float64")
_COUNTED = ("uint8", "int32", "int64")  # what rows are numbered with
_CONVERSIONS = {*(("float32", h) for h in HALVES), *((h, f) for h in HALVES for f in _FLOATS)}


def compilable(node: Node) -> bool:
    """Whether compiled code can do a node: it knows its dtypes and every primitive of its formula."""
    op = node.op
    if isinstance(op, Op) and op.kind in (OpKind.MOVEMENT, OpKind.GATHER):
        return _moves(node, op)
    if converts_half(node):
        return True
    if not isinstance(op, Op) or any(n.dtype.name not in DTYPES for n in (node, *node.inputs)):
        return False
    if op.kind is OpKind.POINTWISE:
        return op.scalar is not None and _known(raw := _raw(node)) and _floats_meet(raw, node)
    if op.kind is OpKind.SCATTER:
        return node.dtype.name in _SUMMED and node.inputs[1].dtype.name in _COUNTED
    if op.kind is OpKind.RANDOM:
        return op.draws == "uniform" and node.dtype.name in ("float32", "float64")
    if any(i.dtype != node.dtype for i in node.inputs):
        return False
    if op.kind is OpKind.REDUCTION:
        return is_floating(node.dtype) or node.dtype == np.int64
    return is_floating(node.dtype) and op.kind is OpKind.CONTRACTION


def converts_half(node: Node) -> bool:
    """Whether a node rounds float32 to half precision, or widens halves; more is not compiled of them."""
    op = node.op
    if len(node.inputs) != 1 or not isinstance(op, Op) or op.scalar is None:
        return False
    if op.kind is not OpKind.POINTWISE:
        return False
    ends = (node.inputs[0].dtype.name, node.dtype.name)
    return ends in _CONVERSIONS and _raw(node) == ("cast", ("argument", 0), ends[1])


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


def constant(value: Any) -> Formula:
    """A constant; the text keeps apart what compares equal: 0.0 and -0.0, 1, 1.0 and True."""
    if value != value:
        value = math.nan  # one object, so that formulas with it are equal
    return ("constant", value, repr(value))


def formula_of(node: Node, operands: Sequence[Formula]) -> Formula:
    """The formula of a pointwise node over the formulas of its operands, in the node's dtype."""
    raw, common = _raw(node), _common(node)
    kinds = ["bool" if i.dtype == np.bool_ else common for i in node.inputs]
    read = [
        f if f[0] == "constant" or kind == i.dtype.name else ("cast", f, kind)
        for f, kind, i in zip(operands, kinds, node.inputs, strict=True)
    ]
    weak = [f if f[0] == "constant" else ("argument", k) for k, f in enumerate(operands)]
    dtype = _dtype_of(_substituted(raw, weak), kinds)
    made = _substituted(raw, read)
    return made if dtype == node.dtype.name else ("cast", made, node.dtype.name)


def operations(node: Node) -> int:
    """How many primitives the formula of a pointwise node has; conversions do not count."""
    op = node.op
    return _length(_raw(node)) if isinstance(op, Op) and op.scalar is not None else 1


def _length(formula: Formula) -> int:
    name, *args = formula
    own = name not in ("argument", "constant", "cast")
    return own + sum(_length(a) for a in args if isinstance(a, tuple))


def _raw(node: Node) -> Formula:
    """The formula over numbered arguments."""
    assert isinstance(node.op, Op) and node.op.scalar is not None
    return _tagged(frozen(trace(node.op.scalar, len(node.inputs), **node.attributes)))


def _tagged(formula: Formula) -> Formula:
    name, *args = formula
    if name == "constant":
        return constant(args[0])
    return (name, *(_tagged(a) if isinstance(a, tuple) else a for a in args))


def _substituted(formula: Formula, operands: Sequence[Formula]) -> Formula:
    name, *args = formula
    if name == "argument":
        return operands[args[0]]
    if name == "constant":
        return formula
    return (name, *(_substituted(a, operands) if isinstance(a, tuple) else a for a in args))


def _known(formula: Formula) -> bool:
    name, *args = formula
    if name in ("argument", "constant"):
        return name == "argument" or isinstance(args[0], (bool, int, float))
    if name == "cast":
        return args[1] in DTYPES and _known(args[0])
    return name in PRIMITIVES and all(_known(a) for a in args)


def _common(node: Node) -> str:
    """The dtype that NumPy brings a node's numbers to first; truth values stay what they are."""
    numbers = [i.dtype for i in node.inputs if i.dtype != np.bool_]
    if _raw(node)[0] == "cast" or not numbers:
        return numbers[0].name if numbers else "bool"
    return (np.result_type(*numbers) if node.dtype == np.bool_ else node.dtype).name


def _floats_meet(formula: Formula, node: Node) -> bool:
    """Whether compiled code knows the dtype of the operands, and real functions get real numbers."""
    common = _common(node)
    if common not in DTYPES:
        return False
    kinds = ["bool" if i.dtype == np.bool_ else common for i in node.inputs]
    return _all_fit(formula, kinds)


def _all_fit(formula: Formula, kinds: Sequence[str]) -> bool:
    name, *args = formula
    if name in ("argument", "constant"):
        return True
    parts = [a for a in args if isinstance(a, tuple)]
    if name in REAL_FUNCTIONS and _widest(parts, kinds) not in ("float32", "float64", None):
        return False
    return all(_all_fit(a, kinds) for a in parts)


def _dtype_of(formula: Formula, kinds: Sequence[str]) -> str | None:
    """The dtype that compiled code gives a formula; None for one of constants only."""
    name, *args = formula
    if name == "argument":
        return kinds[args[0]]
    if name == "constant":
        return None
    if name == "cast":
        return str(args[1])
    if name in TRUTHS:
        return "bool"
    parts = args[1:] if name == "where" else args
    widest = _widest(parts, kinds)
    if name == "where":
        return widest
    return "int32" if widest == "bool" else widest


def _widest(parts: Sequence[Formula], kinds: Sequence[str]) -> str | None:
    """The dtype of numbers that meet."""
    found = [dtype for p in parts if (dtype := _dtype_of(p, kinds)) is not None]
    if not found:
        return None
    widest = max(found, key=DTYPES.index)
    constants = [p[1] for p in parts if p[0] == "constant"]
    if widest.startswith("float"):
        return widest
    if any(isinstance(c, float) for c in constants):
        return "float64"
    if widest == "uint8" and len(parts) > 1:
        return "int32"
    if widest == "bool" and any(not isinstance(c, bool) for c in constants):
        return "int64"
    return widest
