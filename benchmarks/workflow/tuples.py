"""Tuples and empty modules beside mpi4py: python benchmarks/workflow/tuples.py [small large spread empty]

small: put + get of 1 KB and an mpi4py ping-pong, jobs of each in turns; large: 64 MB put + get and mpi4py's
bandwidth between two processes; spread: dist_put of 1 GB over three servers, in three jobs; empty: modules a
second.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import magmadnn as md

SMALL, LARGE, ROUNDS, SERIES = 1024, 64 << 20, 100, 40


def series(name: str, run: Callable[[int], None]) -> None:
    """The time of a round in each of some series, the first round of which wake who sleeps."""
    times = []
    for _ in range(SERIES):
        run(ROUNDS // 5)
        begun = time.perf_counter()
        run(ROUNDS)
        times.append((time.perf_counter() - begun) / ROUNDS * 1e6)
    print(f"{name}, us: least {min(times):.1f}, median {median(times):.1f}")


def bare(ctx) -> None:
    """mpi4py by itself, on the communicator of the module."""
    comm, data = ctx.comm, np.zeros(SMALL, np.uint8)

    def ping_pong(rounds: int) -> None:
        for _ in range(rounds):
            if ctx.rank == 0:
                comm.Send(data, 1)
                comm.Recv(data, 1)
            else:
                comm.Recv(data, 0)
                comm.Send(data, 0)

    with contextlib.redirect_stdout(sys.stdout if ctx.rank == 0 else io.StringIO()):
        series("mpi4py ping-pong of 1 KB", ping_pong)


def small(ctx) -> None:
    """One process puts and gets, so that three messages pass one after the other."""
    data = np.zeros(SMALL, np.uint8)

    def put_get(rounds: int) -> None:
        for _ in range(rounds):
            ctx.put("x", data)
            ctx.get("x")

    series("put + get of 1 KB", put_get)


def bandwidth(ctx, data, new: bool = False) -> float:
    """mpi4py's between two processes, once; into memory that has been used before, or into new memory."""
    ctx.comm.Barrier()
    begun = time.perf_counter()
    if new and ctx.rank == 1:
        data = np.empty_like(data)
    ctx.comm.Send(data, 1) if ctx.rank == 0 else ctx.comm.Recv(data, 0)
    return data.nbytes / (time.perf_counter() - begun) / 1e9


def large(ctx) -> None:
    """Rank 0 puts and rank 1 gets, in turns with mpi4py."""
    data, rates, bare = np.zeros(LARGE, np.uint8), [], []
    for _ in range(12):
        bare.append(bandwidth(ctx, data))
        ctx.comm.Barrier()
        begun = time.perf_counter()
        if ctx.rank == 0:
            ctx.put("x", data)
        else:
            found = ctx.get("x")
            rates.append(LARGE / (time.perf_counter() - begun) / 1e9)
            del found
    if ctx.rank == 1:
        rated("mpi4py 64 MB between two processes", bare)
        rated("put + get of 64 MB", rates)


def spread(ctx) -> None:
    """1 GB over all servers, there and back, in turns with mpi4py, and what each server holds meanwhile."""
    data, puts, both, bare = np.ones(1 << 30, np.uint8), [], [], []
    new = [bandwidth(ctx, data, new=True) for _ in range(2)]
    for k in range(4):
        bare += [bandwidth(ctx, data[:LARGE]) for _ in range(3)]
        if ctx.rank == 0:
            begun = time.perf_counter()
            ctx.dist_put("x", data)
            puts.append(data.nbytes / (time.perf_counter() - begun) / 1e9)
            if k == 0:
                print("memory of each server, of a third:", *held())
            found = ctx.dist_get("x")
            both.append(data.nbytes / (time.perf_counter() - begun) / 1e9)
            del found
        together = ctx.comm.Ibarrier()
        while not together.Test():
            time.sleep(0.001)
    if ctx.rank == 0:
        rated("mpi4py 64 MB between two processes", bare)
        rated("mpi4py 1 GB into new memory", new)
        print("dist_put of 1 GB over 3 servers, the first, GB/s:", round(puts[0], 2))
        rated("dist_put of 1 GB over 3 servers", puts[1:])
        rated("dist_put + dist_get", both[1:])


def rated(name: str, rates: list[float]) -> None:
    """Best and median."""
    print(f"{name}, GB/s: best {max(rates):.2f}, median {median(rates):.2f}")


def held() -> list[str]:
    """What the shared memory of each tuple server takes, as a part of a third of 1 GB."""
    sizes: dict[str, int] = {}
    for path in Path("/dev/shm").glob("magmadnn-*-s*-*"):
        server = path.name.rsplit("-", 1)[0]
        sizes[server] = sizes.get(server, 0) + path.stat().st_blocks * 512
    return [f"{size / ((1 << 30) / 3):.3f}" for _, size in sorted(sizes.items())]


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
    cases: dict[str, Callable[[], object]] = {
        "small": lambda: [case(*one) for _ in range(3) for one in ((bare, 2), (small, 1))],
        "large": lambda: case(large, 2),
        "spread": lambda: [case(spread, 2, 3) for _ in range(3)],
        "empty": lambda: empties(1200),
    }
    for chosen in sys.argv[1:] or cases:
        cases[chosen]()
