"""What a step takes is known before it runs, and a batch that has no room is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, OutOfMemoryError
from magmadnn.optim import memory_check
from magmadnn.runtime import evaluate

RANDOM = np.random.default_rng(17)
X = RANDOM.normal(size=(96, 11)).astype(np.float32)
Y = RANDOM.integers(0, 3, 96)

MEASURE = """
import gc, re, sys
from pathlib import Path
import numpy as np
import magmadnn as md

def cifar():
    model = md.models.cifar_cnn((32, 32, 3), 10)
    model.loss, model.optimizer = "cross_entropy", "sgd"
    return model, (32, 32, 3)

def dense():
    layers = [
        md.layers.Input((67,)), md.layers.Dense(509, activation="relu"), md.layers.BatchNorm(),
        md.layers.Dropout(0.1), md.layers.Dense(503, activation="tanh"), md.layers.Dense(10),
    ]
    return md.Model(layers, loss="cross_entropy", optimizer="adam", seed=1), (67,)

md.set_threads(1)  # of several, one may find all work done on a busy machine, and touch no scratch memory
make, batch = {"cifar": cifar, "dense": dense}[sys.argv[1]], int(sys.argv[2])
random = np.random.default_rng(1)
x = random.normal(size=(2 * batch, *make()[1])).astype(np.float32)
y = random.integers(0, 10, 2 * batch)
first, _ = make()
# What is compiled stays, and what it has; little, as what it gives back serves the second model.
first.fit(x, y, batch_size=batch // 8, verbose=False)
gc.collect()
with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * 4096
model, _ = make()
model.fit(x, y, batch_size=batch, verbose=False)
# of this program alone: ru_maxrss counts what its parent had too
highest = re.search("VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())
taken = int(highest[1]) * 1024 - before
print(model.memory(batch_size=batch).total, taken)
"""


@pytest.fixture(autouse=True)
def small_steps_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "ALWAYS_THERE", 0)


def network(**more: object) -> md.Model:
    layers = [
        md.layers.Input((11,)), md.layers.Dense(40, activation="relu"),
        md.layers.Dense(40, activation="tanh"), md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(layers, loss="cross_entropy", optimizer="adam", seed=2, **more)  # type: ignore[arg-type]


def beside_variables(model: md.Model, batch: int) -> int:
    """Bytes that the first step takes at least."""
    found = model.memory(X, Y, batch_size=batch)
    return found.activations + found.gradients + found.batch + found.copies


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="sizes are read from /proc")
@pytest.mark.parametrize("name, batch", [("cifar", 256), ("dense", 8192)])
def test_the_prediction_is_what_the_process_takes(name: str, batch: int) -> None:
    run = [sys.executable, "-c", MEASURE, name, str(batch)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    predicted, taken = map(int, done.stdout.split())
    assert taken == pytest.approx(predicted, rel=0.05), (predicted, taken)


def test_parts_of_the_prediction() -> None:
    model = network()
    found = model.memory(X, Y, batch_size=32)
    weights = 4 * (11 * 40 + 40 + 40 * 40 + 40 + 40 * 3 + 3)
    assert found.parameters == weights
    assert found.optimizer == 2 * weights + 8  # two moments and the count
    assert found.copies == found.parameters + found.optimizer
    hidden = 4 * 32 * 40  # of a layer: tanh and relu are kept for the gradient
    assert 2 * hidden <= found.activations + found.gradients <= 6 * hidden
    assert found.batch >= 32 * (11 * 4 + 4)
    assert found.total == sum(vars(found).values())
    assert model.memory(batch_size=64).activations > 1.8 * found.activations
    assert f"# memory of a step: {found.total / 1024:.1f} KiB" in model.plan(batch_size=32)


def test_a_batch_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    room = beside_variables(model, 48)
    monkeypatch.setattr(evaluate, "available_bytes", lambda: room)
    before = model.values()
    with pytest.raises(
        OutOfMemoryError, match=r"fit: a step with batch_size=96 needs .* left; the largest"
    ) as said:
        model.fit(X, Y, batch_size=96, verbose=False)
    largest = re.search(r"the largest that fits is batch_size=(\d+)", str(said.value))
    assert largest is not None
    fits = [beside_variables(model, int(largest[1]) + more) <= room for more in (0, 1)]
    assert fits == [True, False] and 48 <= int(largest[1]) < 96
    assert all((before[k] == v).all() for k, v in model.values().items())
    assert model.epochs_done == 0
    assert model.fit(X, Y, batch_size=48, verbose=False).rows


def test_sizes_by_epoch_are_refused_when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    room = beside_variables(model, 50)
    monkeypatch.setattr(evaluate, "available_bytes", lambda: room)
    with pytest.raises(OutOfMemoryError, match="batch_size=96"):
        model.fit(X, Y, batch_size=lambda epoch: 8 if epoch < 2 else 96, epochs=3, verbose=False)
    assert model.epochs_done == 2


def test_a_batch_counts_as_many_rows_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    room = beside_variables(model, 96)
    monkeypatch.setattr(evaluate, "available_bytes", lambda: room)
    assert model.fit(X, Y, batch_size=1 << 40, verbose=False).rows


def test_batches_of_an_iterable_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setattr(evaluate, "available_bytes", lambda: 60_000)
    with pytest.raises(OutOfMemoryError, match="batch_size=96 needs"):
        model.fit([(X, Y)], verbose=False)


def test_what_has_run_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is there already."""
    model = network()
    model.fit(X, Y, batch_size=32, verbose=False)
    monkeypatch.setattr(evaluate, "available_bytes", lambda: 0)
    assert model.fit(X, Y, batch_size=32, verbose=False).rows
    with pytest.raises(OutOfMemoryError, match="not even one row fits"):
        model.fit(X, Y, batch_size=33, verbose=False)


def test_memory_that_numpy_takes_is_not_known() -> None:
    model = network(executor="reference")
    with pytest.raises(
        ArgumentError, match=r"memory: tells of compiled kernels, got executor=.reference"
    ):
        model.memory(X, Y)
    assert "memory" not in model.plan(X, Y)


def test_of_a_prediction() -> None:
    layers = [md.layers.Input((11,)), md.layers.Dense(40, activation="relu"), md.layers.Dense(3)]
    found = md.Model(layers).memory(batch_size=32)
    assert (found.optimizer, found.copies, found.gradients) == (0, 0, 0)
    assert found.parameters == 4 * (11 * 40 + 40 + 40 * 3 + 3)
