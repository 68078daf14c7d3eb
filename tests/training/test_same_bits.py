"""The same training gives the same parameters: in every process, and whatever was measured on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.cuda.devices import GPU

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 20
PROGRAM = """
import sys
import numpy as np
import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256
layers = md.layers
draw = np.random.default_rng(3)
x, y = draw.normal(size=(203, 67)).astype(np.float32), draw.integers(0, 5, 203)
model = md.Model(
    [layers.Input((67,)), layers.Dense(131, activation="relu"), layers.BatchNorm(), layers.Dropout(0.2),
     layers.Dense(5)],
    loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=5, device=sys.argv[1])
model.fit(x, y, batch_size=19, epochs=3, verbose=0)
print(parameters_sha256(model.values().items()))
"""


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_twenty_processes_agree(device: str) -> None:
    """The first of them may measure and compile what the others find; strings have other hashes in each."""
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, device],
            env={**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout
        for number in range(PROCESSES)
    ]  # fmt: skip
    assert len(found[0].strip()) == 64
    assert set(found) == {found[0]}
