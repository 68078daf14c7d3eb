"""Orthonormal columns and a triangle: QR by reflections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, GraphError, MissingExtraError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.op import (
    REQUIRED,
    Array,
    Draw,
    NoGradient,
    Op,
    OpKind,
    Sample,
    promote_floating,
    takes_complex,
)
from magmadnn.graph.signature import Attributes, OpWords, by_signature
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.memory import Kind
from magmadnn.memory.dtypes import BLAS_LETTERS, is_complex, is_floating
from magmadnn.ops import cast, concat, conj, equal, greater_equal, matmul, real, where
from magmadnn.tensor import Tensor, asarray, from_dlpack
from magmadnn.tensor.eager.operands import lies_on_gpu
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import is_finite, reflections_at_once
from ._elsewhere import failures_of
from ._matrices import (
    adjoint,
    as_stacks,
    by_ascent,
    computed,
    in_single,
    places_of,
    refuse_unless_finite,
    smaller,
    transposed,
    triangle,
)
from ._operands import QRResult, operand, truth
from .factorisations.triangular import solve_triangular

# Rows and columns from which on the device finds the order of columns: an H200 took 716 us for 64 and 1,352
# for 128, its host 487 and 2,608.
LEAST_PIVOTED = 128
_WHY = "what is made of reflections has gradients of its own"


# --- reflections ----------------------------------------------------------------------------------


def _reflected_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    *leading, m, n = by_signature("... m n -> ... m n")(words, specs, attributes)
    return (*leading, n + 1, m)


def _reflected(a: Array) -> Array:
    """Column by column: H = I - tau v v^T with v = 1 at the diagonal makes zeros below it."""
    (a,) = computed(a)
    refuse_unless_finite("qr", "a", a)
    a = a.copy()
    m, n = a.shape[-2:]
    factors = np.zeros((*a.shape[:-2], m), a.dtype)
    for k in range(min(m, n)):
        head, tail = a[..., k, k].copy(), a[..., k + 1 :, k]
        size = np.sqrt(head**2 + (tail**2).sum(-1))
        plain = ~tail.any(-1)
        beta = np.where(plain, head, -np.copysign(size, head))
        tau = np.where(plain, 0, (beta - head) / np.where(beta == 0, 1, beta))
        v = tail / np.where(plain, 1, head - beta)[..., None]
        rest = a[..., k:, k + 1 :]
        taken = rest[..., 0, :] + (v[..., None, :] @ rest[..., 1:, :])[..., 0, :]
        rest[..., 0, :] -= tau[..., None] * taken
        rest[..., 1:, :] -= tau[..., None, None] * v[..., None] * taken[..., None, :]
        a[..., k, k], a[..., k + 1 :, k], factors[..., k] = beta, v, tau
    return np.concatenate([factors[..., None, :], np.swapaxes(a, -1, -2)], -2)


def _matrices(draw: Draw) -> Iterable[Sample]:
    for shape in ((5, 3), (3, 4), (2, 3, 3), (1, 1)):
        yield Sample((draw(*shape),))


reflected: Op = Op(
    name="_reflected",
    args=("a",),
    formula="what scales reflections in a row, below it the columns that they leave, each a row",
    kind=OpKind.LIBRARY,
    library=LibraryCall("geqrf"),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=_reflected_shapes,
    dtypes=promote_floating,
    numpy=_reflected,
    vjp=NoGradient(why=_WHY),
    reference=_reflected,
    samples=_matrices,
)


def _columns_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    *leading, _, m = specs[0].shape
    return (*leading, attributes["count"], m)


def _columns(packed: Array, count: int) -> Array:
    m, n = packed.shape[-1], packed.shape[-2] - 1
    q = np.broadcast_to(np.eye(m, count, dtype=packed.dtype), (*packed.shape[:-2], m, count)).copy()
    for k in reversed(range(min(m, n))):
        v = packed[..., k + 1, k:].copy()
        v[..., 0] = 1
        taken = v[..., None, :] @ q[..., k:, :]
        q[..., k:, :] -= packed[..., 0, k, None, None] * v[..., None] * taken
    return np.swapaxes(q, -1, -2)


columns_of: Op = Op(
    name="_columns_of_reflections",
    args=("packed",),
    formula="the first columns of the product of reflections, each a row",
    kind=OpKind.LIBRARY,
    library=LibraryCall("orgqr"),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=_columns_shapes,
    dtypes=promote_floating,
    numpy=_columns,
    vjp=NoGradient(why=_WHY),
    reference=_columns,
    samples=lambda draw: [Sample((_reflected(draw(5, 3)),), {"count": 3})],
    attributes={"count": REQUIRED},
)


# --- QR -------------------------------------------------------------------------------------------


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    """[..., m + n, k]: Q, and below it R^T."""
    *leading, m, n = by_signature("... m n -> ... m n")(words, specs, attributes)
    return (*leading, m + n, m if attributes["full"] else smaller(m, n))


def _by_numpy(a: Array, full: bool) -> tuple[Array, Array]:
    (a,) = computed(a)
    if not is_finite(a):
        refuse_unless_finite("qr", "a", a)
    if (found := reflections_at_once(a, full)) is not None:
        return found
    with np.errstate(all="ignore"), failures_of(a):
        q, r = np.linalg.qr(a, "complete" if full else "reduced")
    return q, r


def _numpy(a: Array, full: bool) -> Array:
    q, r = _by_numpy(a, full)
    return np.concatenate([q, np.swapaxes(r, -1, -2)], -2)


def _decomposed(a: Any, full: bool) -> Any:
    if is_complex(a.dtype):  # reflections are of real numbers
        return None
    packed = reflected(a)
    m, n = a.shape[-2:]
    count = m if full else smaller(m, n)
    q = transposed(columns_of(packed, count=count))
    return concat([q, triangle(packed[..., 1:, :count], lower=True)], axis=-2)


def _rule(g: Any, y: Any, a: Any, full: bool) -> Any:
    """[dQ + Q copyltu(M)] R^-H with M = R dR^H - dQ^H Q, of which copyltu mirrors the lower triangle.

    As in Walter and Lehmann, Algorithmic differentiation of linear algebra functions, 2018, arXiv:1001.1654.
    A matrix wider than high is A = [X | Y] with X = Q U: V = Q^T Y sends dV to Q and Y.

    Raises:
        GraphError: for more columns of Q than A has, which are any that complete a basis.
    """
    m, n = a.shape[-2:]
    if full and m != n:
        if smaller(m, n) != m:
            raise GraphError(
                'grad: qr with mode="complete" has no gradient for a matrix higher than wide; give "reduced"'
            )
    q, r = y[..., :m, :], transposed(y[..., m:, :])
    gq, gr = g[..., :m, :], transposed(g[..., m:, :])
    if m == n or smaller(m, n) == n:
        return _square_rule(q, r, gq, gr)
    gv = gr[..., m:]
    more = gq + matmul(a[..., m:], adjoint(gv))
    return concat([_square_rule(q, r[..., :m], more, gr[..., :m]), matmul(q, gv)], axis=-1)


def _square_rule(q: Any, r: Any, gq: Any, gr: Any) -> Any:
    inner = matmul(r, adjoint(gr)) - matmul(adjoint(gq), q)
    lower = triangle(inner, lower=True)
    rows, columns = places_of(inner)
    mirrored = where(greater_equal(columns, rows + 1), adjoint(lower), lower)
    if is_complex(q.dtype):
        mirrored = where(equal(columns, rows), real(mirrored), mirrored)
    found = gq + matmul(q, mirrored)
    return transposed(conj(solve_triangular(r, adjoint(found), lower=False)))


def _samples(draw: Draw) -> Iterable[Sample]:
    for sample in _matrices(draw):
        yield Sample(sample.operands, {"full": False})


decomposed: Op = Op(
    name="_qr",
    args=("a",),
    formula="orthonormal columns of a, and below them R turned",
    kind=OpKind.OTHER,
    decompose=in_single(_decomposed),
    stacked=last_axes,
    shapes=_shapes,
    dtypes=promote_floating,
    numpy=_numpy,
    vjp=by_ascent(_rule),
    reference=lambda a, full: _numpy(a, full),
    samples=_samples,
    attributes={"full": False},
)


takes_complex(decomposed)


@checked_call
def qr(a: Any, mode: str = "reduced", pivoting: bool = False) -> Any:
    """A = Q R with orthonormal columns Q and an upper triangle R, by LAPACK's geqrf and orgqr.

    Args:
        a: [..., m, n], with k the smaller of m and n.
        mode: "reduced" (Q [..., m, k], R [..., k, n]), "complete" (Q [..., m, m], R [..., m, n]), "r": R.
        pivoting: whether columns are exchanged so that `|R_ii|` descends; of a matrix that is known, without
            gradient: A[:, P] = Q R. Needs SciPy, but for one matrix of a GPU's memory with 128 rows and
            columns or more, where CuPy is there; LAPACK's order, but where rounding decides.

    Returns:
        `Q` and `R`; with pivoting a tuple (Q, R, P).

    Raises:
        NumericError: if a matrix holds NaN or infinity.
        ArgumentError: if there is no such mode; for pivoting of a stack, or of an Operation.
    """
    if not isinstance(mode, str) or mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'qr: mode must be "reduced", "complete" or "r", got {mode!r}')
    if truth("qr", "pivoting", pivoting):
        found = _pivoted_on_device(a, mode)
        return _qr(a, mode, True) if found is None else found
    if mode == "r" and isinstance(a, Tensor) and lies_on_gpu(a.memory):
        return _triangle_alone(a)
    return _qr(a, mode, False)


@on_gpu("a")
def _triangle_alone(a: Any) -> Any:
    """R without Q, of what has no gradient."""
    return _qr(a, "r", False) if isinstance(a, Tensor) else _triangle_of_node(a)


@in_single
def _triangle_of_node(a: Any) -> Any:
    if is_complex(a.dtype):  # reflections are of real numbers
        return _qr(a, "r", False)
    return transposed(triangle(reflected(a)[..., 1:, : smaller(*a.shape[-2:])], lower=True))


@on_gpu("a")
def _qr(a: Any, mode: str, pivoting: bool) -> Any:
    if pivoting:
        return _pivoted(operand("qr", "a", a, 2), mode)
    if (at_once := known(a)) is not None and a.ndim > 1:
        q, r = map(at_once.given, _by_numpy(at_once.arrays[0], mode == "complete"))
        return r if mode == "r" else QRResult(q, r)
    a = operand("qr", "a", a, 2)
    m, both = a.shape[-2], decomposed(a, full=mode == "complete")
    r = transposed(both[..., m:, :])
    return r if mode == "r" else QRResult(both[..., :m, :], r)


def _pivoted_on_device(a: Any, mode: str) -> tuple[Tensor, ...] | None:
    """The same of one matrix of a GPU's memory; None for others, and for what is not finite.

    And where the device cannot find it: without memory for it, or where a call of it or of a library fails.
    """
    if type(a) is not Tensor or a.kind is not Kind.DEVICE or a.ndim != 2:
        return None
    is_half = is_floating(a.dtype) and a.dtype.itemsize == 2
    cupy = array_library()
    if (
        cupy is None
        or min(a.shape) < LEAST_PIVOTED
        or not (is_half or a.dtype.char in BLAS_LETTERS)
    ):
        return None
    from .pivoted.reflections import columns_on_device, on_device

    m, n = a.shape
    count = m if mode == "complete" else min(m, n)
    try:
        with cupy.cuda.Device(a.device):
            values = cupy.asarray(_as(a, "float32") if is_half else a)
            found = on_device(cupy, values, a.device)
            if found is None:
                return None
            packed, order = found
            if is_complex(a.dtype):
                r = cupy.ascontiguousarray(cupy.triu(packed[1:, : m if mode == "r" else count].T))
                both = (r,) if mode == "r" else (columns_on_device(cupy, packed, count), r)
                return tuple(map(from_dlpack, (*both, order)))
    except (RuntimeError, MemoryError):
        return None
    packed, order = map(from_dlpack, (packed, order))
    if mode == "r":
        return _triangle_of(packed, m, a.dtype.name), order
    return (*_both_of(packed, count, a.dtype.name), order)


@on_gpu("a")
def _as(a: Any, dtype: str) -> Any:
    return cast(a, dtype)


@on_gpu("packed")
def _triangle_of(packed: Any, count: int, dtype: str) -> Any:
    return cast(transposed(triangle(packed[..., 1:, :count], lower=True)), dtype)


@on_gpu("packed")
def _both_of(packed: Any, count: int, dtype: str) -> Any:
    q = cast(transposed(columns_of(packed, count=count)), dtype)
    return q, _triangle_of(packed, count, dtype)


def _pivoted(a: Any, mode: str) -> Any:
    if not isinstance(a, Tensor) or a.ndim != 2:
        raise ArgumentError(
            "qr: pivoting=True takes one matrix of known values, an array or a Tensor; a stack one by one"
        )
    (values,) = computed(a.read())
    refuse_unless_finite("qr", "a", values)
    names = {"reduced": "economic", "complete": "full", "r": "r"}
    found = scipy_linalg("qr with pivoting").qr(values, mode=names[mode], pivoting=True)
    if a.dtype.itemsize == 2 and a.dtype.kind not in "iu":  # half precision is rounded once
        found = (*(x.astype(a.dtype) for x in found[:-1]), found[-1])
    return tuple(asarray(x) for x in found)


def scipy_linalg(what: str) -> Any:
    """SciPy's module.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        return import_module("scipy.linalg")
    except ImportError:
        raise MissingExtraError(f'{what}: needs SciPy: pip install "magmadnn[linalg]"') from None
