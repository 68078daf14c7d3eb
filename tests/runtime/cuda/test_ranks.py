"""Data parallel training on devices: sums over ranks among the graphs of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comm.test_launch import launched
from tests.runtime.cuda.devices import DEVICES
from tests.runtime.cuda.emulator import needs_compiler

SCRIPT = """
import ctypes
import json
import sys
from contextlib import nullcontext

import numpy as np

import magmadnn as md
from magmadnn.parallel.in_graph import among_gpus, slices, whole_step
from magmadnn.runtime.cuda.schedule import launches
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from tests.runtime.cuda.emulator import emulated_device

whole_step.GPU_BUCKET_BYTES = 64  # several buckets
draw = np.random.default_rng(5)
x, y = draw.normal(size=(72, 5)), draw.integers(0, 3, 72)
comm, real = md.comm.world(), DEVICE == "gpu"


class OnHost:
    # what NCCL does on GPUs
    size, prepared, summed = comm.size, [], []

    def prepare_sum(self, count, dtype):
        if (count, dtype) not in self.prepared:
            assert all(one == [count, dtype] for one in comm.exchange([count, dtype]))
            self.prepared.append((count, dtype))

    def sum_on(self, stream, source, result, count, dtype):
        assert (count, dtype) in self.prepared
        self.summed.append(count)
        own, total = (array_at(address, count, dtype) for address in (source, result))
        total[...] = comm.all_reduce(own.copy())


def array_at(address, count, dtype):
    raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def meet(communicator, device):
    among_gpus._gpus[communicator] = OnHost()


items = []
known_sums = launches.sums_of


def sums_of(layout, work):
    found = known_sums(layout, work)
    items.extend(found)
    return found


def assert_in_order():
    # whichever graph they are in, a sum waits for the one before it: NCCL stops where ranks differ in order
    assert len(items) > 2
    edges = edges_of([(item.reads, item.writes) for item in items])
    assert edges == [(), *((k,) for k in range(len(items) - 1))], edges


counts = []
known = slices.RanksSlices.run


def run(self, order, count, follows=False):
    counts.append(count)
    result = known(self, order, count, follows)
    assert result is not None  # no batch is done again, one by one
    return result


def fit(device, way):
    layers = [md.layers.Input((5,)), md.layers.Dense(7, activation="tanh"), md.layers.Dense(3)]
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), precision="float64",
        device=device, seed=1
    )
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=False, parallel=way)
    if way and comm.size > 1:
        assert f"over {comm.size} GPUs" in str(model.plan(batch_size=32))
        # a step keeps its losses and metrics until they are read, and no gradients
        assert model.memory(batch_size=32).workspace < 2 << 20, model.memory(batch_size=32)
    return [v.tolist() for _, v in sorted(model.values().items())], history.rows[-1]["loss"]


alone = fit("cpu", False)
if not real:
    slices.meet = meet
slices.RanksSlices.run = run
launches.sums_of = sums_of
with nullcontext() if real else emulated_device():
    found = fit(f"cuda:{comm.rank}" if real else "cuda", md.parallel.DataParallel())
if comm.size > 1:
    assert_in_order()
told = comm.exchange([alone, found, counts])
if comm.rank == 0:
    print(json.dumps(told))
"""


@pytest.mark.parametrize("device", DEVICES)
def test_two_ranks_train_as_one(device: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if device == "gpu":
        from magmadnn.backends import cuda

        if cuda.device_count() < 2:
            pytest.skip("one GPU only")
    check(tmp_path, device, 2)


@needs_compiler
def test_one_rank_trains_in_slices(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    check(tmp_path, "emulated", 1)


def check(folder: Path, device: str, ranks: int) -> None:
    code, out, errors, _ = launched(folder, ranks, f"DEVICE = {device!r}\n" + SCRIPT, "")
    assert code == 0, errors
    told: list[Any] = json.loads(out.splitlines()[-1])
    assert len(told) == ranks
    for alone, found, counts in told:
        assert sum(counts) == 4  # whole batches; the last of an epoch has 8 rows
        assert found == told[0][1]
        assert found[1] == pytest.approx(alone[1], rel=1e-12)
        for value, expected in zip(found[0], alone[0], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-11)
