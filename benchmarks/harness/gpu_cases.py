"""Cases of training on a GPU: whole epochs by all contenders."""

from __future__ import annotations

from typing import Any

from benchmarks.networks import Network, stored

from .cases import OURS, Case, Check, Entry, Goal
from .training_cases import CHECKED_BATCHES, EAGER, FLOAT64, JAX

GRAPH, COMPILED_GRAPH = "PyTorch, CUDA graph", "torch.compile, CUDA graph"
COMPILED = (JAX, GRAPH, COMPILED_GRAPH)  # all peers but the slow one
_TORCH = "benchmarks.contenders.torch_cuda:Training"
MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("benchmarks.contenders.ours:Training", {"device": "cuda"}),
    JAX: ("benchmarks.contenders.jax_peer:Training", {}),
    EAGER: (_TORCH, {"mode": "eager"}),
    GRAPH: (_TORCH, {"mode": "graph"}),
    COMPILED_GRAPH: (_TORCH, {"mode": "compiled graph"}),
}
LOSS = 0.01  # of the mean loss of an epoch, in any precision
_PEAKS = {"mixed_bf16": "bfloat16", "mixed_fp16": "bfloat16"}


def training(
    name: str,
    network: Network,
    rows: int,
    goals: tuple[Goal, ...],
    precision: str,
    names: tuple[str, ...] = tuple(MAKERS),
) -> Case:
    """An epoch over `rows` rows."""
    arguments = {
        "file": stored(network, rows),
        "activation": network.activation,
        "batch": network.batch,
        "optimizer": "sgd",
        "precision": precision,
    }
    few = stored(network, CHECKED_BATCHES * network.batch, "float64")
    return Case(
        name,
        tuple(
            Entry(n, make, {**arguments, **more})
            for n, (make, more) in MAKERS.items()
            if n in names
        ),
        goals,
        checks=(
            Check(FLOAT64, {"file": few, "precision": "float32"}),
            Check(LOSS, keys=("loss",)),
        ),
        flops=rows * network.training_flops,
        dtype=_PEAKS.get(precision, precision),
        steps=rows // network.batch,
    )
