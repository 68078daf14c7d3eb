"""`Model.predict`: the latency of one sample, and 4096 rows; arrays of NumPy in and out for everybody."""

from __future__ import annotations

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import COMPILED, EAGER, either, with_single
from benchmarks.networks import PAPERS, TINY, Network, stored

JAX, BARE = "JAX jit", "bare OpenBLAS"
TOLERANCE = 64 * 1.2e-7  # sums of some hundred products in another order, through four layers


def case(
    name: str, network: Network, rows: int, goals: tuple[Goal, ...], settings: Settings
) -> Case:
    arguments = {
        "file": stored(network, max(rows, 100)), "activation": network.activation, "rows": rows,
    }  # fmt: skip
    entries = [
        Entry(OURS, "benchmarks.contenders.ours:Predict", arguments),
        Entry(JAX, "benchmarks.contenders.jax_peer:Predict", arguments),
        Entry(EAGER, "benchmarks.contenders.torch_peer:Predict", {**arguments, "compiled": False}),
        Entry(
            COMPILED, "benchmarks.contenders.torch_peer:Predict", {**arguments, "compiled": True}
        ),
    ]
    every = list(with_single(entries, settings))
    names = tuple(entry.name for entry in every)
    if rows == 1:  # the products alone, on one thread: what else there is is overhead
        module = "benchmarks.contenders.blas:Products"
        every.append(Entry(BARE, module, {"file": arguments["file"]}, threads=1))
    return Case(
        name, tuple(every), goals, checks=(Check(TOLERANCE, names=names),),
        flops=rows * network.predict_flops,
    )  # fmt: skip


def claim(settings: Settings) -> Claim:
    many = 512 if settings.quick else 4096
    peers = either(settings, JAX, EAGER, COMPILED)
    latency = (Goal("beyond", 20e-6, (BARE,)),)
    return Claim(
        "predict",
        [
            case(f"{PAPERS}, one sample", PAPERS, 1, latency, settings),
            case(f"{TINY}, one sample", TINY, 1, latency, settings),
            case(f"{PAPERS}, {many} rows", PAPERS, many, (Goal("ratio", 1.0, peers),), settings),
        ],
    )


if __name__ == "__main__":
    main({"predict": claim})
