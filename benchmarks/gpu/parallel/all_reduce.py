"""All-reduce among GPUs: md.comm.gpu beside NCCL by PyTorch, 1 KB to 256 MB, and its sums against float64.

Usage: python benchmarks/gpu/parallel/all_reduce.py [--gpus 2] [--torch] [--graphs]

With --graphs calls are captured in CUDA graphs: our own kernel at every size beside NCCL's. It starts itself
by `magmadnn launch`, one rank a GPU. With --torch PyTorch's NCCL is measured too, by processes of its own.
Times are medians of 7 runs of 20 calls, from the first GPU; of graphs medians of 5.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

SIZES = [1 << k for k in (10, 14, 17, 20, 23, 26, 28)]


def timed(call: Callable[[], object], wait: Callable[[], None], meet: Callable[[], None]) -> float:
    """Seconds of one call."""
    times = []
    for _ in range(8):
        meet()
        start = time.perf_counter()
        for _ in range(20):
            call()
        wait()
        times.append((time.perf_counter() - start) / 20)
    return median(times[1:])


def ours() -> None:
    import cupy

    import magmadnn as md
    from magmadnn.comm.gpu import NcclCommunicator

    control = md.comm.world()
    cupy.cuda.Device(control.rank).use()
    comm = NcclCommunicator(control)
    check(comm, cupy)
    for size in SIZES:
        x = cupy.ones(size // 4, cupy.float32)
        total = cupy.empty_like(x)
        seconds = timed(
            lambda x=x, total=total: comm.all_reduce(x, total),
            lambda: cupy.cuda.Device().synchronize(),
            control.barrier,
        )
        if control.rank == 0:
            report("magmadnn", size, seconds, control.size)
    comm.close()


def check(comm: object, cupy: object) -> None:
    """All calls on random data against float64."""
    import ml_dtypes

    size, rank = comm.size, comm.rank
    every = np.stack([np.random.default_rng(r).normal(size=(size * 12, 7)) for r in range(size)])
    total, limit = every.sum(axis=0), np.abs(every).sum(axis=0)
    worst = {}
    for name, dtype, u in (
        ("float64", np.float64, 2.0**-53),
        ("float32", np.float32, 2.0**-24),
        ("float16", np.float16, 2.0**-11),
        ("bfloat16", ml_dtypes.bfloat16, 2.0**-8),
    ):
        x = cupy.asarray(every[rank].astype(np.float32)).astype(dtype)
        if name == "float64":
            x = cupy.asarray(every[rank])
        got = comm.all_reduce(x).astype(np.float64).get()
        worst[name] = float((np.abs(got - total) / (limit * u * (size + 1))).max())
    x = cupy.asarray(every[rank].astype(np.float32))
    wired = comm.all_reduce(x, wire="bfloat16").astype(np.float64).get()
    worst["wire bfloat16"] = float((np.abs(wired - total) / (limit * 2.0**-8 * (size + 1))).max())
    share = comm.reduce_scatter(x).get()
    worst["reduce_scatter"] = float(np.abs(share - total[12 * rank : 12 * rank + 12]).max() / 1e-4)
    rows = comm.all_gather(cupy.asarray(every[rank])).get()
    worst["all_gather"] = float(np.abs(rows - np.concatenate(every)).max())
    counts = [12 * size - (size - 1)] + [1] * (size - 1)
    ends = np.cumsum([0, *counts])
    share = comm.reduce_scatter(x, counts=counts).get()
    worst["counts"] = float(np.abs(share - total[ends[rank] : ends[rank + 1]]).max() / 1e-4)
    moved = comm.start_shift(cupy.asarray(every[rank])).wait().get()
    worst["shift"] = float(np.abs(moved - every[(rank - 1) % size]).max())
    parts = comm.all_to_all([cupy.full((r + 1,), 10.0 * rank + r) for r in range(size)])
    came = [float(part.get().sum()) for part in parts]
    worst["all_to_all"] = float(
        np.abs(np.array(came) - [(rank + 1) * (10.0 * r + rank) for r in range(size)]).max()
    )
    wrong = {name: value for name, value in worst.items() if not value <= 1}
    print(
        f"rank {rank}: errors in units of the bound: {worst}",
        "WRONG" if wrong else "right",
        flush=True,
    )


def in_graphs() -> None:
    """Our own kernel and NCCL's call within CUDA graphs, whichever of them a step would take."""
    import cupy

    import magmadnn as md
    from magmadnn.comm.gpu import NcclCommunicator
    from magmadnn.comm.gpu.elements import DTYPES, OPS

    control = md.comm.world()
    cupy.cuda.Device(control.rank).use()
    comm, stream = NcclCommunicator(control), cupy.cuda.Stream(non_blocking=True)
    own = comm._peer_sum(True)
    if own is None:
        raise SystemExit(
            "these GPUs do not reach each other's memory: there is no kernel of our own"
        )
    for size in SIZES:
        count, calls = size // 4, 20 if size < 1 << 24 else 5
        draws = [
            np.random.default_rng(r).standard_normal(count, np.float32) for r in range(comm.size)
        ]
        x = cupy.asarray(draws[control.rank])
        total, expected = cupy.empty_like(x), sum(d.astype(np.float64) for d in draws)
        limit = sum(np.abs(d).astype(np.float64) for d in draws) * comm.size * 2.0**-24
        places = x.data.ptr, total.data.ptr, count
        ways = {
            "own kernel": lambda places=places: own.add(stream.ptr, *places, "float32"),
            "NCCL": lambda places=places: comm._comm.allReduce(
                *places, DTYPES["float32"], OPS["sum"], stream.ptr
            ),
        }
        for name, call in ways.items():
            call()
            stream.synchronize()
            is_right = bool((np.abs(total.get() - expected) <= limit).all())
            stream.begin_capture(2)
            for _ in range(calls):
                call()
            graph, times = stream.end_capture(), []
            for _ in range(6):
                control.barrier()
                graph.launch(stream)
                first = stream.record()
                graph.launch(stream)
                last = stream.record()
                last.synchronize()
                times.append(1e-3 * cupy.cuda.get_elapsed_time(first, last) / calls)
            if control.rank == 0:
                report(name if is_right else f"{name} WRONG", size, median(times[1:]), comm.size)
    comm.close()


def torchs(gpus: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    mp.spawn(torch_rank, (gpus,), nprocs=gpus)
    del torch, dist


def torch_rank(rank: int, gpus: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus)
    for size in SIZES:
        x = torch.zeros(size // 4, device="cuda")  # sums stay what they are
        seconds = timed(
            lambda x=x: dist.all_reduce(x),
            torch.cuda.synchronize,
            dist.barrier,
        )
        if rank == 0:
            report(f"torch {torch.__version__}", size, seconds, gpus)
    dist.destroy_process_group()


def report(who: str, size: int, seconds: float, ranks: int) -> None:
    rate = 2 * (ranks - 1) / ranks * size / seconds / 1e9
    print(
        f"{who:18} {size:>11} bytes {seconds * 1e6:10.1f} us {rate:8.1f} GB/s on the bus",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="within CUDA graphs")
    parser.add_argument("--rank", action="store_true", help="this is a rank")
    options = parser.parse_args()
    if options.rank and options.graphs:
        in_graphs()
    elif options.rank:
        ours()
    else:
        command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(options.gpus)]
        more = ["--graphs"] if options.graphs else []
        subprocess.run([*command, __file__, "--rank", *more], check=True, timeout=120)
        if options.torch:
            torchs(options.gpus)
