"""The names of the array API standard (2024.12): `md.dmath` has all of them, and they do what NumPy's do.

The standard's own suite makes arrays by a module's functions (`xp.zeros(...)`); here workers make them:
`benchmarks/dmath/array_api.py` is such a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "dmath.md"
UNARY = """
    abs acos acosh asin asinh atan atanh ceil conj cos cosh exp expm1 floor imag isfinite isinf
    isnan log log10 log1p log2 negative positive real reciprocal round sign signbit sin sinh sqrt
    square tan tanh trunc
""".split()
BINARY = """
    add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal
    logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract
""".split()
BITS = "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor".split()
REST = """
    arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like
    tril triu zeros zeros_like astype can_cast finfo iinfo isdtype result_type take take_along_axis
    matmul matrix_transpose tensordot vecdot broadcast_arrays broadcast_to concat expand_dims flip
    moveaxis permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero
    nonzero searchsorted where unique_all unique_counts unique_inverse unique_values argsort sort
    cumulative_prod cumulative_sum max mean min prod std sum var all any diff bitwise_invert clip
    logical_and logical_not logical_or logical_xor
""".split()
ALONG = "argmax argmin argsort sort flip".split()
OVER = "max mean min prod std sum var".split()
EXTENSIONS = """
    linalg.cholesky linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh linalg.inv
    linalg.matmul linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_transpose
    linalg.outer linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd linalg.svdvals
    linalg.tensordot linalg.trace linalg.vecdot linalg.vector_norm fft.fft fft.ifft fft.fftn
    fft.ifftn fft.rfft fft.irfft fft.rfftn fft.irfftn fft.hfft fft.ihfft fft.fftfreq fft.rfftfreq
    fft.fftshift fft.ifftshift
""".split()
NAMES = [*UNARY, *BINARY, *BITS, *REST, *EXTENSIONS]

DRAW = np.random.default_rng(0)
A, B = DRAW.uniform(0.1, 0.9, (5, 4)), DRAW.uniform(0.1, 0.9, (5, 4))
S = A.T @ A + np.eye(4)
N, T = DRAW.integers(0, 7, (5, 4)), DRAW.integers(0, 2, (5, 4)).astype(bool)
V = DRAW.uniform(-1, 1, 6)
M = DRAW.uniform(-1, 1, (5, 5))
BYTES = DRAW.integers(0, 4, (5, 6)).astype(np.uint8)  # with equal ones
P, Q = DRAW.uniform(-1, 1, (2, 5, 3)), DRAW.uniform(-1, 1, (3, 2, 7))
Z = A + 1j * B
H = Z.conj().T @ Z + np.eye(4)
d, f = md.dmath, md.dmath.fft
Case = tuple[Callable[..., Any], Any]
# By name: ours, of the arrays that workers have, and what NumPy gives.
CASES: dict[str, Case] = {
    **{n: (lambda w, n=n: getattr(d, n)(w(A)), None) for n in UNARY if n != "acosh"},
    **{n: (lambda w, n=n: getattr(d, n)(w(A), w(B)), None) for n in BINARY},
    **{n: (lambda w, n=n: getattr(d, n)(w(N), w(N)), None) for n in BITS},
    **{n: (lambda w, n=n: getattr(d, n)(w(A), axis=1), None) for n in ALONG},
    **{n: (lambda w, n=n: getattr(d, n)(w(A), axis=0), None) for n in OVER},
    "acosh": (lambda w: d.acosh(w(A + 1)), np.arccosh(A + 1)),
    "cumulative_prod": (lambda w: d.cumulative_prod(w(A), axis=1), np.cumprod(A, axis=1)),
    "cumulative_sum": (lambda w: d.cumulative_sum(w(A), axis=1), np.cumsum(A, axis=1)),
    "all": (lambda w: d.all(w(T), axis=0), T.all(axis=0)),
    "any": (lambda w: d.any(w(T), axis=0), T.any(axis=0)),
    "diff": (lambda w: d.diff(w(A), axis=0, n=2), np.diff(A, n=2, axis=0)),
    "bitwise_invert": (lambda w: d.bitwise_invert(w(N)), ~N),
    "clip": (lambda w: d.clip(w(A), 0.3, 0.6), A.clip(0.3, 0.6)),
    **{
        n: (lambda w, n=n: getattr(d, n)(w(T), w(~T)), getattr(np, n)(T, ~T))
        for n in ("logical_and", "logical_or", "logical_xor")
    },
    "logical_not": (lambda w: d.logical_not(w(T)), ~T),
    "where": (lambda w: d.where(w(T), w(A), w(B)), np.where(T, A, B)),
    "count_nonzero": (lambda w: d.count_nonzero(w(N), axis=1), np.count_nonzero(N, axis=1)),
    "arange": (lambda w: w.home.arange(2, 11, 3), np.arange(2, 11, 3)),
    "asarray": (lambda w: w(A), A),
    "eye": (lambda w: w.home.eye(3, 4, 1), np.eye(3, 4, 1)),
    "full": (lambda w: w.home.full((2, 3), 4), np.full((2, 3), 4.0)),
    "ones": (lambda w: w.home.ones((2, 3)), np.ones((2, 3))),
    "zeros": (lambda w: w.home.zeros((2, 3)), np.zeros((2, 3))),
    "full_like": (lambda w: d.full_like(w(N), 3), np.full_like(N, 3)),
    "ones_like": (lambda w: d.ones_like(w(N)), np.ones_like(N)),
    "zeros_like": (lambda w: d.zeros_like(w(N)), np.zeros_like(N)),
    "empty_like": (lambda w: d.empty_like(w(N)) * 0, np.zeros_like(N)),
    "meshgrid": (lambda w: d.meshgrid(w(V), w(V[:3]))[1], np.meshgrid(V, V[:3])[1]),
    "tril": (lambda w: d.tril(w(A), k=-1), np.tril(A, -1)),
    "triu": (lambda w: d.triu(w(A), k=1), np.triu(A, 1)),
    "astype": (lambda w: d.astype(w(A), "float32"), A.astype(np.float32)),
    "can_cast": (lambda w: d.can_cast(w(N), "float64"), True),
    "finfo": (lambda w: d.finfo(w(A)).eps, 2.0**-52),
    "iinfo": (lambda w: d.iinfo("int8").max, 127),
    "isdtype": (lambda w: d.isdtype(w(A).dtype, "real floating"), True),
    "result_type": (lambda w: d.result_type(w(A), np.float32) == np.float64, True),
    "matmul": (lambda w: d.matmul(w(A), w(S)), A @ S),
    "matrix_transpose": (lambda w: d.matrix_transpose(w(A)), A.T),
    "vecdot": (lambda w: d.vecdot(w(A), w(B)), (A * B).sum(axis=1)),
    "broadcast_arrays": (lambda w: d.broadcast_arrays(w(A), w(A[0]))[1], np.broadcast_to(A[0], A.shape)),
    "broadcast_to": (lambda w: d.broadcast_to(w(A), (3, 5, 4)), np.broadcast_to(A, (3, 5, 4))),
    "concat": (lambda w: d.concat([w(A), w(B[:2]), w(N)], axis=0), np.concatenate([A, B[:2], N])),
    "stack": (lambda w: d.stack([w(A), w(B)], axis=-1), np.stack([A, B], axis=-1)),
    "unstack": (lambda w: d.unstack(w(A), axis=1)[2], A[:, 2]),
    "expand_dims": (lambda w: d.expand_dims(w(A), axis=1), A[:, None]),
    "moveaxis": (lambda w: d.moveaxis(w(A[None]), 0, 2), np.moveaxis(A[None], 0, 2)),
    "permute_dims": (lambda w: d.permute_dims(w(A), (1, 0)), A.T),
    "roll": (lambda w: d.roll(w(A), (2, -1), axis=(0, 1)), np.roll(A, (2, -1), axis=(0, 1))),
    "squeeze": (lambda w: d.squeeze(w(A[None]), 0), A),
    "tile": (lambda w: d.tile(w(A), (2, 1, 3)), np.tile(A, (2, 1, 3))),
    "linalg.cholesky": (lambda w: d.cholesky(w(S)), np.linalg.cholesky(S)),
    "linalg.matmul": (lambda w: d.matmul(w(A), w(S)), A @ S),
    "linalg.matrix_transpose": (lambda w: d.matrix_transpose(w(A)), A.T),
    "linalg.matrix_norm": (lambda w: d.matrix_norm(w(A)), np.linalg.norm(A)),
    "linalg.solve": (lambda w: d.solve(w(S), w(A.T)), np.linalg.solve(S, A.T)),
    "linalg.vecdot": (lambda w: d.vecdot(w(A), w(B)), (A * B).sum(axis=1)),
    "linalg.vector_norm": (lambda w: d.vector_norm(w(A), axis=1), np.linalg.norm(A, axis=1)),
    "empty": (lambda w: w.home.empty((2, 3)) * 0, np.zeros((2, 3))),
    "from_dlpack": (lambda w: w.home.from_dlpack(A), A),
    "linspace": (lambda w: w.home.linspace(2, 5, 7), np.linspace(2, 5, 7)),
    "reshape": (lambda w: d.reshape(w(A), (2, -1)), A.reshape(2, 10)),
    "repeat": (lambda w: d.repeat(w(A), 3, axis=0), np.repeat(A, 3, axis=0)),
    "take": (lambda w: d.take(w(A), w(np.array([3, 0, -1])), axis=1), A[:, [3, 0, -1]]),
    "searchsorted": (
        lambda w: d.searchsorted(w(np.sort(V)), w(A), side="right"),
        np.searchsorted(np.sort(V), A, side="right"),
    ),
    **{
        n: (lambda w: d.tensordot(w(P), w(Q), axes=((2, 0), (0, 1))), np.tensordot(P, Q, ((2, 0), (0, 1))))
        for n in ("tensordot", "linalg.tensordot")
    },
    "linalg.outer": (lambda w: d.outer(w(V), w(A[:, 0])), np.outer(V, A[:, 0])),
    "linalg.diagonal": (lambda w: d.diagonal(w(P), offset=-1), P.diagonal(-1, 1, 2)),
    "linalg.trace": (lambda w: d.trace(w(A), offset=1), np.trace(A, 1)),
    "linalg.inv": (lambda w: d.inv(w(S)), np.linalg.inv(S)),
    "linalg.matrix_power": (lambda w: d.matrix_power(w(S), -3), np.linalg.matrix_power(S, -3)),
    "linalg.det": (lambda w: d.det(w(M)), np.linalg.det(M)),
    "linalg.slogdet": (lambda w: d.slogdet(w(M)).logabsdet, np.linalg.slogdet(M)[1]),
    "linalg.qr": (lambda w: d.matmul(*d.qr(w(A))), A),
    "linalg.svd": (lambda w: d.svd(w(A)).S, np.linalg.svd(A)[1]),
    "linalg.svdvals": (lambda w: d.svdvals(w(A)), np.linalg.svd(A)[1]),
    "linalg.eigh": (lambda w: d.eigh(w(S)).eigenvalues, np.linalg.eigh(S)[0]),
    "linalg.eigvalsh": (lambda w: d.eigvalsh(w(S)), np.linalg.eigvalsh(S)),
    "linalg.pinv": (lambda w: d.pinv(w(A)), np.linalg.pinv(A)),
    "linalg.matrix_rank": (lambda w: d.matrix_rank(w(A)), np.asarray(np.linalg.matrix_rank(A))),
    "linalg.cross": (lambda w: d.cross(w(P), w(P[::-1])), np.cross(P, P[::-1])),
    "take_along_axis": (
        lambda w: d.take_along_axis(w(A), d.argsort(w(A), axis=0), axis=0), np.sort(A, axis=0)
    ),
    "nonzero": (lambda w: d.nonzero(w(N))[1], np.nonzero(N)[1]),
    "unique_all": (lambda w: d.unique_all(w(N)).indices, np.unique(N, return_index=True)[1]),
    "unique_counts": (lambda w: d.unique_counts(w(N)).counts, np.unique(N, return_counts=True)[1]),
    "unique_inverse": (
        lambda w: d.take(*d.unique_inverse(w(N[0]))), N[0]
    ),
    "unique_values": (lambda w: d.unique_values(w(N)), np.unique(N)),
    "fft.fftfreq": (lambda w: w.home.fftfreq(7, d=0.5), np.fft.fftfreq(7, 0.5)),
    "fft.rfftfreq": (lambda w: w.home.rfftfreq(8, d=0.5), np.fft.rfftfreq(8, 0.5)),
    **{
        f"fft.{n}": (lambda w, n=n: getattr(f, n)(w(A), axes=0), getattr(np.fft, n)(A, axes=0))
        for n in ("fftshift", "ifftshift")
    },
    **{
        f"fft.{n}": (
            lambda w, n=n: getattr(f, n)(w(V), norm="forward"),
            getattr(np.fft, n)(V, norm="forward"),
        )
        for n in ("hfft", "ihfft")
    },
    **{
        f"fft.{n}": (lambda w, n=n: getattr(f, n)(w(V)), getattr(np.fft, n)(V))
        for n in "fft ifft rfft irfft fftn ifftn rfftn irfftn".split()
    },
}  # fmt: skip
GIVEN = {
    **dict.fromkeys(UNARY, (A,)),
    **dict.fromkeys(BINARY, (A, B)),
    **dict.fromkeys(BITS, (N, N)),
}


class Workers:
    """Arrays in layouts that take turns."""

    def __init__(self, home: Any) -> None:
        self.home, self._turn = home, 0

    def __call__(self, x: np.ndarray) -> md.dmath.Matrix:
        self._turn += 1
        size = tuple(max(1, n - 1 - self._turn % 2) for n in x.shape)
        return self.home.array(x, layout=md.dmath.Blocks(size))


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    pytest.importorskip("mpi4py")
    with md.workers(2) as workers:
        yield workers


def test_names_do_what_numpys_do(two: Any) -> None:
    for name, (ours, expected) in CASES.items():
        for home in (two, md.dmath.local):
            if expected is None:
                numpys = getattr(np, name.removeprefix("linalg."))
                given = GIVEN.get(name)
                axis = {} if given else {"axis": 1 if name in ALONG else 0}
                expected = numpys(*(given or (A,)), **axis)
            made = ours(Workers(home))
            made = np.asarray(made) if isinstance(made, md.dmath.Matrix) else made
            np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-13, err_msg=name)
            if isinstance(expected, np.ndarray):
                assert made.dtype == expected.dtype, name


def test_shapes_of_many_kinds_in_elements_of_integers(two: Any) -> None:
    x = np.arange(210).reshape(5, 6, 7)
    for home in (two, md.dmath.local):
        w = Workers(home)
        for shape in ((210,), (7, 30), (1, 210), (2, 3, 5, 7), (-1, 11 - 1)):
            np.testing.assert_array_equal(np.asarray(d.reshape(w(x).T, shape)), x.T.reshape(shape))
        assert np.asarray(d.reshape(w(x[:1, :1, :1]), ())) == 0
        assert d.reshape(w(x)[0, 0, 3], (1, 1)).item() == 3
        assert np.asarray(d.reshape(w(x)[:0], (3, 0))).shape == (3, 0)
        for offset in (-6, -2, 0, 3, 9):
            expected = x.diagonal(offset, 1, 2)
            np.testing.assert_array_equal(np.asarray(d.diagonal(w(x), offset=offset)), expected)
        np.testing.assert_array_equal(
            np.asarray(d.tensordot(w(x), w(x[0, 0]), axes=1)), x @ x[0, 0]
        )
        np.testing.assert_array_equal(np.asarray(d.repeat(w(x), 2)), np.repeat(x, 2))
        np.testing.assert_array_equal(np.asarray(d.matrix_power(w(x[:, :5, 0]), 5)),
                                      np.linalg.matrix_power(x[:, :5, 0], 5))  # fmt: skip


def test_sizes_of_transforms(two: Any) -> None:
    for home in (two, md.dmath.local):
        w = Workers(home)
        for n in (3, 9):
            for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
                made, expected = getattr(f, name)(w(A), n=n, axis=0), getattr(np.fft, name)(A, n, 0)
                np.testing.assert_allclose(np.asarray(made), expected, atol=1e-13, err_msg=name)
        for name in ("fftn", "ifftn", "rfftn", "irfftn"):
            made = getattr(f, name)(w(A), s=(7, 3))
            expected = getattr(np.fft, name)(A, s=(7, 3), axes=(0, 1))
            np.testing.assert_allclose(np.asarray(made), expected, atol=1e-13, err_msg=name)


def test_explain_foretells_where_moved_elements_lie(two: Any) -> None:
    x = two.array(np.arange(2e5).reshape(500, 400), layout=md.dmath.Columns())
    places, values = two.array(np.array([3, 0, 1])), x[0]
    along = two.array(np.zeros((500, 3), int))
    for make in (
        lambda: d.reshape(x, (200, 1000)),
        lambda: d.take(x, places, axis=1),
        lambda: d.searchsorted(values, x),
        lambda: d.softmax(x, axis=1),
        lambda: d.argmax(x, axis=1),
        lambda: d.take_along_axis(x, along, axis=1),
    ):
        text, made = two.explain(make), make()
        assert text.endswith(f"result: {made.layout}")
        before = two.counters()["sent_bytes"]
        make().wait()
        sent = two.counters()["sent_bytes"] - before
        assert f"sends {sent / 1e6:.2f} MB" in text and sent >= 1600


def test_explain_foretells_where_factors_and_norms_lie(two: Any) -> None:
    """A norm of all elements ended in an IndexError, determinants and singular values in a ValueError."""
    w, found = Workers(two), list[Any]()
    square, right, stack = w(S), w(A.T), w(P[:, :3])
    for make in (
        lambda: d.norm(right),
        lambda: d.norm(right, axis=0),
        lambda: d.det(square),
        lambda: d.cholesky(square),
        lambda: d.svdvals(right),
        lambda: d.svdvals(stack),
        lambda: d.solve(square, right),
        lambda: d.solve(square, right[:, 0]),
        lambda: d.eigh(square).eigenvectors,
        lambda: d.flip(right),
    ):
        two.explain(lambda make=make: found.append(make().layout))
        assert found[-1] == make().layout


def test_refusals_of_shapes_and_indices(two: Any) -> None:
    x = two.array(A)
    with pytest.raises(md.errors.ShapeError, match="20 elements, which do not fit"):
        d.reshape(x, (3, -1))
    with pytest.raises(md.errors.ArgumentError, match="leave copy out"):
        d.reshape(x, (20,), copy=False)
    with pytest.raises(md.errors.IndexOutOfRangeError, match="index 4 is beyond axis 1 of size 4"):
        np.asarray(d.take(x, [0, 4], axis=1))
    with pytest.raises(md.errors.DTypeError, match="indices are integers"):
        d.take(x, [0.5], axis=1)
    with pytest.raises(md.errors.ShapeError, match="do not pair"):
        d.tensordot(x, x, axes=1)
    with pytest.raises(md.errors.ShapeError, match="square"):
        d.inv(x)
    with pytest.raises(md.errors.ShapeError, match="sizes are whole numbers from 1"):
        f.fft(x, n=0)


def test_all_names_are_there_and_the_reference_page_says_so() -> None:
    assert set(CASES) == set(NAMES) and len(NAMES) == len(set(NAMES))
    text = " ".join(PAGE.read_text().split())
    assert f"{len(CASES)} of the {len(NAMES)} names" in text


def test_truth_values_are_assigned(two: Any) -> None:
    for home in (two, md.dmath.local):
        w = Workers(home)
        x, y = w(T), w(A)
        x[1:4] = w(~T[1:4])
        y[:, 1] = w(T[:, 1])
        expected, numbers = T.copy(), A.copy()
        expected[1:4], numbers[:, 1] = ~T[1:4], T[:, 1]
        np.testing.assert_array_equal(np.asarray(x), expected)
        np.testing.assert_array_equal(np.asarray(y), numbers)


def test_what_is_made_of_a_failed_result_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.dmath import worker

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setitem(worker._OPS, "tri", broken)
    x = md.dmath.local.array(A)
    with pytest.raises(RuntimeError, match="no such thing") as caught:
        np.asarray(d.tril(x))  # whose result the trace of the error still holds
    failed = md.dmath.Matrix(x._session, x._number + 1, A.shape, A.dtype)
    assert caught.tb is not None
    for make in (lambda: failed + 1, lambda: d.sum(failed)):
        with pytest.raises(md.errors.CommunicationError, match="RuntimeError: no such thing"):
            np.asarray(make())


D, R = np.array([[3.0, 1, 3, 2, 1], [2, 2, 5, 1, 2]]), np.array([7, 250, 3, 9], np.uint8)
ARGUMENTS: dict[str, tuple[Callable[[Workers], Any], Any]] = {
    "sum of a dtype": (lambda w: d.sum(w(R), dtype="uint8"), R.sum(dtype=np.uint8)),
    "a method's dtype": (lambda w: w(R).prod(dtype="float32"), R.prod(dtype=np.float32)),
    "var with a correction": (lambda w: d.var(w(D), axis=1, correction=2), D.var(axis=1, ddof=2)),
    "std with a correction": (lambda w: w(D).std(axis=0, correction=0.5), D.std(axis=0, ddof=0.5)),
    "cumulative_sum of a dtype": (
        lambda w: d.cumulative_sum(w(R), dtype="float32", include_initial=True),
        np.concatenate([[0], np.cumsum(R)]).astype(np.float32),
    ),
    "cumulative_prod from 1": (
        lambda w: d.cumulative_prod(w(D), axis=1, include_initial=True),
        np.concatenate([np.ones((2, 1)), np.cumprod(D, axis=1)], axis=1),
    ),
    "sort that falls": (lambda w: d.sort(w(D), axis=1, descending=True), -np.sort(-D, axis=1)),
    "argsort that falls, equal ones in order": (
        lambda w: d.argsort(w(D), axis=1, descending=True),
        np.argsort(-D, axis=1, kind="stable"),
    ),
    "argmax of all": (lambda w: d.argmax(w(D)), np.argmax(D)),
    "argmin with axes kept": (
        lambda w: d.argmin(w(D), axis=1, keepdims=True), np.argmin(D, axis=1, keepdims=True)
    ),
    "flip of all axes": (lambda w: d.flip(w(D)), np.flip(D)),
    "clip from below": (lambda w: d.clip(w(D), min=2), np.maximum(D, 2)),
    "clip from above": (lambda w: d.clip(w(D), max=2), np.minimum(D, 2)),
    "clip by nothing": (lambda w: d.clip(w(D)), D),
    "diff with others around": (
        lambda w: d.diff(w(D), axis=1, prepend=w(D[:, :2]), append=w(D[:, :1])),
        np.diff(D, axis=1, prepend=D[:, :2], append=D[:, :1]),
    ),
    "cholesky, upper": (lambda w: d.cholesky(w(S), upper=True), np.linalg.cholesky(S).T),
    "trace of a dtype": (lambda w: d.trace(w(R[:, None]), dtype="int16"), np.int16(7)),
    "axes at several places": (lambda w: d.expand_dims(w(D), (0, -1)), D[None, :, :, None]),
    "frequencies of a dtype": (
        lambda w: w.home.rfftfreq(7, d=2, dtype="float32"), np.fft.rfftfreq(7, 2).astype(np.float32)
    ),
    **{
        f"vector_norm {ord}": (
            lambda w, ord=ord: d.vector_norm(w(D - 2), axis=1, ord=ord),
            np.linalg.norm(D - 2, ord=ord, axis=1),
        )
        for ord in (0, 1, 2, 3, np.inf, -np.inf)
    },
    **{
        f"matrix_norm {ord}": (
            lambda w, ord=ord: d.matrix_norm(w(P), ord=ord, keepdims=True),
            np.linalg.norm(P, ord=ord, axis=(-2, -1), keepdims=True),
        )
        for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_the_standard_do_what_numpys_do(two: Any, name: str) -> None:
    ours, expected = ARGUMENTS[name]
    for home in (two, md.dmath.local):
        made = np.asarray(ours(Workers(home)))
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-13)
        assert made.dtype == expected.dtype


def test_arrays_go_to_other_libraries_and_stay_on_their_device() -> None:
    x = md.dmath.local.array(A, device="cpu")
    np.testing.assert_array_equal(np.from_dlpack(x), A)
    np.testing.assert_array_equal(
        np.asarray(md.dmath.local.from_dlpack(x[1:], device="cpu")), A[1:]
    )
    assert x.__dlpack_device__() == (1, 0) and x.to_device(x.device) is x
    for make in (
        lambda: x.to_device("cuda"),
        lambda: md.dmath.local.zeros(3, device="cuda"),
        lambda: d.ones_like(x, device="cuda"),
        lambda: d.astype(x, "float32", device="cuda"),
        lambda: md.dmath.local.arange(3, device="cuda"),
    ):
        with pytest.raises(md.errors.ArgumentError, match=r"compute on 'cpu', got"):
            make()
    for make in (
        lambda: x.__dlpack__(copy=False),
        lambda: md.dmath.local.from_dlpack(A, copy=False),
    ):
        with pytest.raises(md.errors.ArgumentError, match="leave copy out"):
            make()
    with pytest.raises(md.errors.ShapeError, match="axis=None is for vectors"):
        d.cumulative_sum(x)
    with pytest.raises(md.errors.ShapeError, match="an axis of size 0 has no argmax"):
        d.argmax(x[:0])
    with pytest.raises(md.errors.ArgumentError, match="correction must be a number"):
        d.var(x, correction="1")
    with pytest.raises(md.errors.ArgumentError, match="ord must be"):
        d.matrix_norm(x, ord=3)
