"""What ops of matrices share: triangles, the dtype that libraries compute in, the words of errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, NumericError, ShapeError
from magmadnn.graph.dim import Size
from magmadnn.graph.node import Node, places
from magmadnn.graph.op import Array, Op
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import is_complex, is_floating
from magmadnn.ops import (
    broadcast_to,
    cast,
    conj,
    equal,
    expand_dims,
    greater,
    greater_equal,
    less_equal,
    swapaxes,
    where,
)
from magmadnn.ops import sum as sum_

_COMPUTED = (np.dtype(np.float32), np.dtype(np.float64))


def computed(*arrays: Array) -> list[Array]:
    """Operands in the dtype that libraries compute in: float32 for halves, float64 for integers."""
    dtypes = [a.dtype for a in arrays]
    if dtypes[0].char in "fdFD" and dtypes[0].isnative and dtypes.count(dtypes[0]) == len(dtypes):
        return list(arrays)
    floating = all(map(_has_point, dtypes))
    wide = np.result_type(np.float32 if floating else np.float64, *filter(_has_point, dtypes))
    return [a.astype(wide, copy=False) for a in arrays]


def _has_point(dtype: np.dtype[Any]) -> bool:
    return is_floating(dtype) or is_complex(dtype)


def as_stacks(node: Node) -> Node | None:
    """The rewrite to operands that libraries take: of one dtype, as many matrices as the result, or one."""
    assert isinstance(node.op, Op)
    if is_complex(node.dtype):  # no library is called with such in a program
        return None
    wide = node.dtype if node.dtype in _COMPUTED else _COMPUTED[0]  # halves are computed in float32
    operands = [_as_stack(x, wide, node.shape[:-2]) for x in node.inputs]
    if all(new is old for new, old in zip(operands, node.inputs, strict=True)):
        return None
    made: Node = cast(node.op(*operands, **node.attributes), node.dtype)
    return made


def _as_stack(x: Node, dtype: np.dtype[Any], leading: tuple[Size, ...]) -> Node:
    if x.dtype != dtype:
        x = cast(x, dtype)
    if x.shape[:-2] != leading and any(size != 1 for size in x.shape[:-2]):
        x = broadcast_to(x, (*leading, *x.shape[-2:]))
    return x


def in_single(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """The `decompose` of an op, of half precision by that of float32: the result alone is rounded.

    Numbers of rows, which stand beside factors, have no room in a half either. Beside integers, whose factors
    are of float64, the result is of the op's dtype all the same: float32 where the other operand is. Where
    the result is of double precision, factors are too: those of float32 would leave it 7 digits.
    """

    @wraps(decompose)
    def made(*operands: Any, **attributes: Any) -> Any:
        dtype = np.result_type(*(x.dtype for x in operands))
        dtype = np.dtype(np.float64) if dtype.kind in "iub" else dtype
        wide = [_in_precision(x, dtype.char in "dD") for x in operands]
        found = decompose(*wide, **attributes)
        return found if found is None or found.dtype == dtype else cast(found, dtype)

    return made


def _in_precision(x: Any, is_double: bool) -> Any:
    """Numbers of half precision in float32, and in double precision those of single precision as well."""
    if is_double and _has_point(x.dtype):
        wanted = "complex128" if is_complex(x.dtype) else "float64"
        return x if x.dtype == wanted else cast(x, wanted)
    return cast(x, "float32") if _is_half(x) else x


def _is_half(x: Any) -> bool:
    return bool(is_floating(x.dtype) and x.dtype.itemsize == 2)


def truth_values(words: OpWords, specs: Sequence[Spec], **attributes: Any) -> Attributes:
    """The `canonical` of ops whose attributes are all True or False."""
    for name, value in attributes.items():
        if not isinstance(value, (bool, np.bool)):
            raise ArgumentError(f"{words.name}: {name} must be True or False, got {value!r}")
    return {name: bool(value) for name, value in attributes.items()}


def matrix_name(operand: str, index: tuple[Any, ...]) -> str:
    """A matrix of a stack, as Python writes it: `a[2, 0]`; `a` where there is no stack."""
    return f"{operand}[{', '.join(str(int(i)) for i in index)}]" if index else operand


def refuse_unless_finite(name: str, operand: str, matrices: Array) -> None:
    """Refuse NaN and infinity, which libraries loop over or hide.

    Raises:
        NumericError: naming the first matrix that holds one.
    """
    bad = ~np.isfinite(matrices)
    if bad.any():
        *index, row, column = np.argwhere(bad)[0]
        raise NumericError(
            f"{name}: {matrix_name(operand, tuple(index))} holds {matrices[(*index, row, column)]} at "
            f"[{row}, {column}]; give finite numbers"
        )


def diagonal(x: Any) -> Any:
    """The diagonals of the node's matrices, [..., k]."""
    rows, columns = x.shape[-2:]
    k = smaller(rows, columns)
    square = x[..., :k, :k]
    kept = equal(*places_of(square))
    return sum_(where(kept, square, 0), axis=-1)


def with_diagonal(x: Any) -> Any:
    """Matrices [..., k, k] with the node's numbers on their diagonals, zeros elsewhere."""
    wide = expand_dims(x, -1)
    k = x.shape[-1]
    rows, columns = expand_dims(places(k), 1), expand_dims(places(k), 0)
    return where(equal(rows, columns), wide, 0)


def identity(n: Size, dtype: Any) -> Any:
    """The matrix I [n, n]; an Operation where the size is known only when a graph runs."""
    if isinstance(n, int):
        return np.eye(n, dtype=dtype)
    return cast(equal(expand_dims(places(n), 1), expand_dims(places(n), 0)), dtype)


def counted(n: Size, dtype: Any) -> Any:
    """The numbers 0, 1, ..., n - 1; an Operation likewise."""
    return np.arange(n, dtype=dtype) if isinstance(n, int) else cast(places(n), dtype)


def transposed(x: Any) -> Any:
    """The matrices turned."""
    return swapaxes(x, -1, -2)


def adjoint(x: Any) -> Any:
    """The matrices turned, and conjugate where they are complex."""
    return transposed(conj(x))


def by_ascent(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The `vjp` of an op that is not differentiable in complex numbers, by a rule for its ascent.

    The sweep gives and wants conjugates where a result is complex (`graph/transforms/gradient.py`).
    """

    def vjp(g: Any, y: Any, *operands: Any, **attributes: Any) -> Any:
        found = rule(conj(g), y, *operands, **attributes)
        return tuple(map(conj, found)) if isinstance(found, tuple) else conj(found)

    return vjp


def smaller(one: Size, other: Size) -> Any:
    """The smaller of two sizes, which must be known unless they are equal."""
    if one == other:
        return one
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    raise ShapeError(
        f"linalg: which of the sizes {one} and {other} is smaller must be known before; give numbers"
    )


def triangle(x: Any, lower: bool = True) -> Any:
    """The node's matrices with zeros above their diagonal, or below it."""
    rows, columns = places_of(x)
    kept = greater_equal(rows, columns) if lower else less_equal(rows, columns)
    return where(kept, x, 0)


def half_lower(x: Any) -> Any:
    """The node's matrices with zeros above their diagonal, and half of that."""
    rows, columns = places_of(x)
    return where(greater(rows, columns), x, where(greater(columns, rows), 0, x * 0.5))


def places_of(x: Any) -> tuple[Any, Any]:
    """Numbers of the rows, as a column, and of the columns, as a row."""
    rows, columns = x.shape[-2:]
    return expand_dims(places(rows), 1), expand_dims(places(columns), 0)
