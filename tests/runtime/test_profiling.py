"""Profiles: what is counted, what stays as it was, tables and traces."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.rates import Rates
from magmadnn.errors import ArgumentError, FileError
from magmadnn.runtime.profile import profiling
from magmadnn.runtime.profile.measure import measured_rates
from magmadnn.runtime.profile.steps import enough_runs
from magmadnn.runtime.profile.text import Profile, StepTime
from tests.graph.by_numpy import doubled

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(61, 37)).astype(np.float32)
Y = RANDOM.integers(0, 5, 61)


def network(**options: Any) -> md.Model:
    layers = [
        md.layers.Input((37,)),
        md.layers.Dense(131, activation="tanh", name="first"),
        md.layers.Dropout(0.3),
        md.layers.Dense(5, name="last"),
    ]
    options = {"loss": "cross_entropy", "optimizer": "adam", **options}
    return md.Model(layers, seed=2, **options)


@pytest.fixture(scope="module")
def profiled() -> tuple[md.Model, Profile]:
    net = network()
    return net, net.profile(X, Y, batch_size=50)


def test_every_step_of_the_plan_is_timed(profiled: tuple[md.Model, Profile]) -> None:
    net, found = profiled
    plan = net._step[2]._executable.native.plan
    assert len(found.steps) == len(plan.work) and found.runs >= 5
    assert all(step.seconds > 0 for step in found.steps)
    assert {"first", "last", "Adam"} <= set(found.layers())
    product = next(s for s in found.steps if s.title.startswith("gemm [50, 131]"))
    assert product.layer == "first" and product.flops >= 2 * 50 * 37 * 131
    assert product.nbytes >= 4 * (50 * 37 + 37 * 131 + 50 * 131)


def test_core_time_of_the_steps_fits_into_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds them up: no thread works longer than all of the runs last, on the clock of the host."""
    last: list[float] = []

    def watched() -> Iterator[int]:
        begun = time.perf_counter()
        yield from enough_runs()
        last.append(time.perf_counter() - begun)

    monkeypatch.setattr(profiling, "enough_runs", watched)
    found = network().profile(X, Y, batch_size=50)
    unequal = 1.02  # the two clocks
    assert 0 < found.step_seconds * found.runs < found.threads * last[-1] * unequal


def test_nothing_is_trained_by_it() -> None:
    net, other = network(), network()
    net.fit(X, Y, epochs=1, verbose=False)
    other.fit(X, Y, epochs=1, verbose=False)
    state = net._step[2].state()
    before = net.values()
    net.profile(X, Y)
    for name, value in net.values().items():
        np.testing.assert_array_equal(value, before[name])
    for name, value in net._step[2].state().items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy())
    histories = [n.fit(X, Y, epochs=2, verbose=False) for n in (net, other)]
    assert [r["loss"] for r in histories[0].rows] == [r["loss"] for r in histories[1].rows]


def test_a_prediction_and_a_call_of_numpy_are_timed_too() -> None:
    layers = [md.layers.Input((37,)), md.layers.Activation(doubled)]
    found = md.Model(layers).profile(X)
    (step,) = found.steps
    assert step.title.startswith("numpy [") and step.seconds > 1e-7


def test_tables(profiled: tuple[md.Model, Profile]) -> None:
    lines = str(profiled[1]).splitlines()
    assert lines[0].split() == "step layer us share GFLOP/s of peak GB/s of bandwidth".split()
    assert lines[2].startswith("0 ")
    blank = lines.index("")
    shares = [float(m[1]) for line in lines[2:blank] if (m := re.search(r"([\d.]+) %", line))]
    assert len(shares) == len(profiled[1].steps) and sum(shares) == pytest.approx(100, abs=3)
    assert re.match(r"a core does [\d.]+ GFLOP/s in float32, ", lines[-1])
    assert all(len(line) < 160 for line in lines)


def exact() -> Profile:
    """One step at half of the peak and at a quarter of the bandwidth, one at twice the bandwidth."""
    rates = Rates({"float32": 1e11, "float64": 5e10}, 2e10)
    steps = (
        StepTime(0, 0, "gemm [3, 5] matmul", "a", 1e-3, 50_000_000, 5_000_000, 1e11),
        StepTime(1, 1, "rows [3] exp", "", 3e-3, 0, 120_000_000, 1e11),
    )
    return Profile(steps, 5e-3, 7, 2, rates)


def test_shares_are_right() -> None:
    lines = str(exact()).splitlines()
    assert lines[2].split()[5:] == "a 1000.00 25.0 % 50.00 50.0 % 5.00 25.0 %".split()
    assert lines[3].split()[4:] == "3000.00 75.0 % 0.00 0.0 % 40.00 200.0 %".split()
    assert "a run takes 5000.0 us on 2 threads" in lines[-2]


def test_a_trace(tmp_path: Path) -> None:
    exact().to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in steps] == [
        ("gemm [3, 5] matmul", 0.0, 1000.0, 0), ("rows [3] exp", 1000.0, 3000.0, 0),
    ]  # fmt: skip
    assert [(e["cat"], e["args"]["layer"]) for e in steps] == [("a", "a"), ("(none)", "")]
    with pytest.raises(FileError, match=r"trace: cannot write .*; choose another file"):
        exact().to_chrome_trace(tmp_path / "no" / "trace.json")


def test_a_trace_says_what_happened_when(
    profiled: tuple[md.Model, Profile], tmp_path: Path
) -> None:
    """Parts of one thread do not overlap, phases follow each other, and no step is left out."""
    found = profiled[1]
    found.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in spans} == {s.title for s in found.steps}
    assert min(e["ts"] for e in spans) == 0 and all(e["dur"] > 0 for e in spans)
    assert {e["tid"] for e in spans} <= set(range(1 + found.threads))
    unequal = 2.0  # microseconds between the counters of two cores
    for thread in {e["tid"] for e in spans}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == thread)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
    ends = [0.0] * (1 + max(e["args"]["phase"] for e in spans))
    for event in spans:
        ends[event["args"]["phase"]] = max(ends[event["args"]["phase"]], event["ts"] + event["dur"])
    for event in spans:
        if event["args"]["phase"]:
            assert event["ts"] + unequal >= max(ends[: event["args"]["phase"]])
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {f"thread {e['tid']}" for e in spans}


def test_expected_times() -> None:
    rates = Rates({"float32": 1e9, "float64": 5e8}, 1e9)
    assert rates.seconds(2e9, 1, "float32") == 2 and rates.seconds(2e9, 1, "float64") == 4
    assert rates.seconds(1, 3e9, "float32") == 3
    net = network()
    text = net.plan(X, Y, batch_size=50)
    assert "expected" not in text
    plan = net._step[2]._executable.native.plan
    timed = describe(plan, {"batch": 50}, rates)
    assert re.sub("; expected [0-9.]+ us", "", timed) == text.split("\n# memory of a step")[0]
    assert timed.count("expected") == len(plan.work) + 1
    line = next(li for li in timed.splitlines() if "gemm [50, 131]" in li)
    at = timed.splitlines().index(line)
    operations, read, written, us = re.findall(r"[0-9.]+", timed.splitlines()[at + 3])
    assert float(us) == pytest.approx(
        max(float(operations), float(read) + float(written)) / 1e3, abs=1e-2
    )
    assert net.plan(batch_size=50, expected=True).count("expected") == len(plan.work) + 1


def test_rates_are_those_of_a_computer() -> None:
    rates = measured_rates()
    assert 1e9 < rates.flops["float64"] < rates.flops["float32"] * 1.2 < 1e13
    assert 1e8 < rates.bandwidth < 1e13


@pytest.mark.parametrize("act", [
    lambda: network(executor="reference").profile(X, Y),
    lambda: network(executor="reference").plan(X, Y, expected=True),
])  # fmt: skip
def test_other_executors_are_not_measured(act: Any) -> None:
    with pytest.raises(
        ArgumentError, match="compiled kernels on the CPU, got executor 'reference'"
    ):
        act()


def test_targets_are_needed() -> None:
    with pytest.raises(ArgumentError, match="profile: the targets are missing"):
        network().profile(X)
    with pytest.raises(ArgumentError, match="profile: batch_size must be an integer of at least 1"):
        network().profile(X, Y, batch_size=0)
