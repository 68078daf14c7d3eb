"""Every function beside NumPy's and SciPy's on matrices at random: 200 cases, and 5,000 with --all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import magmadnn as md
from magmadnn.runtime import Executable
from tests.linalg.drawn_cases import Drawn, draw

la = md.linalg
Array = np.ndarray[Any, Any]


def each(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of SciPy on each matrix of a stack."""

    def on_stack(*stacks: Array) -> Array:
        leading = stacks[0].shape[:-2]
        found = [np.asarray(function(*(s[i] for s in stacks))) for i in np.ndindex(leading)]
        if not found:
            one = np.asarray(function(*(np.eye(*s.shape[-2:], dtype=s.dtype) for s in stacks)))
            return np.zeros((*leading, *one.shape), one.dtype)
        return np.asarray(found).reshape(*leading, *found[0].shape)

    return on_stack


def product(*factors: Any) -> Any:
    made = factors[0]
    for factor in factors[1:]:
        made = made @ factor
    return made


def by_svd(a: Any) -> Any:
    u, s, vh = la.svd(a, full_matrices=False)
    return (u * md.ops.expand_dims(s, -2)) @ vh


def by_eigh(a: Any) -> Any:
    w, v = la.eigh(a)
    return (v * md.ops.expand_dims(w, -2)) @ md.ops.conj(v.swapaxes(-1, -2))


def lower(a: Array) -> Array:
    return np.tril(a)


# name: ours, theirs, what is needed (square, positive definite, full rank), power of the condition in errors
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, int]] = {
    "solve": (la.solve, np.linalg.solve, "square full both", 1),
    "solve_triangular": (
        lambda a, b: la.solve_triangular(a, b, lower=True),
        lambda a, b: np.linalg.solve(lower(a), b), "square full both", 1,
    ),
    "lu_solve": (lambda a, b: la.lu_solve(la.lu_factor(a), b), np.linalg.solve, "square full both", 1),
    "cho_solve": (
        lambda a, b: la.cho_solve((la.cholesky(a), True), b), np.linalg.solve, "positive both", 1,
    ),
    "lstsq": (lambda a, b: la.lstsq(a, b).x, each(lambda a, b: sl.lstsq(a, b)[0]), "square full both", 1),
    "inv": (la.inv, np.linalg.inv, "square full", 1),
    "pinv": (la.pinv, np.linalg.pinv, "square full", 1),
    "det": (la.det, np.linalg.det, "square", 0),
    "slogdet": (lambda a: la.slogdet(a)[1], lambda a: np.linalg.slogdet(a)[1], "square full", 0),
    "cholesky": (la.cholesky, np.linalg.cholesky, "positive", 1),
    "lu": (lambda a: product(*la.lu(a)), lambda a: a, "", 0),
    "lu of SciPy": (lambda a: la.lu(a).U, lambda a: sl.lu(a)[2], "square full", 0),
    "qr": (lambda a: product(*la.qr(a)), lambda a: a, "", 0),
    "R": (lambda a: md.ops.abs(la.qr(a).R), lambda a: np.abs(np.linalg.qr(a)[1]), "square full", 1),
    "pivoted qr": (
        lambda a: md.ops.abs(la.qr(a, pivoting=True)[1]),
        each(lambda a: np.abs(sl.qr(a, mode="economic", pivoting=True)[1])), "single", 1,
    ),
    "svd": (by_svd, lambda a: a, "", 0),
    "svdvals": (la.svdvals, lambda a: np.linalg.svd(a, compute_uv=False), "", 0),
    "eigh": (by_eigh, lambda a: a, "positive", 0),
    "eigvalsh": (la.eigvalsh, np.linalg.eigvalsh, "positive", 0),
    "generalised": (
        lambda a, c: la.eigh(a, b=c).eigenvalues,
        each(lambda a, c: sl.eigh(a, c, eigvals_only=True)), "positive twice", 1,
    ),
    "subset": (
        lambda a: la.eigh(a, subset_by_index=(0, 0)).eigenvalues,
        lambda a: np.linalg.eigvalsh(a)[..., :1], "positive", 0,
    ),
    "eigvals": (
        lambda a: md.ops.abs(la.eigvals(a)).sum(-1), lambda a: np.abs(np.linalg.eigvals(a)).sum(-1),
        "positive", 0,
    ),
    "rank": (la.matrix_rank, np.linalg.matrix_rank, "square full", 0),
    "norm": (
        lambda a: la.norm(a, axis=(-2, -1)), lambda a: np.linalg.norm(a, axis=(-2, -1)), "", 0,
    ),
    "norm 2": (
        lambda a: la.norm(a, 2, axis=(-2, -1)), lambda a: np.linalg.norm(a, 2, axis=(-2, -1)), "", 0,
    ),
    "norm 1": (
        lambda a: la.norm(a, 1, axis=(-2, -1)), lambda a: np.linalg.norm(a, 1, axis=(-2, -1)), "", 0,
    ),
    "cond": (la.cond, np.linalg.cond, "square full", 1),
    "power": (
        lambda a: la.matrix_power(a, 3), lambda a: np.linalg.matrix_power(a.astype(wide(a)), 3), "square", 0,
    ),
    "expm": (lambda a: la.expm(a * small(a)), lambda a: sl.expm(a * small(a)), "square", 0),
    "matmul": (lambda a, b: md.ops.matmul(md.ops.swapaxes(a, -1, -2), b),
               lambda a, b: np.swapaxes(a, -1, -2) @ b, "both", 0),
    "kron": (la.kron, np.kron, "both single", 0),
}  # fmt: skip


def wide(a: Array) -> Any:
    return np.result_type(a.dtype, np.float64) if a.dtype.kind in "iu" else a.dtype


def small(a: Any) -> Any:
    """A factor that makes the elements at most 1 / n."""
    values = np.asarray(a)
    largest = float(np.abs(values).max(initial=0)) * values.shape[-1]
    one = np.float64 if values.dtype.kind in "iu" else values.real.dtype.type
    return one(1 / largest if largest else 1.0)


def first_of(x: Array) -> Array:
    """The first matrix of a stack; of an empty one, another."""
    return x.reshape(-1, *x.shape[-2:])[0] if x.size else np.eye(*x.shape[-2:], dtype=x.dtype)


def made_for(name: str, rng: np.random.Generator) -> tuple[Drawn, tuple[Array, ...]]:
    needs = CASES[name][2].split()
    positive = "positive" in needs
    one = draw(rng, "square" in needs, positive, "full" in needs)
    a, b = one.a, one.b
    if "single" in needs:
        a, b = first_of(a), first_of(b)
    operands: tuple[Array, ...] = (a, b) if "both" in needs else (a,)
    if "twice" in needs:  # another positive definite matrix of the same dtype
        near = (a + np.swapaxes(a, -1, -2).conj()) / max(float(np.abs(a).max(initial=1)), 1.0)
        operands = (a, (np.eye(a.shape[-1]) + 0.1 * near).astype(a.dtype))
    return one, operands


def compare(name: str, rng: np.random.Generator, compiled: bool) -> None:
    ours, theirs, _, power = CASES[name]
    one, operands = made_for(name, rng)
    exact = tuple(x.astype(np.result_type(x.dtype, np.float64)) for x in operands)
    expected = np.asarray(theirs(*exact))
    about = f"{name} {one.kind} {[(x.dtype.name, x.shape, x.strides) for x in operands]}"
    if compiled and name not in ("lu", "lu of SciPy", "lu_solve", "expm", "pivoted qr", "eigvals"):
        variables = [md.variable(f"x{k}", np.array(x)) for k, x in enumerate(operands)]
        (found,) = Executable([ours(*variables).node]).run({})
    else:
        found = np.asarray(ours(*operands))
    assert found.shape == expected.shape, about
    if not expected.size:
        return
    dtype = np.result_type(*(wide(x) for x in operands))
    n, eps = max(operands[0].shape[-2:]), float(np.finfo(dtype).eps)
    condition = float(np.linalg.cond(exact[0]).max()) if power else 1.0
    if "twice" in CASES[name][2]:
        condition = float(np.linalg.cond(exact[1]).max())
    size = float(np.abs(expected).max())
    if name in ("det", "slogdet", "expm", "power"):
        # of a determinant: a product of n pivots, whose errors are those of the matrix, by Hadamard's bound
        rows = float(np.prod(np.linalg.norm(exact[0], axis=-1), axis=-1).max())
        norms = float(np.linalg.norm(exact[0], axis=(-2, -1)).max())
        size = {
            "det": max(rows, size),
            "slogdet": max(1.0, size) * float(np.linalg.cond(exact[0]).max()),
            "power": norms**3,
            "expm": size,
        }[name]
    if size > float(np.finfo(dtype).max):  # a determinant that overflows, as NumPy's does
        return
    with np.errstate(all="ignore"):
        wrong = np.abs(found - expected).max()
    least = n * float(np.finfo(dtype).tiny)  # below it digits are lost
    assert wrong <= 30 * eps * n * condition**power * size + least, f"{about}: {wrong}, of {size}"


def cases(count: int, seed: int) -> Iterator[tuple[str, np.random.Generator, bool]]:
    names = list(CASES)
    for k in range(count):
        name = names[k % len(names)]
        yield name, np.random.default_rng([seed, k, zlib.crc32(name.encode())]), k % 5 == 0


def test_a_sample() -> None:
    for name, rng, compiled in cases(200, 1):
        compare(name, rng, compiled)


@pytest.mark.long
def test_five_thousand_cases() -> None:
    for name, rng, compiled in cases(5000, 2):
        compare(name, rng, compiled)
