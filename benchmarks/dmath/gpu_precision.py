"""Square products on one GPU and on several in each precision, beside PyTorch (all-gather and a product,
DTensor), and a change of layout with a cast.

    python benchmarks/dmath/gpu_precision.py [--torch] [--sizes 8192 16384] [--gpus 2]

Efficiency is the time on one GPU over P times the time on P, of the same library; behind it stands how far
the planner's prediction is off. Times are the best of five
repetitions of several products each, which are handed over together, as a program does that needs no value.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md

# name: storage, compute
PRECISIONS = {
    "fp32": ("float32", None),
    "TF32": ("float32", "tf32"),
    "bf16": ("bfloat16", None),
    "fp32 in bf16": ("float32", "bfloat16"),
    "fp16": ("float16", None),
    "fp64": ("float64", None),
}
SPENT = 0.12  # seconds of a repetition


def best(start: Callable[[], object], wait: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of one call, of those that are handed over together."""
    start()
    wait()
    begun = time.perf_counter()
    start()
    wait()
    count = max(1, min(50, int(SPENT / (time.perf_counter() - begun))))
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(count):
            start()
        wait()
        times.append((time.perf_counter() - begun) / count)
    return min(times)


def matrix(w: Any, n: int, dtype: str, layout: Any) -> Any:
    """An outer product of random vectors, which is quick to make."""
    u = w.random((n, 1), seed=1, dtype="float32", layout=md.dmath.Replicated())
    v = w.random((1, n), seed=2, dtype="float32", layout=md.dmath.Replicated())
    return md.dmath.multiply(u - 0.5, v - 0.5, layout=layout).astype(dtype)


def check(w: Any) -> None:
    """Whole numbers that are exact in every precision, in layouts that need copies of each kind."""
    draw = np.random.default_rng(0)
    a, b = draw.integers(-2, 3, (2311, 57)), draw.integers(-2, 3, (57, 2503))
    kinds = (md.dmath.Rows(), md.dmath.Columns(), md.dmath.Blocks((900, 800)))
    for turn, (storage, compute) in enumerate(PRECISIONS.values()):
        lies, target = kinds[turn % 3], kinds[(turn + turn // 3) % 3]
        A, B = (w.array(x.astype("float32"), layout=lies).astype(storage) for x in (a, b))
        C = md.dmath.matmul(A, B, layout=target, compute=compute, dtype="float32")
        assert (np.asarray(C) == a @ b).all(), (storage, compute, lies, target)
        D = w.array(a.astype("float32"), layout=lies).to(md.dmath.Columns(), "bfloat16")
        assert (np.asarray(D).astype(float) == a).all()
    print("products and changes of layout are right", flush=True)


def link(cupy: Any, size: int = 1 << 29) -> float:
    """Bytes a second in each direction of two copies at once between two GPUs, by their copy engines."""
    runtime, ends = cupy.cuda.runtime, []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            runtime.deviceEnablePeerAccess(1 - device)
            arrays = cupy.zeros(size, np.uint8), cupy.zeros(size, np.uint8)
            ends.append((*arrays, cupy.cuda.Stream(non_blocking=True)))
            runtime.deviceSynchronize()

    def start() -> None:
        for device in (0, 1):
            with cupy.cuda.Device(device):
                source, target = ends[device][0].data.ptr, ends[1 - device][1].data.ptr
                stream = ends[device][2].ptr
                runtime.memcpyPeerAsync(target, 1 - device, source, device, size, stream)

    def wait() -> None:
        for _, _, stream in ends:
            stream.synchronize()

    return size / best(start, wait)


def alone(sizes: list[int]) -> dict[tuple[str, int], float]:
    w, found = md.dmath.cuda, {}
    for name, (storage, compute) in PRECISIONS.items():
        for n in sizes if name != "fp64" else sizes[:1]:
            A = matrix(w, n, storage, None)
            found[name, n] = best(lambda: md.dmath.matmul(A, A, compute=compute), w.wait)  # noqa: B023
    return found


def predicted(w: Any, A: Any, lies: Any, compute: str | None) -> float:
    """Seconds that the planner foretells of a product, from rates measured on these GPUs."""
    told = w.explain(lambda: md.dmath.matmul(A, A, layout=lies, compute=compute))
    line = next(one for one in told.splitlines() if one.lstrip().startswith("->"))
    return float(line.split()[1]) / 1e3


def together(
    sizes: list[int], single: dict[tuple[str, int], float], rate: float, gpus: int
) -> None:
    grid = (2, gpus // 2) if gpus > 2 else (1, 2)
    with md.workers(gpus) as workers:
        w = md.dmath.distributed(workers, device="cuda")
        check(w)
        print("planner's rates:", w.rates(), w.rates("bfloat16").flops, flush=True)
        print(f"{'':12} {'n':>6} {'one GPU':>11} {'rows':>11}              {'2 x 2 blocks':>11}")
        for name, (storage, compute) in PRECISIONS.items():
            for n in sizes if name != "fp64" else sizes[:1]:
                row = f"{name:12} {n:6d} {single[name, n] * 1e3:8.3f} ms"
                for lies in (
                    md.dmath.Rows(),
                    md.dmath.Blocks((n // 2, n // 2), owners=md.dmath.cyclic(*grid)),
                ):
                    A = matrix(w, n, storage, lies)
                    two = best(
                        lambda: md.dmath.matmul(A, A, layout=lies, compute=compute),  # noqa: B023
                        w.wait,
                    )
                    told = predicted(w, A, lies, compute)
                    share = single[name, n] / two / gpus
                    row += f" {two * 1e3:8.3f} ms {share:4.0%} ({told / two - 1:+4.0%})"
                print(row, flush=True)
        n = 32768
        x = matrix(w, n, "float32", md.dmath.Rows())
        for dtype in ("float32", "bfloat16"):
            before = w.counters()["sent_bytes"]
            x.to(md.dmath.Columns(), dtype)
            sent = (w.counters()["sent_bytes"] - before) / gpus
            seconds = best(lambda: x.to(md.dmath.Columns(), dtype), w.wait)  # noqa: B023
            print(
                f"rows to columns, {x.nbytes / 1e9:.2f} GB to {dtype}: {seconds * 1e3:.3f} ms, "
                f"{sent / 1e9:.3f} GB a direction, {sent / seconds / 1e9:.0f} GB/s, "
                f"{sent / seconds / rate:.0%} of the link",
                flush=True,
            )
        print(w.explain(lambda: md.dmath.matmul(x, x, layout=md.dmath.Rows())))


def torch_rank(rank: int, sizes: list[int], port: int, gpus: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus)
    mesh = init_device_mesh("cuda", (gpus,))
    wait = torch.cuda.synchronize
    kinds = {"fp32": torch.float32, "TF32": torch.float32, "bf16": torch.bfloat16}
    kinds |= {"fp16": torch.float16, "fp64": torch.float64}
    for name, dtype in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        for n in sizes if name != "fp64" else sizes[:1]:
            whole = torch.rand(n, n, device="cuda", dtype=torch.float32).to(dtype)
            one = best(lambda: whole @ whole, wait)  # noqa: B023
            mine = whole.chunk(gpus)[rank].contiguous()
            full = torch.empty_like(whole)

            def gathered() -> None:
                dist.all_gather_into_tensor(full, mine)  # noqa: B023
                mine @ full  # noqa: B023

            dist.barrier()
            two = best_together(gathered, wait, dist.barrier)
            spread = distribute_tensor(whole, mesh, [Shard(0)])
            dist.barrier()
            tensor = best_together(
                lambda: (spread @ spread).redistribute(mesh, [Shard(0)]),  # noqa: B023
                wait,
                dist.barrier,
            )
            if rank == 0:
                print(
                    f"torch {name:6} {n:6d} {one * 1e3:8.3f} ms; all-gather and product "
                    f"{two * 1e3:8.3f} ms {one / two / gpus:4.0%}; DTensor {tensor * 1e3:8.3f} ms "
                    f"{one / tensor / gpus:4.0%}",
                    flush=True,
                )
    dist.destroy_process_group()


def best_together(
    start: Callable[[], object], wait: Callable[[], object], meet: Callable[[], object]
) -> float:
    """`best` with a number of calls that all ranks agree on."""
    start()
    wait()
    times = []
    for _ in range(5):
        meet()
        wait()
        begun = time.perf_counter()
        for _ in range(8):
            start()
        wait()
        times.append((time.perf_counter() - begun) / 8)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--gpus", type=int, default=2, help="an even number")
    arguments = parser.parse_args()
    import cupy

    devices = cupy.cuda.runtime.getDeviceCount()
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{devices} x {name}, CuPy {cupy.__version__}")
    single = alone(arguments.sizes)
    if devices < arguments.gpus:
        print(f"{devices} GPUs: rows of {arguments.gpus} were not run; seconds on one:", single)
        return
    rate = link(cupy)
    print(f"copies between the GPUs, both directions at once: {rate / 1e9:.0f} GB/s each")
    for device in (0, 1):
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().free_all_blocks()
    together(arguments.sizes, single, rate, arguments.gpus)
    if arguments.torch:
        import torch.multiprocessing as mp

        mp.spawn(torch_rank, (arguments.sizes, 29531, arguments.gpus), nprocs=arguments.gpus)


if __name__ == "__main__":
    main()
