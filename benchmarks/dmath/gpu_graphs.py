"""Square products on several GPUs with and without CUDA graphs: the same bits, and the times of both.

    python benchmarks/dmath/gpu_graphs.py [--gpus 2] [--sizes 2048 4096 8192] [--only check]

First products in several layouts and precisions are computed both ways, with values that change from one to
the next, operands that are made anew and results that stay; bits are compared. Then times: efficiency is the
time on one GPU over P times the time on P. "host" is the time of a worker's host for a product, in which it
also waits where its GPU is 16 products behind.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.dmath.gpu_precision import PRECISIONS, best, matrix

TIMED = ("bf16", "fp16", "TF32", "fp32 in bf16")
SHAPES = ((2311, 2503, 2207), (1100, 700, 1300), (2048, 2560, 2048))


def graphs(w: Any, on: bool) -> None:
    """Whether workers launch products that come again as graphs."""
    w._ask("graphs", on=on)


def bits(C: Any) -> bytes:
    return bytes(np.ascontiguousarray(np.asarray(C)).tobytes())


def scripts(w: Any, gpus: int) -> Iterator[tuple[str, Any]]:
    """Products of several kinds: what they are, and what gives the bits of all results of one kind."""
    grid = (2, gpus // 2) if gpus > 2 else (1, 2)
    draw = np.random.default_rng(0)
    for m, k, n in SHAPES:
        x, y, z = (draw.standard_normal(s).astype("float32") for s in ((m, k), (k, n), (k, n)))
        even = md.dmath.Blocks((-(-m // 2), -(-k // 2)), owners=md.dmath.cyclic(*grid))
        layouts = {
            "rows": (md.dmath.Rows(), md.dmath.Rows(), md.dmath.Rows()),
            "columns by rows": (md.dmath.Columns(), md.dmath.Rows(), md.dmath.Columns()),
            "blocks": (even, md.dmath.Blocks((900, 800)), md.dmath.Blocks((700, 900))),
        }
        for where, (of_a, of_b, of_c) in layouts.items():
            for name, (storage, compute) in PRECISIONS.items():

                def products(
                    x: Any = x, y: Any = y, z: Any = z, storage: str = storage,
                    compute: str | None = compute, of_a: Any = of_a, of_b: Any = of_b,
                    of_c: Any = of_c,
                ) -> list[bytes]:  # fmt: skip
                    found, held = [], []
                    A, B = (
                        w.array(one, layout=lies).astype(storage)
                        for one, lies in ((x, of_a), (y, of_b))
                    )
                    for turn in range(10):
                        C = md.dmath.matmul(A, B, layout=of_c, compute=compute)
                        if turn in (1, 4, 8):
                            found.append(bits(C))
                        if turn == 4:  # the same places may serve again, on some workers
                            held.append(C)
                            del B
                            B = w.array(z, layout=of_b).astype(storage)
                        if turn == 6:
                            A += 1
                    return [*found, *map(bits, held)]

                yield f"{m} x {k} x {n} {where}, {name}", products


def check(w: Any, gpus: int) -> None:
    """Bits with and without graphs, and how often these ran."""
    cases = launched = 0
    for what, products in scripts(w, gpus):
        graphs(w, False)
        expected = products()
        graphs(w, True)
        before = w.counters()
        found = products()
        after = w.counters()
        assert found == expected, f"{what}: bits differ with graphs"
        cases += 1
        launches = after["graph_launches"] - before["graph_launches"]
        launched += launches > 0
        failures = after["graph_failures"] - before["graph_failures"]
        if not launches or failures:
            print(f"{what}: {launches} launches, {failures} failures", flush=True)
    told = {k: v for k, v in w.counters().items() if k.startswith("graph") or k == "buffer_bytes"}
    print(f"{cases} cases have the same bits, {launched} of them ran as graphs; {told}", flush=True)


def host_seconds(w: Any) -> tuple[float, int]:
    """Time of the slowest worker's host in operations so far, and how many there were."""
    lines = [answer["lines"].values() for answer, _ in w._ask("counters")]
    return (
        max(sum(line["seconds"] for line in one) for one in lines),
        max(sum(line["operations"] for line in one) for one in lines),
    )


def timed(w: Any, A: Any, lies: Any, compute: str | None, on: bool) -> tuple[float, float, int]:
    """Seconds of a product, of a worker's host for it, and how many graphs were launched."""
    graphs(w, on)
    launches = w.counters()["graph_launches"]
    before = host_seconds(w)
    found = best(lambda: md.dmath.matmul(A, A, layout=lies, compute=compute), w.wait, 3)
    after = host_seconds(w)
    host = (after[0] - before[0]) / max(1, after[1] - before[1])
    return found, host, w.counters()["graph_launches"] - launches


def alone(n: int, storage: str, compute: str | None) -> float:
    """Seconds of a product on one GPU."""
    w = md.dmath.cuda
    A = matrix(w, n, storage, None)
    return best(lambda: md.dmath.matmul(A, A, compute=compute), w.wait, 3)


def times(w: Any, sizes: list[int], gpus: int) -> None:
    grid = (2, gpus // 2) if gpus > 2 else (1, 2)
    print(
        f"{'':13} {'n':>5} {'layout':12} {'one GPU':>9} {'call by call':>13}  eff.   host "
        f"{'graphs':>10}  eff.   host  launches",
        flush=True,
    )
    for name in TIMED:
        storage, compute = PRECISIONS[name]
        for n in sizes:
            single = alone(n, storage, compute)
            for where, lies in (
                ("rows", md.dmath.Rows()),
                ("2 x 2 blocks", md.dmath.Blocks((n // 2, n // 2), owners=md.dmath.cyclic(*grid))),
            ):
                X = matrix(w, n, storage, lies)
                row = f"{name:13} {n:5d} {where:12} {single * 1e3:6.3f} ms"
                for on in (False, True):
                    seconds, host, launches = timed(w, X, lies, compute, on)
                    row += f" {seconds * 1e3:9.3f} ms {single / seconds / gpus:4.0%} {host * 1e6:4.0f} us"
                print(f"{row} {launches:6d}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=2, help="an even number")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--only", choices=("check", "times"))
    arguments = parser.parse_args()
    with md.workers(arguments.gpus) as workers:
        w = md.dmath.distributed(workers, device="cuda")
        for compute in ("float32", "tf32", "bfloat16", "float16", "float64"):
            w.rates(compute)
        if arguments.only != "times":
            check(w, arguments.gpus)
        if arguments.only != "check":
            times(w, arguments.sizes, arguments.gpus)


if __name__ == "__main__":
    main()
