"""The search of `benchmarks.cpu.search` by its peers: Optuna and Ray Tune, each training with PyTorch.

python -m benchmarks.cpu.search_peers [--peers optuna,ray] [--points 100] [--epochs 10] [--workers 2]

The same network (13-16-2), optimiser (Adam), rows, batches and epochs; every trial is a training of its
own, on one thread, and is validated at its end. Optuna runs in as many processes as there are workers, each
with a part of the grid and a study in memory, so that they do not wait for each other; Ray Tune has as many
trials at a time. Shown are trials per second and, of Optuna, processor time, without what it takes to import
and to begin. In an environment with PyTorch and the peers; a tenth of the points is enough, since none of
them is faster for more.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.cpu.search import table

BATCH, HELD = 32, 61


def grid(points: int) -> list[tuple[float, float]]:
    """Learning rates and betas."""
    side = -(-points // 10)
    rates, betas = np.geomspace(1e-4, 1e-1, side).tolist(), np.linspace(0.8, 0.98, 10).tolist()
    return list(itertools.product(rates, betas))[:points]


def trained(rate: float, beta: float, seed: int, epochs: int) -> float:
    """The accuracy of a network of PyTorch on rows that are held back."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = (torch.from_numpy(a) for a in table())
    x = (x - x.mean(0)) / x.std(0)
    net = torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    rule = torch.optim.Adam(net.parameters(), rate, betas=(beta, 0.999))
    count = len(x) - HELD
    for _ in range(epochs):
        order = torch.randperm(count) + HELD
        for rows in order.split(BATCH):
            rule.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            rule.step()
    with torch.no_grad():
        return float((net(x[:HELD]).argmax(1) == y[:HELD]).float().mean())


def _optuna_part(
    part: Sequence[tuple[float, float]], epochs: int, ready: Any, results: Any
) -> None:
    """A process: a study of its part of the grid."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trained(1e-3, 0.9, 0, 1)  # what is loaded when it is first wanted
    study = optuna.create_study(direction="maximize")
    for rate, beta in part:
        study.enqueue_trial({"rate": rate, "beta": beta})

    def objective(trial: Any) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        beta = trial.suggest_float("beta", 0.8, 0.98)
        return trained(rate, beta, trial.number, epochs)

    ready.wait()
    begun = time.process_time()
    study.optimize(objective, n_trials=len(part))
    results.put(time.process_time() - begun)


def by_optuna(
    points: Sequence[tuple[float, float]], epochs: int, workers: int
) -> tuple[float, float | None]:
    """Seconds of the clock, and of processors."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(workers + 1), context.Queue()
    processes = [
        context.Process(target=_optuna_part, args=(points[k::workers], epochs, ready, results))
        for k in range(workers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    spent = sum(results.get(timeout=3600) for _ in processes)
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    return seconds, spent


def by_ray(
    points: Sequence[tuple[float, float]], epochs: int, workers: int
) -> tuple[float, float | None]:
    """Seconds of the clock; those of processors are not known."""
    import ray
    from ray import tune

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)

    def trial(config: dict[str, Any]) -> dict[str, float]:
        rate, beta = config["point"]
        return {"accuracy": trained(rate, beta, 0, epochs)}

    def run(some: Sequence[tuple[float, float]]) -> None:
        tuner = tune.Tuner(
            tune.with_resources(trial, {"cpu": 1}),
            param_space={"point": tune.grid_search(list(some))},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=True),
            run_config=tune.RunConfig(verbose=0, storage_path=folder),
        )
        tuner.fit()

    with tempfile.TemporaryDirectory() as folder:
        run(points[:workers])  # what is loaded when it is first wanted
        began = time.perf_counter()
        run(points)
        seconds = time.perf_counter() - began
        ray.shutdown()
    return seconds, None


PEERS = {"optuna": by_optuna, "ray": by_ray}


def rows(given: argparse.Namespace) -> Iterator[str]:
    """A row of the table for each peer."""
    points = grid(given.points)
    for name in given.peers.split(","):
        seconds, spent = PEERS[name](points, given.epochs, given.workers)
        each = "" if spent is None else f"{1e3 * spent / len(points):.1f}"
        rate = len(points) / seconds
        yield f"| {name} + PyTorch | {len(points)} | {seconds:.2f} | {rate:.2f} | {each} |"


def main() -> None:
    """Print a row for each peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="optuna,ray")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print("| search | points | s | trials a second | ms of processors each |", flush=True)
    print("| - | - | - | - | - |", flush=True)
    for row in rows(given):
        print(row, flush=True)


if __name__ == "__main__":
    main()
