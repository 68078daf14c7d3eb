"""What notebooks show: a model's layers, a training's curves."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import magmadnn as md

L = md.layers


def titles(model: md.Model) -> list[str]:
    return [box.title for box in model.__magmadnn_diagram__().boxes]


def two_inputs() -> md.Model:
    a, b = L.Input((5,), name="left"), L.Input((5,), name="right")
    tower = L.Dense(7, "relu", name="tower")
    joined = L.Concatenate()([tower(a), tower(b)])
    return md.Model(
        inputs=[a, b], outputs=[L.Dense(3, name="kind")(joined), L.Dense(1, name="size")(joined)]
    )


def test_layers_are_boxes_with_shapes_and_numbers_of_parameters() -> None:
    model = md.Model([L.Input((5,)), L.Dense(7, "relu"), L.Dropout(0.1), L.Dense(1)])
    boxes = {box.title: box for box in model.__magmadnn_diagram__().boxes}
    assert list(boxes) == [
        "input Input",
        "dense_1 (Dense)",
        "dropout_1 (Dropout)",
        "dense_2 (Dense)",
    ]
    assert boxes["dense_1 (Dense)"].lines == ("(batch, 7)", "42 parameters")
    assert boxes["dense_2 (Dense)"].inputs == (boxes["dropout_1 (Dropout)"],)
    model.freeze("dense_1")
    assert model.__magmadnn_diagram__().boxes[1].lines[1] == "42 parameters, frozen"


def test_a_shared_layer_is_drawn_once() -> None:
    model = two_inputs()
    boxes = {box.title: box for box in model.__magmadnn_diagram__().boxes}
    assert len(boxes) == len(titles(model)) == 6
    tower = boxes["tower (Dense)"]
    assert tower.lines == ("(batch, 7)", "42 parameters", "called 2 times")
    assert [box.title for box in tower.inputs] == ["left Input", "right Input"]


def test_a_layer_called_on_its_own_result_is_drawn_as_often_as_it_is_called() -> None:
    x, again = L.Input((5,)), L.Dense(5, "tanh", name="again")
    model = md.Model(inputs=[x], outputs=[again(again(x))])
    assert titles(model) == ["input Input", "again (Dense)", "again (Dense)"]


def test_operators_between_layers_are_boxes() -> None:
    x = L.Input((5,))
    y = L.Dense(5)(x)
    assert titles(md.Model(inputs=[x], outputs=[x + y * 2])).count("add") == 1


@pytest.mark.parametrize("model", [two_inputs(), md.Model([L.Input((5,)), L.Dense(3)])])
def test_the_picture_is_that_of_to_svg_and_is_xml(model: md.Model) -> None:
    text = model._repr_svg_()
    assert text == md.graph.to_svg(model)
    ElementTree.fromstring(text)
    assert 'fill="white"' in text  # a ground of its own, on dark pages too


def test_diagrams_show_themselves() -> None:
    diagram = md.Model([L.Input((5,)), L.Dense(3)]).diagram()
    assert diagram._repr_svg_() == md.graph.to_svg(diagram)


def trained() -> md.History:
    model = md.Model([L.Input((5,)), L.Dense(2)], loss="mse", optimizer="adam")
    return model.fit(np.ones((20, 5)), np.ones((20, 2)), epochs=2, verbose=False)


def test_a_history_shows_its_curves() -> None:
    pytest.importorskip("matplotlib")
    history = trained()
    assert (history._repr_png_() or b"").startswith(b"\x89PNG")
    assert history._repr_html_() is None
    assert md.History()._repr_png_() is md.History()._repr_html_() is None


def test_without_matplotlib_a_history_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    history = trained()
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.ticker"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("magmadnn.training.loop.history.find_spec", lambda name: None)
    assert history._repr_png_() is None
    html = history._repr_html_() or ""
    assert re.findall(r"<th>(\w+)</th>", html) == history.columns
    assert html.count("<tr>") == 3
