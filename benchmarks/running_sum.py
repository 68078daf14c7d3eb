"""A step of a network with one running sum beside the same without: it stays several steps per execution.

    python -m benchmarks.running_sum [--device cuda] [--rounds 7]

784-528-528-10 with ReLU on batches of 100; the running sum goes along the second hidden layer's features.
Microseconds of a step, the least and the median of some fits of 100 steps, both networks in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import magmadnn as md

BATCH, STEPS, WIDTH, CLASSES, FEATURES = 100, 100, 528, 10, 784


def network(device: str, sums: bool) -> md.Model:
    """The network; with `sums` a running sum, scaled so that it stays small."""
    layers = [
        md.layers.Input((FEATURES,)),
        md.layers.Dense(WIDTH, activation="relu"),
        md.layers.Dense(WIDTH, activation="relu"),
    ]
    if sums:
        layers.append(md.layers.Lambda(lambda x: md.ops.cumsum(x * (1.0 / WIDTH), axis=1)))
    layers.append(md.layers.Dense(CLASSES))
    return md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.SGD(0.01), device=device, seed=0
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A network with a running sum.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.random((BATCH * STEPS, FEATURES), np.float32)
    y = rng.integers(0, CLASSES, len(x))
    models = {name: network(given.device, bool(name)) for name in ("", "with a running sum")}
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(given.rounds + 2):  # the first two make and measure kernels
        for name, model in models.items():
            start = time.perf_counter()
            model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
            if turn > 1:
                times[name].append(1e6 * (time.perf_counter() - start) / STEPS)
    for name, found in times.items():
        print(f"{name or 'without':20}{min(found):9.1f}{statistics.median(found):9.1f} us a step")
    least, most = (min(times[name]) for name in ("", "with a running sum"))
    print(f"ratio {most / least:.2f}")


if __name__ == "__main__":
    main()
