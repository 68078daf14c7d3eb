"""Addresses of functions of BLAS and LAPACK, from SciPy where it is installed.

SciPy exports C functions for native code, as capsules (its documentation of `scipy.linalg.cython_lapack`).
Their integers have 32 bits, and they take arguments by address. They are those of the library that SciPy was
built with, mostly OpenBLAS, which may use several threads for one large matrix.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from magmadnn.backends.cpu.blas_threads import FEW_ROWS, BlasThreads, blas_threads
from magmadnn.compiler.kernels.library import Library, WholeLibrary
from magmadnn.compiler.llvm.library.calls import can_call
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph.dim import bind_shape

_LETTERS = {"float32": "s", "float64": "d"}
_MODULES = ("scipy.linalg.cython_blas", "scipy.linalg.cython_lapack")


def function_of(kernel: Library) -> int | None:
    """The address of the function that a step calls; None where NumPy computes it."""
    return address_of(_LETTERS[kernel.dtype] + kernel.function) if can_call(kernel) else None


def is_native(work: Work) -> bool:
    """Whether native code computes a step: it has a kernel, and the function that this calls is there."""
    kernel = None if work.lowered is None else work.lowered.kernel
    if kernel is None or isinstance(kernel, WholeLibrary):
        return False  # no library on the processor has one
    return not isinstance(kernel, Library) or function_of(kernel) is not None


def blas_beside(plan: NativePlan, sizes: Mapping[str, int]) -> BlasThreads | None:
    """The BLAS that has one thread while a plan runs (`BlasThreads.on_one`); None where it keeps its own.

    It is where the plan calls BLAS, or NumPy's functions, for small matrices only: further threads would wait
    on the cores that the plan's own threads want.
    """
    calls = [work for work in plan.work if _may_call_blas(work)]
    operands = {node for work in calls for one in work.region.nodes for node in one.inputs}
    shapes = (bind_shape(node.shape, sizes) for node in operands)
    sides = [side for shape in shapes if len(shape) > 1 for side in shape[-2:]]
    return blas_threads() if calls and max(sides, default=0) < FEW_ROWS else None


def _may_call_blas(work: Work) -> bool:
    """Whether a step is LAPACK's, or computed by NumPy."""
    if work.region.kind is RegionKind.LOOP:
        return False
    return not is_native(work) or (
        work.lowered is not None and isinstance(work.lowered.kernel, Library)
    )


@cache
def address_of(name: str) -> int | None:
    """The address of a function; None where SciPy does not export it."""
    for capsules in _exported():
        if name in capsules:
            return _pointer(capsules[name])
    return None


@cache
def _exported() -> tuple[dict[str, Any], ...]:
    """What SciPy exports; nothing where it is not installed."""
    try:
        modules = [importlib.import_module(name) for name in _MODULES]
    except ImportError:
        return ()
    return tuple(module.__pyx_capi__ for module in modules)


def _pointer(capsule: object) -> int | None:
    """What a capsule holds."""
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int | None = pointer(capsule, name(capsule))
    return address
