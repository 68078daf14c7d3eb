"""What functions of matrices are given, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.graph.signature import axes_text, shape_text
from magmadnn.memory.dtypes import refuse_masked
from magmadnn.tensor import Operation, Tensor, asarray

_KNOWN = (Node, Operation, Tensor)


def operand(name: str, argument: str, value: Any, axes: int = 0) -> Any:
    """A node, an Operation or a Tensor as it is; an array, a list or a number as a Tensor.

    Raises:
        ShapeError: if it has fewer axes.
        DTypeError: if it holds no numbers.
    """
    (made,) = operands(name, (argument, value, axes))
    return made


def operands(name: str, *given: tuple[str, Any, int]) -> list[Any]:
    """The same of several, each with its name and its axes; beside a node arrays stay arrays."""
    lazy = any(isinstance(value, (Node, Operation)) for _, value, _ in given)
    made = [
        value
        if isinstance(value, _KNOWN)
        else numbers(name, argument, value, np.asarray if lazy else asarray)
        for argument, value, _ in given
    ]
    for (argument, _, axes), value in zip(given, made, strict=True):
        _check_axes(name, argument, value, axes)
    return made


def numbers(name: str, argument: str, value: Any, made: Callable[[Any], Any] = asarray) -> Any:
    """What `made` gives of a value, whose errors name the function and the argument.

    Raises:
        ShapeError: if rows of a list differ in length.
        DTypeError: if it holds no numbers, or of a dtype that is not known.
        DataError: if elements are masked.
    """
    refuse_masked(f"{name}: {argument}", value)
    try:
        return made(value)
    except ShapeError:
        raise ShapeError(f"{name}: rows of {argument} differ in length") from None
    except (DTypeError, ValueError) as error:
        what = f"got {type(value).__name__}"
        if isinstance(value, np.ndarray | list | tuple):
            what = str(error).removeprefix("asarray: ")
        raise DTypeError(f"{name}: {argument} must be numbers: {what}") from None


def refuse_unless_square(name: str, argument: str, a: Any) -> None:
    """Look whether matrices are square, as far as sizes are known.

    Raises:
        ShapeError: if they are not.
    """
    m, n = a.shape[-2:]
    if isinstance(m, int) and isinstance(n, int) and m != n:
        raise ShapeError(
            f"{name}: {argument} must be square, got shape {shape_text(a.shape)}; md.linalg.svd, qr, lstsq "
            "and pinv take other matrices"
        )


def _check_axes(name: str, argument: str, made: Any, axes: int) -> None:
    if made.ndim < axes:
        raise ShapeError(
            f"{name}: {argument} has {axes_text(made.ndim)}, shape {shape_text(made.shape)}, expected "
            f"{axes} or more: a matrix, or a stack of them"
        )


def truth(name: str, argument: str, value: Any) -> bool:
    """An argument that is True or False."""
    if value is True or value is False or type(value).__name__ == "bool":
        return bool(value)
    raise ArgumentError(f"{name}: {argument} must be True or False, got {value!r}")


class EighResult(NamedTuple):
    """Eigenvalues [..., n], ascending, and eigenvectors [..., n, n], each a column."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """A = U diag(S) Vh: U [..., m, k], S [..., k] descending, Vh [..., k, n]."""

    U: Any
    S: Any
    Vh: Any


class QRResult(NamedTuple):
    """A = Q R: orthonormal columns Q [..., m, k], upper triangular R [..., k, n]."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """A determinant as its sign (0 where it is 0) and the logarithm of its size: both [...]."""

    sign: Any
    logabsdet: Any
