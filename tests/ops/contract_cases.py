"""What the contract tests are made of: values, dtypes, layouts, and error bounds.

Everything is generated from `REGISTRY`; what cannot be derived from a record (how many roundings an op
makes, which integers it refuses, how it takes empty and unknown sizes) stands in the tables here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import magmadnn
import magmadnn.linalg.factorisations.factorisation
import magmadnn.ops.repeated.checkpoints  # noqa: F401  both are loaded where they are used
from magmadnn.graph.op import REGISTRY, Op, OpKind, Sample
from magmadnn.memory.dtypes import DTYPES, is_floating

Array = NDArray[Any]
# Not what tests define later, nor loops, which take a body (tests/runtime/test_scan.py), nor parts of
# md.linalg and md.fft, which want matrices of full rank, give vectors of either sign, or are complex:
# tests/linalg has their own. Nor collectives, which want several ranks (tests/parallel/test_collectives.py).
OF_MATRICES = set(
    "_lu_factored _lu_solved _solve _det _slogdet _eigh _svd _reflected _columns_of_reflections _qr _pinv "
    "_lstsq _expm _refined_rows _eigh_factor _fft _rfft _irfft _real _imag _conj _angle".split()
)
BUILT_IN = {
    name: op
    for name, op in REGISTRY.items()
    if op.kind not in (OpKind.LOOP, OpKind.RESULT, OpKind.COLLECTIVE)
    and name not in OF_MATRICES | {"summed_gradient"}
    and not name.startswith("user_")  # of other tests
}
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
TINY = {name: float(ml_dtypes.finfo(DTYPES[name]).smallest_subnormal) for name in FLOATS}
EPS = {name: float(ml_dtypes.finfo(DTYPES[name]).eps) for name in FLOATS}


# --- values ---------------------------------------------------------------------------------------


class Drawing:
    """`Op.samples` draws with this: evenly spread values in random order, none near a kink.

    They keep 0.3 away from zero and 0.03 from integers, and two draws never hold equal values.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._calls = 0

    def __call__(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        count = math.prod(shape)
        self._calls += 1
        shift = 0.2 + 0.6 * (0.6180339887 * self._calls % 1.0)
        values = low + (high - low) * (self._random.permutation(count) + shift) / max(count, 1)
        values = np.sign(values) * np.maximum(np.abs(values), 0.3 + 0.01 * shift)
        near = np.abs(values - np.rint(values)) < 0.03
        return np.asarray(values + 0.07 * near, np.float64).reshape(shape)

    def integers(self, *shape: int, low: int = 0, high: int = 10) -> Array:
        return np.asarray(self._random.integers(low, high, shape))

    def positive(self, *shape: int) -> Array:
        return self(*shape, low=0.3, high=2.4)


class Case(NamedTuple):
    """One op on one sample in one dtype."""

    op: Op
    operands: list[Array]
    attributes: dict[str, Any]

    def listed(self, operands: list[Any]) -> list[Any]:
        """Operands as a call takes them: in a list where the op takes a list."""
        return [operands] if self.op.args[-1].startswith("*") else operands

    def run(self) -> Array:
        return np.asarray(self.op(*self.listed(self.operands), **self.attributes))

    def reference(self, operands: list[Array] | None = None) -> Array:
        bound = {**self.op.attributes, **self.attributes}
        counted = self.op.kind is OpKind.RANDOM
        exact = [
            x if counted or self.op.words.operand(i) in self.op.integers else x.astype(np.float64)
            for i, x in enumerate(operands or self.operands)
        ]
        return np.asarray(self.op.reference(*exact, **bound))

    def __str__(self) -> str:
        shown = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in self.operands)
        return f"{self.op.name}({shown}, {self.attributes})"


def samples(op: Op, seed: int = 0) -> Iterator[tuple[list[Array], dict[str, Any]]]:
    """The samples of an op, as arrays."""
    for sample in op.samples(Drawing(seed)):
        assert isinstance(sample, Sample)
        yield [np.asarray(x) for x in sample.operands], dict(sample.attributes)


def cases(op: Op, dtype: str, seed: int = 0) -> list[Case]:
    """The samples of an op with its real (or, for the logical ops, all) operands in `dtype`."""
    found = []
    for operands, attributes in samples(op, seed):
        logical = all(x.dtype == bool for x in operands)
        wanted = [
            _converted(op, i, x, dtype) if logical or x.dtype == np.float64 else x
            for i, x in enumerate(operands)
        ]
        if attributes.get("value") != 1.5 or is_floating(DTYPES[dtype]):
            found.append(Case(op, wanted, attributes))
    return found


DIVIDES = ("divide", "floor_divide", "remainder", "reciprocal", "power")


def _converted(op: Op, number: int, x: Array, dtype: str) -> Array:
    """Sample values in a dtype; integers are 1 to 6 in size, their signs kept where there are any."""
    if is_floating(DTYPES[dtype]):
        return x.astype(DTYPES[dtype])
    x = np.nan_to_num(x.astype(np.float64), nan=1.0)
    last = number == len(op.args) - 1
    if dtype == "bool":
        return np.ones_like(x, bool) if op.name in DIVIDES and last else x > 0
    whole = np.sign(x) * np.ceil(np.abs(x) * (1 if op.name == "prod" else 3))  # 2**35 fits
    if dtype == "uint8" or op.name == "log1p" or (op.name == "power" and last):
        whole = np.abs(whole)
    return whole.astype(dtype)


REFUSED: dict[str, set[str]] = {  # everything else takes every dtype
    "negative": {"bool"},
    "subtract": {"bool"},
    "sign": {"bool"},
}


# --- layouts --------------------------------------------------------------------------------------


def strided(x: Array) -> Array:
    """Every second element of a larger array."""
    wide = np.repeat(x[..., None], 2, -1)
    wide[..., 1] = x.dtype.type(1)
    return wide[..., 0]


def fortran(x: Array) -> Array:
    return x.T.copy().T


def backwards(x: Array) -> Array:
    """Negative strides along every axis."""
    return np.flip(np.flip(x).copy())


def repeated(x: Array) -> Array:
    """A stride of 0 along the first axis that is longer than 1."""
    axis = next((a for a, n in enumerate(x.shape) if n > 1), None)
    return x if axis is None else np.broadcast_to(np.take(x, [0], axis), x.shape)


LAYOUTS: tuple[Callable[[Array], Array], ...] = (strided, fortran, backwards, repeated)


# --- how exact ------------------------------------------------------------------------------------
# A result may be off by `roundings * eps * scale`, where scale is |reference| if nothing else is said.
# NumPy's vector loops for exp, log, sin, cos, tanh and power are good to 4 eps in float32; a formula of
# several steps adds up those of its steps. Half precision is computed in float32 and rounded once. The
# reference itself is good to 4 eps of float64.

EXACT = set(
    "abs ceil floor sign negative relu maximum minimum _clip where equal not_equal less less_equal "
    "greater greater_equal logical_and logical_or logical_not isnan stop_gradient floor_divide max min "
    "argmax argmin one_hot random_uniform take take_class _where_positive _faded "
    "_after _checkpoint max_pooling max_pooling_indices _max_pooling_chosen "
    "_max_pooling_whole _max_pooling_indices_whole _gathered_whole _convolution_pooled_numbers".split()
) | {name for name, op in BUILT_IN.items() if op.kind is OpKind.MOVEMENT}
ROUNDINGS = {
    **dict.fromkeys(
        "add subtract multiply divide square cast reciprocal sqrt remainder".split(), 1
    ),
    **dict.fromkeys("exp expm1 log log1p sin cos tanh power".split(), 4),
    **dict.fromkeys("leaky_relu prelu softsign erf".split(), 2),
    "elu": 5,  # expm1, product
    "sigmoid": 6,  # exp, sum, quotient
    "swish": 6,
    "softplus": 9,  # exp, log1p, sum
    "gelu": 4,  # of |x|: 1 + erf cancels where x is far below 0
    "gaussian_rbf": 4,  # of 1 + 3 (epsilon x)**2: what the argument of exp is off by
    "softmax": 16,  # difference, exp, sum of 7, quotient
    "log_softmax": 16,
    "_deviations": 48,  # up to 42 terms: the mean, a difference and its square, and their sum
    # sums of up to 12 terms, and quotients
    "average_pooling": 13,
    "_average_pooling_inputs": 13,
    "_max_pooling_positive_inputs_whole": 6,  # sums of up to 6 terms
    # backward errors of n terms, times the condition numbers of the samples, which are below 5
    # of sums of up to 30 terms, in a tree, relative to the largest
    "_frequencies": 16,
    "_from_frequencies": 16,
    "cholesky": 25,
    "solve_triangular": 25,
}
SCALES: dict[str, Callable[..., Array]] = {
    "remainder": lambda y, x, w: np.abs(w),
    "gelu": lambda y, x: np.abs(x),
    "gaussian_rbf": lambda y, x, e: np.abs(y) * (1 + 3 * (e * x) ** 2),
    "log_softmax": lambda y, x: 1 + np.abs(y),
    "_frequencies": lambda y, x: np.abs(y).max(initial=0),
    "_from_frequencies": lambda y, x: np.abs(y).max(initial=0),
    "cholesky": lambda y, a: np.abs(y).max(initial=0),
    "solve_triangular": lambda y, a, b: np.abs(y).max(initial=0),
    "average_pooling": lambda y, x: np.abs(x).max(initial=0),
    "_average_pooling_inputs": lambda y, g: np.abs(g).max(initial=0),
    "_max_pooling_positive_inputs_whole": lambda y, g, *others: 6 * np.abs(g).max(initial=0),
}
SUMS = {
    "sum", "cumsum", "matmul", "_einsum", "scatter_add", "_recurrence",
    "convolution", "_convolution_inputs", "_convolution_filters",
    "_max_pooling_inputs", "_max_pooling_inputs_whole",
    "_convolution_whole", "_convolution_inputs_whole", "_convolution_filters_whole",
    "_convolution_biased", "_convolution_added",
    "_convolutions", "_convolutions_inputs", "_convolutions_filters",
    "_convolutions_whole", "_convolutions_inputs_whole", "_convolutions_filters_whole",
    "_convolutions_biased", "_convolutions_added",
    "_convolution_pooled", "_convolution_pooled_inputs", "_convolution_pooled_filters",
}  # fmt: skip


def error_bound(case: Case, reference: Array, dtype: str) -> Array:
    """How far a result of `dtype` may be from the reference."""
    exact = [np.asarray(x, np.float64) for x in case.operands]
    eps, name = EPS[dtype], case.op.name
    half = all(x.dtype.itemsize < 4 for x in case.operands) and case.operands[0].dtype.kind in "fV"
    inner = EPS["float32"] if half else eps
    size = np.abs(reference)
    if name in SUMS:  # n terms: n roundings of the sum of their sizes
        ones = [x if x.dtype.kind in "iu" else np.ones_like(x) for x in case.operands]
        if name == "_recurrence":  # a product and a sum in each step
            count = np.asarray(2.0 * exact[0].shape[-1])
        else:
            count = case.reference(ones) + len(exact)
        return np.asarray(inner * count * case.reference([np.abs(x) for x in exact]) + eps * size)
    if name == "prod":
        return np.asarray(inner * (exact[0].size / max(size.size, 1)) * size + eps * size)
    scale = SCALES[name](reference, *exact) if name in SCALES else size
    return np.asarray(
        (ROUNDINGS[name] * inner + 4 * EPS["float64"]) * scale + eps * size + TINY[dtype]
    )


def assert_matches(case: Case, result: Array) -> None:
    """The result is what the reference says, as exactly as its dtype and its op allow."""
    expected = case.reference()
    assert result.shape == expected.shape, case
    dtype = result.dtype.name
    if not is_floating(result.dtype):
        whole = expected if dtype == "bool" else expected.astype(np.int64)
        np.testing.assert_array_equal(result, whole.astype(result.dtype), err_msg=str(case))
    elif case.op.name in EXACT:
        np.testing.assert_array_equal(result, expected.astype(result.dtype), err_msg=str(case))
    else:
        off = np.abs(result.astype(np.float64) - expected)
        bound = error_bound(case, expected, dtype)
        assert (off <= bound).all(), (
            f"{case}: off by {(off / bound).max():.3g} times what is allowed"
        )


def bits(x: Array) -> bytes:
    """The elements' bytes, in order."""
    return np.ascontiguousarray(x).tobytes()
