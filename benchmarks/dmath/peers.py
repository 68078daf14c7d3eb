"""A product of two square matrices on four processes, beside Dask's arrays; and what the client pays for an
operation.

    python -m benchmarks.dmath.peers [--size 4096] [--workers 4]

Dask and Heat run only where they are installed; Heat, which needs PyTorch, in a job of its own. Each worker
has one thread. Dask's matrices have 2 x 2 chunks.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness.timing import best

HEAT = """
import sys, time
import heat as ht

n = int(sys.argv[1])
a, b = (ht.random.randn(n, n, dtype=ht.float32, split=0) for _ in range(2))
best = 1e9
for _ in range(4):
    a.comm.Barrier()
    start = time.perf_counter()
    c = a @ b
    a.comm.Barrier()
    best = min(best, time.perf_counter() - start)
if a.comm.rank == 0:
    print(f"Heat      {best:8.3f} s")
"""


def ours(n: int, workers: int) -> None:
    import magmadnn as md

    start = time.perf_counter()
    with md.workers(workers) as w:
        print(f"md.workers({workers}) has started in {time.perf_counter() - start:.2f} s")
        for name, layout in (("rows", md.dmath.Rows()), ("auto", "auto")):
            a = w.random((n, n), seed=1, dtype="float32", layout=layout)
            b = w.random((n, n), seed=2, dtype="float32", layout=layout)
            seconds = best(lambda a=a, b=b: (a @ b).wait())  # type: ignore[misc]
            print(f"md.dmath  {seconds:8.3f} s  ({name}: {len(a.layout.active)} workers)")
        x = w.ones((8,), layout=md.dmath.Rows())
        x.wait()
        start = time.perf_counter()
        for _ in range(1000):
            x = x + 1
        posted = time.perf_counter() - start
        x.wait()
        done = time.perf_counter() - start
        print(
            f"md.dmath  {posted * 1e3:8.1f} us an operation for the client, {done * 1e3:.1f} us until done"
        )


def dask(n: int, workers: int) -> None:
    import dask.array as da
    from dask.distributed import Client, LocalCluster, wait

    start = time.perf_counter()
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        print(f"Dask's cluster has started in {time.perf_counter() - start:.2f} s")

        def drawn() -> da.Array:
            return da.random.random((n, n), chunks=(n // 2, n // 2)).astype(np.float32).persist()

        # A product of its own each time: Dask would find the result of an equal one.
        drawn_all = [drawn() for _ in range(5)]
        wait(drawn_all)
        *others, b = drawn_all
        lefts = iter(others)

        def product() -> None:
            wait((next(lefts) @ b).persist())

        print(f"Dask      {best(product):8.3f} s")
        start = time.perf_counter()
        futures = [client.submit(abs, i) for i in range(1000)]
        posted = time.perf_counter() - start
        client.gather(futures)
        done = time.perf_counter() - start
        print(
            f"Dask      {posted * 1e3:8.1f} us an operation for the client, {done * 1e3:.1f} us until done"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    n, workers = arguments.size, arguments.workers
    x = np.ones((n, n), np.float32)
    print(f"{n} x {n} float32, {workers} processes; NumPy, one thread {best(lambda: x @ x):.3f} s")
    ours(n, workers)
    if importlib.util.find_spec("distributed") is None:
        print("Dask is not installed: its rows were not run")
    else:
        dask(n, workers)
    if importlib.util.find_spec("heat") is None:
        print("Heat is not installed: its row was not run")
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "heat_product.py")
        script.write_text(HEAT)
        command = [
            sys.executable,
            "-m",
            "magmadnn",
            "launch",
            "-n",
            str(workers),
            str(script),
            str(n),
        ]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
