"""Refinement where a matrix lies on a GPU: by factors of our own, or by cuSOLVER's solver of mixed precision.

Large matrices on GPUs that have clusters of blocks are factorised by `mixed/`; where its corrections do not
converge, and for others, cuSOLVER factorises in float32 and refines in float64, and falls back to factors
in float64 by itself. On an H100, 16,384 rows of random numbers, cuSOLVER's factors in float16 and TF32 took
44 and 46 steps, 231 and 244 ms, and left a backward error of 2e-13; float32 4 steps, 152 ms and 1e-15;
float64 146 ms and 7e-15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.op import Array, Draw, NoGradient, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords, by_signature
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.linalg._matrices import refuse_unless_finite, transposed
from magmadnn.linalg.factorisations.elimination import exchanging
from magmadnn.memory import Kind
from magmadnn.ops import abs as abs_
from magmadnn.ops import divide, equal, matmul, where
from magmadnn.ops import max as max_
from magmadnn.ops import sum as sum_
from magmadnn.runtime import Executable
from magmadnn.tensor import Tensor, asarray, from_dlpack

from .mixed.elimination import MOST_ROWS, bytes_of_factors
from .mixed.solving import solved_in_mixed
from .refinement import RefinedResult, checked, mixed

_KEPT = 16  # programs
_LEAST_MIXED = 4096  # rows from which on factors of our own are faster than cuSOLVER's
_WITH_CLUSTERS = 90  # compute capability of GPUs that run sixteen blocks as a cluster


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    """[..., k + 1, n]: how many steps as the first number, and below solutions as rows."""
    *leading, k, n = by_signature("... n n, ... k n -> ... k n")(words, specs, attributes)
    return (*leading, k + 1, n)


def _numpy(a: Array, b: Array) -> Array:
    refuse_unless_finite("solve", "a", a)
    refuse_unless_finite("solve", "b", np.swapaxes(b, -1, -2))
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    found = np.zeros((*leading, b.shape[-2] + 1, b.shape[-1]))
    every = np.broadcast_to(a, (*leading, *a.shape[-2:]))
    rights = np.broadcast_to(b, (*leading, *b.shape[-2:]))
    for index in np.ndindex(leading):
        x, steps, way = mixed(every[index], rights[index].T, False)
        found[(*index, slice(1, None))] = x.T
        found[(*index, 0, 0)] = steps if way != "float64" else -1 - steps
    return found


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((exchanging(draw, 5), draw(3, 5)))


refined_rows: Op = Op(
    name="_refined_rows",
    args=("a", "b"),
    formula="steps of refinement, below 0 where they did not suffice, and rows x with a x = b",
    kind=OpKind.LIBRARY,
    library=LibraryCall("sgesv", dtypes=("float64",)),
    stacked=last_axes,
    shapes=_shapes,
    dtypes=lambda words, dtypes, attributes: np.dtype(np.float64),
    numpy=_numpy,
    vjp=NoGradient(why="it takes known values"),
    reference=_numpy,
    samples=_samples,
)


def lies_on_device(x: Any) -> bool:
    """Whether it is a Tensor in memory of a GPU."""
    return isinstance(x, Tensor) and x.kind in (Kind.DEVICE, Kind.CUDA_MANAGED)


def refined_on_device(a: Any, b: Any) -> RefinedResult:
    """What `refinement.refined` gives for a matrix on a GPU, with x there; the matrix stays there.

    Raises:
        ShapeError: for a stack, or sizes that do not fit.
        NumericError: if A is singular, or holds NaN or infinity.
    """
    a, b = checked(a, b)
    right = b if b.ndim == 2 else b.unsqueeze(-1)
    if not right.size:
        return RefinedResult(asarray(b), 0, 0.0, "refinement")
    if (found := _by_mixed(a, right)) is not None:
        return found._replace(x=found.x.reshape(b.shape))
    program, nodes = _program(a.shape[-1], right.shape[-1], a.device)
    x, steps, residual = program.run(dict(zip(nodes, (a, right), strict=True)))
    way = "refinement" if steps >= 0 else "float64"
    solution = Tensor.holding(x.reshape(b.shape), Kind.DEVICE, a.device)
    return RefinedResult(solution, abs(int(steps)), float(residual), way)


def _by_mixed(a: Tensor, right: Tensor) -> RefinedResult | None:
    """The same for [n, n] and [n, k] by `mixed/`; None where it is not for them, or does not converge.

    Raises:
        OutOfMemoryError: if the factors do not fit the device's memory.
    """
    cupy, n = array_library(), a.shape[-1]
    if cupy is None or not _LEAST_MIXED <= n <= MOST_ROWS:
        return None
    with cupy.cuda.Device(a.device) as device:
        if int(device.compute_capability) < _WITH_CLUSTERS:
            return None
        wide = cupy.ascontiguousarray(cupy.asarray(a), dtype=np.float64)
        b = right if lies_on_device(right) else right.to("device", a.device)
        rows = cupy.ascontiguousarray(cupy.asarray(b, dtype=np.float64).T)
        try:
            found = solved_in_mixed(cupy, a.device, wide, rows)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f'solve: method="refine" wants {bytes_of_factors(n):,} bytes more of device {a.device} for '
                f"factors of {n} rows; md.linalg.out_of_core takes larger matrices"
            ) from error
        if found is None:
            return None
        x, steps, residual, way = found
        return RefinedResult(from_dlpack(cupy.ascontiguousarray(x.T)), steps, residual, way)


@lru_cache(maxsize=_KEPT)
def _program(n: int, k: int, device: int) -> tuple[Executable, tuple[Node, Node]]:
    """Solutions, steps and the residual, of a placeholder for each operand."""
    a = placeholder("a", Spec((n, n), np.dtype(np.float64)))
    b = placeholder("b", Spec((n, k), np.dtype(np.float64)))
    packed = refined_rows(a, transposed(b))
    x = transposed(packed[1:])
    size = max_(sum_(abs_(a), axis=1)) * max_(abs_(x), axis=0) + max_(abs_(b), axis=0)
    left = max_(abs_(matmul(a, x) - b), axis=0)
    residual = max_(divide(left, where(equal(size, 0), 1, size)))
    outputs = [x, packed[0, 0], residual]
    return Executable(outputs, executor="native", device=f"cuda:{device}"), (a, b)
