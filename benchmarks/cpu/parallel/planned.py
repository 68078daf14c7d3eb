"""What `md.parallel.plan` predicts beside what a step takes: ways on 2 ranks of a thread, and one worker.

    python benchmarks/cpu/parallel/planned.py

Rates are measured first: operations of one thread in a product of 512 x 512, bytes of values in an addition
beyond the caches, bytes of a wire by messages there and back between two ranks, latency by what a sum of one
element takes after such a product, and what a sum of 4 MiB takes beyond these. Both ranks compute; medians
are taken, so that what others do is in them. Two predictions stand beside each measured step, one
by those rates and one by the usual ones of `Rates()`. Steps are those of `fit`, of the best epoch after the
first in each of some rounds, in which ways take turns; their minimum and median are printed. A row with * is
what the plan proposes by measured rates. The last line of a network says how much longer the proposal takes
than the quickest that was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md

WAYS: dict[str, Any] = {
    "alone": None,
    "data": md.parallel.DataParallel,
    "model": md.parallel.ModelParallel,
    "hybrid": md.parallel.Hybrid,
    "pipeline": md.parallel.Pipeline,
}
BATCHES = {"papers": 100, "wide": 64, "cifar": 128}


def network(name: str) -> tuple[Any, Any, Any]:
    """A model, and data of 16 batches."""
    rows, draw = 16 * BATCHES[name], np.random.default_rng(0)
    given: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": md.optim.SGD(0.01),
        "seed": 1,
    }
    if name == "cifar":
        x = draw.normal(size=(rows, 32, 32, 3)).astype(np.float32)
        return md.models.cifar_cnn((32, 32, 3), 10, **given), x, draw.integers(0, 10, rows)
    units, activation = (528, "sigmoid") if name == "papers" else (2048, "relu")
    layers: list[Any] = [md.layers.Input((784,))]
    layers += [md.layers.Dense(units, activation=activation) for _ in range(3)]
    x = draw.normal(size=(rows, 784)).astype(np.float32)
    return md.Model([*layers, md.layers.Dense(10)], **given), x, draw.integers(0, 10, rows)


def measured(name: str, way: str, epochs: int) -> float:
    """Seconds of a step, of the best epoch after the first."""
    model, x, y = network(name)
    make = WAYS[way]
    history = model.fit(
        x,
        y,
        batch_size=BATCHES[name],
        epochs=epochs,
        verbose=False,
        parallel=False if make is None else make(),
    )
    return BATCHES[name] / max(float(row["samples_per_second"]) for row in history.rows[1:])


def usual(call: Callable[[], Any], times: int = 20) -> float:
    """Seconds of a call, the median."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def rates() -> dict[str, float]:
    """Of this machine, on two ranks."""
    comm = md.comm.world()

    def there_and_back(count: int) -> float:
        mine = np.ones(count, np.float32)
        theirs = np.empty_like(mine)

        def call() -> None:
            if comm.rank == 0:
                comm.send(mine, 1)
                comm.recv(theirs, 1)
            else:
                comm.recv(theirs, 0)
                comm.send(mine, 0)

        return usual(call, 100) / 2

    short, size = there_and_back(1), 1 << 22
    long = there_and_back(size // 4)
    x = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    large = np.ones(1 << 24, np.float32)
    result = np.empty_like(large)
    wire = size / max(long - short, 1e-9)
    product = usual(lambda: x @ x, 100)
    latency = max(usual(lambda: (x @ x, comm.all_reduce(large[:1])), 100) - product, 1e-6) / 2
    summed = usual(lambda: comm.all_reduce(large[: size // 4]))
    found = {
        "operations": 2 * 512**3 / product,
        "memory": 3 * large.nbytes / usual(lambda: np.add(large, large, out=result)),
        "wire": wire,
        "latency": latency,
        "collecting": size / max(summed - 2 * short - size / wire, 1e-9),
    }
    comm.barrier()
    return found


def job(ranks: int, *options: str) -> Any:
    """What a process of its own, or two, print last."""
    launch = ["-m", "magmadnn", "launch", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launch, __file__, *options], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(name: str, found: dict[str, float], rounds: int, epochs: int) -> None:
    """Print what is predicted and measured of a network."""
    model, x, y = network(name)
    rows = BATCHES[name]
    given, default = (
        md.parallel.plan(model, 2, x[:rows], y[:rows], batch_size=rows, rates=r)
        for r in (md.parallel.Rates(**found), None)
    )
    by_usual = {one.name: one.seconds for one in default.predictions}
    taken: dict[str, list[float]] = {one.name: [] for one in given.predictions}
    for _ in range(rounds):
        for one in given.predictions:
            options = ("--network", name, "--way", one.name, "--epochs", str(epochs))
            taken[one.name].append(job(one.workers, *options))
    print(f"{name}, batch {rows}: ms of a step")
    print("  way       workers  predicted  usual rates  measured  median  predicted / median")
    for one in given.predictions:
        least, middle = min(taken[one.name]), statistics.median(taken[one.name])
        print(
            f"{'*' if one is given.best else ' '} {one.name:<9}{one.workers:>8}{one.seconds * 1e3:>11.3f}"
            f"{by_usual[one.name] * 1e3:>13.3f}{least * 1e3:>10.3f}{middle * 1e3:>8.3f}"
            f"{one.seconds / middle:>12.2f}"
        )
    for way, why in given.left_out.items():
        print(f"  {way:<9} left out: {why}")
    quickest = min(taken, key=lambda way: min(taken[way]))
    ratio = min(taken[given.best.name]) / min(taken[quickest])
    print(
        f"  quickest: {quickest}; proposed by measured rates: {given.best.name}, {ratio:.2f} of its time; "
        f"by usual rates: {default.best.name}, {min(taken[default.best.name]) / min(taken[quickest]):.2f}",
        flush=True,
    )


def main() -> None:
    """Print tables, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--networks", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--network", choices=list(BATCHES))
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--rates", action="store_true")
    options = parser.parse_args()
    md.set_threads(1)
    if options.rates or options.way is not None:
        own = measured(options.network, options.way, options.epochs) if options.way else rates()
        if md.comm.world().rank == 0:
            print(json.dumps(own))
        return
    found = job(2, "--rates")
    told = {name: f"{value:.3g}" for name, value in found.items()}
    print("rates, with NumPy's BLAS on as many threads as its environment says:", told)
    for name in options.networks:
        table(name, found, options.rounds, options.epochs)


if __name__ == "__main__":
    main()
