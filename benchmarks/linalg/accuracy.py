"""Backward errors of md.linalg in units of eps x n, beside NumPy's, as in LAPACK's own tests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable

FUNCTIONS = ("solve", "qr", "svd", "eigh")
EPS = np.finfo(np.float64).eps
RNG = np.random.default_rng(0)


def matrices(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Of known trouble."""
    left, right = (np.linalg.qr(RNG.normal(size=(n, n))).Q for _ in range(2))
    i = np.arange(n)
    yield "random", RNG.normal(size=(n, n))
    yield "condition 1e10", left * np.geomspace(1, 1e-10, n) @ right
    yield "Hilbert", 1 / (1.0 + i[:, None] + i)
    yield "graded", np.geomspace(1, 1e-12, n)[:, None] * RNG.normal(size=(n, n))
    yield "clustered", left * np.where(i < n // 2, 1.0, 1 + 1e-9 * i) @ left.T
    yield "rank 3", RNG.normal(size=(n, 3)) @ RNG.normal(size=(3, n))
    yield "denormal", RNG.normal(size=(n, n)) * 1e-310


class Compiled:
    """md.linalg as compiled programs, which call LAPACK themselves; at once NumPy computes."""

    def __getattr__(self, name: str) -> Any:
        def call(*operands: np.ndarray) -> Any:
            nodes = [placeholder(f"x{k}", Spec(x.shape, x.dtype)) for k, x in enumerate(operands)]
            found = getattr(md.linalg, name)(*nodes)
            outputs = list(found) if isinstance(found, tuple) else [found]
            made = Executable(outputs, executor="native").run(
                dict(zip(nodes, operands, strict=True))
            )
            return made if isinstance(found, tuple) else made[0]

        return call


def errors(linalg: Any, a: np.ndarray) -> list[float]:
    """Of A x - b, Q R - A, U S V^T - A and S V - V w, relative to what rounding may make of them."""
    n, b, size = len(a), np.ones(len(a)), np.abs(a).max() * len(a)
    found = []
    try:
        x = np.asarray(linalg.solve(a, b))
        left = np.abs(a @ x - b).max() / (np.abs(a).sum(1).max() * np.abs(x).max() + 1)
        found.append(float(left))
    except (ArithmeticError, ValueError):
        found.append(np.nan)
    q, r = (np.asarray(y) for y in linalg.qr(a))
    found.append(float(np.abs(q @ r - a).max() / size))
    u, s, v = (np.asarray(y) for y in linalg.svd(a))
    found.append(float(np.abs(u * s @ v - a).max() / size))
    both = a + a.T
    w, columns = (np.asarray(y) for y in linalg.eigh(both))
    found.append(float(np.abs(both @ columns - columns * w).max() / (2 * size)))
    return [one / (EPS * n) for one in found]


def picture(path: str, n: int) -> None:
    """Draw the errors of both, of matrices of one size: a panel for each function."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names, given = zip(*matrices(n), strict=True)
    found = [(errors(Compiled(), a), errors(np.linalg, a)) for a in given]
    figure, axes = pyplot.subplots(1, len(FUNCTIONS), figsize=(10, 3), sharey=True, sharex=True)
    places = np.arange(len(names))[::-1]
    for number, (function, axis) in enumerate(zip(FUNCTIONS, axes, strict=True)):
        for kind, marker, label in ((0, "o", "magmadnn"), (1, "x", "NumPy")):
            axis.plot([one[kind][number] for one in found], places, marker, label=label)
        axis.set(title=function, xscale="log", yticks=places, yticklabels=names)
        axis.set_xlabel("eps n")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    """Print the table, or draw a picture of one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", help="where to draw, in place of the table")
    options = parser.parse_args()
    if options.picture:
        picture(options.picture, 64)
        return
    print(f"{'matrix':>16} {'n':>5}  {'solve, qr, svd, eigh':^34}  {'the same by NumPy':^34}")
    for n in (8, 64, 257):
        for name, a in matrices(n):
            ours, theirs = errors(Compiled(), a), errors(np.linalg, a)
            row = "  ".join(" ".join(f"{e:8.1e}" for e in part) for part in (ours, theirs))
            print(f"{name:>16} {n:>5}  {row}")


if __name__ == "__main__":
    main()
