"""Loops on a device: planned once, several steps per execution, calls of libraries and of NumPy in a body.

What loops compute is tried in `tests/runtime/test_scan.py`, on a device too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import Operation
from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.library.small import group
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running.graphs import merged
from magmadnn.runtime.cuda.running.instance import Instance
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.runtime.cuda.schedule import cuts
from magmadnn.runtime.cuda.schedule.launch import Item
from tests.runtime.cuda.devices import DEVICES, distance, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.runtime.scans import Lstm, assert_close
from tests.training.test_loop_layer import data, model

devices = pytest.mark.parametrize("device", DEVICES)
RNG = np.random.default_rng(12)


def check(outputs: list[Operation], device: str, **options: Any) -> Instance:
    """Outputs on a device are those of the reference; gives what runs on the device."""
    nodes = [y.node for y in outputs]
    expected = Executable(nodes, executor="reference", **options).run({})
    with on(device):
        made = Executable(nodes, executor="native", device="cuda", check=True, **options)
        for _ in range(2):  # graphs that are launched again begin anew
            assert_close(made.run({}), expected)
        return made.cuda.instance({})


def lstm(steps: int) -> list[Operation]:
    """A loss of the last state of an LSTM, and its gradients."""
    cell = Lstm("float32", 6, 5)
    x = md.variable("x", RNG.normal(size=(steps, 3, 6)).astype(np.float32))
    zero = np.zeros((3, 5), np.float32)
    (last, _), _ = md.scan(cell, (zero, zero), x)
    loss = (last**2).sum()
    return [loss, *md.grad(loss, cell.weights)]


def launches(instance: Instance) -> list[Item]:
    instance.layout.begin()
    return [item for work in instance.plan.work for item in instance.items.of(work)]


@needs_compiler
def test_a_longer_loop_has_more_launches_of_the_same_kernels_and_the_same_plan() -> None:
    found = {}
    with emulated_device():
        for steps in (4, 6, 12):
            nodes = [y.node for y in lstm(steps)]
            instance = Executable(nodes, executor="native", device="cuda").cuda.instance({})
            items = merged(launches(instance), instance.items.chip).items
            works = [len(loop.step.work) for loop in instance.plan.loops.values()]
            kernels = {item.launch.variant for item in items}
            found[steps] = len(instance.plan.work), works, kernels, len(items)
    assert found[4][:3] == found[6][:3] == found[12][:3]
    assert found[12][3] - found[6][3] == 3 * (found[6][3] - found[4][3])


@needs_compiler
def test_slices_are_read_and_outputs_written_where_they_lie() -> None:
    """A step that is one kernel is one launch, beside the copy of what the first begins with."""
    x = md.variable("x", RNG.normal(size=(5, 7)))
    _, kept = md.scan(lambda h, x: (h + x, md.ops.cumsum(x, axis=0)), np.zeros(7), x)
    assert len(launches(check([kept], "emulated"))) == 5
    total, _ = md.scan(lambda h, x: (h + x, ()), np.zeros(7), x)
    assert len(launches(check([total], "emulated"))) == 1 + 5


@devices
def test_libraries_are_called_in_each_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "LARGEST", 0)  # small matrices have kernels of their own
    a = RNG.normal(size=(3, 4, 4))
    x = md.variable("x", a @ a.swapaxes(-1, -2) + 4.0 * np.eye(4))

    def body(h: Any, x: Any) -> tuple[Any, Any]:
        factor = md.linalg.cholesky(x + 0.1 * h @ md.ops.transpose(h))
        return factor, md.linalg.solve_triangular(factor, h, lower=True)

    last, kept = md.scan(body, np.eye(4), x)
    instance = check([last, kept, md.grad((kept**2).sum() + last.sum(), x)], device)
    with on(device):
        calls = [i for i in launches(instance) if isinstance(i.what, MatrixNode)]
    assert len(calls) >= 2 * 3


@devices
def test_what_numpy_computes_is_called_between_the_launches_of_each_step(device: str) -> None:
    x = md.variable("x", np.arange(24, dtype=np.int8).reshape(4, 6))
    scale = md.variable("scale", np.arange(1.0, 7.0))

    def body(pair: Any, x: Operation) -> tuple[Any, Any]:
        h, small = pair
        return (h * 0.5 + md.ops.cast(x, "float64") * scale, small + x), (h.sum(), md.ops.max(x))

    last, kept = md.scan(body, (np.zeros(6), np.zeros(6, np.int8)), x, reverse=True)
    check([*last, *kept], device)


@devices
@pytest.mark.parametrize("precision", ["mixed_bf16", "tf32"])
def test_precision_reaches_into_loops(device: str, precision: str) -> None:
    nodes = [y.node for y in lstm(3)]
    exact = Executable(nodes, executor="reference").run({})
    with on(device):
        found = Executable(nodes, executor="native", device="cuda", precision=precision).run({})
    for one, other in zip(found, exact, strict=True):
        # factors of 8 bits, through three steps and back
        assert np.abs(one - other).max() < 2.0**-4 * max(np.abs(other).max(), 1.0)


@devices
def test_many_batches_with_loops_run_in_one_go(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data()
    expected = model()
    expected.fit(x, y, epochs=1, batch_size=7, verbose=False)
    batches = []
    launch = CudaSlices.launch

    def counted(self: CudaSlices, order: Any, settings: Any) -> Any:
        batches.append(len(order) // 7)
        return launch(self, order, settings)

    monkeypatch.setattr(CudaSlices, "launch", counted)
    with on(device):
        found = model(device="cuda")
        found.fit(x, y, epochs=1, batch_size=7, verbose=False)
        assert distance(found, expected) < 1e-4
        assert "loop [5]" in str(found.profile(x[:7], y[:7]))
    assert sum(batches) == 10
    assert max(batches) > 1


@needs_compiler
def test_graphs_of_long_loops_have_fewer_steps() -> None:
    found = []
    for steps in (3, 100, 3000):
        x = md.variable("x", np.ones((steps, 2), np.float32))
        last, _ = md.scan(lambda h, x: (h * x, ()), np.ones(2, np.float32), x)
        with emulated_device():
            plan = Executable([last.node], executor="native", device="cuda").cuda.plan
            found.append(cuts.most_steps(plan, {}))
    assert found == [64, 8, 1]
    assert cuts.cut(85, False, 8) == [1] * 5 + [8] * 10
    assert cuts.cut(3, False, 1) == [1] * 3


@devices
def test_what_a_device_writes_the_processor_reads_and_the_other_way_round(device: str) -> None:
    x = md.variable("x", np.ones(3))
    double = (x * 2.0).node
    with on(device):
        places = [
            Executable([double], [(x.node, double)], executor="native", device=where)
            for where in ("cpu", "cuda")
        ]
        for step in range(4):
            (found,) = places[step % 2].run({})
            assert np.array_equal(found, np.full(3, 2.0 ** (step + 1)))
            assert np.array_equal(x.numpy(), found)
