"""Python operators and methods, each one line into an op.

`Tensor`, `Operation` and `Node` share them. An op or function is found by its public name, so that this
module knows no mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from magmadnn.calls import ADDED, ExplainsAttributes, checked_call, checked_method
from magmadnn.errors import DTypeError, GraphError

FUNCTIONS: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])

# what has another name in NumPy
OF_NUMPY = {"absolute": "abs", "concatenate": "concat"}
_OF_BITS = {
    "bitwise_and": "__and__",
    "bitwise_or": "__or__",
    "bitwise_xor": "__xor__",
    "invert": "__invert__",
}


def public(function: F) -> F:
    """Make a function of ops known under its name, as `md.ops.NAME`."""
    checked = checked_call(function)
    FUNCTIONS[function.__name__] = checked
    return checked


def path_of_numpy(function: Callable[..., Any], name: str) -> str:
    """Where users find our function for one of NumPy's, such as "md.linalg.inv"; empty where there is none.

    Args:
        function: NumPy's.
        name: that it has among ours.
    """
    package = function.__module__.removeprefix("numpy.")
    if package in ADDED and hasattr(ADDED[package](None), name):
        return f"md.{package}.{name}"
    return f"md.ops.{name}" if name in FUNCTIONS else ""


def _call(name: str, *args: Any, **attributes: Any) -> Any:
    return FUNCTIONS[name](*args, **attributes)


class Operators(ExplainsAttributes):
    """NumPy's operators and methods over `md.ops`."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions of elements, and its arrays and numbers on an operator's left: by our ops."""
        name = OF_NUMPY.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and not options:
            if name in FUNCTIONS:
                return _call(name, *inputs)
            if hasattr(self, operator := _OF_BITS.get(name, "")):
                others = inputs[1:] if inputs[0] is self else inputs[:1]
                return getattr(self, operator)(*others)
        call = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        given = f" with {' and '.join(options)}" if options else ""
        raise GraphError(
            f"np.{call}{given} does not take {type(self).__name__}s: "
            "use md.ops, or np.asarray(x) for the values"
        )

    def __add__(self, other: Any) -> Any:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _call("divide", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return _call("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _call("remainder", other, self)

    def __pow__(self, other: Any) -> Any:
        if type(other) in (int, float) and other == 2:
            return _call("square", self)  # as NumPy does: exact, and faster than a power
        return _call("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _call("power", other, self)

    def __and__(self, other: Any) -> Any:
        return self._logical("logical_and", other)

    def __or__(self, other: Any) -> Any:
        return self._logical("logical_or", other)

    def __xor__(self, other: Any) -> Any:
        return self._logical("not_equal", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Any:
        return self._logical("logical_not")

    def _logical(self, name: str, *others: Any) -> Any:
        for operand in (self, *others):
            dtype = operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype
            if dtype != np.bool_:
                raise DTypeError(f"{name}: expected bool, got {dtype.name}; compare first")
        return _call(name, self, *others)

    def __matmul__(self, other: Any) -> Any:
        if getattr(type(other), "__array_ufunc__", _call) is None:
            return NotImplemented  # it has a product of its own, as a sparse matrix
        return _call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _call("matmul", other, self)

    def __neg__(self) -> Any:
        return _call("negative", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _call("abs", self)

    def __lt__(self, other: Any) -> Any:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _call("greater_equal", self, other)

    def __getitem__(self, index: Any) -> Any:
        return _call("getitem", self, index)

    def __iter__(self) -> Iterator[Any]:
        return iter(_call("unstack", self))

    @property
    def T(self) -> Any:
        """All axes in reverse order."""
        return _call("transpose", self)

    @checked_method
    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.sum` of this."""
        return _call("sum", self, axis, keepdims)

    @checked_method
    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.mean` of this."""
        return _call("mean", self, axis, keepdims)

    @checked_method
    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.max` of this."""
        return _call("max", self, axis, keepdims)

    @checked_method
    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.min` of this."""
        return _call("min", self, axis, keepdims)

    @checked_method
    def prod(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.prod` of this."""
        return _call("prod", self, axis, keepdims)

    @checked_method
    def var(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.var` of this."""
        return _call("var", self, axis, keepdims)

    @checked_method
    def std(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.std` of this."""
        return _call("std", self, axis, keepdims)

    @checked_method
    def argmax(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.argmax` of this."""
        return _call("argmax", self, axis, keepdims)

    @checked_method
    def argmin(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`md.ops.argmin` of this."""
        return _call("argmin", self, axis, keepdims)

    @checked_method
    def cumsum(self, axis: Any = None, reverse: bool = False) -> Any:
        """`md.ops.cumsum` of this."""
        return _call("cumsum", self, axis, reverse)

    @checked_method
    def clip(self, low: Any = None, high: Any = None) -> Any:
        """`md.ops.clip` of this."""
        return _call("clip", self, low, high)

    @checked_method
    def astype(self, dtype: Any) -> Any:
        """`md.ops.cast` of this."""
        return _call("cast", self, dtype)

    def reshape(self, *shape: Any) -> Any:
        """`md.ops.reshape` of this; the shape as one tuple or as several integers."""
        return _call("reshape", self, shape[0] if len(shape) == 1 else shape)

    @checked_method
    def squeeze(self, axis: Any = None) -> Any:
        """`md.ops.squeeze` of this."""
        return _call("squeeze", self, axis)

    @checked_method
    def unsqueeze(self, axis: int = 0) -> Any:
        """`md.ops.expand_dims` of this."""
        return _call("expand_dims", self, axis)

    def transpose(self, *axes: Any) -> Any:
        """`md.ops.transpose` of this; the axes as one tuple or as several integers."""
        return _call("transpose", self, axes[0] if len(axes) == 1 else axes or None)

    @checked_method
    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """`md.ops.swapaxes` of this."""
        return _call("swapaxes", self, axis1, axis2)

    def dot(self, other: Any) -> Any:
        """`md.ops.matmul` of this and another."""
        return _call("matmul", self, other)
