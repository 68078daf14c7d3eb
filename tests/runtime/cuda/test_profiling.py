"""Profiles of models on a device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine
from magmadnn.runtime.cuda.running import rates
from tests.graph.by_numpy import doubled
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import Emulator, needs_compiler

SIZES = (13, 17, 11, 5)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_COPIES", (1 << 20, 1 << 20))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_every_step_is_timed_and_nothing_trained(device: str, precision: str) -> None:
    x, y = samples(40, 13, 5)
    with on(device):
        model = network(SIZES, md.optim.Adam(), device="cuda", precision=precision)
        other = network(SIZES, md.optim.Adam(), device="cuda", precision=precision)
        for one in (model, other):
            one.fit(x, y, batch_size=8, verbose=0)
        found = model.profile(x, y, batch_size=8)
        assert distance(model, other) == 0
        for one in (model, other):
            one.fit(x, y, batch_size=8, verbose=0)
        assert distance(model, other) == 0  # the optimiser's state is what it was, too
        assert model._step is not None
        plan = model._step[2]._executable.cuda.plan
    assert len(found.steps) == len(plan.work) and found.runs >= 5
    assert all(0 < step.seconds < 1 for step in found.steps)
    assert {"dense_1", "dense_2", "dense_3", "Adam"} <= set(found.layers())
    assert found.device == "device 0" and found.rates.bandwidth > 1e8
    peaks = {s.title.split()[0]: s.peak for s in found.steps if "columns" not in s.title}
    assert peaks["gemm"] == found.rates.flops[precision]
    text = str(found)
    assert re.search(r"a run takes [\d.]+ us on device 0 \(of \d+, the median\)", text)
    assert re.search(rf"it does .*GFLOP/s in {precision}", text)


@needs_compiler
def test_calls_of_numpy_are_timed_and_all_steps_are_marked(tmp_path: Path) -> None:
    x, _ = samples(9, 13, 5)
    layers = [
        md.layers.Input((13,)),
        md.layers.Dense(7, name="first"),
        md.layers.Activation(doubled),
        md.layers.Dense(5, name="last"),
    ]
    with on("emulated"):
        engine = device_engine(0)
        assert isinstance(engine, Emulator)
        engine.marks.clear()
        model = md.Model(layers, device="cuda")
        before = model.predict(x)
        found = model.profile(x)
        np.testing.assert_array_equal(model.predict(x), before)
        assert engine.marks == [step.title for step in found.steps]
    ways = [step.title.split()[0] for step in found.steps]
    assert ways == ["gemm", "numpy", "gemm"] and all(s.seconds > 0 for s in found.steps)
    found.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["cat"] for e in events if e["ph"] == "X"] == [
        "first",
        "activation_1",
        "last",
    ]


@pytest.mark.parametrize("device", [DEVICES[1]])
def test_steps_are_ranges_of_nvtx(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's binding is there, and each step is one range: opened with its title, and closed."""
    from magmadnn.backends.cuda import _cupy_engine

    assert _cupy_engine.nvtx is not None, "CuPy has no cupy.cuda.nvtx: nothing would be marked"
    calls: list[str] = []

    class Noted:
        """CuPy's functions, and a note of each call."""

        push, pop = _cupy_engine.nvtx.RangePush, _cupy_engine.nvtx.RangePop

        @classmethod
        def RangePush(cls, title: str) -> None:
            cls.push(title)
            calls.append(title)

        @classmethod
        def RangePop(cls) -> None:
            cls.pop()
            calls.append("end")

    x, _ = samples(9, 13, 5)
    with on(device):
        model = network(SIZES, None, device="cuda")
        model.predict(x)
        monkeypatch.setattr(_cupy_engine, "nvtx", Noted)
        found = model.profile(x)
    assert calls == [word for step in found.steps for word in (step.title, "end")]
