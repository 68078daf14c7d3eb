"""Values are kept by name, so no two variables of a model have one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    FrozenError,
    GraphError,
    UnknownAttributeError,
)

L = md.layers
X = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)


def with_variables(*names: str) -> md.Model:
    x = L.Input((3,))
    y: Any = x
    for k, name in enumerate(names):
        y = y * md.variable(name, np.full(3, k + 2, np.float32))
    return md.Model(inputs=[x], outputs=[y])


def nested(inner: str, outer: str) -> md.Model:
    part = L.Sequential([L.Dense(3, name="b")], name="a")
    return md.Model([L.Input((3,)), part, L.Dense(3, name=f"{outer}{inner}")])


def beside_a_layer() -> md.Model:
    x = L.Input((3,))
    y = L.Dense(3, name="d")(x) * md.variable("d/bias", np.ones(3, np.float32))
    return md.Model(inputs=[x], outputs=[y])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: with_variables("w", "w"), "w"),
        (lambda: nested("b", "a/"), "a/b/kernel"),
        (beside_a_layer, "d/bias"),
    ],
)
def test_two_variables_of_one_name_are_refused(make: Any, name: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        make()
    assert str(raised.value) == (
        f"Model: two of its variables are named {name!r}; give each variable, and each layer, a name of its "
        "own"
    )


@pytest.mark.parametrize("make", [lambda: with_variables("w", "v"), lambda: nested("b", "a_")])
def test_names_that_only_look_alike_are_kept(make: Any, tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path)
    assert np.array_equal(md.load(tmp_path).predict(X), model.predict(X))


def test_a_layer_that_is_renamed_in_another_model_is_no_namesake_in_its_own() -> None:
    one = md.Model([L.Input((3,)), L.Dense(3), L.Dense(3)])
    other = md.Model([L.Input((3,)), L.Dense(3)])
    before = one.predict(X)
    x = L.Input((3,))
    both = md.Model(inputs=[x], outputs=[one.layers[0](other.layers[0](x))])
    for model in (one, other, both):
        assert len(model.values()) == len(model.variables())
    one.assign(one.values())
    assert np.array_equal(one.predict(X), before)


def test_names_of_layers_that_no_other_model_has_are_as_ever() -> None:
    model = md.Model(
        [L.Input((3,)), L.Dense(3), L.Dropout(0.1), L.Dense(3, name="dense_2"), L.Dense(3)]
    )
    assert [layer.label for layer in model.layers] == ["dense_1", "dropout_1", "dense_2", "dense_3"]


def test_inputs_of_one_name_are_not_given_by_name() -> None:
    x, y = L.Input((3,)), L.Input((3,))
    model = md.Model(inputs=[x, y], outputs=[x - y])
    assert np.array_equal(model.predict([X, 0 * X]), X)
    with pytest.raises(GraphError) as raised:
        model.predict({"input": X})
    assert str(raised.value) == (
        "predict: two of the model's inputs have one name, ['input', 'input']: give a list in their order, "
        "or each a name of its own, as in md.layers.Input(shape, name=...)"
    )


def test_what_is_chosen_when_a_model_is_made_and_what_it_does_not_have_cannot_be_assigned() -> None:
    layer_list = [md.layers.Input(3), md.layers.Dense(2)]
    model: Any = md.Model(layer_list, loss="mse", optimizer="sgd")
    for name, value in (("precision", "float64"), ("device", "auto")):
        before = getattr(model, name)
        with pytest.raises(FrozenError, match=rf"Model: {name} cannot be set.*Model\(..., {name}="):
            setattr(model, name, value)
        assert getattr(model, name) == before
    with pytest.raises(FrozenError, match="Model: layers cannot be set"):
        model.layers = layer_list[1:]
    own = list(model.layers)
    own.pop()
    assert [type(layer) for layer in model.layers] == [md.layers.Dense] and len(model.values()) == 2
    for name, text in (("learning_rate", "model.optimizer = "), ("trainable", "model.freeze")):
        with pytest.raises(UnknownAttributeError, match=rf"no attribute '{name}': .*{text}"):
            setattr(model, name, 0)
    model.note, model.loss = "mine", "mae"
    assert model.note == "mine"


def test_the_graph_of_a_model_cannot_be_assigned() -> None:
    model: Any = md.Model([md.layers.Input(3), md.layers.Dense(2)], loss="mse", optimizer="sgd")
    x = np.ones((5, 3), np.float32)
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        inputs, outputs, before = twin.inputs, twin.outputs, twin.predict(x)
        for name, value in (("inputs", [md.layers.Input(3)]), ("outputs", [outputs[0] * 2])):
            with pytest.raises(
                FrozenError, match=rf"Model: {name} cannot be set.* md.Model\(inputs=..., outputs="
            ):
                setattr(twin, name, value)
        assert twin.inputs is inputs and twin.outputs is outputs
        np.testing.assert_array_equal(twin.predict(x), before)
    doubled = md.Model(inputs=model.inputs, outputs=model.outputs[0] * 2)  # the way out
    np.testing.assert_array_equal(doubled.predict(x), 2 * model.predict(x))


def test_values_of_another_dtype_say_how_to_cast_them() -> None:
    model = md.Model([md.layers.Input(3), md.layers.Dense(2)], loss="mse", optimizer="sgd")
    wide = {name: value.astype("float64") for name, value in model.values().items()}
    with pytest.raises(CheckpointError, match=r"float64\[3, 2\], expected .*astype\('float32'\)$"):
        model.assign(wide)
    with pytest.raises(CheckpointError, match=r"belong to another model$"):
        model.assign(wide | {"dense_1/kernel": np.zeros((2, 3), np.float32)})
