"""The handle of a spread array: what NumPy's users expect of one, with the elements elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from magmadnn.calls import missing_name
from magmadnn.dmath.client.checking import fitting, refuse_complex, several
from magmadnn.dmath.functions import views
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import LayoutLike
from magmadnn.dmath.products.arithmetic import error_bound, wire_name
from magmadnn.errors import ArgumentError, ShapeError, UnknownAttributeError, quoted
from magmadnn.memory.dtypes import as_dtype


class Home(Protocol):
    """What a handle asks of the session that it belongs to."""

    size: int
    device: str

    @property
    def array(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def apply(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def apply_in_place(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def reduce(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def matmul(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def _new(self) -> Callable[..., Matrix]:
        """Of `Session`."""

    @property
    def _change(self) -> Callable[..., None]:
        """Of `Session`."""

    @property
    def _drop(self) -> Callable[..., None]:
        """Of `Session`."""

    @property
    def _layout(self) -> Callable[..., Layout]:
        """Of `Session`."""

    @property
    def _gather(self) -> Callable[..., Any]:
        """Of `Session`."""


class Matrix:
    """An array whose blocks lie on workers: a matrix, a vector, or with any number of axes.

    Operators and methods are NumPy's. They return at once with a new handle, while workers compute; values
    come to this process only for `np.asarray`, `float`, `int`, `bool` and printing. Slices and transposes
    are views, as in NumPy; so is an element by its indices, which in NumPy is a number: `x[1, 2].copy()`
    keeps what it is now.
    """

    __slots__ = ("__weakref__", "_number", "_session", "dtype", "shape")
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]  # == is of elements, as in NumPy

    def __init__(
        self, session: Home, number: int, shape: Sequence[int], dtype: np.dtype[Any]
    ) -> None:
        self._session, self._number = session, number
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype = dtype

    def __del__(self) -> None:
        self._session._drop(self._number)

    def __copy__(self) -> Matrix:
        """Elements of its own, as NumPy's arrays are copied."""
        return self.to()

    def __deepcopy__(self, memo: dict[int, Any]) -> Matrix:
        return self.to()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "pickle: the elements lie on workers: take np.asarray(x), or write them with md.dmath.save"
        )

    # --- what it is ---------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, copies not counted."""
        return self.size * self.dtype.itemsize

    @property
    def layout(self) -> Layout:
        """Where the blocks lie; waits for the workers, who choose it."""
        return self._session._layout(self)

    @property
    def device(self) -> str:
        """Where elements are computed on: "cpu" or "cuda"."""
        return self._session.device

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        from magmadnn import dmath

        return dmath

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Asked only for what is not there: what NumPy's arrays have may be a function here."""
            from magmadnn import dmath

            if name in dmath.FUNCTIONS:
                raise UnknownAttributeError(
                    f"arrays on workers have no attribute {name!r}: write md.dmath.{name}(x, ...)"
                )
            raise missing_name("array on workers", ["md.dmath.Matrix"], name, lambda: dir(Matrix))

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.shape)) or "scalar"
        return f"<Matrix {sizes} {self.dtype} on {self._session.size} workers>"

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len: an array without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # --- values come here ---------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ArgumentError(
                "np.asarray: elements lie on workers, so that a copy is made: leave copy out"
            )
        found = self._session._gather(self)
        return found if dtype is None else found.astype(dtype, copy=False)

    def numpy(self) -> Any:
        """All elements, gathered into a NumPy array in this process."""
        return np.asarray(self)

    def item(self) -> Any:
        """The only element, as Python's number."""
        if self.size != 1:
            raise ShapeError(f"item: one element is a number, shape {self.shape} has {self.size}")
        return np.asarray(self).item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise ArgumentError(f"index: an index is an integer, this is {self.dtype}")
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def wait(self) -> Matrix:
        """Wait until it is computed; raises what went wrong."""
        self._session._layout(self)
        return self

    # --- views and layouts --------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Matrix:
        key = views.key_of("index", index, self.shape)
        return self._session._new("view", [self], views.key_shape(key), self.dtype, key=key)

    def __setitem__(self, index: Any, value: Any) -> None:
        key = views.key_of("index", index, self.shape)
        shape = views.key_shape(key)
        if isinstance(value, Matrix):
            refuse_complex("assign", value.dtype, self.dtype)
        elif np.ndim(value):
            refuse_complex("assign", np.asanyarray(value).dtype, self.dtype)
            value = self._session.array(value, dtype=self.dtype)
        else:
            value = fitting("assign", value, self.dtype)
        given = value.shape if isinstance(value, Matrix) else ()
        try:
            fits = np.broadcast_shapes(shape, given) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(
                f"assign: a value of shape {given} does not fit the indexed part, {shape}"
            )
        self._session._change("assign", [self, value], key=key)

    @property
    def T(self) -> Matrix:
        """A view with the axes in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Matrix:
        """A view with the last two axes exchanged."""
        if self.ndim < 2:
            raise ShapeError(f"mT: needs two axes, shape {self.shape} has {self.ndim}")
        return self.transpose((*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    def transpose(self, axes: Sequence[int] | None = None) -> Matrix:
        """A view with the axes in another order; reversed without `axes`. Nothing moves."""
        back = range(self.ndim - 1, -1, -1)
        order = list(back if axes is None else several("transpose", "axes", axes))
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"transpose: axes {order} are no order of the {self.ndim} axes")
        return self._session._new(
            "transpose", [self], [self.shape[a] for a in order], self.dtype, axes=order
        )

    def to(
        self,
        layout: LayoutLike = None,
        dtype: Any = None,
        wire: Any = None,
        error: float | None = None,
    ) -> Matrix:
        """A copy in another layout, of another dtype, or both; in one pass over the elements.

        `A.T.to(layout)` transposes in the same pass.

        Args:
            layout: the new one; None keeps it.
            dtype: the new one; None keeps it.
            wire: a dtype in which elements travel: each is rounded to it once. None: the smaller of the two
                dtypes, which rounds nothing that the result would not.
            error: instead of `wire`, how much elements may be off, beside the rounding of their dtype. They
                travel as multiples of twice that in one, two or four bytes, whatever holds all of a message;
                elements for which that is too short stay as they are, as do NaN and infinity.

        Raises:
            ArgumentError: for an `error` that is no number above 0, or together with `wire`.
            DTypeError: for `wire` or `error` of elements that are no real floating-point numbers; for complex
                ones in a real dtype.
        """
        new = self.dtype if dtype is None else as_dtype(dtype)
        refuse_complex("to", self.dtype, new)
        more = {} if error is None else {"error": error_bound("to", error, wire, self.dtype)}
        return self._session._new(
            "remap",
            [self],
            self.shape,
            new,
            layout,
            dtype=new.name,
            wire=wire_name("to", wire, [self.dtype]),
            **more,
        )

    def astype(self, dtype: Any, copy: bool = True) -> Matrix:
        """A copy of another dtype; itself if it is of that dtype and `copy` is False."""
        return self if not copy and as_dtype(dtype) == self.dtype else self.to(dtype=dtype)

    def to_device(self, device: str, /, *, stream: Any = None) -> Matrix:
        """The array itself, as workers compute in one place.

        Raises:
            ArgumentError: for another device than theirs; elements go there by `other.array(np.asarray(x))`.
        """
        if device != self.device:
            raise ArgumentError(
                f"to_device: these workers compute on {self.device!r}, got {quoted(device)}: send "
                f"the values to others, w.array(np.asarray(x))"
            )
        return self

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """All elements, gathered into this process, for another library to read."""
        if copy is False:
            raise ArgumentError(
                "__dlpack__: elements lie on workers, so that a copy is made: leave copy out"
            )
        return np.asarray(self).__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where `__dlpack__` puts elements: this process's memory, (1, 0)."""
        return 1, 0

    def copy(self) -> Matrix:
        """A copy in the same layout."""
        return self._session._new("copy", [self], self.shape, self.dtype)

    def replica(self, on: Sequence[int] | None = None) -> Matrix:
        """Copies on all workers, or those named: read where they are, and made again after the array has
        changed.
        """
        from magmadnn.dmath.layouts.recipes import Replicated

        layout = Replicated(None if on is None else tuple(on))
        return self._session._new("replica", [self], self.shape, self.dtype, layout=layout)

    # --- operators; methods are put on below --------------------------------------------------

    def __matmul__(self, other: Any) -> Matrix:
        return self._session.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Matrix:
        return self._session.matmul(other, self)

    def __pos__(self) -> Matrix:
        return self._session.apply("positive", self)

    def __neg__(self) -> Matrix:
        return self._session.apply("negative", self)

    def __abs__(self) -> Matrix:
        return self._session.apply("abs", self)

    def __invert__(self) -> Matrix:
        return self._session.apply("bitwise_invert", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """NumPy's functions on handles are ours."""
        from magmadnn.dmath.functions import elementwise

        name = {"power": "pow", "absolute": "abs", "true_divide": "divide"}.get(
            ufunc.__name__, ufunc.__name__
        )
        if name == "matmul" and method == "__call__" and not settings:
            return self._session.matmul(*inputs)
        if (
            method != "__call__"
            or settings
            or name not in (*elementwise.UNARY, *elementwise.BINARY)
        ):
            raise ArgumentError(
                f"np.{ufunc.__name__}: is not computed on workers: take a function of md.dmath, or "
                f"np.asarray first"
            )
        return self._session.apply(name, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> NoReturn:
        name = function.__name__
        raise ArgumentError(
            f"np.{name}: gathers nothing by itself: write md.dmath.{name} or np.asarray(x) first"
        )


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def _operator(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def forward(self: Matrix, other: Any) -> Matrix:
        return self._session.apply(name, self, other)

    def reflected(self: Matrix, other: Any) -> Matrix:
        return self._session.apply(name, other, self)

    def in_place(self: Matrix, other: Any) -> Matrix:
        return self._session.apply_in_place(name, self, other)

    return forward, reflected, in_place


def _reduction(name: str) -> Callable[..., Matrix]:
    def method(
        self: Matrix, axis: Any = None, keepdims: bool = False, layout: LayoutLike = None
    ) -> Matrix:
        return self._session.reduce(name, self, axis=axis, keepdims=keepdims, layout=layout)

    def typed(
        self: Matrix,
        axis: Any = None,
        keepdims: bool = False,
        layout: LayoutLike = None,
        dtype: Any = None,
    ) -> Matrix:
        return self._session.reduce(name, self, axis, keepdims, layout, dtype)

    def spread(
        self: Matrix,
        axis: Any = None,
        keepdims: bool = False,
        layout: LayoutLike = None,
        correction: float = 0,
    ) -> Matrix:
        return self._session.reduce(name, self, axis, keepdims, layout, correction=correction)

    if name in ("sum", "prod"):
        method = typed
    elif name in ("var", "std"):
        method = spread
    method.__doc__ = f"As `md.dmath.{name}`."
    method.__name__ = name
    return method


for _short, _name in _OPERATORS.items():
    _forward, _reflected, _in_place = _operator(_name)
    setattr(Matrix, f"__{_short}__", _forward)
    setattr(Matrix, f"__r{_short}__", _reflected)
    setattr(Matrix, f"__i{_short}__", _in_place)
for _short, _name in _COMPARISONS.items():
    setattr(Matrix, f"__{_short}__", _operator(_name)[0])
for _name in ("sum", "prod", "max", "min", "any", "all", "mean", "var", "std"):
    setattr(Matrix, _name, _reduction(_name))
