"""Times of md.linalg and md.fft beside NumPy's and SciPy's, in microseconds: the least of several runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import scipy.fft

import magmadnn as md
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable

RNG = np.random.default_rng(0)


def least(call: Callable[..., object], *arguments: object) -> float:
    """Microseconds."""
    best, end = np.inf, time.perf_counter() + 0.5
    while True:
        begin = time.perf_counter()
        call(*arguments)
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() > end:
            return 1e6 * best


def row(name: str, op: str, operands: tuple[np.ndarray, ...]) -> None:
    """Print the times of one op."""
    ours, theirs = getattr(md.linalg, op), getattr(np.linalg, op)
    nodes = [placeholder(f"x{k}", Spec(x.shape, x.dtype)) for k, x in enumerate(operands)]
    found = ours(*nodes)
    run = Executable(list(found) if isinstance(found, tuple) else [found], executor="native")
    feeds = dict(zip(nodes, operands, strict=True))
    run.run(feeds)  # compiles
    tensors = [md.asarray(x) for x in operands]
    times = least(theirs, *operands), least(ours, *tensors), least(run.run, feeds)
    print(f"{op + ' ' + name:>20} " + " ".join(f"{one:12.0f}" for one in times))


def main() -> None:
    """Print a row for each case."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [64, 256, 512]
    print(f"{'case':>20} {'NumPy':>12} {'at once':>12} {'in a plan':>12}")
    cases: list[tuple[str, np.ndarray]] = [(f"{n}", RNG.normal(size=(n, n))) for n in sizes]
    cases += [(f"10000 of {n}", RNG.normal(size=(10_000, n, n))) for n in (8, 16)]
    for name, x in cases:
        a = x @ np.swapaxes(x, -1, -2) + np.eye(x.shape[-1])
        for op in ("solve", "cholesky", "qr", "svd", "eigh"):
            row(name, op, (a, RNG.normal(size=(*a.shape[:-1], 1))) if op == "solve" else (a,))
    for n in (1 << 10, 1 << 20):
        z = RNG.normal(size=n) + 1j * RNG.normal(size=n)
        times = least(scipy.fft.fft, z), least(md.fft.fft, md.asarray(z))
        print(f"{f'fft {n} (SciPy)':>20} " + " ".join(f"{one:12.0f}" for one in times))


if __name__ == "__main__":
    main()
