"""A training that goes on in another way of sharing it than its checkpoint was written in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, CheckpointError
from tests.parallel.parameters import assert_near

P, L = md.parallel, md.layers
_RNG = np.random.default_rng(1)
X, Y = _RNG.normal(size=(75, 6)), _RNG.integers(0, 3, 75)  # five batches, the last of 11 rows
STOPS = 7  # steps before the checkpoint: in the second epoch, and within a group of three batches

WAYS: dict[str, Callable[[Communicator], Any]] = {
    "alone": lambda comm: False,
    "DataParallel": lambda comm: P.DataParallel(comm),
    "moments": lambda comm: P.DataParallel(comm, shard="optimiser"),
    "pieces": lambda comm: P.DataParallel(comm, shard="parameters"),
    "server": lambda comm: P.ParameterServer(comm),
    "sync": lambda comm: P.DataParallel(comm, sync=True),
    "ModelParallel": lambda comm: P.ModelParallel(comm),
    "Hybrid": lambda comm: P.Hybrid(communicator=comm),
    "layouts": lambda comm: P.ModelParallel(comm, deterministic="layout"),
    "Pipeline": lambda comm: P.Pipeline(comm, micro_batches=2),
    "AsyncSGD": lambda comm: P.AsyncSGD(comm),
}
SHARDED = ("DataParallel", "moments", "pieces", "server", "layouts")  # have the same bits
CUTS = {"Pipeline": 2, "AsyncSGD": 3} | dict.fromkeys(
    SHARDED, 1
)  # kinds of cut; 0 for whole batches


def network(*between: Any) -> md.Model:
    layers = [L.Input((6,), "float64"), L.Dense(8, activation="tanh"), *between, L.Dense(8)]
    layers += [L.Dense(4, activation="tanh"), L.Dense(3)]
    how: dict[str, Any] = {"precision": "float64", "seed": 2, "optimizer": "adam"}
    return md.Model(layers, loss="cross_entropy", metrics=["accuracy"], **how)


class Stops(md.callbacks.Callback):
    def on_batch_end(self, fit: Any) -> None:
        if fit.steps == STOPS:
            fit.stop("test", goes_on=True)


def trained(
    comm: Communicator | None, way: Callable[[Any], Any], folder: Path | None = None, stop: bool = False,
    make: Callable[[], md.Model] = network, **given: Any,
) -> tuple[dict[str, Any], list[list[float]]]:  # fmt: skip
    """Parameters, and the history."""
    model, calls = make(), [Stops()] if stop else []
    if folder is not None:
        calls = [*calls, md.callbacks.Checkpoint(folder, every_steps=STOPS, signals=False)]
    options = {"batch_size": 16, "epochs": 3, "verbose": False, "callbacks": calls} | given
    rows = model.fit(X, Y, parallel=way(comm), **options).rows
    return model.values(), [[row["loss"], row["accuracy"]] for row in rows]


def run(ranks: int, name: str, *given: Any, **options: Any) -> Any:
    """What rank 0 has, of so many; one alone needs none."""
    if name == "alone":
        return trained(None, WAYS[name], *given, **options)
    return simulate(ranks, lambda comm: trained(comm, WAYS[name], *given, **options))[0]


@cache
def uninterrupted(name: str, accumulate: int) -> Any:
    return run(2, name, accumulate=accumulate)


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(np.array_equal(found[name], value) for name, value in expected.items())


# Each kind of cut is left and come to; the rest is in the long run.
RING = ["alone", "DataParallel", "ModelParallel", "Pipeline", "pieces", "alone"]
MORE = ["pieces", "Hybrid", "server", "sync", "moments", "layouts", "alone"]
SIX = ("alone", "DataParallel", "pieces", "ModelParallel", "Pipeline", "AsyncSGD")
SOME = [*pairwise(RING), ("AsyncSGD", "alone")]
ALL = [
    pytest.param(*pair, marks=[] if pair in SOME else [pytest.mark.long])
    for pair in dict.fromkeys([*SOME, *pairwise(MORE), *product(SIX, SIX)])
]


@pytest.mark.parametrize(("first", "then"), ALL)
def test_each_way_goes_on_from_each_other(
    first: str, then: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within an epoch and a group of batches, with other numbers of ranks, to the last rounding."""
    accumulate = 1 if "AsyncSGD" in (first, then) else 3
    run(2, first, tmp_path, True, accumulate=accumulate)
    capsys.readouterr()
    ranks = 3 if then in SHARDED else 2
    values, rows = run(ranks, then, tmp_path, accumulate=accumulate)
    told = capsys.readouterr().err
    expected, history = uninterrupted("alone", accumulate)
    assert len(rows) == 3
    # Adam divides by the root of a mean of squares, and gradients of 1e-16 are none of this network's
    assert_near(values, expected)
    np.testing.assert_allclose(rows, history, rtol=1e-12)
    if first in SHARDED and then in SHARDED:
        assert same(values, uninterrupted("DataParallel", accumulate)[0])
    if CUTS.get(first, 0) == CUTS.get(then, 0):
        assert not told
    else:
        assert told.count("fit: goes on with") == 1
        assert "sums of gradients are added up in another order\n" in told
    if first == "alone":
        again = run(2, then, tmp_path, accumulate=accumulate, epochs=4)  # of this way from now on
        assert len(again[1]) == 4 and "goes on with" not in capsys.readouterr().err


def noisy() -> md.Model:
    return network(L.BatchNorm(name="normal"), L.Dropout(0.2, name="drops"))


def test_layers_that_look_at_batches_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(2, "DataParallel", tmp_path, True, make=noisy)
    run(2, "Pipeline", tmp_path, make=noisy)
    told = capsys.readouterr().err
    assert told.count(
        "fit: goes on with 2 micro-batches of a batch, in the checkpoint 8 shards of a batch: parameters, "
    ) == 1  # fmt: skip
    assert (
        "; statistics of normal are those of other rows from now on; drops draws other num" in told
    )


def test_numbers_of_one_way_and_other_settings_are_still_compared(tmp_path: Path) -> None:
    run(2, "Pipeline", tmp_path / "p", True)
    with pytest.raises(CheckpointError, match="micro_batches is 3, in the checkpoint 2"):
        simulate(
            2, lambda comm: trained(comm, lambda c: P.Pipeline(c, micro_batches=3), tmp_path / "p")
        )
    with pytest.raises(CheckpointError, match="batch_size is 15, in the checkpoint 16"):
        run(2, "DataParallel", tmp_path / "p", batch_size=15)
    run(2, "DataParallel", tmp_path / "d", True)
    with pytest.raises(CheckpointError, match="shards is 4, in the checkpoint 8; up to 8 ranks go"):
        simulate(
            2, lambda comm: trained(comm, lambda c: P.DataParallel(c, shards=4), tmp_path / "d")
        )
    run(2, "DataParallel", tmp_path / "a", True, accumulate=3)
    with pytest.raises(ArgumentError, match="AsyncSGD: each gradient has an update of its own"):
        run(2, "AsyncSGD", tmp_path / "a", accumulate=3)


SCRIPT = """
import sys

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256


def train(way, epochs, folder, comm=None):
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(75, 6)), draw.integers(0, 3, 75)
    layers = [md.layers.Input((6,), "float64"), md.layers.Dense(8, activation="tanh"), md.layers.Dense(8),
              md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer="adam", precision="float64")
    kept = md.callbacks.Checkpoint(folder, signals=False)
    parallel = eval(way, {"md": md, "comm": comm})
    model.fit(x, y, batch_size=16, epochs=epochs, verbose=False, callbacks=[kept], parallel=parallel)
    return model.values()


if __name__ == "__main__":
    for epochs, way in enumerate(sys.argv[2:], 2):
        values = train(way, epochs, sys.argv[1])
    print(parameters_sha256(values.items()))
"""


def test_ways_follow_each_other_on_processes(tmp_path: Path) -> None:
    """Alone first, then on two processes of MPI an epoch in each way: what simulated ranks give."""
    pytest.importorskip("mpi4py")
    (tmp_path / "train.py").write_text(SCRIPT)
    names: dict[str, Any] = {"__name__": "script"}
    exec(SCRIPT, names)  # the script above
    ways = ["md.parallel.Pipeline(comm, micro_batches=2)", "md.parallel.ModelParallel(comm)"]
    for folder in ("processes", "simulated"):
        names["train"]("False", 1, tmp_path / folder)
    command = [
        sys.executable,
        "-m",
        "magmadnn",
        "launch",
        "-n",
        "2",
        "train.py",
        "processes",
        *ways,
    ]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=dict(os.environ)
    )
    assert found.returncode == 0, found.stderr

    def all_ways(comm: Communicator) -> Any:
        for epochs, way in enumerate(ways, 2):
            values = names["train"](way, epochs, tmp_path / "simulated", comm)
        return names["parameters_sha256"](values.items())

    expected = simulate(2, all_ways)
    assert found.stdout.split() == expected and len(set(expected)) == 1
