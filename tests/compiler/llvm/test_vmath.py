"""Vector mathematics: error against mpmath, special values, and equal bits at every vector width."""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest

from magmadnn.compiler.llvm.ir.builder import FLOATS, Code, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.compiler.llvm.vmath import FUNCTIONS, MAX_ULP
from tests.compiler.llvm.llvm_calls import WIDTHS, call

DTYPES = ("float32", "float64")
UNARY = [name for name in FUNCTIONS if name != "power"]
STEP = 64  # kernels here take whole vectors of any width


@dataclass(frozen=True)
class Apply:
    """result[i] = name(x[i]) or name(x[i], y[i]) for n elements, n a multiple of STEP."""

    name: str
    dtype: str
    binary: bool = False
    slots = ("n", "x", "y", "result")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        item = FLOATS[self.dtype]
        lanes = target.lanes(item_bytes(item))
        x, y, result = (frame.array(name, item) for name in ("x", "y", "result"))
        with code.loop(0, frame.integer("n"), lanes) as i:
            operands = [array.vector(i, lanes) for array in ((x, y) if self.binary else (x,))]
            result.put(i, FUNCTIONS[self.name](code, *operands))


def compute(name: str, x: np.ndarray, y: np.ndarray | None = None, target: Target | None = None):
    size = -(-x.size // STEP) * STEP
    operands = [np.resize(v, size) for v in (x, x if y is None else y)]
    result = np.empty(size, x.dtype)
    made = Apply(name, x.dtype.name, y is not None)
    call(made, target or host(), n=size, x=operands[0], y=operands[1], result=result)
    return result[: x.size]


def arguments(name: str, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Arguments over the whole domain, near every change of method, and small ones."""
    info = np.finfo(dtype)
    top = float(np.log(info.max))
    bottom = float(np.log(info.smallest_subnormal))
    small = rng.uniform(-1, 1, 150) * 10.0 ** rng.uniform(-36, 0, 150)
    if name in ("exp", "expm1"):
        parts = [rng.uniform(bottom, top, 300), rng.uniform(bottom, 0.8 * bottom, 80), small]
        parts += [rng.uniform(-1.5, 1.5, 400)]
    elif name == "log":
        parts = [np.exp(rng.uniform(bottom, top, 300)), rng.uniform(0.4, 2.5, 400), 1 + small]
    elif name == "log1p":
        parts = [np.exp(rng.uniform(-80, 80, 200)), rng.uniform(-0.999, 2.5, 400), small]
        parts += [10.0 ** rng.uniform(-7, 0, 80) - 1]
    elif name in ("sin", "cos"):
        far = rng.uniform(-1, 1, 200) * 10.0 ** rng.uniform(4, 0.9 * np.log10(float(info.max)), 200)
        parts = [rng.uniform(-10, 10, 300), far, small, np.arange(1, 200) * np.pi / 2]
    else:
        parts = [rng.uniform(-6.5, 6.5, 400), rng.uniform(-1, 1, 400), small]
    made = np.concatenate(parts).astype(dtype)
    made = made[np.isfinite(made)]
    return {"log": made[made > 0], "log1p": made[made > -1]}.get(name, made)


def errors(found: np.ndarray, expected: list) -> np.ndarray:
    """Distance from the true values in units in the last place of these."""
    info = np.finfo(found.dtype)
    made = []
    for value, true in zip(found, expected, strict=True):
        if true == 0:
            made.append(0.0 if value == 0 else np.inf)
            continue
        exponent = max(int(mpmath.floor(mpmath.log(abs(true), 2))), info.minexp)
        made.append(abs(mpmath.mpf(float(value)) - true) / mpmath.mpf(2) ** (exponent - info.nmant))
    return np.array(made, float)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_error(name, dtype):
    x = arguments(name, dtype, np.random.default_rng(7))
    with mpmath.workprec(1300 if name in ("sin", "cos") else 160):
        expected = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x]
        error = errors(compute(name, x), expected)
    worst = int(error.argmax())
    assert error[worst] <= MAX_ULP[name][DTYPES.index(dtype)], f"{error[worst]} at {x[worst]!r}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_error(dtype):
    rng, info = np.random.default_rng(8), np.finfo(dtype)
    top, bottom = float(np.log(info.max)), float(np.log(info.smallest_subnormal))
    log_x = np.concatenate([rng.uniform(0.9 * bottom, top, 300), rng.uniform(-1, 1, 300)])
    y = rng.uniform(bottom, top, log_x.size) / log_x
    y[::7] = rng.integers(-9, 9, y[::7].size)
    x, y = np.exp(log_x).astype(dtype), y.astype(dtype)
    with mpmath.workprec(200):
        expected = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y, strict=True)]
        finite = np.array([v < float(info.max) for v in expected])
        found = compute("power", x, y)
        error = errors(found[finite], [v for v, ok in zip(expected, finite, strict=True) if ok])
    assert error.max() <= MAX_ULP["power"][DTYPES.index(dtype)]
    assert np.isinf(found[~finite]).all()


def special(dtype: str) -> np.ndarray:
    info = np.finfo(dtype)
    sizes = [0, 1, 2, 3, 0.5, 0.3, 1.5, 89, 800, 1e30, info.tiny, info.tiny / 4, info.max, np.inf]
    sizes += [float(info.smallest_subnormal)]
    return np.array([np.nan, *sizes, *(-v for v in sizes)], dtype)


def agree(found: np.ndarray, expected: np.ndarray, ulps: float) -> np.ndarray:
    """Equal within `ulps` of the spacing, with the same sign of zero, and NaN where NaN is due."""
    finite = np.isfinite(expected) & np.isfinite(found)
    with np.errstate(all="ignore"):
        near = finite & (abs(found - expected) <= ulps * np.spacing(abs(expected)))
    same = (near | (found == expected)) & (np.signbit(found) == np.signbit(expected))
    return same | (np.isnan(found) & np.isnan(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in UNARY if name != "erf"])
def test_special_values(name, dtype):
    """NaN, infinities, zeros with their signs, subnormals, over- and underflow: as NumPy's."""
    x = special(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    assert agree(compute(name, x), expected, 4).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_of_erf(dtype):
    found = compute("erf", np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 9, -9], dtype))
    assert agree(found, np.array([np.nan, 1, -1, 0.0, -0.0, 1, -1], dtype), 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_of_power(dtype):
    x, y = (v.ravel() for v in np.meshgrid(special(dtype), special(dtype)))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    ok = agree(compute("power", x, y), expected, 4)
    assert ok.all(), list(zip(x[~ok], y[~ok], expected[~ok], strict=True))[:5]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_width_does_not_change_bits(name):
    rng = np.random.default_rng(9)
    for dtype in DTYPES:
        x = np.abs(rng.standard_normal(200)).astype(dtype) * 3
        y = rng.standard_normal(200).astype(dtype) if name == "power" else None
        first, *others = (compute(name, x, y, target) for target in WIDTHS)
        for other in others:
            np.testing.assert_array_equal(other, first)
