"""Networks by name: their layers, presets, and the mistakes that can be made."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.models import MLP, NETWORKS, Preset, by_name, mlp


def kinds(layers: list) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def test_layers_of_a_perceptron_for_images() -> None:
    model = mlp((5, 7, 3), 11, hidden=(13, 17), activation="tanh", dropout=0.25)
    layers = model.layers
    assert kinds(layers) == [
        "Flatten", "Dense", "Dropout", "Dense", "Dropout", "Dense",
    ]  # fmt: skip
    assert [p.shape for p in model.parameters()] == [
        (105, 13), (13,), (13, 17), (17,), (17, 11), (11,),
    ]  # fmt: skip
    assert [layer.activation for layer in layers if isinstance(layer, md.layers.Dense)] == [
        "tanh", "tanh", None,
    ]  # fmt: skip


def test_layers_of_a_perceptron_for_tables() -> None:
    assert kinds(mlp((5,), 1, hidden=(3,)).layers) == ["Dense", "Dense"]
    assert kinds(mlp((5,), 1, hidden=()).layers) == ["Dense"]


@pytest.mark.parametrize(
    ("shape", "activation", "start"),
    [
        ((5, 2), "relu", "he_normal"),
        ((5, 2), "tanh", "glorot_uniform"),
        ((5,), "relu", "glorot_uniform"),
    ],
)
def test_initial_values_follow_inputs_and_activation(shape, activation: str, start: str) -> None:
    layers = mlp(shape, 2, hidden=(7, 3), activation=activation).layers
    dense = [layer for layer in layers if isinstance(layer, md.layers.Dense)]
    assert [type(layer.kernel_init).__name__ for layer in dense[:-1]] == [start, start]


def test_the_preset_for_tables_follows_the_rows() -> None:
    table = MLP.preset("table")

    def found(rows: int, **given: object) -> tuple:
        own = table.for_rows(rows, **given)
        return own.batch_size, own.epochs, own.weight_decay

    # steps are 1,500 up to 1,000 rows, and then 1,500 sqrt(rows / 1,000)
    assert found(1000) == (32, 47, 1.2)
    assert found(4000) == (32, 24, 0.6)
    assert found(250) == (16, 94, 2.4)
    assert found(64)[:2] == (64, 300)
    assert found(65)[:2] == (16, 300)
    assert found(1000, batch_size=100) == (100, 150, 1.2)
    assert found(1000, epochs=3) == (32, 3, 1.2)
    assert found(250, weight_decay=0.5) == (16, 94, 0.5)
    assert found(1000, optimizer="sgd")[2] is None
    assert found(1000, optimizer="sgd", weight_decay=0.1)[2] == 0.1
    image = MLP.preset("image")
    assert image.for_rows(7) == image


def test_a_perceptron_learns_an_easy_table() -> None:
    x = np.random.default_rng(5).normal(size=(211, 3)).astype(np.float32)
    model = mlp(
        (3,),
        2,
        hidden=(16,),
        loss="cross_entropy",
        optimizer=md.optim.Adam(0.01),
        metrics=["accuracy"],
    )
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    model.fit(x, y, batch_size=16, epochs=12, verbose=False)
    assert model.evaluate(x, y)["accuracy"] > 0.9


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_every_preset_can_be_built(network) -> None:
    assert {network.image_preset, network.table_preset} - {None} <= set(network.presets)
    shape = (5,) if network.table_preset else (32, 32, 3)
    for preset in network.presets.values():
        assert preset.about
        optimizer = md.optim.by_name(preset.optimizer, learning_rate=preset.learning_rate)
        model = network.model(shape, 3, preset, optimizer=optimizer)
        assert model.outputs[0].shape[-1] == 3


def test_the_preset_of_the_papers() -> None:
    paper = MLP.preset("paper")
    assert paper == Preset(
        about=paper.about, note=paper.note, hidden=(528, 528, 528), activation="sigmoid",
        dropout=0.0, optimizer="sgd", learning_rate=0.05, cosine=False, weight_decay=0.001,
        batch_size=100, epochs=5, validation_split=0.0,
    )  # fmt: skip
    assert "hardly learns" in paper.about and "hardly learns" in paper.note


def test_the_default_preset_follows_the_inputs() -> None:
    assert MLP.default_preset((28, 28, 1)) == "image"
    assert MLP.default_preset((13,)) == "table"


MISTAKES = {
    "model": (lambda: by_name("mpl"), UnknownNameError,
              "model 'mpl' is not known: did you mean 'mlp'? known are " + ", ".join(sorted(NETWORKS))),
    "preset": (lambda: MLP.preset("papre"), UnknownNameError,
               "mlp: preset 'papre' is not known: did you mean 'paper'? known are image, paper, table"),
    "dropout": (lambda: mlp((5,), 2, dropout=1.0), ArgumentError,
                "mlp: dropout must be at least 0 and below 1, got 1.0"),
    "hidden": (lambda: mlp((5,), 2, hidden=(3, -1)), ArgumentError,
               "mlp: hidden layer 2 must have a whole number of at least 1 units, got -1"),
}  # fmt: skip


@pytest.mark.parametrize(("act", "error", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(act, error, text: str) -> None:
    with pytest.raises(error) as raised:
        act()
    assert str(raised.value) == text
