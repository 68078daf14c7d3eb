"""Equations with large matrices by conjugate gradients and GMRES, of SciPy, or CuPy on a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DTypeError, NumericError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.linalg._at_once import is_finite
from magmadnn.linalg._matrices import refuse_unless_finite
from magmadnn.linalg._operands import numbers
from magmadnn.tensor import Operation, Tensor, asarray, from_dlpack

from .arguments import check_goal, checked_count, checked_tolerances, exponent_of, scaled
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
        rtol: steps end at `|A x - b| <= max(rtol |b|, atol)`; below 1.
        atol: as above. Both together must not ask for less than rounding leaves, `4 eps |b|`.
        maxiter: most steps; 10 n without.
        preconditioner: [n, n], near A^-1, as `a`.

    Raises:
        NumericError: if the steps do not suffice, saying the residual, and why where that can be seen; or an
            operand holds NaN or infinity.
        ArgumentError: for Operations, or arguments that make no sense.
        ShapeError: if sizes do not fit.
        MissingExtraError: if SciPy is not installed.
    """
    given = _Given("cg", a, b, x0, rtol, atol, maxiter, preconditioner)
    return given.solved(1)


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
        maxiter: most steps in all, also where that is less than `restart`; 10 n without.
        preconditioner: as for `cg`.

    Raises:
        NumericError: if the steps do not suffice, saying the residual, and why where that can be seen; or an
            operand holds NaN or infinity.
        ArgumentError: for Operations, or arguments that make no sense.
        ShapeError: if sizes do not fit.
        MissingExtraError: if SciPy is not installed.
    """
    given = _Given("gmres", a, b, x0, rtol, atol, maxiter, preconditioner)
    return given.solved(checked_count("gmres", "restart", restart))


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
        self._rtol, self._atol = checked_tolerances(name, rtol, atol)
        self._most = 10 * self.n if maxiter is None else checked_count(name, "maxiter", maxiter)
        scipy_sparse(f"linalg.{name}")
        root = "cupyx.scipy.sparse.linalg" if self.device else "scipy.sparse.linalg"
        self.module: Any = import_module(root)
        self._a = self._operator("a", a)
        self._before: Any = (
            None if preconditioner is None else self._operator("preconditioner", preconditioner)
        )
        self._b = self._vector("b", right)
        self._start: Any = None if x0 is None else self._vector("x0", numbers(name, "x0", x0))
        self._dtype = self._common()

    def _common(self) -> np.dtype[Any]:
        """What is computed in: float32 or float64, or complex numbers of these, as all operands together.

        Raises:
            DTypeError: x0 or the preconditioner is complex, and the equation is not.
        """
        own = [getattr(self._a, "dtype", None) or np.dtype(np.float64), self._b.dtype]
        found = np.result_type(*own, np.float32)
        if found.char not in "fdFD":
            found = np.dtype(np.complex128 if found.kind == "c" else np.float64)
        for argument, one in (("x0", self._start), ("preconditioner", self._before)):
            if getattr(one, "dtype", found).kind == "c" and found.kind != "c":
                raise DTypeError(
                    f"{self._name}: {argument} is {one.dtype}, and a and b are real: its imaginary parts "
                    "would be dropped; give its real part, or b as complex numbers"
                )
        if self.device and own[0] != found and hasattr(self._a, "astype"):
            self._a = self._a.astype(found)  # CuPy would take the others in its dtype
        return found

    def _operator(self, argument: str, a: Any) -> Any:
        """A matrix or an operator of the library; a dense or sparse matrix of the host goes to the device."""
        if isinstance(a, SparseMatrix):
            a = a.to_scipy()
        if hasattr(a, "matvec"):
            self._check_shape(argument, a)
            return a
        if not hasattr(a, "shape"):  # a list, or no matrix
            a = numbers(self._name, argument, a)
        self._check_shape(argument, a)
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

    def _check_shape(self, argument: str, a: Any) -> None:
        if tuple(a.shape) != (self.n, self.n):
            raise ShapeError(
                f"{self._name}: {argument} must be {self.n} x {self.n}, got shape {tuple(a.shape)}"
            )

    def _vector(self, argument: str, x: Tensor) -> Any:
        if x.shape != (self.n,):
            raise ShapeError(
                f"{self._name}: {argument} must be [{self.n}], got shape {tuple(x.shape)}"
            )
        if self.device:
            return array_on_device(x) if lies_on_device(x) else array_on_device(x.to("device"))
        _refuse_unless_finite(self._name, argument, x.read())
        return x.read()

    def solved(self, kept: int) -> IterativeResult:
        """The library's solution, looked at: its last residual may be one that it only believes.

        Args:
            kept: vectors of GMRES before it begins anew.
        """
        if not self.n:
            return IterativeResult(asarray(np.zeros(0, self._dtype)), 0, 0.0)
        xp: Any = array_library() if self.device else np
        with np.errstate(all="ignore"):  # what does not converge is seen in the residual
            power = exponent_of(float(xp.abs(self._b).max()), self._dtype)
            # Not in its own dtype, in whose range its squares need not be.
            b = scaled(self._b.astype(self._dtype, copy=False), -power)
            size = float(xp.linalg.norm(b))
            goal = check_goal(self._name, self._rtol, scaled(self._atol, -power), size, self._dtype)
            x, steps = self._start, 0
            if x is not None:
                x = scaled(x.astype(self._dtype, copy=False), -power)
            for length, times in self._cycles(kept):
                x, more = self._run(x, b, goal, length, times)
                steps += more
                left = float(xp.linalg.norm(self._a @ x - b)) if size else 0.0
                if not left > goal:
                    break
            eps = float(np.finfo(self._dtype).eps)
            if not left <= goal * (1 + 1e-3) + 4 * eps * size:
                raise NumericError(
                    f"{self._name}: after {steps} steps |A x - b| is {scaled(left, power):.3g}, and "
                    f"{scaled(goal, power):.3g} is wanted: {self._why(xp, b, x, left, steps, power)}"
                )
            x = scaled(x, power)
        if power > 0 and not xp.isfinite(x).all():
            raise NumericError(
                f"{self._name}: x is beyond the range of {x.dtype}; divide b by its largest element, "
                f"{float(xp.abs(self._b).max()):.3g}"
            )
        found = from_dlpack(x) if self.device else asarray(np.asarray(x))
        return IterativeResult(found, steps, left / size if size else 0.0)

    def _cycles(self, kept: int) -> list[tuple[int, int]]:
        """Vectors of a cycle, and how many cycles: at most so many steps as are wanted in all."""
        if self._name == "cg":
            return [(1, self._most)]
        length = min(kept, self.n, self._most)
        whole, rest = divmod(self._most, length)
        return [(length, whole)] + ([(rest, 1)] if rest else [])

    def _run(self, x: Any, b: Any, goal: float, length: int, times: int) -> tuple[Any, int]:
        """Some cycles from x on, and the steps that were made."""
        steps, each = 0, 1

        def count(_: Any) -> None:
            nonlocal steps
            steps += each

        more: dict[str, Any] = {}
        if self._name == "gmres":
            more = {"restart": length, "callback_type": "pr_norm"}
            if self.device:  # CuPy tells the end of a cycle, and counts steps
                each, times = length, times * length
        function = getattr(self.module, self._name)
        try:
            x, _ = function(
                self._a, b, x0=x, maxiter=times, M=self._before, callback=count, rtol=0.0, atol=goal, **more,
            )  # fmt: skip
        except np.linalg.LinAlgError:  # of CuPy's GMRES, once a product has given NaN or infinity
            x = b * np.nan
        return x, steps

    def _why(self, xp: Any, b: Any, x: Any, left: float, steps: int, power: int) -> str:
        """What can be seen of why steps did not suffice, and the way out."""
        for argument, one in (("a", self._a), ("preconditioner", self._before)):
            if one is None:
                continue
            if not bool(xp.isfinite(made := one @ b).all()):
                return f"{argument} gives NaN or infinity for finite vectors; give finite numbers"
            if not made.any() and argument != "a":
                return "the preconditioner gives 0 for b; give one that can be inverted, or none"
        if self._start is not None and not np.isfinite(left):
            first = scaled(self._start.astype(self._dtype, copy=False), -power)
            if not bool(xp.isfinite(xp.vdot(far := self._a @ first - b, far))):
                return "|A x - b| of x0 has a square beyond the range of numbers: leave x0 out"
        if self._name == "cg":
            if wrong := self._not_symmetric():
                return f"{wrong}: use gmres, or md.linalg.solve"
            along = b if not np.isfinite(left) else self._a @ x - b
            if float(xp.vdot(along, self._a @ along).real) <= 0:
                return "a is not positive definite, as cg wants it: use gmres, or md.linalg.solve"
        if hasattr(self._a, "conj") and not hasattr(self._a, "matvec"):
            largest = float(abs(self._a).max())
            if exponent_of(largest, self._dtype):
                return (
                    f"elements of a are up to {largest:.3g}, whose squares leave the range of {self._dtype}: "
                    "divide a and b by that"
                )
        if steps < self._most or not np.isfinite(left):
            return (
                "no further step changes x, as where a is singular, or x is known to fewer digits: give a "
                "larger rtol or atol, or use md.linalg.lstsq"
            )
        return "give a preconditioner, a larger maxiter or rtol, or use md.linalg.solve"

    def _not_symmetric(self) -> str | None:
        """Where a matrix that is known by its elements is not symmetric, in words."""
        a = self._a
        if hasattr(a, "matvec") or not hasattr(a, "conj"):
            return None
        apart = abs(a - a.conj().T)
        eps = float(np.finfo(self._dtype).eps)
        if float(apart.max()) <= 8 * eps * float(abs(a).max()):
            return None
        i, j = divmod(int(apart.argmax()), self.n)
        if i > j:
            i, j = j, i
        one, other = a[i, j].item(), a[j, i].item()
        return f"a is not symmetric, as cg wants it (a[{i}, {j}] is {one:.6g}, a[{j}, {i}] {other:.6g})"


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
