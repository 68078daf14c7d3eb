"""Formulas of nodes: what compiled code can do, and what it computes, with the conversions that NumPy makes.

A formula is a nested tuple (see `kernels.formula`). NumPy finds a common dtype for the operands of every
single function, converts them, and wraps or rounds its result; compiled code has rules of its own: fewer
dtypes in registers, and bytes that are computed with as int32. So casts are put where the two differ, and
what only constants make is computed at once. In formulas of one floating-point dtype nothing differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from magmadnn.compiler.kernels.formula import (
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    PRIMITIVES,
    REAL_FUNCTIONS,
    TRUTHS,
    Formula,
    constant,
    frozen,
)
from magmadnn.graph.computed_by import RESULT, LibraryCall
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.scalar import PRIMITIVES as NUMPY
from magmadnn.graph.scalar import trace
from magmadnn.memory.dtypes import as_dtype, is_complex, is_floating

_LOGICAL = ("logical_and", "logical_or", "logical_not")
_LIKE = {"erf": np.exp, "power": np.power}  # functions of ours that convert as these do


class Part(NamedTuple):
    """A formula and its dtype: a name; for a Python number, which follows its peers, the number's type."""

    formula: Formula
    dtype: str | type

    @property
    def is_constant(self) -> bool:
        """Whether it is known beforehand."""
        return bool(self.formula[0] == "constant")


def promoted(raw: Formula, operands: Sequence[Part], dtype: str) -> Formula | None:
    """The formula over these operands, its value in `dtype`; None for what compiled code cannot do.

    Args:
        raw: over numbered arguments.
        operands: of these numbers; each of a dtype that has a name.
        dtype: of the result.
    """
    made = _written(raw, operands)
    return None if made is None else cast(made, dtype).formula


def cast(part: Part, dtype: str) -> Part:
    """A part in another dtype."""
    if part.dtype == dtype:
        return part
    if part.is_constant and _follows(part.dtype, dtype):
        return Part(part.formula, dtype)
    if part.is_constant and dtype not in HALVES:
        with np.errstate(all="ignore"):
            value = np.asarray(_number(part)).astype(dtype)
        return Part(constant(value.item()), dtype)
    return Part(("cast", part.formula, dtype), dtype)


def _follows(given: str | type, dtype: str) -> bool:
    """Whether compiled code makes what NumPy does of a Python number that meets a dtype."""
    return given in (int, float) and (dtype in FLOATS or (given is int and dtype in INTEGERS))


def _written(raw: Formula, operands: Sequence[Part]) -> Part | None:
    name, *args = raw
    if name == "argument":
        return operands[args[0]]
    if name == "constant":
        return Part(raw, type(args[0])) if isinstance(args[0], (bool, int, float)) else None
    if name == "cast":
        inner = _written(args[0], operands)
        return None if inner is None else _converted(inner, args[1])
    parts = [_written(arg, operands) for arg in args]
    known = [part for part in parts if part is not None]
    if name not in PRIMITIVES or len(known) < len(parts):
        return None
    if all(part.is_constant for part in known):
        return _computed(name, known)
    return _applied(name, known)


def _converted(inner: Part, dtype: str) -> Part | None:
    """A conversion that the formula itself asks for."""
    if dtype not in (*DTYPES, *HALVES):
        return None
    if inner.is_constant and isinstance(inner.dtype, str):
        return cast(inner, dtype)
    return Part(("cast", inner.formula, dtype), dtype)


def _applied(name: str, parts: Sequence[Part]) -> Part | None:
    """A primitive of operands in the dtypes that NumPy converts them to, and its result as NumPy gives it."""
    found = _dtypes(name, tuple(part.dtype for part in parts))
    if found is None:
        return None
    wanted, result = found[:-1], found[-1]
    if any(dtype not in DTYPES for dtype in found):
        return None
    if name in REAL_FUNCTIONS and not wanted[0].startswith("float"):
        return None
    operands = [cast(p, d) for p, d in zip(parts, wanted, strict=True)]
    if name == "where" and operands[1].is_constant and operands[2].is_constant:
        return _choice(*operands)
    made: Formula = (name, *(part.formula for part in operands))
    return cast(Part(made, _in_registers(name, wanted)), result)


def _choice(condition: Part, yes: Part, no: Part) -> Part:
    """One of two constants, which are float64 to compiled code if nothing else is said."""
    if yes.dtype in INTEGERS:
        yes = yes._replace(formula=("cast", yes.formula, yes.dtype))
        made: Formula = ("where", condition.formula, yes.formula, no.formula)
        return cast(Part(made, _in_registers("where", ("bool", str(yes.dtype)))), str(no.dtype))
    made = ("where", condition.formula, yes.formula, no.formula)
    return cast(Part(made, "float64"), str(no.dtype))


def _in_registers(name: str, dtypes: Sequence[str]) -> str:
    """The dtype that compiled code gives a primitive of operands of one dtype."""
    if name in TRUTHS:
        return "bool"
    if name == "where":
        return "int32" if dtypes[1] == "uint8" else dtypes[1]
    return "int32" if dtypes[0] in ("bool", "uint8") else dtypes[0]


def _computed(name: str, parts: Sequence[Part]) -> Part:
    """What a primitive makes of constants."""
    with np.errstate(all="ignore"):
        value = np.asarray(NUMPY[name](*map(_number, parts)))
    return Part(constant(value.item()), as_dtype(value.dtype).name)


def _number(part: Part) -> Any:
    """A constant as NumPy would be given it."""
    value = part.formula[1]
    return np.asarray(value, part.dtype) if isinstance(part.dtype, str) else value


@lru_cache(maxsize=4096)
def _dtypes(name: str, given: tuple[str | type, ...]) -> tuple[str, ...] | None:
    """The dtypes that NumPy converts the operands of a primitive to, and that of the result."""
    kinds = [as_dtype(dtype) if isinstance(dtype, str) else dtype for dtype in given]
    if name in _LOGICAL:
        return ("bool",) * (len(given) + 1)
    if name == "where":
        chosen = np.result_type(*(np.dtype(k) if k is bool else _sample(k) for k in kinds[1:])).name
        return ("bool", chosen, chosen, chosen)
    function = _LIKE.get(name, NUMPY[name])
    assert isinstance(function, np.ufunc)
    asked = [np.dtype(k) if k is bool else k for k in kinds]
    try:
        found = function.resolve_dtypes((*asked, None))  # int and float are weak
    except TypeError:
        return None
    return tuple(dtype.name for dtype in found)


def _sample(kind: Any) -> Any:
    """What stands for an operand where a common dtype is looked for: a Python number is of no dtype."""
    return kind if isinstance(kind, np.dtype) else kind(0)


# --- formulas of nodes ----------------------------------------------------------------------------


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
