"""The same training gives the same parameters: in every process, and whatever was measured on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.tune import Tuner
from magmadnn.compiler.tune_file import Records
from magmadnn.training.checkpoint import parameters_sha256
from tests.executor.cuda.devices import GPU

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 20
PROGRAM = """
import sys
import numpy as np
import magmadnn as md
from magmadnn.training.checkpoint import parameters_sha256
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


def test_an_empty_and_a_full_file_of_the_tuner_train_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By rule, measuring into an empty file, and with what was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(131, 797)).astype(np.float32), draw.integers(0, 5, 131)

    def trained(seconds: float) -> tuple[str, float]:
        tuner = Tuner(Records(host()), host(), seconds)
        monkeypatch.setattr("magmadnn.executor.tasks.tuner", lambda: tuner)
        model = md.Model(
            [md.layers.Input((797,)), md.layers.Dense(97, activation="tanh"), md.layers.Dense(5)],
            loss="cross_entropy", optimizer="adam", seed=5,
        )  # fmt: skip
        model.fit(x, y, batch_size=131, epochs=2, verbose=0)
        return parameters_sha256(model.values().items()), tuner.spent

    first, none = trained(0.0)
    # The first of them compiles too, and so may measure nothing
    hashes, spent = zip(*(trained(20.0) for _ in range(3)), strict=True)
    assert none == spent[-1] == 0 < max(spent)
    assert {*hashes} == {first}
