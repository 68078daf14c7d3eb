"""Tasks that models copy from one that is built alike: none are made, and the bits are those of one's own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.runtime.cpu import images
from magmadnn.runtime.cpu.tasks import Tasks
from magmadnn.runtime.threads import thread_count

RNG = np.random.default_rng(11)
X = RNG.normal(size=(83, 131)).astype(
    np.float32
)  # beyond what runs copy: kernels read it where it lies
Y = RNG.integers(0, 3, 83)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tasks]:
    """The tasks that were made."""
    found: list[Tasks] = []
    make = Tasks.__init__

    def noted(tasks: Tasks, *args: Any, **named: Any) -> None:
        found.append(tasks)
        make(tasks, *args, **named)

    monkeypatch.setattr(Tasks, "__init__", noted)
    return found


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = thread_count()
    md.set_threads(request.param)
    yield request.param
    md.set_threads(before)


def network(seed: int, width: int = 23) -> md.Model:
    layers = [
        md.layers.Input((131,)),
        md.layers.Dense(width, activation="relu"),
        md.layers.Dropout(0.2),
        md.layers.BatchNorm(),
        md.layers.Dense(3),
    ]
    return md.Model(layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=seed)


def trained(model: md.Model, rows: int = 83) -> dict[str, bytes]:
    model.fit(X[:rows], Y[:rows], batch_size=16, epochs=2, verbose=False)
    found = {name: value.tobytes() for name, value in model.values().items()}
    return found | {"prediction": model.predict(X).tobytes()}


def test_models_after_the_second_make_no_tasks_and_get_the_bits_of_their_own(
    threads: int, made: list[Tasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 30 + threads  # that no test before had
    for seed in range(2):
        trained(network(seed, width))
    count = len(made)
    copied = [trained(network(seed, width)) for seed in (2, 3)]
    assert len(made) == count
    monkeypatch.setattr(images, "_images", weakref.WeakKeyDictionary())
    assert [trained(network(seed, width)) for seed in (2, 3)] == copied
    assert len(made) > count
    assert copied[0] != copied[1]


def test_models_that_train_in_turns_have_memory_of_their_own(made: list[Tasks]) -> None:
    for seed in range(2):
        trained(network(seed))
    alone = [trained(network(seed)) for seed in (4, 5)]
    beside = [network(seed) for seed in (4, 5)]
    for _ in range(2):  # an epoch of each in turns
        for model in beside:
            model.fit(X, Y, batch_size=16, epochs=1, verbose=False)
    for model, expected in zip(beside, alone, strict=True):
        values = {name: value.tobytes() for name, value in model.values().items()}
        assert values == {name: expected[name] for name in values}


def test_copies_read_what_is_fed_last(made: list[Tasks]) -> None:
    """Addresses of large arrays are set anew in each run, also in blocks that were copied."""
    models = [network(seed) for seed in range(4)]
    for model in models:
        model.predict(X)
    other = X[::-1].copy()
    for model in models:
        first, again = model.predict(X), model.predict(other)
        np.testing.assert_array_equal(again[::-1], first)


def test_what_is_kept_keeps_no_model_alive(made: list[Tasks]) -> None:
    model = network(0)
    trained(model)
    trained(network(1))
    held = [weakref.ref(node.value) for node in (p.node for p in model.parameters())]
    del model
    made.clear()
    gc.collect()
    assert not any(ref() for ref in held)


def test_copies_of_factors_are_not_shared_by_models(made: list[Tasks]) -> None:
    """Parts of a large product read a copy of a factor, which lies in memory of the tasks."""
    before = thread_count()
    md.set_threads(2)
    try:
        x = RNG.normal(size=(1031, 509)).astype(np.float32)

        def large(seed: int) -> md.Model:
            dense = md.layers.Dense(509, name="dense")
            return md.Model([md.layers.Input((509,)), dense], seed=seed)

        for seed in range(3):
            model = large(seed)
            weights = next(v for v in model.values().values() if v.ndim == 2)
            found = model.predict(x, batch_size=1031)
            exact = x.astype(np.float64) @ weights
            bound = 509 * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(weights))
            assert (np.abs(found - exact) <= bound).all()
        assert any(tasks._shared for tasks in made)
        for tasks in made:
            assert tasks.can_be_copied == (not tasks._shared)
    finally:
        md.set_threads(before)


def test_places_that_were_noted_are_those_of_a_plan_by_itself(made: list[Tasks]) -> None:
    models = [network(seed) for seed in range(3)]
    for model in models:
        model.predict(X)
    plan = models[2]._prediction.native.plan  # type: ignore[union-attr]
    assert plan.alike is not None and plan.alike.places
    copied = str(arena_of(plan, {"batch": 83}))
    plan.arenas.clear()
    plan.alike.places.clear()
    assert str(arena_of(plan, {"batch": 83})) == copied
