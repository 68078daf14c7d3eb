"""What messages cost on this machine: there and back of 1 KB, the ledger, all-reduce, calls of workers.

Usage: python benchmarks/communication.py [--ranks 2]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import magmadnn as md
from magmadnn.comm.engine import Call
from magmadnn.comm.ledger import Ledger


def on_a_rank() -> None:
    from mpi4py import MPI

    comm, plain = md.comm.world(), MPI.COMM_WORLD.Dup()
    x = np.zeros(256, np.float32)
    runs: dict[str, list[float]] = {"ours": [], "mpi4py": []}
    for _ in range(5):
        for name in runs:
            comm.barrier()
            start = time.perf_counter()
            for _ in range(500):
                if name == "ours" and comm.rank == 0:
                    comm.send(x, 1)
                    comm.recv(x, 1)
                elif name == "ours" and comm.rank == 1:
                    comm.recv(x, 0)
                    comm.send(x, 0)
                elif comm.rank == 0:
                    plain.Send(x, 1)
                    plain.Recv(x, 1)
                elif comm.rank == 1:
                    plain.Recv(x, 0)
                    plain.Send(x, 0)
            runs[name].append((time.perf_counter() - start) / 500)
    choice = md.comm.measure_all_reduce(comm)
    if comm.rank == 0:
        for name, times in runs.items():
            print(f"1 KB there and back, {name:8} {median(times) * 1e6:8.1f} us")
        print(choice, flush=True)


def ledger() -> None:
    """What writing a line costs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger")
        Ledger.create(path, 2)
        mine = Ledger(path, 0, 2)
        start = time.perf_counter()
        for number in range(20_000):
            mine.enter(Call("world", number + 1, "all_reduce float32 (1000,) sum", "a.py:3", 1))
            mine.leave()
        print(f"a line of the ledger {(time.perf_counter() - start) / 20_000 * 1e6:20.2f} us")


def workers(count: int) -> None:
    from magmadnn.workers import handler

    @handler("benchmark.nothing")
    def nothing(worker: object, arguments: object, arrays: object) -> None:
        pass

    start = time.perf_counter()
    with md.workers(0) as here:
        here.call("benchmark.nothing")
    print(f"worker in this process {(time.perf_counter() - start) * 1e6:18.1f} us")
    start = time.perf_counter()
    with md.workers(count):
        print(f"start of {count} workers {time.perf_counter() - start:23.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", action="store_true", help="this is a rank")
    options = parser.parse_args()
    if options.rank:
        on_a_rank()
    else:
        ledger()
        workers(4)
        command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(options.ranks)]
        subprocess.run([*command, __file__, "--rank"], check=True, timeout=120)
