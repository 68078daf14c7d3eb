"""The networks of the papers and of users, with data and initial weights that all contenders get."""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SEED = 0  # of the order of the rows
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Network:
    """A perceptron: sizes from input to logits, the activation between them, rows of a batch."""

    widths: tuple[int, ...]
    activation: str
    batch: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))} {self.activation}"

    @property
    def predict_flops(self) -> float:
        """FLOPs of the matrix products for one row."""
        return 2.0 * sum(m * n for m, n in itertools.pairwise(self.widths))

    @property
    def training_flops(self) -> float:
        """The same with gradients; the gradient of the input is not needed."""
        return 3 * self.predict_flops - 2.0 * self.widths[0] * self.widths[1]


TINY = Network((13, 64, 64, 64, 2), "relu", 16)
WIDE = Network((784, 2048, 2048, 10), "relu", 512)
HUGE = Network((4096, 8192, 8192, 1000), "relu", 4096)


def papers(hidden: int) -> Network:
    """The papers' network with so many hidden layers (MagmaDNN, Table 1)."""
    return Network((784, *(528,) * hidden, 10), "sigmoid", 100)


PAPERS = papers(3)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="magmadnn-bench-data-")


def stored(network: Network, rows: int, dtype: str = "float32") -> str:
    """A file with x, y, order, and initial weights w0, b0, w1, ...; made once in a process.

    `order` is what `fit` draws for its first epoch, so that all contenders see the same batches.
    """
    from magmadnn import data

    path = Path(_folder().name) / f"{'-'.join(map(str, network.widths))}-{rows}-{dtype}.npz"
    if not path.exists():
        x, y = _digits(rows) if network.widths[0] == 784 else _table(rows, network.widths)
        arrays: dict[str, Array] = {"x": x.astype(dtype), "y": y.astype(np.int64)}
        arrays["order"] = data.order(rows, SEED, 0)
        rng = np.random.default_rng(7)
        for k, (m, n) in enumerate(itertools.pairwise(network.widths)):
            limit = np.sqrt(6 / (m + n))
            arrays[f"w{k}"] = rng.uniform(-limit, limit, (m, n)).astype(dtype)
            arrays[f"b{k}"] = rng.uniform(-0.1, 0.1, n).astype(dtype)
        np.savez(path, **arrays)  # type: ignore[arg-type]  # NumPy 2.4: it takes keywords for a flag
    return str(path)


def loaded(file: str) -> tuple[Array, Array, Array, list[Array]]:
    """x, y, order, and weights and biases by layer."""
    with np.load(file) as kept:
        layers = sum(name.startswith("w") for name in kept)
        weights = [kept[f"{kind}{k}"] for k in range(layers) for kind in "wb"]
        return kept["x"], kept["y"], kept["order"], weights


def _digits(rows: int) -> tuple[Array, Array]:
    from magmadnn import data

    (x, y), _ = data.mnist(os.environ.get("MAGMADNN_DATA") or ROOT / "data")
    return x[:rows].reshape(rows, 784), y[:rows]


def _table(rows: int, widths: tuple[int, ...]) -> tuple[Array, Array]:
    """Rows of random numbers, classified by the signs of random products; nothing is learned by heart."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((rows, widths[0]))
    scores = np.sin(x @ rng.standard_normal((widths[0], widths[-1])))
    return x, scores.argmax(1)
