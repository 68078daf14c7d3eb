"""`md.dmath` as one module of array functions: what the array API standard's own tests ask for.

    ARRAY_API_TESTS_MODULE=benchmarks.dmath.array_api pytest array_api_tests

in a checkout of github.com/data-apis/array-api-tests with its submodule. DMATH_WORKERS=n takes n workers; 0,
the default, is one in this process. Arrays are made by the session, all else are `md.dmath`'s functions.
"""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np

import magmadnn as md

SESSION = md.workers.Workers(int(os.environ.get("DMATH_WORKERS", "0")))
__array_api_version__ = "2024.12"
e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None
_DTYPES = """
    int8 int16 int32 int64 uint8 float32 float64 complex64 complex128
""".split()
globals().update({name: np.dtype(name) for name in _DTYPES})
bool = np.dtype(np.bool_)
_LINALG = """
    cholesky cross det diagonal eigh eigvalsh inv matmul matrix_power matrix_rank matrix_transpose outer
    pinv qr slogdet solve svd svdvals tensordot trace vecdot
""".split()


def __getattr__(name: str) -> Any:
    """Functions of `md.dmath`."""
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(md.dmath, name)


def _made(x: Any, copy: Any) -> Any:
    return x.copy() if copy else x


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """An array on the workers."""
    if isinstance(obj, md.dmath.Matrix):
        return _made(obj if dtype is None else obj.astype(dtype, copy=False), copy)
    return SESSION.array(np.asarray(obj, dtype), device=device)


def _default(value: Any) -> Any:
    return np.result_type(type(value)) if isinstance(value, (int, complex)) else np.float64


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of one value."""
    return SESSION.full(shape, fill_value, dtype=dtype or _default(fill_value), device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros."""
    return SESSION.zeros(shape, dtype=dtype or np.float64, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones."""
    return SESSION.ones(shape, dtype=dtype or np.float64, device=device)


empty = zeros
from_dlpack = SESSION.from_dlpack


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: Any = True,
) -> Any:
    """Numbers from start to stop."""
    return SESSION.linspace(start, stop, num, dtype=dtype, endpoint=endpoint, device=device)


def eye(n: int, m: Any = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Any:
    """Ones on a diagonal."""
    return SESSION.eye(n, m, k=k, dtype=dtype or np.float64, device=device)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    """Numbers from start to before stop."""
    return SESSION.arange(start, stop, step, dtype=dtype, device=device)


def __array_namespace_info__() -> Any:
    """What there is of devices and dtypes."""
    kinds = {name: np.dtype(name) for name in ("bool", *_DTYPES)}
    return SimpleNamespace(
        capabilities=lambda: {
            "boolean indexing": False, "data-dependent shapes": True, "max dimensions": 64,
        },
        default_device=lambda: "cpu",
        devices=lambda: ["cpu"],
        default_dtypes=lambda device=None: {
            "real floating": kinds["float64"], "complex floating": kinds["complex128"],
            "integral": kinds["int64"], "indexing": kinds["int64"],
        },
        dtypes=lambda device=None, kind=None: {
            name: dtype for name, dtype in kinds.items() if kind is None or md.dmath.isdtype(dtype, kind)
        },
    )  # fmt: skip


linalg = SimpleNamespace(**{name: getattr(md.dmath, name) for name in _LINALG})
linalg.vector_norm, linalg.matrix_norm = md.dmath.vector_norm, md.dmath.matrix_norm
_TRANSFORMS = """
    fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftshift ifftshift
""".split()
fft = SimpleNamespace(**{name: getattr(md.dmath.fft, name) for name in _TRANSFORMS})
fft.fftfreq, fft.rfftfreq = SESSION.fftfreq, SESSION.rfftfreq
