"""Steps that are built like an earlier one: no graph is made for them, and bits and errors are the same."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.optim.building import alike
from magmadnn.optim.building.update import Update
from magmadnn.optim.parts import Part

RNG = np.random.default_rng(7)
X = RNG.normal(size=(83, 5)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """The updates whose graphs were made; nothing is known at first."""
    monkeypatch.setattr(alike, "_known", type(alike._known)())
    updates: list[Update] = []
    build = Update._build

    def noted(update: Update, found: Any) -> Any:
        updates.append(update)
        return build(update, found)

    monkeypatch.setattr(Update, "_build", noted)
    return updates


def network(seed: int = 0, optimizer: Any = "adam", name: str = "hidden", **more: Any) -> md.Model:
    layers = [
        md.layers.Input((5,)),
        md.layers.Dense(19, activation="relu", name=name),
        md.layers.BatchNorm(name="norm"),
        md.layers.Dropout(0.2, name="dropout"),
        md.layers.Dense(2, name="last"),
    ]
    return md.Model(
        layers, loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=seed, **more
    )


def trained(model: md.Model) -> dict[str, bytes]:
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert model._step is not None
    state = {k: np.asarray(v).tobytes() for k, v in model._step[2].state().items()}
    return state | {name: value.tobytes() for name, value in model.values().items()}


def made(count: int, **options: Any) -> None:
    """Train so many models."""
    for seed in range(count):
        trained(network(seed, **options))


def test_the_third_of_a_structure_has_no_graph_and_the_bits_of_one_that_has(
    built: list[Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(2)
    assert len(built) == 2
    rates = [md.optim.Adam(rate) for rate in (0.001, 0.03)]  # settings are inputs of the step
    found = [trained(network(5, rate)) for rate in rates]
    assert len(built) == 2 and found[0] != found[1]
    monkeypatch.setattr(alike, "_MOST", 0)
    alike._known.clear()
    assert [trained(network(5, rate)) for rate in rates] == found
    assert len(built) == 4


def test_what_is_built_otherwise_gets_a_graph(built: list[Update]) -> None:
    made(3)
    assert len(built) == 2
    frozen = network()
    frozen.layers[1].trainable = False
    others = [
        network(optimizer="sgd"),
        network(optimizer=md.optim.Adam(clip_norm=1.0)),
        network(name="other"),
        network(precision="mixed_bf16"),
        frozen,
    ]
    for number, model in enumerate(others):
        trained(model)
        assert len(built) == 3 + number
    nesterov = [md.optim.SGD(0.1, momentum=0.9, nesterov=truth) for truth in (False, True)]
    for rule in nesterov:
        made(3, optimizer=rule)
    assert len(built) == 7 + 4


def test_parts_of_users_are_asked_each_time(built: list[Update]) -> None:
    asked = []

    @dataclass(frozen=True)
    class Halved(Part):
        def update(self, g: Any, w: Any, slots: Any, settings: Any, count: Any) -> Any:
            asked.append(g)
            return g * 0.05, {}

    made(3, optimizer=md.optim.chain(Halved()))
    assert len(built) == 3 and len(asked) == 3 * 6


def test_texts_and_pictures_are_made_when_they_are_asked_for(built: list[Update]) -> None:
    models = [network(seed) for seed in range(3)]
    texts = []
    for model in models:
        trained(model)
        assert model._step is not None
        step = model._step[2]
        graph = str(step._executable.program) if model is models[-1] else ""
        texts.append((model.plan(X, Y, batch_size=16), len(step.plan.program.nodes())))
    assert texts[0] == texts[1] == texts[2] and len(built) == 3
    assert "hidden/kernel/m := " in graph and "count := " in graph


def test_nan_is_found_where_it_begins(built: list[Update]) -> None:
    made(2)
    errors = []
    for model in (network(3), network(3, name="other")):  # known, and not
        trained(model)
        model.layers[0].kernel.value.write(np.full((5, 19), 3e38, np.float32))
        with pytest.raises(NumericError) as caught:
            model.fit(X * 100, Y, epochs=1, verbose=0)
        errors.append(str(caught.value).replace("other", "hidden"))
    assert errors[0] == errors[1] and "hidden" in errors[0]


def test_a_step_of_one_batch_needs_no_graph_where_nothing_is_wrong(built: list[Update]) -> None:
    losses = []
    for _ in range(3):
        x, y = md.placeholder("x", (None, 3)), md.placeholder("y", (None,))
        w = md.variable("w", np.ones((3, 1), np.float32))
        loss = md.ops.mean((md.ops.reshape(x @ w, (-1,)) - y) ** 2)
        step = md.optim.SGD(0.1).step(loss, [w])
        feeds = {x: X[:7, :3], y: X[:7, 3]}
        losses.append([float(step(feeds)) for _ in range(3)])
    assert losses[0] == losses[1] == losses[2] and losses[0][0] > losses[0][2]


def test_what_is_known_keeps_no_model_alive() -> None:
    made(2)
    model = network(3)
    trained(model)
    alive = weakref.ref(model.layers[0].kernel.value)
    del model
    gc.collect()
    assert alive() is None


def test_a_state_goes_on_in_a_step_without_a_graph(built: list[Update]) -> None:
    made(2)
    whole, half = network(3), network(3)
    whole.fit(X, Y, batch_size=16, epochs=4, verbose=0)
    half.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert half._step is not None
    half.fit(X, Y, batch_size=16, epochs=4, initial_epoch=2, verbose=0)
    assert len(built) == 2
    assert {k: v.tobytes() for k, v in whole.values().items()} == {
        k: v.tobytes() for k, v in half.values().items()
    }


def test_variables_that_layers_must_not_update_are_told_apart(built: list[Update]) -> None:
    def ended(kept: bool) -> list[Any]:
        model = network()
        x = md.placeholder("x", (None, 5))
        loss = md.ops.mean(model(x) ** 2)
        trained = model.parameters()
        states = [v for v in model.variables() if all(v.node is not p.node for p in trained)]
        before = [v.value.numpy().copy() for v in states]
        md.optim.SGD(0.1).step(loss, trained, kept=states if kept else ()).run({x: X}, guard=True)
        return [np.array_equal(b, v.value.numpy()) for b, v in zip(before, states, strict=True)]

    for kept in (False, False, False, True):
        assert all(ended(kept)) is kept, kept
    assert len(built) == 3
