"""Synchronous and asynchronous SGD and a pipeline on several GPUs: samples a second, microseconds a step.

    python benchmarks/gpu/parallel/asynchronous.py [--gpus 1,2] [--rows 2048] [--json speed.json]
    python benchmarks/gpu/parallel/asynchronous.py --draw speed.json --picture docs/images/FILE.png

The figure of MagmaDNN's paper. Two networks of dense layers in TF32 on random rows, with as many rows of a
batch for each GPU. SGD is `DataParallel`: sums among the GPUs within the graph of a step. ASGD is `AsyncSGD`:
the server is one process more, on the first GPU or on `--server`. What ASGD and `Pipeline` send goes from GPU
to GPU, or `--hosts` through the hosts, as where GPUs do not reach each other. Each kind on each number of
GPUs is a job of its own; seconds of the best epoch behind the first. The file is written after each job.
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
KINDS = ("SGD", "ASGD", "Pipeline")
STEPS = 40  # of a worker in an epoch: enough that the pause at its end counts little
_DRAWN = 8192  # rows, which are repeated: to draw all would take longer than to train


def rate(widths: tuple[int, ...], kind: str, rows: int, server: int) -> float:
    """Samples a second of all workers, as this rank counts them."""
    import magmadnn as md

    comm = md.comm.world()
    is_async = kind == "ASGD"
    workers = comm.size - is_async
    number = comm.rank - is_async
    device = f"cuda:{server if number < 0 else number}"
    layers: list[Any] = [md.layers.Input((widths[0],))]
    layers += [md.layers.Dense(width, activation="relu") for width in widths[1:]]
    net = md.Model(
        [*layers, md.layers.Dense(10)], loss="cross_entropy", optimizer=md.optim.SGD(0.01),
        device=device, precision="tf32", seed=1,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    batch = rows if is_async else rows * workers
    count = rows * workers * STEPS
    x = np.resize(draw.standard_normal((_DRAWN, widths[0]), np.float32), (count, widths[0]))
    y = np.resize(draw.integers(0, 10, _DRAWN), count)
    way: Any = {
        "SGD": md.parallel.DataParallel,
        "ASGD": md.parallel.AsyncSGD,
        "Pipeline": lambda: md.parallel.Pipeline(micro_batches=4 * workers),
    }[kind]()
    history = net.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=False, parallel=way)
    return float(max(row["samples_per_second"] for row in history.rows[1:]))


def started(kind: str, gpus: int, rows: int, server: int, hosts: bool) -> list[float]:
    """What a job of so many GPUs tells, of each network."""
    if kind == "Pipeline" and gpus == 1:
        return [float("nan")] * len(NETWORKS)
    own = [__file__, "--job", json.dumps([kind, rows, server, hosts])]
    ranks = gpus + (kind == "ASGD")
    launch = ["-m", "magmadnn", "launch", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launch, *own], capture_output=True, text=True, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        print(done.stderr[-2000:])
        return [float("nan")] * len(NETWORKS)
    return [float(one) for one in json.loads(lines[-1])]


def job(kind: str, rows: int, server: int, hosts: bool) -> None:
    """Be a rank."""
    if hosts:
        from magmadnn.comm.gpu.peer_buffers import PeerBuffers

        PeerBuffers.among = classmethod(lambda *_: "by --hosts")  # type: ignore[assignment,method-assign]
    print(
        json.dumps([rate(widths, kind, rows, server) for widths in NETWORKS.values()]), flush=True
    )


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
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--server", type=int, default=0, help="number of the server's GPU")
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job(*json.loads(options.job))
        return
    if options.draw is not None:
        draw(json.loads(options.draw.read_text()), options.picture)
        return
    counts = [int(one) for one in options.gpus.split(",")]
    rates: dict[str, dict[str, list[float]]] = {name: {} for name in NETWORKS}
    for kind in options.kinds.split(","):
        for gpus in counts:
            found = started(kind, gpus, options.rows, options.server, options.hosts)
            for name, one in zip(NETWORKS, found, strict=True):
                rates[name].setdefault(kind, []).append(one)
                step = 1e6 * gpus * options.rows / one  # of a worker; of all together but for ASGD
                print(
                    f"{name:20} {kind:9} {gpus} GPU {one:12,.0f} samples/s {step:9,.0f} us a step",
                    flush=True,
                )
            if options.json is not None:
                told = {"gpus": counts, "rows": options.rows, "rates": rates}
                options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
