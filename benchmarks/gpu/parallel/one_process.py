"""One process with several GPUs: all calls against simulated ranks, bit for bit; times of sums and shifts.

Usage: python benchmarks/gpu/parallel/one_process.py [--gpus 2]

Times are medians of 7 runs of 20 calls, of the first GPU, with the host's part of a call. The bytes a second
are those of the array that each GPU gets.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
SIZES = [1 << k for k in (10, 14, 17, 20, 23, 26, 28)]
ROUNDS = 20


def given(rank: int, shape: Any, dtype: Any = np.float32) -> Any:
    draw = np.random.default_rng(100 + rank).normal(size=shape)
    return (draw * 10).astype(dtype)


def every_call(comm: Any, put: Callable[[Any], Any], get: Callable[[Any], Any]) -> list[Any]:
    """What calls give on a rank, as bytes."""
    rank, size = comm.rank, comm.size
    found: list[Any] = []

    def keep(name: str, array: Any) -> None:
        found.append((name, str(array.dtype.name), array.shape, get(array).tobytes()))

    for algorithm in ("everyone", "direct", "tree", "ring", "torus"):
        for shape in ((7, 3), (1001, 999)):
            got = comm.all_reduce(put(given(rank, shape)), algorithm=algorithm)
            keep(f"all_reduce by {algorithm}", got)
    for dtype in (np.float16, np.float64, np.int64):
        keep("all_reduce", comm.all_reduce(put(given(rank, (9, 5), dtype))))
    for op in ("max", "min", "prod"):
        keep(f"all_reduce {op}", comm.all_reduce(put(given(rank, (9,))), op=op))
    for wire in ("float16", "bfloat16"):
        keep(f"all_reduce as {wire}", comm.all_reduce(put(given(rank, (300,))), wire=wire))
        keep(f"all_gather as {wire}", comm.all_gather(put(given(rank, (3, 2))), wire=wire))
    counts = [r % 3 for r in range(size)]
    keep("reduce_scatter", comm.reduce_scatter(put(given(rank, (2 * size, 300)))))
    rows = put(given(rank, (sum(counts), 2)))
    keep("reduce_scatter by counts", comm.reduce_scatter(rows, counts=counts))
    keep("all_gather", comm.all_gather(put(given(rank, (200, 50)))))
    keep(
        "all_gather by counts", comm.all_gather(put(given(rank, (counts[rank], 2))), counts=counts)
    )
    keep("broadcast", comm.broadcast(put(given(rank, (80_000,))), root=size - 1))
    sent = [put(given(rank * size + r, (r, rank + 1))) for r in range(size)]
    for part in comm.all_to_all(sent):
        keep("all_to_all", part)
    keep("shift", comm.shift(put(given(rank, (4,)))))
    sums = [comm.start_all_reduce(put(given(rank, (n,)))) for n in (3, 1_000_003)]
    for request in reversed(sums):
        keep("start_all_reduce", request.wait())
    # What is sent is written again at once: behind the copy.
    to, source = (rank + 1) % size, (rank - 1) % size
    for turn in range(20):
        x, out = put(given(rank, (300_000,)) + turn), put(np.zeros(300_000, np.float32))
        request = comm.start_recv(out, source)
        comm.start_send(x, to).wait()
        x[...] = -1
        keep("recv", request.wait())
    group = comm.split(rank % 2, key=-rank)
    keep("all_reduce of a part", group.all_reduce(put(given(rank, (5,)))))
    found.append(("exchange", comm.exchange({"rank": rank})))
    return found


def timed(cupy: Any, comm: Any, call: Callable[[], object]) -> float:
    """Seconds of one call."""
    times = []
    for _ in range(8):
        comm.barrier()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            call()
        cupy.cuda.get_current_stream().synchronize()
        times.append((time.perf_counter() - start) / ROUNDS)
    return median(times[1:])


def times_of(comm: Any) -> list[tuple[int, float, float]]:
    """Bytes, and seconds of a sum and of a shift."""
    import cupy

    found = []
    for size in SIZES:
        x = cupy.ones(size // 4, cupy.float32)
        out = cupy.empty_like(x)
        both = [
            timed(cupy, comm, lambda x=x, out=out: comm.all_reduce(x, out)),
            timed(cupy, comm, lambda x=x, out=out: comm.shift(x, out)),
        ]
        found.append((size, *both))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=2)
    gpus = parser.parse_args().gpus
    import cupy

    from magmadnn.comm import simulate
    from magmadnn.comm.gpu import on_gpus

    right = simulate(gpus, every_call, np.array, np.asarray)
    for turn in range(3):
        found = on_gpus(range(gpus), every_call, cupy.asarray, cupy.asnumpy)
        for rank in range(gpus):
            wrong = [a[:3] for a, b in zip(found[rank], right[rank], strict=True) if a != b]
            print(
                f"run {turn}, rank {rank}: {len(right[rank])} results, {len(wrong)} differ {wrong[:5]}"
            )
            if wrong:
                return 1
    print(
        f"\none process, {gpus} GPUs\n{'bytes':>12} {'sum us':>10} {'GB/s':>8} {'shift us':>10} {'GB/s':>8}"
    )
    for size, total, moved in on_gpus(range(gpus), times_of)[0]:
        rates = size / total / 1e9, size / moved / 1e9
        print(f"{size:12} {total * 1e6:10.1f} {rates[0]:8.1f} {moved * 1e6:10.1f} {rates[1]:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
