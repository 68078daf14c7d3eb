"""Synchronous and asynchronous SGD on several GPUs: samples a second relative to one GPU that trains alone.

    python benchmarks/gpu/parallel/asynchronous.py [--gpus 1,2] [--rows 2048] [--json speed.json]
    python benchmarks/gpu/parallel/asynchronous.py --draw speed.json --picture docs/images/FILE.png

The figure of MagmaDNN's paper. Two networks of dense layers in TF32 on random rows, with as many rows of a
batch for each GPU. SGD is `DataParallel`: sums among the GPUs within the graph of a step. ASGD is `AsyncSGD`:
the server is one process more, on the first GPU; gradients and parameters pass through the hosts. Each number
of GPUs is a job of its own; seconds of the best epoch behind the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = {"784-528-528-528-10": (784, 528, 528, 528), "784-2048-2048-10": (784, 2048, 2048)}
STEPS = 20


def rate(widths: tuple[int, ...], kind: str, rows: int) -> float:
    """Samples a second of all workers, as this rank counts them."""
    import magmadnn as md

    comm = md.comm.world()
    is_async = kind == "ASGD"
    workers = comm.size - is_async
    device = f"cuda:{max(comm.rank - is_async, 0)}"  # the server updates on the first
    layers: list[Any] = [md.layers.Input((widths[0],))]
    layers += [md.layers.Dense(width, activation="relu") for width in widths[1:]]
    net = md.Model(
        [*layers, md.layers.Dense(10)], loss="cross_entropy", optimizer=md.optim.SGD(0.01),
        device=device, precision="tf32", seed=1,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    batch = rows if is_async else rows * workers
    x = draw.standard_normal((batch * STEPS * (workers if is_async else 1), widths[0]), np.float32)
    y = draw.integers(0, 10, len(x))
    way: Any = md.parallel.AsyncSGD() if is_async else md.parallel.DataParallel()
    history = net.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=False, parallel=way)
    return float(max(row["samples_per_second"] for row in history.rows[1:]))


def started(name: str, kind: str, gpus: int, rows: int) -> float:
    """What a job of so many GPUs tells."""
    own = [__file__, "--job", json.dumps([name, kind, rows])]
    ranks = gpus + (kind == "ASGD")
    launch = ["-m", "magmadnn", "launch", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launch, *own], capture_output=True, text=True, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        print(done.stderr[-2000:])
        return float("nan")
    return float(json.loads(lines[-1])[0])


def draw(found: dict[str, Any], path: Path) -> None:
    """Speed-up over the number of GPUs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for panel, name in zip(figure.subplots(1, 2), found["rates"], strict=True):
        counts, rates = found["gpus"], found["rates"][name]
        panel.plot(counts, counts, color="#bbbbbb", linestyle=":", label="as many times as GPUs")
        for kind, color in (("SGD", "#4e79a7"), ("ASGD", "#f28e2b")):
            ups = [one / rates["SGD"][0] for one in rates[kind]]
            panel.plot(counts, ups, marker="o", color=color, label=kind)
        panel.set(title=name, xlabel="GPUs", ylabel="speed-up over one GPU", xticks=counts)
        panel.set_ylim(bottom=0)
        panel.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Print a table, draw one, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        name, kind, rows = json.loads(options.job)
        print(json.dumps([rate(NETWORKS[name], kind, rows)]), flush=True)
        return
    if options.draw is not None:
        draw(json.loads(options.draw.read_text()), options.picture)
        return
    counts = [int(one) for one in options.gpus.split(",")]
    rates: dict[str, dict[str, list[float]]] = {}
    for name in NETWORKS:
        for kind in ("SGD", "ASGD"):
            own = [started(name, kind, gpus, options.rows) for gpus in counts]
            rates.setdefault(name, {})[kind] = own
            told = "  ".join(
                f"{n} GPU {one:12,.0f} samples/s" for n, one in zip(counts, own, strict=True)
            )
            print(f"{name:20} {kind:5} {told}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"gpus": counts, "rows": options.rows, "rates": rates}))


if __name__ == "__main__":
    main()
