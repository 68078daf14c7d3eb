"""Graphs as text and as a drawing."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.errors import GraphError
from magmadnn.graph import Dim, Node, Spec, scope, show, to_svg
from magmadnn.graph import node as nodes
from magmadnn.graph.transforms.gradient import gradient
from tests.graph.bare_nodes import F32, placed
from tests.graph.random_graphs import random_graph

B = Dim.symbol("batch")
SVG = "{http://www.w3.org/2000/svg}"


def variable(name: object, *shape: Any) -> Node:
    return nodes.variable(name, Spec(shape, F32), storage=None)  # type: ignore[arg-type]


def network() -> tuple[Node, list[Node]]:
    """Two layers with a residual connection, and a loss."""
    x, target = placed("x", B, 7), placed("target", B, dtype=np.int64)
    w, b, v = (
        variable("dense_1/weight", 7, 7),
        variable("dense_1/bias", 7),
        variable("dense_2/weight", 7, 3),
    )
    with scope("dense_1"):
        h = x + ops.relu(x @ w + b)
    with scope("dense_2"):
        logits = h @ v
    with scope("loss"):
        loss = -ops.mean(ops.take_class(ops.log_softmax(logits), target))
    return loss, [w, b, v]


TEXT = """\
%0 = placeholder x: float32[batch, 7]
%1 = variable dense_1/weight: float32[7, 7]
# dense_1
%2 = matmul(%0, %1): float32[batch, 7]
%3 = variable dense_1/bias: float32[7]
%4 = add(%2, %3): float32[batch, 7]
%5 = relu(%4): float32[batch, 7]
%6 = add(%0, %5): float32[batch, 7]
%7 = variable dense_2/weight: float32[7, 3]
# dense_2
%8 = matmul(%6, %7): float32[batch, 3]
# loss
%9 = log_softmax(%8, axis=1): float32[batch, 3]
%10 = placeholder target: int64[batch]
%11 = take_class(%9, %10): float32[batch]
%12 = sum(%11, axis=(0,), keepdims=False): float32[]
%13 = size(dim=batch): float32[]
%14 = divide(%12, %13): float32[]
%15 = negative(%14): float32[]
return %15"""


def test_text() -> None:
    loss, _ = network()
    assert show(loss) == TEXT
    assert show(loss) == show(loss)


def test_text_of_constants_phases_and_updates() -> None:
    x, v = placed("x", 3), variable("v", 3)
    y = nodes.update(nodes.phase(x * 2.0, x + np.float32([1, 2, 3])), v, x)
    assert show(y, x) == (
        "%0 = placeholder x: float32[3]\n"
        "%1 = constant 2.0: float32[]\n"
        "%2 = multiply(%0, %1): float32[3]\n"
        "%3 = constant of 3 values: float32[3]\n"
        "%4 = add(%0, %3): float32[3]\n"
        "%5 = phase(%2, %4): float32[3]\n"
        "%6 = variable v: float32[3]\n"
        "%7 = update(%5, %6, %0): float32[3]\n"
        "return %7, %0"
    )


def test_names_are_asked_for_when_text_is_made() -> None:
    class Name:
        text = "early"

        def __str__(self) -> str:
            return self.text

    name = Name()
    with scope(name):
        y = placed(name, 3) * 2.0
    name.text = "late"
    assert "placeholder late" in show(y)
    assert "# late" in show(y)
    assert "early" not in show(y) + to_svg(y)


def test_only_graphs_are_shown() -> None:
    for function in (show, to_svg):
        with pytest.raises(GraphError) as info:
            function(np.ones(3))
        assert str(info.value) == (
            "a graph belongs to an Operation, got ndarray; compute with variables or placeholders to get one"
        )


# --- the drawing ----------------------------------------------------------------------------------


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of every box."""
    found = []
    for box in ET.fromstring(svg).iter(f"{SVG}rect"):
        if box.get("rx"):
            x, y, w, h = (float(box.get(k, "")) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


def points(path: str) -> list[tuple[float, float]]:
    """Points along an edge: 16 on every curve, 8 on every straight piece."""
    x, y = 0.0, 0.0
    found: list[tuple[float, float]] = []
    for command, text in re.findall(r"([MCV])([^MCV]*)", path):
        numbers = [float(n) for n in text.split()]
        if command == "M":
            x, y = numbers
        elif command == "V":
            found += [(x, y + (numbers[0] - y) * k / 8) for k in range(9)]
            y = numbers[0]
        else:
            ends = np.array([(x, y), *zip(numbers[::2], numbers[1::2], strict=True)])
            for t in np.linspace(0, 1, 17):
                weights = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
                found.append(tuple(weights @ ends))
            x, y = numbers[-2:]
    return found


def drawings() -> list[tuple[str, str, int]]:
    loss, parameters = network()
    graphs = {"loss": [loss], "gradients": gradient(loss, parameters), "one": [placed("x", 3)]}
    graphs |= {f"random {seed}": random_graph(seed)[0][-1:] for seed in range(40)}
    return [(name, to_svg(*g), len(nodes.topological(g))) for name, g in graphs.items()]


@pytest.mark.parametrize(
    ("name", "svg", "count"),
    drawings(),
    ids=lambda v: v if isinstance(v, str) and len(v) < 20 else "",
)
def test_drawings(name: str, svg: str, count: int) -> None:
    root = ET.fromstring(svg)  # well-formed
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    found = boxes(svg)
    assert len(found) == count
    for a, b in itertools.combinations(found, 2):  # no box over another
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1], (a, b)
    assert all(
        left >= 8 and top >= 8 and right <= width - 8 and bottom <= height - 8
        for left, top, right, bottom in found
    )
    for path in root.findall(f"{SVG}path"):
        for x, y in points(path.get("d", "")):
            assert 0 <= x <= width
            # edges touch boxes at their upper and lower sides only
            assert not any(
                left < x < right and top < y < bottom for left, top, right, bottom in found
            )


def test_texts_fit_into_their_boxes() -> None:
    name = "encoder/block_12/attention/query_projection/kernel"
    svg = to_svg(placed(name, 1000, 1000, 1000, 1000, B, dtype=np.float64) * 2.0)
    texts = [t.text or "" for t in ET.fromstring(svg).iter(f"{SVG}text")]
    assert all(len(t) <= 26 for t in texts)
    assert "…ery_projection/kernel" in texts
    assert name in [
        t.text for t in ET.fromstring(svg).iter(f"{SVG}title")
    ]  # whole, where one points


def test_strange_names_are_escaped() -> None:
    svg = to_svg(placed('<&">', 3))
    assert next(ET.fromstring(svg).iter(f"{SVG}text")).text == '<&">'


def test_a_drawing_is_written_and_stable(tmp_path: Path) -> None:
    loss, _ = network()
    path = tmp_path / "graph.svg"
    text = to_svg(loss, path=path)
    assert path.read_text(encoding="utf-8") == text == to_svg(loss)


def test_large_graphs_are_drawn_in_reasonable_time() -> None:
    y = x = placed("x", 3)
    for _ in range(150):
        y = ops.relu(y + ops.tanh(y) * x)
    assert len(boxes(to_svg(y))) == 150 * 4 + 1
