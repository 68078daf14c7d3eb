"""dMath's Tables III, IV and V with their columns, at the numbers of GPUs that are here, beside its figures.

    python -m benchmarks.dmath.gpu_paper [--gpus 1 2 4] [--tables 3 4 5] [--seconds 40]

Table III trains AlexNet with 1,024 images a batch (one GPU: 512) and GoogLeNet with 128, Table IV AlexNet
with 256; random images of 224 x 224, by `magmadnn launch` and `DataParallel`. Table V multiplies square
matrices of float32. The paper's training was in float32; `--precision` names ours. Rows that cannot be run
are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.dmath.gpu_precision import best, matrix

# GPUs: (batch, frames/s of Expresso), and seconds of a product on 1, 2, 8 and 32 GPUs.
ALEXNET = {1: (512, 479), 2: (1024, 940), 4: (1024, 1996), 8: (1024, 3103), 16: (1024, 4198)}
ALEXNET |= {32: (1024, 5187), 64: (1024, 5786)}
GOOGLENET = {1: (128, 115), 2: (128, 215), 4: (128, 370), 8: (1024, 873), 16: (1024, 1498)}
GOOGLENET |= {32: (1024, 2330), 64: (1024, 3025)}
STRONG = {1: (256, 533), 2: (256, 915), 4: (256, 1440), 8: (256, 1702), 16: (256, 2008)}
STRONG |= {32: (256, 2104), 64: (256, 2271)}
PRODUCTS: dict[int, dict[int, float]] = {
    4096: {1: 0.052, 2: 0.035, 8: 0.021, 32: 0.101},
    6144: {1: 0.174, 2: 0.109, 8: 0.038, 32: 0.104},
    8192: {1: 0.413, 2: 0.245, 8: 0.076, 32: 0.121},
    12288: {1: 1.450, 2: 0.840, 8: 0.433, 32: 0.258},
    16384: {1: 3.340, 2: 2.034, 8: 0.528, 32: 0.726},
    24576: {1: 12.279, 2: 6.809, 8: 1.744, 32: 1.091},
    32768: {8: 4.015, 32: 2.389},
    49152: {8: 14.016, 32: 5.260},
    65536: {32: 10.592},
}
TRAININGS = {
    "III": {"alexnet": ALEXNET, "googlenet": GOOGLENET},
    "IV": {"alexnet": STRONG},
}


def trained(name: str, batch: int, precision: str, steps: int) -> None:
    """One rank of a training; rank 0 prints images a second of the best epoch behind the first."""
    comm = md.comm.world()
    draw = np.random.default_rng(0)
    some = draw.standard_normal((64, 224, 224, 3), np.float32)
    x, y = np.resize(some, (batch * steps, 224, 224, 3)), draw.integers(0, 1000, batch * steps)
    build: Any = getattr(md.models, name)
    model = build(
        (224, 224, 3), 1000, loss="cross_entropy", optimizer=md.optim.SGD(0.01, momentum=0.9),
        device=f"cuda:{comm.rank}", precision=precision, seed=1,
    )  # fmt: skip
    way: Any = md.parallel.DataParallel() if comm.size > 1 else False
    history = model.fit(
        x, y, batch_size=batch, epochs=3, shuffle=False, verbose=False, parallel=way
    )
    if comm.rank == 0:
        rate = max(row["samples_per_second"] for row in history.rows[1:])
        print(json.dumps({"rate": rate}), flush=True)


def started(name: str, gpus: int, batch: int, precision: str, seconds: float) -> float | str:
    """Images a second of a job of its own, or why there are none."""
    launch = ["-m", "magmadnn", "launch", "-n", str(gpus)] if gpus > 1 else []
    own = [__file__, "--train", name, "--batch", str(batch), "--precision", precision]
    command = [sys.executable, *launch, *own]
    root = str(Path(__file__).resolve().parents[2])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=given)
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1][:90]
    return float(json.loads(lines[-1])["rate"])


def trainings(table: str, gpus: list[int], precision: str, seconds: float) -> None:
    """Tables III and IV: frames a second, speed-up and efficiency, ours and Expresso's."""
    for name, rows in TRAININGS[table].items():
        print(f"Table {table}, {name}, {precision}", flush=True)
        print("  GPUs  batch  frames/s  speed-up  efficiency   Expresso  speed-up  efficiency")
        alone: float | None = None
        for count, (batch, theirs) in rows.items():
            paper = theirs / rows[1][1]
            line = f"{theirs:10d}  {paper:7.2f}x  {paper / count:9.0%}"
            if count not in gpus:
                print(f"  {count:4d}  {batch:5d}  not run: {count} GPUs are not here{line:>42}")
                continue
            found = started(name, count, batch, precision, seconds)
            if isinstance(found, str):
                print(f"  {count:4d}  {batch:5d}  not run: {found}")
                continue
            alone = found if count == 1 else alone
            faster = found / alone if alone else float("nan")
            own = f"{found:8,.0f}  {faster:7.2f}x  {faster / count:9.0%}"
            print(f"  {count:4d}  {batch:5d}  {own} {line}", flush=True)


def papers(n: int, count: int) -> str:
    """Seconds, speed-up and efficiency that the paper has for a product on so many GPUs."""
    if count not in PRODUCTS[n]:
        return f"the paper has no column of {count}"
    faster = PRODUCTS[n][1] / PRODUCTS[n][count]
    return f"{PRODUCTS[n][count]:.3f} {faster:.2f}x {faster / count:.0%}"


def products(gpus: list[int], seconds: float) -> None:
    """Table V: seconds, speed-up and efficiency of square products of float32."""
    import cupy

    until = time.monotonic() + seconds
    single = {}
    one = md.dmath.cuda
    for n in [n for n, told in PRODUCTS.items() if 1 in told]:
        A = matrix(one, n, "float32", None)
        single[n] = best(lambda: md.dmath.matmul(A, A), one.wait, 3)  # noqa: B023
    A = None
    cupy.get_default_memory_pool().free_all_blocks()
    print("Table V, float32: seconds, speed-up and efficiency; behind / what dMath reports")
    for n, told in single.items():
        print(f"  {n:6d}   1 GPU  {told:9.5f} / {PRODUCTS[n][1]:7.3f}", flush=True)
    for count in [c for c in (2, 4, 8, 32) if c in gpus]:
        with md.workers(count) as workers:
            w = md.dmath.distributed(workers, device="cuda")
            for n, alone in single.items():
                if time.monotonic() > until:
                    print(f"  {n:6d}  {count:2d} GPUs  not run: no time left")
                    continue
                row = f"  {n:6d}  {count:2d} GPUs"
                for name, lies in (("rows", md.dmath.Rows()), ("auto", "auto")):
                    A = matrix(w, n, "float32", lies)
                    took = best(
                        lambda: md.dmath.matmul(A, A, layout=lies),  # noqa: B023
                        w.wait,
                        3,
                    )
                    A, faster = None, alone / took
                    row += f"  {name} {took:9.5f} {faster:5.2f}x {faster / count:4.0%}"
                print(f"{row}  / {papers(n, count)}", flush=True)
    left = [str(c) for c in (2, 4, 8, 32) if c not in gpus]
    print(
        f"  not run: columns of {', '.join(left)} GPUs; rows from 32768, which the paper has on 8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tables", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--seconds", type=float, default=40.0, help="of a training, and of Table V")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--train")
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    if arguments.train is not None:
        trained(arguments.train, arguments.batch, arguments.precision, 4)
        return
    import cupy

    there = cupy.cuda.runtime.getDeviceCount()
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    gpus = [count for count in arguments.gpus if count <= there]
    print(f"{there} x {name}; numbers of GPUs that are run: {gpus}")
    if 5 in arguments.tables:
        products(gpus, arguments.seconds)
    for number, table in ((3, "III"), (4, "IV")):
        if number in arguments.tables:
            trainings(table, gpus, arguments.precision, arguments.seconds)


if __name__ == "__main__":
    main()
