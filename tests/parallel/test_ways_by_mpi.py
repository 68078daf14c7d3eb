"""Ways to train on processes of MPI give what they give on simulated ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.comm import simulate

SCRIPT = """
import sys

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256


def train(make, comm=None):
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(75, 6)).astype("f"), draw.integers(0, 3, 75)
    layers = [
        md.layers.Input((6,)), md.layers.Dense(9, kernel_regularizer=md.layers.L2(0.01)),
        md.layers.BatchNorm(), md.layers.Dropout(0.2),
        md.layers.Dense(8, activation="tanh"), md.layers.Dense(3),
    ]
    model = md.Model(layers, loss="cross_entropy", optimizer="adam", metrics=["accuracy"])
    way = eval(make, {"md": md, "comm": comm})
    history = model.fit(x, y, batch_size=16, epochs=2, parallel=way, validation_split=0.2, verbose=False)
    told = [round(row[k], 12) for row in history.rows for k in ("loss", "accuracy", "val_loss")]
    return parameters_sha256(model.values().items()) + " " + str(told)


if __name__ == "__main__":
    print(*[f"<{make} {train(make)}>" for make in sys.argv[1:]], sep="\\n")
"""
WAYS = [
    "md.parallel.Pipeline(comm, micro_batches=2)",
    "md.parallel.DataParallel(comm, shard='optimiser')",
    "md.parallel.DataParallel(comm, shard='parameters')",
    "md.parallel.ModelParallel(comm)",
    "md.parallel.Hybrid(communicator=comm)",
]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_give_what_simulated_ranks_give(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    names: dict[str, Any] = {"__name__": "script", "md": md}
    exec(SCRIPT, names)
    # before the processes, which find the kernels then
    wanted = {
        make: simulate(ranks, lambda comm, make=make: names["train"](make, comm))  # type: ignore[misc]
        for make in WAYS
    }
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(ranks), "train.py", *WAYS]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=dict(os.environ)
    )
    assert found.returncode == 0, found.stderr
    for make, expected in wanted.items():
        assert len(set(expected)) == 1
        assert found.stdout.count(f"<{make} {expected[0]}>") == ranks, (found.stdout, expected)
