"""Fourier transforms in three dimensions, there and back, in slabs and pencils; beside mpi4py-fft if it is
installed, and SciPy in one process.

    python -m benchmarks.dmath.transforms [--size 128] [--workers 4]

mpi4py-fft runs in a job of its own with as many ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.fft

import magmadnn as md
from benchmarks.harness.timing import best

PEER = """
import sys, time
import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

n = int(sys.argv[1])
for kind, grid in (("slabs", (0, 1, 1)), ("pencils", (0, 0, 1))):
    plan = PFFT(MPI.COMM_WORLD, [n, n, n], dtype=np.complex128, grid=grid)
    u, best = newDistArray(plan, False), 1e9
    u[:] = np.random.default_rng(0).standard_normal(u.shape)
    for _ in range(5):
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        plan.backward(plan.forward(u))
        MPI.COMM_WORLD.Barrier()
        best = min(best, time.perf_counter() - start)
    if MPI.COMM_WORLD.rank == 0:
        print(f"{kind:8} mpi4py-fft    {best * 1e3:9.2f} ms")
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    n = arguments.size
    x = np.random.default_rng(0).standard_normal((n, n, n)).astype(complex)
    print(f"{n} x {n} x {n} complex128, there and back, {arguments.workers} workers")
    alone = best(lambda: scipy.fft.ifftn(scipy.fft.fftn(x)), 5)
    print(f"{'':8} SciPy, alone  {alone * 1e3:9.2f} ms")
    with md.workers(arguments.workers) as w:
        for kind in ("slabs", "pencils"):
            X = w.array(x, layout=md.dmath.Rows())

            def both(kind: str = kind, X: md.dmath.Matrix = X) -> None:
                there = md.dmath.fft.fftn(X, decomposition=kind)
                md.dmath.fft.ifftn(there, decomposition=kind)
                w.wait()

            assert np.allclose(np.asarray(md.dmath.fft.fftn(X, decomposition=kind)), np.fft.fftn(x))
            print(f"{kind:8} md.dmath      {best(both, 5) * 1e3:9.2f} ms")
    if importlib.util.find_spec("mpi4py_fft") is None:
        print("mpi4py-fft is not installed: its rows were not run")
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "peer.py")
        script.write_text(PEER)
        command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(arguments.workers)]
        subprocess.run([*command, str(script), str(n)], check=True)


if __name__ == "__main__":
    main()
