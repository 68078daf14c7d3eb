"""Steps take no memory: not of the system, nor of a device; counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import magmadnn as md
from magmadnn import memory
from tests.runtime.cuda.devices import network, on, samples
from tests.runtime.cuda.emulator import needs_compiler

HERE = Path(__file__).parent
COUNTER = HERE / "count_allocations.c"

# What runs with the counter preloaded: calls for slices of 64 and of 1024 batches, of each optimiser.
PROGRAM = """
import ctypes, gc
import numpy as np
import magmadnn as md
from magmadnn import ops, optim

allocations = ctypes.CDLL(None).allocations
allocations.restype = ctypes.c_long
rng = np.random.default_rng(5)
rows = {"x": rng.standard_normal((4096, 13)).astype("f4"), "y": rng.integers(0, 3, 4096)}
for optimizer in (optim.SGD(0.01), optim.SGD(0.01, momentum=0.9), optim.Adam(0.01)):
    x, y = md.placeholder("x", (None, 13)), md.placeholder("y", (None,), "int64")
    w, v = md.variable("w", np.ones((13, 17), "f4")), md.variable("v", np.ones((17, 3), "f4"))
    loss = md.losses.CrossEntropy()(ops.relu(x @ w) @ v, y)
    step = optimizer.step(loss, [w, v])
    slices = step.slices({x.node: rows["x"], y.node: rows["y"]}, 16)
    orders = {n: np.resize(rng.permutation(4096), 16 * n) for n in (64, 1024)}
    counts = []
    gc.disable()
    for count in (64, 1024, 64, 1024):
        before = allocations()
        assert slices.run(orders[count], count) is not None
        counts.append(allocations() - before)
    print(type(optimizer).__name__, *counts[2:])
"""


def counted(folder: Path, program: str) -> list[list[str]]:
    """The words of the lines that a program prints, with the counter in the process."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs gcc on Linux")
    library = folder / "counter.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(COUNTER)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the C library has no __libc_malloc")
    environment = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_steps_of_a_slice_allocate_nothing(tmp_path: Path) -> None:
    for name, few, many in counted(tmp_path, PROGRAM):
        assert int(many) - int(few) <= 20, name  # for 960 steps more
        assert int(few) < 100, name


@needs_compiler
def test_steps_on_a_device_take_no_block_of_it() -> None:
    """Epochs of more steps take no more blocks: each takes some for its order, none for its steps."""
    x, y = samples(800, 13, 5)

    def taken(rows: int) -> list[int]:
        kinds = [memory.report()[kind] for kind in ("DEVICE", "MANAGED")]
        before = [kind.allocations + kind.reuses for kind in kinds]
        model.fit(x[:rows], y[:rows], batch_size=8, epochs=3, verbose=0)
        kinds = [memory.report()[kind] for kind in ("DEVICE", "MANAGED")]
        return [k.allocations + k.reuses - b for k, b in zip(kinds, before, strict=True)]

    with on("emulated"):
        model = network((13, 17, 5), md.optim.Adam(), device="cuda")
        counts = [taken(rows) for rows in (40, 800, 40, 800, 40, 800)]
    assert counts[4] == counts[5]
