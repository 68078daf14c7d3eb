"""What is assigned, or changed in place, after it was used: it takes part, or it is refused in words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, FrozenError, MagmaDNNError, UnknownNameError

L = md.layers
_RNG = np.random.default_rng(5)
X = _RNG.normal(size=(37, 3)).astype(np.float32)
Y = _RNG.normal(size=(37, 2)).astype(np.float32)


def model_of(**given: Any) -> md.Model:
    """Three layers with a part that draws numbers; SGD keeps nothing from step to step."""
    layers = [
        L.Input((3,)),
        L.Sequential([L.Dense(5, activation="tanh"), L.Dropout(0.25)], name="first"),
        L.Dense(2, name="last"),
    ]
    return md.Model(layers, **{"loss": "mse", "optimizer": md.optim.SGD(0.1), "seed": 3} | given)


def fitted(**given: Any) -> md.Model:
    model = model_of(**given)
    model.fit(X, Y, verbose=False)
    model.evaluate(X, Y)
    model.predict(X)
    return model


def same_values(one: md.Model, other: md.Model) -> bool:
    pairs = zip(one.values().values(), other.values().values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


# --- attributes of a model -----------------------------------------------------------------------

TAKES_PART = {
    "executor": "reference",
    "loss": "mae",
    "loss_weights": [0.5],
    "metrics": ["mae"],
    "optimizer": md.optim.SGD(0.3),
    "preparation": md.data.Standardize(),
}
REFUSED = {  # name: (value, words)
    "device": ("auto", r"chosen when a model is made: md.Model\(..., device=...\)"),
    "inputs": ([L.Input((3,))], r"make another one, md.Model\(inputs=..., outputs=...\)"),
    "layers": ([], r"chosen when a model is made: md.Model\(\[...\]\)"),
    "output_names": (["a"], r'write model.layer\("dense_2"\).name = '),
    "outputs": ([], r"make another one, md.Model\(inputs=..., outputs=...\)"),
    "precision": ("float64", r"chosen when a model is made: md.Model\(..., precision=...\)"),
    "seed": (7, r"chosen when a model is made: md.Model\(..., seed=...\)"),
    "units": (None, "they are those of its preparation"),
}
OTHERS = {"columns", "epochs_done"}  # what `fit` leaves; tried below


def test_each_attribute_of_a_model_is_told_here() -> None:
    model = model_of()
    public = {name for name in dir(model) if name[0] != "_" and not callable(getattr(model, name))}
    assert public == TAKES_PART.keys() | REFUSED.keys() | OTHERS


@pytest.mark.parametrize("name", TAKES_PART)
def test_what_is_assigned_takes_part_as_if_the_model_had_been_made_with_it(name: str) -> None:
    model, made = fitted(), model_of(**{name: TAKES_PART[name]})
    setattr(model, name, TAKES_PART[name])
    made.assign(model.values())
    made.epochs_done = model.epochs_done
    if name != "preparation":  # which is fitted first
        np.testing.assert_array_equal(model.predict(X), made.predict(X))
        assert model.evaluate(X, Y) == made.evaluate(X, Y)
    for one in (model, made):
        one.fit(X, Y, verbose=False)
    assert same_values(model, made)
    assert model.evaluate(X, Y) == made.evaluate(X, Y)
    if name == "executor":  # the bits of a small network are the same by both
        assert model._evaluation is not None and model._evaluation[2].executor == "reference"
        assert model._predictor().executor == "reference"


def test_what_cannot_take_part_is_refused_and_stays() -> None:
    model: Any = fitted()
    before, predicted = {name: getattr(model, name) for name in REFUSED}, model.predict(X)
    for name, (value, words) in REFUSED.items():
        with pytest.raises(FrozenError, match=rf"^Model: {name} cannot be .*{words}"):
            setattr(model, name, value)
        assert getattr(model, name) == before[name]
    np.testing.assert_array_equal(model.predict(X), predicted)


@pytest.mark.parametrize(("name", "value", "kind", "words"), [
    ("columns", {"x": 3}, ArgumentError, "columns must be a dict of schemas by input"),
    ("epochs_done", -1, ArgumentError, "epochs_done must be an integer of at least 0, got -1"),
    ("epochs_done", 1.5, ArgumentError, "epochs_done must be an integer of at least 0, got 1.5"),
    ("executor", "numpy", UnknownNameError, "executor 'numpy' is not known"),
    ("metrics", "accuracy", ArgumentError, "metrics must be a list such as"),
    ("preparation", 5, ArgumentError, "preparation must be md.data.Standardize"),
])  # fmt: skip
def test_values_that_cannot_be_are_refused_where_they_are_assigned(
    name: str, value: Any, kind: type[Exception], words: str
) -> None:
    model = model_of()
    before = getattr(model, name)
    with pytest.raises(kind, match=words):
        setattr(model, name, value)
    assert getattr(model, name) == before


# --- lists and dicts -----------------------------------------------------------------------------


class Branches(L.Layer):
    """Layers in a dict, in a list of tuples, and a setting that is a list."""

    branches: dict[str, L.Layer]
    rows: list[tuple[L.Layer, ...]]
    weights: list[float]

    def forward(self, x: Any) -> Any:
        found = [layer(x) for layer in self.branches.values()]
        found += [layer(x) for row in self.rows for layer in row]
        total = found[0] * self.weights[0]
        for one, weight in zip(found[1:], self.weights[1:], strict=True):
            total = total + one * weight
        return total


def branched() -> md.Model:
    layer = Branches({"a": L.Dense(2)}, [(L.Dense(2), L.Dense(2))], [0.5, 0.25, 2.0], name="b")
    nested = L.Sequential([L.Sequential([L.Dense(4)], name="inner"), L.Dense(3)], name="outer")
    return md.Model([L.Input((3,)), nested, layer], loss="mse", optimizer="sgd", seed=1)


def _changes(model: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Whose words come, and the change."""
    outer, b = model.layer("outer"), model.layer("b")
    return [
        ("outer: parts", lambda: outer.parts.append(L.Dense(3))),
        ("outer: parts", lambda: outer.parts.__setitem__(0, L.Dense(3))),
        ("outer: parts", lambda: outer.parts.__delitem__(1)),
        ("outer: parts", lambda: outer.parts.reverse()),
        ("inner: parts", lambda: outer.parts[0].parts.pop()),
        ("b: branches", lambda: b.branches.__setitem__("a", L.Dense(2))),
        ("b: branches", lambda: b.branches.update(c=L.Dense(2))),
        ("b: branches", lambda: b.branches.clear()),
        ("b: rows", lambda: b.rows.insert(0, (L.Dense(2),))),
        ("b: weights", lambda: b.weights.__setitem__(0, 3.0)),
        ("b: weights", lambda: b.weights.__iadd__([1.0])),
        ("layers of a layer", lambda: outer.layers.pop()),
        ("Model: its list of layers", lambda: model.layers.append(L.Dense(2))),
        ("Model: its list of layers", lambda: model.layers.__setitem__(0, L.Dense(2))),
        ("Model: its lists of inputs and outputs", lambda: model.outputs.append(model.outputs[0])),
        ("Model: its lists of inputs and outputs", lambda: model.outputs.__setitem__(0, None)),
        ("Model: its lists of inputs and outputs", lambda: model.inputs.clear()),
        ("Model: output_names", lambda: model.output_names.__setitem__(0, "energy")),
    ]


def test_lists_and_dicts_of_layers_are_not_changed_in_place(tmp_path: Path) -> None:
    model = branched()
    model.fit(X, Y, verbose=False)
    expected = model.predict(X)
    for what, change in _changes(model):
        with pytest.raises(FrozenError, match=f"^{what}.* cannot be changed|^{what} are read"):
            change()
    for once_more in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(once_more.predict(X), expected)
        for what, change in _changes(once_more):
            with pytest.raises(FrozenError, match=f"^{what}"):
                change()
        assert once_more.layer("outer").parts[0]._parent is once_more.layer("outer")
    model.save(tmp_path / "m")
    loaded = md.load(tmp_path / "m", custom=[Branches])
    np.testing.assert_array_equal(loaded.predict(X), expected)
    with pytest.raises(FrozenError):
        loaded.layer("b").branches.clear()  # type: ignore[attr-defined]  # of one's own layer
    own = list(model.layers)
    own.pop()  # a list of one's own
    assert len(own) == 1 and len(model.layers) == 2


class Grows(L.Layer):
    """Makes a layer for each call but the first, and one with it; its formula may."""

    made: list[L.Layer]

    def forward(self, x: Any) -> Any:
        self.made.append(L.Dense(3))
        return self.made[-1](x)


def test_the_formula_of_a_layer_may_change_its_lists() -> None:
    layer, x = Grows([], name="g"), L.Input((3,))
    model = md.Model(inputs=x, outputs=layer(layer(x)), loss="mse", optimizer="sgd")
    assert len(layer.made) == 2 and len(model.values()) == 4
    with pytest.raises(FrozenError, match="g: made cannot be changed in place once the layer"):
        layer.made.append(L.Dense(3))


class Masked(L.Layer):
    """An array as a setting."""

    mask: np.ndarray[Any, Any]

    def forward(self, x: Any) -> Any:
        return x * self.mask


def test_an_array_among_the_settings_stays_as_the_layer_was_called_with() -> None:
    given = np.array([1.0, 2.0, 4.0], np.float32)
    layer = Masked(given)
    model = md.Model([L.Input((3,)), layer])
    given[0] = 5.0
    assert layer.mask[0] == 1.0
    np.testing.assert_array_equal(model.predict(X), X * np.float32([1, 2, 4]))
    with pytest.raises(ValueError, match="read-only"):
        layer.mask[0] = 3.0


# --- names, and what is trained ------------------------------------------------------------------


def test_a_layer_that_is_renamed_keeps_its_moments(tmp_path: Path) -> None:
    models = [fitted(optimizer=md.optim.SGD(0.1, momentum=0.9)) for _ in range(2)]
    models[1].layer("last").name = "energy"
    models[1].layer("first").name = None
    twins = [copy.deepcopy(models[1])]
    average = md.callbacks.ExponentialMovingAverage(0.5)
    for model in (*models, *twins):
        model.fit(X, Y, epochs=2, verbose=False, callbacks=[average])
    assert same_values(*models) and same_values(models[0], twins[0])
    assert {name.split("/")[0] for name in models[1].values()} == {"sequential_1", "energy"}
    models[1].save(tmp_path / "m")
    assert same_values(md.load(tmp_path / "m"), models[0])


def test_two_layers_of_one_name_are_refused_before_anything_is_saved(tmp_path: Path) -> None:
    model = fitted()
    model.layer("last").name = "first"
    for act in (lambda: model.save(tmp_path / "m"), lambda: model.fit(X, Y, verbose=False)):
        with pytest.raises(ArgumentError, match="layer name 'first' is used twice"):
            act()
    with pytest.raises(ArgumentError, match="name must be text or None, got 3"):
        model.layers[1].name = 3  # type: ignore[assignment]  # on purpose
    model.layers[1].name = "last"
    model.save(tmp_path / "m")


def test_what_is_trained_is_chosen_by_layers_between_fits() -> None:
    model = fitted()
    for name in ("trained", "local", "layer"):
        with pytest.raises(FrozenError, match=rf"first/dense_1/kernel: {name} cannot be set"):
            setattr(model.parameters()[0], name, None)
    with pytest.raises(ArgumentError, match="last: trainable must be True or False, got 'no'"):
        model.layer("last").trainable = "no"  # type: ignore[assignment]  # on purpose


@pytest.mark.parametrize("act", [
    lambda model: model.freeze("last"),
    lambda model: setattr(model.layer("last"), "name", "other"),
    lambda model: setattr(model, "loss", "mae"),
    lambda model: setattr(model, "metrics", ["mae"]),
    lambda model: setattr(model, "executor", "reference"),
])  # fmt: skip
def test_a_callback_cannot_change_what_the_step_was_made_for(act: Callable[[Any], None]) -> None:
    acts = md.callbacks.LambdaCallback(on_epoch_end=lambda fit: act(fit.model))
    with pytest.raises(
        ArgumentError, match=r"while a fit is under way|this model is being trained"
    ):
        model_of().fit(X, Y, epochs=3, verbose=False, callbacks=[acts])

    def there_and_back(fit: Any) -> None:
        fit.model.freeze("last")
        fit.model.unfreeze("last")

    model_of().fit(
        X, Y, verbose=False, callbacks=[md.callbacks.LambdaCallback(on_epoch_end=there_and_back)]
    )


def test_a_callback_in_the_client_of_workers_cannot_either() -> None:
    with md.workers(0):  # in this process
        for act in (
            lambda model: model.freeze("last"),
            lambda model: setattr(model, "loss", "mae"),
        ):
            acts = md.callbacks.LambdaCallback(on_epoch_end=lambda fit, act=act: act(fit.model))
            model = model_of()
            with pytest.raises(ArgumentError, match=r"while a fit is under way|is being trained"):
                model.fit(X, Y, epochs=3, verbose=False, callbacks=[acts])
            model.unfreeze()
            model.fit(X, Y, verbose=False, callbacks=[md.callbacks.LambdaCallback()])


# --- steps, callbacks, ways ----------------------------------------------------------------------


def test_a_step_says_how_settings_are_set() -> None:
    w = md.variable("w", np.ones(3))
    step: Any = md.optim.SGD(0.1).step(md.ops.sum(w * w), [w])
    with pytest.raises(FrozenError, match=r"write step.set\(learning_rate=0.01\)"):
        step.settings["learning_rate"] = 0.5
    with pytest.raises(FrozenError, match=r"write step.set\(learning_rate=0.01\)"):
        step.overrides.update(learning_rate=0.5)
    with pytest.raises(FrozenError, match="Step: optimizer cannot be set, the step is compiled"):
        step.optimizer = None


@pytest.mark.parametrize(("made", "name"), [
    (lambda folder: md.callbacks.ExponentialMovingAverage(0.9), "decay"),
    (lambda folder: md.callbacks.EarlyStopping(), "monitor"),
    (lambda folder: md.callbacks.ReduceLROnPlateau(), "mode"),
    (md.callbacks.Checkpoint, "folder"),
    (lambda folder: md.parallel.DataParallel(), "shards"),
    (lambda folder: md.parallel.DataParallel(), "shard"),
    (lambda folder: md.parallel.DataParallel(), "deterministic"),
    (lambda folder: md.parallel.Hybrid(), "layers"),
    (lambda folder: md.parallel.Pipeline(), "micro_batches"),
    (lambda folder: md.parallel.AsyncSGD(), "staleness"),
])  # fmt: skip
def test_what_a_callback_or_a_way_was_made_with_and_looks_at_once_is_refused(
    made: Callable[[Path], Any], name: str, tmp_path: Path
) -> None:
    one = made(tmp_path)
    with pytest.raises(
        FrozenError, match=rf"{type(one).__name__}: {name} cannot be set, .*{name}="
    ):
        setattr(one, name, 0.5)


def test_what_a_way_holds_is_not_changed_in_place() -> None:
    hybrid: Any = md.parallel.Hybrid({"dense_1": "columns"})
    pipeline: Any = md.parallel.Pipeline(stages=["dense_2"])
    for change in (lambda: hybrid.layers.update(a="rows"), lambda: pipeline.stages.append("a")):
        with pytest.raises(FrozenError, match="make another one"):
            change()


def test_a_checkpoint_tells_what_it_does_now(tmp_path: Path) -> None:
    callback = md.callbacks.Checkpoint(tmp_path, every_steps=5)
    callback.every_steps = 3
    assert callback.arguments()["every_steps"] == 3


class Patient(md.callbacks.EarlyStopping):
    """What a class of one's own keeps under such a name is its own."""

    def __init__(self, monitor: str) -> None:
        super().__init__(monitor)
        self.monitor = monitor


def test_a_callback_of_ones_own_may_keep_what_it_likes() -> None:
    assert Patient("loss").monitor == "loss"
    assert issubclass(FrozenError, MagmaDNNError)


@pytest.mark.parametrize(
    ("base", "name"),
    [(md.callbacks.ExponentialMovingAverage, "decay"), (md.callbacks.Checkpoint, "settings")],
)
def test_a_class_derived_from_a_callback_is_told_what_it_cannot_set(
    base: type[Any], name: str, tmp_path: Path
) -> None:
    """It was an AttributeError of a property."""

    class Mine(base):  # type: ignore[misc]  # a class that is a parameter
        def __init__(self) -> None:
            super().__init__(*([tmp_path] if name == "settings" else []))
            self.own = 1
            setattr(self, name, 0.5)

    with pytest.raises(FrozenError, match=rf"Mine: {name} cannot be set, a {base.__name__} tells"):
        Mine()


class _Holder(L.Layer):
    held: Any

    def forward(self, x: Any) -> Any:
        return x * 1.0


def test_a_list_of_another_layer_becomes_ones_own() -> None:
    """A new layer could not change it, and the error named the other layer."""
    x = L.Input((3,))
    for held, more in (([1, 2], lambda h: h.append(3)), ({"a": 1}, lambda h: h.update(b=2))):
        first = _Holder(held)
        first(x)
        second = _Holder(first.held)
        more(second.held)
        assert len(first.held) + 1 == len(second.held)
        second(x)
        with pytest.raises(FrozenError, match="held cannot be changed in place"):
            more(second.held)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_arrays_among_the_settings_of_a_copy_cannot_be_written_either(
    copied: Callable[[Any], Any],
) -> None:
    values = np.arange(3, dtype=np.float32)
    layer = _Holder([values, {"a": (values,)}])
    layer(L.Input((3,)))
    (first, second) = copied(layer).held
    for one in (first, second["a"][0]):
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 5
    assert values.flags.writeable
