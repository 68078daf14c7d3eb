"""Models of one structure on a device: a block for each, in one launch, with the bits of their own fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.runtime.cuda.many import leg
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.loop.fit import Fit
from magmadnn.training.many import course
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.training.test_many_fits import BATCH, X, Y, measured

Build = Callable[[int], md.Model]
every_device = pytest.mark.parametrize("device", DEVICES)
RATES = (0.02, 0.1, 0.003)


def network(seed: int, optimizer: Any = None, *between: Any, **given: Any) -> md.Model:
    return md.Model(
        [layers.Input((7,)), layers.Dense(11, activation="tanh"), *between, layers.Dense(3)],
        loss=given.pop("loss", "cross_entropy"),
        optimizer=optimizer or optim.Adam(RATES[seed % 3]),
        metrics=given.pop("metrics", ["accuracy"]),
        seed=seed,
        device="cuda",
        **given,
    )


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many models each launch of blocks trains."""
    counts: list[int] = []
    launch = leg.GridLeg.launch

    def noted(self: leg.GridLeg, *given: int) -> None:
        counts.append(len(self._columns))
        launch(self, *given)

    monkeypatch.setattr(leg.GridLeg, "launch", noted)
    return counts


def digests(models: Sequence[md.Model]) -> list[str]:
    return [parameters_sha256(m.values().items()) for m in models]


def assert_same_as_alone(
    build: Build, count: int = 3, epochs: Any = 2, **given: Any
) -> list[md.History]:
    """Trains the models together and each alone; gives the histories of those that were trained together."""
    together, alone = ([build(k) for k in range(count)] for _ in range(2))
    given = {"x": X, "y": Y, "batch_size": BATCH} | given
    rows = given.pop("rows", None)
    histories = md.fit_many(together, epochs=epochs, rows=rows, verbose=False, **given)
    for k, (model, history) in enumerate(zip(alone, histories, strict=True)):
        own = dict(given)
        if rows is not None:
            own |= {"x": own["x"][rows[k]], "y": own["y"][rows[k]]}
        if isinstance(own["batch_size"], list):
            own["batch_size"] = own["batch_size"][k]
        length = epochs[k] if isinstance(epochs, list) else epochs
        assert measured(model.fit(epochs=length, verbose=0, **own)) == measured(history)
    assert digests(together) == digests(alone)
    return histories


@every_device
def test_seeds_and_rates(device: str, launched: list[int]) -> None:
    with on(device):
        assert_same_as_alone(network)
    assert launched
    assert set(launched) == {3}


@every_device
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: optim.SGD(0.1), marks=pytest.mark.long),
        pytest.param(lambda: optim.SGD(0.1, momentum=0.9, nesterov=True), marks=pytest.mark.long),
        lambda: optim.AdamW(0.02, weight_decay=0.1),
        lambda: optim.RMSProp(optim.cosine(0.02, 9)),
    ],
    ids=["sgd", "nesterov", "adamw", "schedule"],
)
def test_optimisers(device: str, optimizer: Any, launched: list[int]) -> None:
    with on(device):
        assert_same_as_alone(lambda k: network(k, optimizer()))
    assert set(launched) == {3}


@every_device
def test_layers_with_states_and_masks(device: str, launched: list[int]) -> None:
    between = [layers.BatchNorm, layers.LayerNorm, lambda: layers.Dropout(0.3)]
    with on(device):
        for layer in between:
            assert_same_as_alone(lambda k, layer=layer: network(k, None, layer()))  # type: ignore[misc]
    assert set(launched) == {3}


@every_device
def test_rows_validation_weights_epochs_and_sizes_of_batches(
    device: str, launched: list[int]
) -> None:
    rng = np.random.default_rng(2)
    rows = [rng.permutation(53)[:n] for n in (31, 53, 31)]
    with on(device):
        assert_same_as_alone(network, rows=rows)
        assert_same_as_alone(network, validation_data=(X[:19], Y[:19]))
        assert_same_as_alone(network, validation_split=0.3)
        assert_same_as_alone(network, sample_weight=rng.uniform(0.5, 2, 53).astype(np.float32))
        launched.clear()
        assert_same_as_alone(network, epochs=[1, 4, 2], batch_size=[8, 16, 8])
    assert set(launched) == {1, 2}


@needs_compiler
def test_models_of_other_structures_are_groups(launched: list[int]) -> None:
    def build(k: int) -> md.Model:
        return network(k) if k % 2 else network(k, None, layers.Dense(5, activation="relu"))

    with emulated_device():
        assert_same_as_alone(build, count=5)
    assert set(launched) == {2, 3}


@needs_compiler
def test_rates_of_dropout_are_launches_of_their_own(launched: list[int]) -> None:
    """They are constants of the program; learning rates, which are inputs, differ within a launch."""
    with emulated_device():
        assert_same_as_alone(lambda k: network(k, None, layers.Dropout(0.1 + 0.2 * (k % 2))), 5)
    assert set(launched) == {2, 3}


@needs_compiler
def test_a_model_that_fails_is_dropped_as_it_was(launched: list[int]) -> None:
    """The loss of one model overflows in its second epoch, within a piece of several."""
    x = X.copy()

    def build(k: int) -> md.Model:
        return network(k, optim.SGD(30.0 if k == 1 else 0.1), loss="mse", metrics=[])

    y = np.eye(3, dtype=np.float32)[Y]
    with emulated_device():
        together = [build(k) for k in range(3)]
        histories = md.fit_many(together, x, y, batch_size=BATCH, epochs=5, verbose=False)
        assert [h.failed for h in histories] == [False, True, False]
        alone = build(1)
        with pytest.raises(md.errors.NumericError) as caught:
            alone.fit(x, y, batch_size=BATCH, epochs=5, verbose=0)
        assert histories[1].stopped == str(caught.value)
        assert len(histories[1]) == 1
        assert digests([alone]) == digests(together[1:2])
        others = [build(k) for k in (0, 2)]
        for model in others:
            model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0)
        assert digests(others) == digests(together[::2])
    assert max(launched) == 3


@needs_compiler
def test_pieces_of_an_epoch(monkeypatch: pytest.MonkeyPatch, launched: list[int]) -> None:
    """With a step that takes long, an epoch is several rounds."""
    monkeypatch.setattr(course, "_DEVICE_RATE", 1e-3)
    with emulated_device():
        assert_same_as_alone(network)
    assert len(launched) > 4


class StopsItself(md.callbacks.Callback):
    """Stops one model after its first epoch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_epoch_end(self, fit: Fit) -> None:
        """Ask to stop."""
        if fit.model.seed == self._seed:
            fit.stop("enough")


@needs_compiler
def test_callbacks_stop_one_model(launched: list[int]) -> None:
    with emulated_device():
        models = [network(k) for k in range(3)]
        histories = md.fit_many(
            models, X, Y, batch_size=BATCH, epochs=3, callbacks=[StopsItself(1)], verbose=False
        )
        assert [len(h) for h in histories] == [3, 1, 3]
    assert {2, 3} <= set(launched)


@needs_compiler
def test_checkpoints_go_on(tmp_path: Path, launched: list[int]) -> None:
    def keeping(name: str) -> Callable[[int], list[Any]]:
        return lambda k: [md.callbacks.Checkpoint(tmp_path / f"{name}{k}")]

    with emulated_device():
        models = [network(k) for k in range(3)]
        md.fit_many(models, X, Y, batch_size=BATCH, epochs=1, callbacks=keeping("a"), verbose=False)
        again = [network(k) for k in range(3)]
        md.fit_many(again, X, Y, batch_size=BATCH, epochs=3, callbacks=keeping("a"), verbose=False)
        whole = [network(k) for k in range(3)]
        md.fit_many(whole, X, Y, batch_size=BATCH, epochs=3, verbose=False)
        assert digests(again) == digests(whole)
    assert launched


@needs_compiler
def test_larger_models_take_turns(monkeypatch: pytest.MonkeyPatch, launched: list[int]) -> None:
    with emulated_device() as engine:
        monkeypatch.setattr(engine, "shared_bytes", 1000)
        assert_same_as_alone(lambda k: network(k, None, layers.Dense(13)))  # of no group so far
    assert not launched


@needs_compiler
def test_data_lies_on_the_device_once() -> None:
    """Models of a set read one copy of the data."""
    with emulated_device():
        sent: list[tuple[int, ...]] = []
        models = [network(k) for k in range(4)]

        class Looks(md.callbacks.Callback):
            """Notes where the data of a training lies."""

            stands_aside = True

            def on_epoch_end(self, fit: Fit) -> None:
                """Take it down."""
                arrays = fit.source.arrays  # type: ignore[attr-defined]
                sent.append(tuple(a.place for part in arrays for a in part))

        md.fit_many(models, X, Y, batch_size=BATCH, epochs=1, callbacks=[Looks()], verbose=False)
    assert len(sent) == 4
    assert len(set(sent)) == 1
