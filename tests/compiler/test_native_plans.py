"""The text of native plans, kept under `tests/plans`; it does not depend on the machine.

`MAGMADNN_KEEP_PLANS=1 pytest tests/compiler/test_native_plans.py` writes them anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import ArgumentError
from magmadnn.graph.program import Program
from tests.compiler.native_programs import CONVOLUTIONS, PROGRAMS
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed, variable

PLANS = Path(__file__).parent.parent / "plans"
X = np.random.default_rng(5).normal(size=(11, 7)).astype(np.float32)


@pytest.mark.parametrize("name", [*PROGRAMS, *CONVOLUTIONS])
def test_native_plans_are_as_they_were(name: str) -> None:
    program = (PROGRAMS | CONVOLUTIONS)[name]()
    text = f"{describe(native_plan(program), {'batch': 32})}\n"
    path = PLANS / f"native_{name}.txt"
    if os.environ.get("MAGMADNN_KEEP_PLANS"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["mlp_adam", "batch_norm"])
def test_plans_are_stable(name: str) -> None:
    assert describe(native_plan(PROGRAMS[name]())) == describe(native_plan(PROGRAMS[name]()))


def test_costs_of_a_product_are_those_of_its_shapes() -> None:
    x, w = placed("x", BATCH, 7), variable("w", ramp(7, 5))
    plan = native_plan(Program.of([x @ w + 1.5]))
    # per row: 5 results of 7 products and 7 sums, and 5 sums more; 4 bytes for each number
    assert "75*batch operations, 28*batch + 140 bytes read, 20*batch written" in describe(plan)
    assert "825 operations, 448 bytes read, 220 written" in describe(plan, {"batch": 11})


def test_memory_is_printed_once_all_sizes_are_known() -> None:
    plan = native_plan(PROGRAMS["mlp_sgd"]())
    assert "arena" not in describe(plan)
    found = re.search(r"arena of (\d+) bytes; (\d+) if nothing", describe(plan, {"batch": 32}))
    assert found is not None and 0 < int(found[1]) < int(found[2])


def model(**arguments: object) -> md.Model:
    layers = [md.layers.Input((7,)), md.layers.Dense(3)]
    return md.Model(layers, loss="mse", **arguments)


def test_a_model_prints_its_training_step() -> None:
    net = model(optimizer="sgd")
    text = net.plan(X, np.ones((11, 3), np.float32), batch_size=11)
    assert "dense_1/kernel := subtract (in place)" in text and "float32[11, 7]" in text
    net.fit(X, np.ones((11, 3), np.float32), verbose=False)
    assert net.plan(batch_size=11) == text


def test_a_model_without_optimiser_prints_its_prediction() -> None:
    text = model().plan(batch_size=13)
    assert "gemm [13, 3] matmul add" in text and ":=" not in text


def test_a_model_that_does_not_know_its_targets_says_so() -> None:
    with pytest.raises(ArgumentError, match="plan: no targets are known before fit"):
        model(optimizer="sgd").plan()


def test_the_reference_executor_prints_its_own_plan() -> None:
    text = model(executor="reference").plan()
    assert "numpy matmul" in text and "slots" in text
    net = model(executor="reference", optimizer="sgd")
    assert "numpy matmul" in net.plan(X, np.ones((11, 3), np.float32))
