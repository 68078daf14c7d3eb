"""Tuples and empty modules beside mpi4py: python benchmarks/workflow/tuples.py

One job for each case: 1 KB put + get against an mpi4py ping-pong, 64 MB put + get and dist_put over
three servers against the bandwidth between two processes, and empty function modules a second.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import magmadnn as md

SMALL, LARGE, ROUNDS = 1024, 64 << 20, 1000


def bare(ctx) -> None:
    """mpi4py by itself, on the communicator of the module."""
    comm, data = ctx.comm, np.zeros(SMALL, np.uint8)
    for k in range(ROUNDS + 200):
        if k == 200:
            begun = time.perf_counter()
        if ctx.rank == 0:
            comm.Send(data, 1)
            comm.Recv(data, 1)
        else:
            comm.Recv(data, 0)
            comm.Send(data, 0)
    if ctx.rank == 0:
        print(
            "mpi4py ping-pong of 1 KB, us:", round((time.perf_counter() - begun) / ROUNDS * 1e6, 1)
        )
    large = np.zeros(LARGE, np.uint8)
    best = 0.0
    for _ in range(6):
        comm.Barrier()
        begun = time.perf_counter()
        comm.Send(large, 1) if ctx.rank == 0 else comm.Recv(large, 0)
        best = max(best, LARGE / (time.perf_counter() - begun) / 1e9)
    if ctx.rank == 1:
        print("mpi4py 64 MB between two processes, GB/s:", round(best, 2))


def small(ctx) -> None:
    """One process puts and gets, so that three messages pass one after the other."""
    data = np.zeros(SMALL, np.uint8)
    for k in range(ROUNDS + 200):
        if k == 200:
            begun = time.perf_counter()
        ctx.put("x", data)
        ctx.get("x")
    print("put + get of 1 KB, us:", round((time.perf_counter() - begun) / ROUNDS * 1e6, 1))


def large(ctx) -> None:
    """Rank 0 puts, rank 1 gets."""
    data, best = np.zeros(LARGE, np.uint8), 0.0
    for _ in range(8):
        ctx.comm.Barrier()
        begun = time.perf_counter()
        if ctx.rank == 0:
            ctx.put("x", data)
        else:
            found = ctx.get("x")
            best = max(best, LARGE / (time.perf_counter() - begun) / 1e9)
            del found
    if ctx.rank == 1:
        print("put + get of 64 MB, GB/s:", round(best, 2))


def spread(ctx) -> None:
    """A value over all servers, there and back."""
    data = np.zeros(256 << 20, np.uint8)
    for _ in range(3):
        begun = time.perf_counter()
        ctx.dist_put("x", data)
        put = time.perf_counter() - begun
        ctx.dist_get("x")
        both = time.perf_counter() - begun
    print("dist_put of 256 MB over 3 servers, GB/s:", round(data.nbytes / put / 1e9, 2))
    print("dist_put + dist_get, GB/s:", round(data.nbytes / both / 1e9, 2))


def empty(ctx) -> None:
    """Nothing."""


def case(function, ranks: int, servers: int = 1) -> None:
    work = md.workflow.Workflow("bench", servers=servers)
    work.add_module(function, "m", ranks=ranks)
    with tempfile.TemporaryDirectory() as folder:
        work.run(Path(folder) / "out")
        for log in sorted(Path(folder).glob("out/modules/m.0/*.log")):
            sys.stdout.write(log.read_text())


def empties(count: int) -> None:
    work = md.workflow.Workflow("bench")
    work.add_module(empty, "m", copies=6)
    work.add_group("g", ["m"], iterations=count // 6)
    with tempfile.TemporaryDirectory() as folder:
        done = work.run(Path(folder) / "out", ranks=8)
    print("empty modules a second on 8 ranks:", round(len(done.history.runs) / done.seconds))


if __name__ == "__main__":
    case(bare, 2)
    case(small, 1)
    case(large, 2)
    case(spread, 1, 3)
    empties(1200)
