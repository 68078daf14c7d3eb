"""Cases of training: whole epochs by all contenders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.networks import Network, stored

from .cases import OURS, Case, Check, Entry, Goal, Settings

JAX, EAGER, COMPILED = "JAX scan", "PyTorch eager", "torch.compile"
PEERS = (JAX, EAGER, COMPILED)
MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("benchmarks.contenders.ours:Training", {}),
    JAX: ("benchmarks.contenders.jax_peer:Training", {}),
    EAGER: ("benchmarks.contenders.torch_peer:Training", {"compiled": False}),
    COMPILED: ("benchmarks.contenders.torch_peer:Training", {"compiled": True}),
}
# A few steps in float64 show that the same formula is computed: rounding is 1e-16 a step, while a wrong
# factor, order or bias is seen from 1e-4 on.
FLOAT64 = 1e-10
CHECKED_BATCHES = 5
PROVED = (OURS, *PEERS)  # those on one thread run the same programs


def training(
    name: str,
    network: Network,
    rows: int,
    goals: tuple[Goal, ...],
    settings: Settings,
    *,
    optimizer: str = "sgd",
    dtype: str = "float32",
) -> Case:
    """An epoch over `rows` rows."""
    arguments = {
        "file": stored(network, rows, dtype),
        "activation": network.activation,
        "batch": network.batch,
        "optimizer": optimizer,
    }
    entries = [Entry(n, make, {**arguments, **more}) for n, (make, more) in MAKERS.items()]
    few = {"file": stored(network, CHECKED_BATCHES * network.batch, "float64")}
    return Case(
        name,
        with_single(entries, settings),
        goals,
        checks=(
            Check(FLOAT64, few, PROVED),
            Check(_tolerance(rows // network.batch, dtype), keys=("loss",)),
        ),
        flops=rows * network.training_flops,
        dtype=dtype,
        steps=rows // network.batch,
    )


def _tolerance(steps: int, dtype: str) -> float:
    """Of the mean loss of an epoch: sums in another order differ by some eps a step, and steps build on that.

    Weights are compared in float64 only: a ReLU near 0 may fall to either side, and Adam makes steps of full
    length from gradients that are nothing but rounding.
    """
    return 64 * steps * (1.2e-7 if dtype == "float32" else 2.3e-16)


def with_single(entries: Sequence[Entry], settings: Settings) -> tuple[Entry, ...]:
    """The entries, and the peers among them on one thread too: small work is slower on more."""
    more = [Entry(f"{e.name}, 1 thread", e.make, e.arguments, threads=1) for e in entries[1:]]
    return (*entries, *more) if settings.threads > 1 else tuple(entries)


def either(settings: Settings, *names: str) -> tuple[str, ...]:
    """These peers, and the same on one thread."""
    more = tuple(f"{name}, 1 thread" for name in names) if settings.threads > 1 else ()
    return (*names, *more)
