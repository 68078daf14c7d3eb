"""Long trainings do not grow, and a step inside of a slice allocates nothing."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.llvm.driver.code import driver_text
from magmadnn.compiler.llvm.ir.target import can_use_futex, host
from magmadnn.compiler.llvm.kernel import llvm_text
from magmadnn.compiler.plan.planning import native_plan
from tests.compiler.native_programs import PROGRAMS

RANDOM = np.random.default_rng(23)
X = RANDOM.normal(size=(4000, 7)).astype(np.float32)
Y = RANDOM.integers(0, 3, 4000)
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc"
)


class LookAtEachBatch(md.callbacks.Callback):
    """Does nothing, but makes batches run one by one."""

    def on_batch_end(self, fit: object) -> None:
        pass


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def network() -> md.Model:
    layers = [
        md.layers.Input((7,)), md.layers.Dense(13, activation="relu"), md.layers.Dropout(0.1),
        md.layers.BatchNorm(), md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(layers, loss="cross_entropy", optimizer="adam", metrics=["accuracy"], seed=1)


def grown(steps: int, *callbacks: md.callbacks.Callback) -> tuple[int, int]:
    """By how many bytes and Python blocks so many steps of four samples grow the process."""
    net = network()

    def train(count: int) -> None:
        history = net.fit(
            X, Y, batch_size=4, epochs=count // 1000, verbose=False, callbacks=callbacks
        )
        assert len(history.rows) == count // 1000

    train(2000)
    before, blocks = resident(), sys.getallocatedblocks()
    train(steps)
    return resident() - before, sys.getallocatedblocks() - blocks


@needs_proc
def test_20000_steps_do_not_grow() -> None:
    nbytes, blocks = grown(20_000)
    assert nbytes < 4 << 20, f"grew by {nbytes} bytes"  # 200 bytes a step
    assert blocks < 2_000


@needs_proc
def test_3000_single_steps_do_not_grow() -> None:
    nbytes, blocks = grown(3_000, LookAtEachBatch())
    assert nbytes < 2 << 20, f"grew by {nbytes} bytes"
    assert blocks < 1_000


@needs_proc
@pytest.mark.long
def test_200000_steps_do_not_grow() -> None:
    nbytes, blocks = grown(200_000)
    assert nbytes < 4 << 20, f"grew by {nbytes} bytes"  # 20 bytes a step
    assert blocks < 4_000


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_call_nothing_that_could_allocate(name: str) -> None:
    """A step of a slice is kernels and the driver; they declare LLVM's intrinsics and nothing else."""
    plan = native_plan(PROGRAMS[name]())
    kernels = [work.lowered.kernel for work in plan.work if work.lowered is not None]
    futex = can_use_futex(host())
    for text in (llvm_text(kernels, host()), driver_text(host(), futex, timed=False)):
        declared = re.findall(r"^declare .*?@\"?([\w.]+)", text, re.MULTILINE)
        assert all(function.startswith("llvm.") for function in declared), declared
