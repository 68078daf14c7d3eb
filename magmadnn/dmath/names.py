"""Functions over spread arrays, by the names of the array API standard where it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.dmath.client import arranging, combining, files, ordering, spectra
from magmadnn.dmath.client.checking import goes_into, promoted, real, whole
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.functions import elementwise, reducing
from magmadnn.dmath.layouts.recipes import LayoutLike
from magmadnn.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    UnknownArgumentError,
    quoted,
)


def session_of(name: str, *operands: Any) -> Session:
    """The session of the first array among the operands.

    Raises:
        DTypeError: if there is none.
    """
    for x in operands:
        if isinstance(x, Matrix):
            home: Any = x._session
            session: Session = home
            return session
    raise DTypeError(
        f"{name}: expected an array on workers, such as w.array(...) makes, got "
        f"{quoted(operands[0]) if operands else 'none'}"
    )


_SETTINGS = {"elu": ("alpha", real), "leaky_relu": ("slope", real), "round": ("decimals", whole)}


def _pointwise(name: str, count: int) -> Callable[..., Matrix]:
    if count == 1:

        def function(x: Matrix, /, *, layout: LayoutLike = None, **settings: Any) -> Matrix:
            known, kind = _SETTINGS.get(name, ("", real))
            for key in settings:  # which only workers would see
                if key != known:
                    names = [n for n in ("layout", known) if n]
                    raise UnknownArgumentError.of(f"{name}: argument", key, names)
            given = {key: kind(name, key, value) for key, value in settings.items()}
            return session_of(name, x).apply(name, x, layout=layout, **given)

    else:

        def function(x1: Any, x2: Any, /, *, layout: LayoutLike = None) -> Matrix:  # type: ignore[misc]  # of two
            return session_of(name, x1, x2).apply(name, x1, x2, layout=layout)

    function.__name__ = function.__qualname__ = name
    operands = {1: "x", 2: "x1, x2"}[count]
    function.__doc__ = (
        f"`{name}({operands})` of each element; arrays broadcast. `layout`: of the result, None for that of "
        "the largest operand."
    )
    return function


def _reduction(name: str) -> Callable[..., Matrix]:
    def plain(
        x: Matrix, /, *, axis: Any = None, keepdims: bool = False, layout: LayoutLike = None
    ) -> Matrix:
        return session_of(name, x).reduce(name, x, axis, keepdims, layout)

    def typed(
        x: Matrix,
        /,
        *,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        layout: LayoutLike = None,
    ) -> Matrix:
        return session_of(name, x).reduce(name, x, axis, keepdims, layout, dtype)

    def spread(
        x: Matrix,
        /,
        *,
        axis: Any = None,
        correction: float = 0,
        keepdims: bool = False,
        layout: LayoutLike = None,
    ) -> Matrix:
        return session_of(name, x).reduce(name, x, axis, keepdims, layout, correction=correction)

    function: Callable[..., Matrix] = plain
    text = ""
    if name in ("sum", "prod"):
        function, text = typed, " `dtype`: of elements before, and of the result; None for NumPy's."
    elif name in ("var", "std"):
        function = spread
        text = (
            " `correction`: what is taken off the number of elements that squares are divided by."
        )
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` over an axis, several, or all (None), in a fixed order.{text}"
    return function


def _along(name: str) -> Callable[..., Matrix]:
    def function(x: Matrix, /, *, axis: int = -1) -> Matrix:
        return session_of(name, x).along(name, x, axis)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"`{name}` along one axis, which is brought together on a worker first where it is cut."
    )
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _pointwise(name, 1) for name in (*elementwise.UNARY, *elementwise.ACTIVATIONS)},
    **{name: _pointwise(name, 2) for name in elementwise.BINARY},
    **{name: _reduction(name) for name in (*reducing.REDUCTIONS, *reducing.MEANS)},
    **{name: _along(name) for name in ("softmax", "log_softmax")},
}


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    layout: LayoutLike = "auto",
    dtype: Any = None,
    wire: Any = None,
    keep: bool = False,
    compute: str | None = None,
) -> Matrix:
    """`a @ b`, of matrices and vectors in any layouts.

    Halves are added up in float32 and rounded once. Operands of different dtypes travel as they are. Storage,
    products and messages have precisions of their own: `compute="bfloat16"` of float32 matrices rounds
    operands to bfloat16, sends them so (which rounds nothing more), and gives float32.

    Args:
        a: [m, k] or [k].
        b: [k, n] or [k].
        layout: of the result; "auto" leaves it to the planner.
        dtype: of the result; None for what NumPy gives.
        wire: a dtype such as "float16" in which operands travel, rounded once to it: each element of C is
            then off by at most about `2 u sum_k |a_ik b_kj|`, where u is half the spacing of numbers near 1
            in that dtype.
        keep: whether workers keep blocks that others sent, for products to come, such as those of a
            backward pass; see `Session.keep_blocks`.
        compute: what operands are rounded to before products: "float64", "float32", "bfloat16" or "float16"
            (added up in float32), "tf32" (GPUs may round float32 to 11 significant bits; the CPU does not).
            None: halves as they are, all else in the dtype of the result. For u half the spacing of numbers
            near 1 (2**-9 for bfloat16, 2**-12 for TF32) an element is off by at most about
            `2 u sum_k |a_ik b_kj|`.

    Raises:
        ShapeError: if sizes do not fit.
        UnknownNameError: for a `compute` that is none of these.
        DTypeError: for a `compute` of operands that are not real floating-point numbers; for a `dtype` of a
            lower kind than theirs, such as whole numbers for real ones.
    """
    return session_of("matmul", a, b).matmul(a, b, layout, dtype, wire, keep, compute)


def vecdot(a: Any, b: Any, /, *, axis: int = -1) -> Matrix:
    """Sum of conj(a) b along an axis of both, of one size; other axes broadcast.

    Raises:
        ShapeError: if the axis differs in size.
    """
    session = session_of("vecdot", a, b)
    left, right = session._arrays("vecdot", [a, b])
    sizes = [x.shape[axis] if -x.ndim <= axis < x.ndim else None for x in (left, right)]
    if sizes[0] is None or sizes[0] != sizes[1]:
        raise ShapeError(f"vecdot: axis {axis} of shapes {left.shape} and {right.shape} differs")
    left, right = (combining.moveaxis(x, axis, -1) for x in (left, right))
    first = session.apply("conj", left) if left.dtype.kind == "c" else left
    dtype = promoted("vecdot", left.dtype, right.dtype)
    summed = session.reduce("sum", session.apply("multiply", first, right), axis=-1)
    return summed.astype(dtype, copy=False)


def dot(a: Any, b: Any, /) -> Matrix:
    """`a @ b`; of two vectors their inner product."""
    return session_of("dot", a, b).matmul(a, b)


def norm(x: Matrix, /, *, axis: Any = None, keepdims: bool = False) -> Matrix:
    """Square root of the sum of `|x|^2`, over axes or all elements; each is scaled by its largest element, so
    that nothing overflows and nothing that counts is lost.
    """
    session = session_of("norm", x)
    axes = reducing.axes_of("norm", axis, x.ndim)
    shape = reducing.reduced_shape(x.shape, axes, keepdims)
    dtype = reducing.real_dtype(_factored_dtype("norm", x))
    settings: dict[str, Any] = {"fixed": True} if session._fixed else {}
    settings |= {"axis": list(axes), "keepdims": bool(keepdims)}
    return session._new("norm", [x], shape, dtype, **settings)


def _factored_dtype(name: str, *arrays: Matrix) -> np.dtype[Any]:
    dtype = promoted(name, *(x.dtype for x in arrays))
    return np.dtype(np.float64) if dtype.kind in "iub" else np.result_type(dtype, np.float32)


def _square(name: str, a: Matrix) -> None:
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"{name}: needs a square matrix, got shape {a.shape}")


def cholesky(a: Matrix, /, *, upper: bool = False, layout: LayoutLike = None) -> Matrix:
    """The lower factor L of a positive definite matrix, A = L L^H, from its lower triangle.

    With `upper` the factor L^H, from the upper triangle.

    Computed in panels of columns that workers own in turn; the result lies so unless `layout` says
    otherwise. float32 for halves, float64 for integers.

    Raises:
        NumericError: when the result is used, if A is not positive definite.
    """
    session = session_of("cholesky", a)
    _square("cholesky", a)
    given = a.mT if upper else a  # of the transposed matrix the lower factor, transposed
    made = session._new("cholesky", [given], a.shape, _factored_dtype("cholesky", a))
    made = made.mT if upper else made
    return made if layout is None else made.to(layout)


def solve(a: Matrix, b: Any, /, *, layout: LayoutLike = None) -> Matrix:
    """X with A X = B, by LU factors with partial pivoting; B is a matrix or a vector.

    Raises:
        NumericError: when the result is used, if A is singular.
    """
    session = session_of("solve", a)
    _square("solve", a)
    right = session._arrays("solve", [b])[0]
    if right.ndim not in (1, 2) or right.shape[0] != a.shape[0]:
        raise ShapeError(f"solve: axis 0 is {a.shape[0]} in a but b has shape {right.shape}")
    made = session._new("solve", [a, right], right.shape, _factored_dtype("solve", a, right))
    return made if layout is None else made.to(layout)


def tril(x: Matrix, /, *, k: int = 0) -> Matrix:
    """The matrices [..., m, n] with zeros above their k-th diagonal."""
    return _tri("tril", x, k)


def triu(x: Matrix, /, *, k: int = 0) -> Matrix:
    """The matrices [..., m, n] with zeros below their k-th diagonal."""
    return _tri("triu", x, k)


def _tri(name: str, x: Matrix, k: int) -> Matrix:
    session = session_of(name, x)
    if x.ndim < 2:
        raise ShapeError(f"{name}: needs two axes, shape {x.shape} has {x.ndim}")
    lower, diagonal = name == "tril", whole(name, "k", k)
    return session._new("tri", [x], x.shape, x.dtype, lower=lower, k=diagonal)


def add_row_col_sum(
    v: Matrix,
    x: Matrix,
    /,
    *,
    axis: int = 0,
    alpha: float = 1.0,
    beta: float = 1.0,
    deterministic: bool = True,
) -> Matrix:
    """v = alpha * (sum of x over `axis`) + beta * v, in place: gradients of biases, for instance.

    Of P workers and n sums of b bytes each, where the axis is cut over all workers: sums go to an array in
    layout "auto", then where v lies. That is P (P - 1) n b bytes in one round up to 16 KB of sums, else
    (P - 1) n b, and (P - 1) n b more in another round if v is on all workers. `deterministic=False` sends
    them where v lies at once, (P - 1) n b bytes in one round if v is spread; if v is on all workers, as up
    to 4 KB of sums or by an all-reduce of 2 (P - 1) n b bytes in two rounds. It adds a worker's elements of
    float32 by the library's product with ones. `benchmarks/dmath/row_sums.py` compares both.

    Args:
        v: of the shape of x without `axis`; any layout.
        x: any layout.
        axis: that is summed over: 0 for the sums of columns, 1 for those of rows.
        alpha: of the sums.
        beta: of v; 0: v is only written.
        deterministic: True: sums are added in an order that depends on the layout only, as `sum` does it,
            so that two runs give the same bits. In a session with `deterministic="layout"` it does not
            depend on the layout either. False: in whatever order is fastest, as dMath's AddRowColSumMatrix
            does it: that of the library and of an all-reduce, which may change with the machine, the number
            of threads, and on GPUs from run to run. Copies of v on several workers are equal in any case.

    Raises:
        ShapeError: if v has not the shape of the sums.
        IndexOutOfRangeError: for an axis that is not there.
        DTypeError: if sums, or `alpha` and `beta`, are of a higher kind than v, such as real ones for whole
            numbers.
        ArgumentError: for `deterministic` that is no bool, or False in a session with
            `deterministic="layout"`.
    """
    if not isinstance(deterministic, (bool, np.bool)):
        raise ArgumentError(
            f"add_row_col_sum: deterministic must be True or False, got {quoted(deterministic)}"
        )
    session = session_of("add_row_col_sum", v)
    (one,) = reducing.axes_of("add_row_col_sum", axis, x.ndim)
    shape = reducing.reduced_shape(x.shape, (one,), False)
    if shape != v.shape:
        raise ShapeError(f"add_row_col_sum: sums have shape {shape}, v has {v.shape}")
    if session._fixed and not deterministic:
        raise ArgumentError(
            'add_row_col_sum: deterministic=False in a session of deterministic="layout", whose sums have '
            "the same bits for all layouts: leave it out, or make the session without"
        )
    factors = [real("add_row_col_sum", what, f) for what, f in (("alpha", alpha), ("beta", beta))]
    if not goes_into(x.dtype, v.dtype) or (
        v.dtype.kind in "biu" and not all(one.is_integer() for one in factors)
    ):
        raise DTypeError(
            f"add_row_col_sum: sums of {x.dtype} with alpha={alpha} and beta={beta} do not go into "
            f"{v.dtype}: give v another dtype"
        )
    settings: dict[str, Any] = {"axis": one, "alpha": factors[0], "beta": factors[1]}
    settings |= {"fixed": session._fixed} | ({} if deterministic else {"fast": True})
    session._change("add_row_col_sum", [v, x], **settings)
    return v


def astype(x: Matrix, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Matrix:
    """A copy of another dtype; `device`: None, or where the array is."""
    return (x if device is None else x.to_device(device)).astype(dtype, copy)


def permute_dims(x: Matrix, /, axes: Sequence[int]) -> Matrix:
    """A view with the axes in another order."""
    return x.transpose(axes)


def matrix_transpose(x: Matrix, /) -> Matrix:
    """A view with the last two axes exchanged."""
    return x.mT


def expand_dims(x: Matrix, /, axis: int | Sequence[int]) -> Matrix:
    """A view with a new axis of size 1, or several; places are those in the result."""
    count = x.ndim + (len(axis) if isinstance(axis, Sequence) else 1)
    new = reducing.axes_of("expand_dims", axis, count)
    return x[tuple(None if i in new else slice(None) for i in range(count))]


def squeeze(x: Matrix, /, axis: int | Sequence[int]) -> Matrix:
    """A view without axes of size 1."""
    axes = reducing.axes_of("squeeze", axis, x.ndim)
    for one in axes:
        if x.shape[one] != 1:
            raise ShapeError(f"squeeze: axis {one} has size {x.shape[one]}, not 1")
    return x[tuple(0 if i in axes else slice(None) for i in range(x.ndim))]


def _windows(name: str, *operands: Any, **settings: Any) -> Matrix:
    from magmadnn import ops
    from magmadnn.tensor import placeholder

    session = session_of(name, *operands)
    given = session._arrays(name, operands)
    stand_ins = [placeholder(f"x{i}", x.shape, x.dtype.name) for i, x in enumerate(given)]
    made = getattr(ops, name)(*stand_ins, **settings)  # refuses what does not fit
    shape = [int(n) for n in made.shape]
    record: dict[str, Any] = {"name": name, "places": shape[1:], "settings": settings}
    return session._new(
        "windows", given, shape, np.dtype(made.dtype), **record, dtype=made.dtype.name
    )


def convolution(x: Matrix, w: Any, /, **settings: Any) -> Matrix:
    """`md.ops.convolution` of images x [n, *places, c] with filters w [*size, c, o].

    Data parallel: images stay whole on the workers that have them, or are dealt to all; filters go to all.
    A worker with a GPU compiles it for the shape of its images once, and keeps the last 16 such programs with
    their memory, which is not CuPy's.
    """
    return _windows("convolution", x, w, **settings)


def max_pooling(x: Matrix, /, size: Any, **settings: Any) -> Matrix:
    """`md.ops.max_pooling` of images x [n, *places, c]; each worker its images."""
    return _windows("max_pooling", x, size=size, **settings)


def average_pooling(x: Matrix, /, size: Any, **settings: Any) -> Matrix:
    """`md.ops.average_pooling` of images x [n, *places, c]; each worker its images."""
    return _windows("average_pooling", x, size=size, **settings)


def asarray(x: Any, /) -> Any:
    """All elements, gathered into a NumPy array in this process."""
    return np.asarray(x)


FUNCTIONS.update(
    {
        f.__name__: f
        for f in (
            *(matmul, vecdot, dot, norm, cholesky, solve, tril, triu, add_row_col_sum),
            *(astype, permute_dims, matrix_transpose, expand_dims, squeeze, asarray),
            *(convolution, max_pooling, average_pooling),
        )
    }
)

FUNCTIONS |= (
    files.FUNCTIONS
    | combining.FUNCTIONS
    | arranging.FUNCTIONS
    | spectra.FUNCTIONS
    | ordering.FUNCTIONS
)
FUNCTIONS = {name: checked_call(function) for name, function in FUNCTIONS.items()}
Session.functions = FUNCTIONS
