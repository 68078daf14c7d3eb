"""Equations with large matrices by conjugate gradients and GMRES, of SciPy, or CuPy on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.linalg._at_once import is_finite
from magmadnn.linalg._matrices import refuse_unless_finite
from magmadnn.linalg._operands import numbers
from magmadnn.tensor import Operation, Tensor, asarray, from_dlpack

from .device_refinement import lies_on_device
from .sparse import SparseMatrix, array_on_device, on_device, scipy_sparse

_RESTART = 20  # vectors of GMRES before it begins anew


class IterativeResult(NamedTuple):
    """The solution x [n], steps, and `|A x - b| / |b|` as it is (0 for b = 0)."""

    x: Any
    iterations: int
    residual: float


@checked_call
def cg(
    a: Any, b: Any, *, x0: Any = None, rtol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None,
    preconditioner: Any = None,
) -> IterativeResult:  # fmt: skip
    """X with A X = B for a symmetric or Hermitian positive definite A, by conjugate gradients.

    Args:
        a: [n, n]: a SparseMatrix, a SciPy sparse matrix or LinearOperator, an array or a Tensor.
        b: [n]; where it is a Tensor in a GPU's memory CuPy computes there, and x lies there.
        x0: [n], where to begin; 0 without.
        rtol: steps end at `|A x - b| <= max(rtol |b|, atol)`.
        atol: as above.
        maxiter: most steps; 10 n without.
        preconditioner: [n, n], near A^-1, as `a`.

    Raises:
        NumericError: if the steps do not suffice, saying the residual; or an operand holds NaN or infinity.
        ArgumentError: for Operations, or arguments that make no sense.
        ShapeError: if sizes do not fit.
        MissingExtraError: if SciPy is not installed.
    """
    given = _Given("cg", a, b, x0, rtol, atol, maxiter, preconditioner)
    return given.solved(given.module.cg, {}, 1)


@checked_call
def gmres(
    a: Any, b: Any, *, x0: Any = None, rtol: float = 1e-5, atol: float = 0.0, restart: int = _RESTART,
    maxiter: int | None = None, preconditioner: Any = None,
) -> IterativeResult:  # fmt: skip
    """X with A X = B for any square A, by GMRES, which keeps `restart` vectors and then begins anew.

    Args:
        a: as for `cg`.
        b: as for `cg`.
        x0: as for `cg`.
        rtol: as for `cg`.
        atol: as for `cg`.
        restart: vectors that are kept.
        maxiter: most steps in all; 10 n without.
        preconditioner: as for `cg`.

    Raises:
        NumericError: if the steps do not suffice, saying the residual; or an operand holds NaN or infinity.
        ArgumentError: for Operations, or arguments that make no sense.
        ShapeError: if sizes do not fit.
        MissingExtraError: if SciPy is not installed.
    """
    given = _Given("gmres", a, b, x0, rtol, atol, maxiter, preconditioner)
    if isinstance(restart, bool) or not isinstance(restart, int) or restart < 1:
        raise ArgumentError(f"gmres: restart must be a positive integer, got {restart!r}")
    kept = min(restart, given.n)
    more = {"restart": kept} | ({} if given.device else {"callback_type": "pr_norm"})
    return given.solved(given.module.gmres, more, kept)


class _Given:
    """What a function is given, looked at, and as the library that computes takes it."""

    def __init__(
        self, name: str, a: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: int | None,
        preconditioner: Any,
    ) -> None:  # fmt: skip
        self._name = name
        if any(isinstance(one, (Node, Operation)) for one in (a, b, x0)):
            raise ArgumentError(
                f"{name}: takes arrays and Tensors, not Operations; md.linalg.solve has gradients"
            )
        right = numbers(name, "b", b)
        a = numbers(name, "a", a) if isinstance(a, list | tuple) else a
        self.device = lies_on_device(right)
        self._number = right.device
        self.n = _size(name, a, right)
        for argument, value in (("rtol", rtol), ("atol", atol)):
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise ArgumentError(f"{name}: {argument} must be a number from 0 on, got {value!r}")
        if maxiter is not None and (
            isinstance(maxiter, bool) or not isinstance(maxiter, int) or maxiter < 1
        ):
            raise ArgumentError(
                f"{name}: maxiter must be a positive integer or None, got {maxiter!r}"
            )
        self._most = 10 * self.n if maxiter is None else maxiter
        self._tolerances = {"rtol": float(rtol), "atol": float(atol)}
        scipy_sparse(f"linalg.{name}")
        root = "cupyx.scipy.sparse.linalg" if self.device else "scipy.sparse.linalg"
        self.module: Any = import_module(root)
        self._a = self._operator("a", a)
        self._before = (
            None if preconditioner is None else self._operator("preconditioner", preconditioner)
        )
        self._b = self._vector("b", right)
        self._start = None if x0 is None else self._vector("x0", numbers(name, "x0", x0))

    def _operator(self, argument: str, a: Any) -> Any:
        """A matrix or an operator of the library; a dense or sparse matrix of the host goes to the device."""
        if isinstance(a, SparseMatrix):
            a = a.to_scipy()
        if hasattr(a, "matvec"):
            return a
        if not hasattr(a, "shape"):  # a list, or no matrix
            a = numbers(self._name, argument, a)
        if tuple(a.shape) != (self.n, self.n):
            raise ShapeError(
                f"{self._name}: {argument} must be {self.n} x {self.n}, got shape {tuple(a.shape)}"
            )
        sparse = scipy_sparse(self._name)
        if not self.device:
            found = a.tocsr() if sparse.issparse(a) else numbers(self._name, argument, a).read()
            if not is_finite(found.data if sparse.issparse(a) else found):
                refuse_unless_finite(
                    self._name, argument, found.toarray() if sparse.issparse(a) else found
                )
            return found
        if sparse.issparse(a):
            return on_device(a, self._number)
        if isinstance(a, Tensor) and lies_on_device(a):
            return array_on_device(a)
        library = array_library()
        assert library is not None
        return a if isinstance(a, library.ndarray) else library.asarray(np.asarray(a))

    def _vector(self, argument: str, x: Tensor) -> Any:
        if x.shape != (self.n,):
            raise ShapeError(
                f"{self._name}: {argument} must be [{self.n}], got shape {tuple(x.shape)}"
            )
        if self.device:
            return array_on_device(x) if lies_on_device(x) else array_on_device(x.to("device"))
        _refuse_unless_finite(self._name, argument, x.read())
        return x.read()

    def solved(
        self, function: Callable[..., Any], more: dict[str, Any], of_cycle: int
    ) -> IterativeResult:
        """The library's solution, looked at: its last residual may be one that it only believes.

        Args:
            function: of the library.
            more: arguments besides.
            of_cycle: steps of what the library counts as one for `maxiter`.
        """
        steps = 0

        def count(_: Any) -> None:
            nonlocal steps
            steps += 1

        if not self.n:
            return IterativeResult(
                asarray(np.zeros(0, np.result_type(self._b, np.float32))), 0, 0.0
            )
        cycles = max(-(-self._most // of_cycle), 1)
        with np.errstate(all="ignore"):  # what does not converge is seen in the residual
            x, _ = function(
                self._a, self._b, x0=self._start, maxiter=cycles, M=self._before, callback=count,
                **self._tolerances, **more,
            )  # fmt: skip
        xp: Any = array_library() if self.device else np
        with np.errstate(all="ignore"):
            left = float(xp.linalg.norm(self._a @ x - self._b))
        size = float(xp.linalg.norm(self._b))
        goal = max(self._tolerances["rtol"] * size, self._tolerances["atol"])
        eps = float(np.finfo(np.asarray(x.dtype.type(0)).dtype).eps)
        if not left <= goal * (1 + 1e-3) + 4 * eps * size:
            raise NumericError(
                f"{self._name}: after {steps} steps |A x - b| is {left:.3g}, and {goal:.3g} is wanted: give "
                "a preconditioner, a larger maxiter or rtol, or use md.linalg.solve"
            )
        found = from_dlpack(x) if self.device else asarray(np.asarray(x))
        return IterativeResult(found, steps, left / size if size else 0.0)


def _refuse_unless_finite(name: str, argument: str, x: Any) -> None:
    """Look at a vector.

    Raises:
        NumericError: naming the first number that is NaN or infinite.
    """
    bad = np.flatnonzero(~np.isfinite(x))
    if len(bad):
        raise NumericError(
            f"{name}: {argument} holds {x[bad[0]]} at [{bad[0]}]; give finite numbers"
        )


def _size(name: str, a: Any, b: Tensor) -> int:
    shape = getattr(a, "shape", None)
    if shape is None:
        raise ArgumentError(
            f"{name}: a must be a matrix or a LinearOperator of SciPy, got {type(a).__name__}"
        )
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(f"{name}: a must be a square matrix, got shape {tuple(shape)}")
    if b.ndim != 1 or b.shape[0] != shape[0]:
        raise ShapeError(f"{name}: b must be [{shape[0]}], got shape {tuple(b.shape)}")
    return int(shape[0])
