"""Hashes of the parameters of dense networks after training, to be compared between two commits.

    python -m benchmarks.dense_parameters

Equal hashes: equal bits of all parameters. Only names of the public interface are used, so that the file runs
on older commits too (with their folder in PYTHONPATH).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import magmadnn as md


def parameters_hash(model: Any) -> str:
    """The first 16 digits of the SHA-256 of all parameters, by name."""
    total = hashlib.sha256()
    for name, value in sorted(model.values().items()):
        total.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return total.hexdigest()[:16]


def trained(
    draw: np.random.Generator,
    sizes: Sequence[int],
    rows: int,
    batch: int,
    epochs: int,
    optimizer: Any,
    activation: str = "relu",
    between: Callable[[], Any] | None = None,
    loss: str = "cross_entropy",
) -> Any:
    """A network of these widths on random data."""
    x = draw.standard_normal((rows, sizes[0])).astype(np.float32)
    if loss == "cross_entropy":
        y = draw.integers(0, sizes[-1], rows)
    else:
        y = draw.standard_normal((rows, sizes[-1])).astype(np.float32)
    layers: list[Any] = [md.layers.Input((sizes[0],))]
    for width in sizes[1:-1]:
        layers.append(md.layers.Dense(width, activation=activation))
        layers += [between()] if between else []
    model = md.Model([*layers, md.layers.Dense(sizes[-1])], loss=loss, optimizer=optimizer, seed=3)
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    return model


def main() -> None:
    """Print a hash for each network."""
    o, papers = md.optim, (784, 528, 528, 528, 10)
    small, table = (13, 64, 64, 64, 2), (20, 32, 32, 5)
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("13-64-64-64-2, Adam", (small, 242, 16, 10, o.Adam(1e-3))),
        ("13-64-64-64-2, momentum", (small, 242, 16, 10, o.SGD(0.05, momentum=0.9))),
        ("784-128-10, SGD", ((784, 128, 10), 3000, 128, 3, o.SGD(0.1))),
        ("784-128-10, Adam", ((784, 128, 10), 3000, 128, 3, o.Adam(1e-3))),
        ("papers' network, sigmoid, SGD", (papers, 2000, 100, 2, o.SGD(0.05), "sigmoid")),
        ("papers' network, RMSProp", (papers, 2000, 100, 2, o.RMSProp(1e-3))),
        ("784-2048-2048-10, Adam", ((784, 2048, 2048, 10), 1024, 128, 1, o.Adam(1e-3))),
        (
            "dropout, tanh",
            ((20, 33, 17, 5), 501, 32, 5, o.Adam(1e-3), "tanh", lambda: md.layers.Dropout(0.2)),
        ),
        ("LayerNorm, GELU", (table, 501, 32, 5, o.Adam(1e-3), "gelu", md.layers.LayerNorm)),
        ("BatchNorm", (table, 501, 32, 5, o.Adam(1e-3), "relu", md.layers.BatchNorm)),
        ("squares, AdamW", ((30, 50, 1), 1000, 50, 5, o.AdamW(1e-3), "relu", None, "mse")),
        ("squares, AdaGrad", ((30, 50, 3), 1000, 50, 5, o.AdaGrad(1e-2), "elu", None, "mse")),
    ]
    draw = np.random.default_rng(0)
    for name, given in cases:
        print(f"{name:32s} {parameters_hash(trained(draw, *given))}", flush=True)


if __name__ == "__main__":
    main()
