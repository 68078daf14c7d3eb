"""Drawings of what a model runs: nodes before optimisation, kernels after it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.diagram import diagram_of_plan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import ArgumentError
from magmadnn.graph import to_svg
from magmadnn.graph.program import Program
from tests.compiler.native_programs import PROGRAMS
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed
from tests.graph.by_numpy import doubled
from tests.graph.test_drawing import SVG
from tests.graph.test_drawing import test_drawings as check_drawing

X, Y = np.ones((11, 7), np.float32), np.arange(11) % 3


def network(**options: Any) -> md.Model:
    layers = [md.layers.Input((7,)), md.layers.Dense(5, activation="sigmoid"), md.layers.Dense(3)]
    return md.Model(layers, **options)


def trained(**options: Any) -> md.Model:
    return network(loss="cross_entropy", optimizer="sgd", **options)


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_are_drawn_without_overlaps(name: str) -> None:
    diagram = diagram_of_plan(native_plan(PROGRAMS[name]()), {"batch": 32})
    check_drawing(name, to_svg(diagram), len(diagram.boxes))
    program = PROGRAMS[name]()
    check_drawing(name, to_svg(program), len(program.nodes()))


def test_before_and_after() -> None:
    net = trained()
    before = texts(to_svg(net.diagram(X, Y, optimised=False)))
    after = texts(to_svg(net.diagram(X, Y, batch_size=11)))
    assert "log_softmax" in before and "new dense_1/kernel" in before
    assert "gemm [11, 5]" in after and "writes dense_1/kernel" in after
    assert any("phase 0, dense_1" in text for text in after)
    assert len(after) < len(before)


def test_lists_of_ops_are_shortened_by_whole_names() -> None:
    net = trained(metrics=["accuracy"])
    short = [t for t in texts(to_svg(net.diagram(X, Y, batch_size=11))) if t.startswith("…")]
    names = {name for t in texts(to_svg(net.diagram(X, Y, optimised=False))) for name in t.split()}
    # a kernel has more ops than the graph before passes; these are in both
    assert short
    for text in short:
        assert text.startswith("… ") and names & set(text.split()), text


def test_each_kernel_stands_below_what_it_reads() -> None:
    plan = native_plan(PROGRAMS["mlp_adam"]())
    diagram = diagram_of_plan(plan, {})
    assert sum(box.title.startswith(("gemm", "rows", "columns")) for box in diagram.boxes) == len(
        plan.work
    )
    seen = set()
    for box in diagram.boxes:
        assert set(box.inputs) <= seen
        seen.add(box)


def test_calls_of_numpy_have_a_colour_of_their_own() -> None:
    x = placed("x", BATCH, 7)
    svg = to_svg(diagram_of_plan(native_plan(Program.of([doubled(ops.exp(x))])), {}))
    assert "#fee2e2" in svg and "#fef3c7" in svg


def test_predictions_and_other_executors() -> None:
    assert "matmul add" in texts(to_svg(network().diagram(batch_size=11)))
    reference = trained(executor="reference").diagram(X, Y)
    assert "log_softmax" in texts(to_svg(reference))
    with pytest.raises(ArgumentError, match="diagram: no targets are known before fit"):
        trained().diagram()


def test_the_dump_has_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGMADNN_DUMP", str(tmp_path))
    native_plan(Program.of([ops.tanh(placed("x", BATCH, 7) @ ramp(7, 3))]))
    (folder,) = tmp_path.iterdir()
    assert "tanh" in texts((folder / "given.svg").read_text())
    assert any(text.startswith("gemm [") for text in texts((folder / "plan.svg").read_text()))
