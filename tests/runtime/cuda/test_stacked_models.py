"""Models too large for a block: steps of all as one program, each as by its own fit up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.errors import OutOfMemoryError
from magmadnn.runtime.cuda.data.data import Data
from magmadnn.runtime.cuda.many import course, stacked_group
from magmadnn.runtime.cuda.many.leg import Seat, Wanted
from magmadnn.runtime.cuda.many.stacks import Stack
from magmadnn.runtime.cuda.running.sliced import slices
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.runtime.cuda.test_grids import BATCH, StopsItself, X, Y, digests, network

Build = Callable[[int], md.Model]
every_device = pytest.mark.parametrize("device", DEVICES)
# of a step: sums of a stack may be cut otherwise than those of a model, and what differs stays in later ones
ROUNDINGS = 16


@pytest.fixture(autouse=True)
def no_block_has_room(stacks: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    """All models are trained by stacks, whose runs are counted."""
    monkeypatch.setattr(course, "is_small", lambda wanted: False)


def assert_near_alone(build: Build, count: int = 3, epochs: Any = 2, **given: Any) -> None:
    """Trains models together and each alone: parameters, states and histories are equal up to rounding."""
    together, alone = ([build(k) for k in range(count)] for _ in range(2))
    given = {"x": X, "y": Y, "batch_size": BATCH} | given
    rows = given.pop("rows", None)
    histories = md.fit_many(together, epochs=epochs, rows=rows, verbose=False, **given)
    for k, (model, one, history) in enumerate(zip(together, alone, histories, strict=True)):
        own = dict(given)
        if rows is not None:
            own |= {"x": own["x"][rows[k]], "y": own["y"][rows[k]]}
        length = epochs[k] if isinstance(epochs, list) else epochs
        expected = one.fit(epochs=length, verbose=0, **own)
        tolerance = ROUNDINGS * np.finfo(np.float32).eps * length * -(-len(own["x"]) // BATCH)
        for name, value in one.values().items():
            found, right = np.asarray(model.values()[name]), np.asarray(value)
            assert np.abs(found - right).max() <= tolerance * max(np.abs(right).max(), 1), name
        for name in (c for c in expected.columns if "second" not in c):
            np.testing.assert_allclose(history[name], expected[name], rtol=tolerance)
    parameters = [np.concatenate([np.ravel(v) for v in m.values().values()]) for m in together]
    assert all(np.abs(parameters[0] - other).max() > 1e-3 for other in parameters[1:])


@every_device
def test_seeds_and_rates(device: str, stacks: list[tuple[int, bool]]) -> None:
    with on(device):
        assert_near_alone(network)
    assert stacks
    assert set(stacks) == {(3, True)}


@every_device
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: optim.SGD(0.1, momentum=0.9, nesterov=True), id="nesterov"),
        pytest.param(lambda: optim.RMSProp(optim.cosine(0.02, 9)), id="schedule"),
        pytest.param(
            lambda: optim.AdamW(0.02, weight_decay=0.1), id="adamw", marks=pytest.mark.long
        ),
    ],
)
def test_optimisers(device: str, optimizer: Any, stacks: list[tuple[int, bool]]) -> None:
    with on(device):
        assert_near_alone(lambda k: network(k, optimizer()))
    assert set(stacks) == {(3, True)}


@every_device
@pytest.mark.parametrize(
    "layer",
    [
        layers.BatchNorm,
        pytest.param(lambda: layers.Dropout(0.3), id="dropout"),
        pytest.param(layers.LayerNorm, marks=pytest.mark.long),
    ],
)
def test_layers_with_states_and_masks(
    device: str, layer: Any, stacks: list[tuple[int, bool]]
) -> None:
    with on(device):
        assert_near_alone(lambda k: network(k, None, layer()), validation_data=(X[:19], Y[:19]))
    assert set(stacks) == {(3, True)}


@every_device
def test_rows_weights_and_orders(device: str, stacks: list[tuple[int, bool]]) -> None:
    """Rows are drawn on the device, or known on the host where there are weights, or in their order."""
    rng = np.random.default_rng(2)
    rows = [rng.permutation(53)[:31] for _ in range(3)]
    with on(device):
        assert_near_alone(network, rows=rows)
        weights = rng.uniform(0.5, 2, 53).astype(np.float32)
        assert_near_alone(network, sample_weight=weights)
        assert_near_alone(network, shuffle=False)
    assert set(stacks) == {(3, True)}


@needs_compiler
def test_models_that_end_leave_stacks_of_powers_of_two(stacks: list[tuple[int, bool]]) -> None:
    """Five begin; after an epoch four are left, then two, and the last one is by itself."""
    with emulated_device():
        assert_near_alone(network, 5, epochs=[2, 4, 1, 2, 3])
    assert stacks[0] == (5, True)
    assert {count for count, _ in stacks} == {5, 4, 2}


@needs_compiler
def test_bits_do_not_depend_on_earlier_calls(stacks: list[tuple[int, bool]]) -> None:
    """Six models are six, then two and one, also where a program of five is there already."""
    given: dict[str, Any] = {"batch_size": BATCH, "epochs": [1, 1, 1, 2, 2, 2], "verbose": False}
    found = []
    with emulated_device():
        for _ in range(2):
            models = [network(k) for k in range(6)]
            md.fit_many(models, X, Y, **given)
            found.append(digests(models))
            assert {count for count, _ in stacks} == {6, 2}  # of three that are left, one by itself
            five = [network(k) for k in range(5)]
            md.fit_many(five, X, Y, **(given | {"epochs": 1}))
            stacks.clear()
    assert found[0] == found[1]


@needs_compiler
def test_a_model_that_fails_is_dropped_as_it_was(stacks: list[tuple[int, bool]]) -> None:
    """The epoch in which one overflows is run anew, one by one; the others go on together."""
    y = np.eye(3, dtype=np.float32)[Y]

    def build(k: int) -> md.Model:
        return network(k, optim.SGD(30.0 if k == 1 else 0.1), loss="mse", metrics=[])

    with emulated_device():
        together, alone = [build(k) for k in range(3)], build(1)
        histories = md.fit_many(together, X, y, batch_size=BATCH, epochs=5, verbose=False)
        assert [h.failed for h in histories] == [False, True, False]
        with pytest.raises(md.errors.NumericError) as caught:
            alone.fit(X, y, batch_size=BATCH, epochs=5, verbose=0)
        assert histories[1].stopped == str(caught.value)
        assert digests([alone]) == digests(together[1:2])
        assert [len(h) for h in histories] == [5, 1, 5]
    assert stacks[0] == (3, False)


@needs_compiler
def test_callbacks_stop_one_model(stacks: list[tuple[int, bool]]) -> None:
    with emulated_device():
        models = [network(k) for k in range(3)]
        histories = md.fit_many(
            models, X, Y, batch_size=BATCH, epochs=3, callbacks=[StopsItself(1)], verbose=False
        )
        assert [len(h) for h in histories] == [3, 1, 3]
    counts = [count for count, _ in stacks]  # on a slow machine an epoch is several runs
    assert counts == sorted(counts, reverse=True)
    assert set(counts) == {3, 2}


@needs_compiler
def test_checkpoints_go_on(tmp_path: Path, stacks: list[tuple[int, bool]]) -> None:
    """What a stack leaves is in the models: a call that is resumed gives the bits of one."""

    def keeping(k: int) -> list[Any]:
        return [md.callbacks.Checkpoint(tmp_path / str(k))]

    given: dict[str, Any] = {"batch_size": BATCH, "verbose": False}
    with emulated_device():
        for epochs in (1, 3):
            again = [network(k) for k in range(3)]
            md.fit_many(again, X, Y, epochs=epochs, callbacks=keeping, **given)
        whole = [network(k) for k in range(3)]
        md.fit_many(whole, X, Y, epochs=3, **given)
        assert digests(again) == digests(whole)
    assert {count for count, _ in stacks} == {3}


@needs_compiler
def test_stacks_that_memory_has_no_room_for_are_halved(
    monkeypatch: pytest.MonkeyPatch, stacks: list[tuple[int, bool]]
) -> None:
    begin = Stack.__init__

    def short(self: Stack, wanted: Sequence[Wanted], count: int) -> None:
        if count > 2:
            raise OutOfMemoryError("no room")
        begin(self, wanted, count)

    monkeypatch.setattr(Stack, "__init__", short)
    with emulated_device():
        assert_near_alone(network, 5, epochs=1)
    assert stacks == [(2, True), (2, True)]  # the fifth by itself


@needs_compiler
def test_memory_goes_back_once_it_is_much_or_not_used(
    monkeypatch: pytest.MonkeyPatch, stacks: list[tuple[int, bool]]
) -> None:
    held: list[bool] = []
    let_go = Stack.let_go

    def noted(self: Stack) -> None:
        held.append(True)
        let_go(self)

    monkeypatch.setattr(Stack, "let_go", noted)
    given: dict[str, Any] = {"batch_size": BATCH, "epochs": 1, "verbose": False}
    with emulated_device():
        models = [network(k) for k in range(2)]
        md.fit_many(models, X, Y, **given)
        assert not held
        others = [network(k, None, layers.Dense(5)) for k in range(2)]
        md.fit_many(others, X, Y, **given)
        assert held == [True]  # the first one's, which that call did not use
        monkeypatch.setattr(stacked_group, "_KEPT_SHARE", 0)
        md.fit_many(models, X, Y, **given)
        assert len(held) == 3
        md.fit_many(models, X, Y, **given)
    assert {count for count, _ in stacks} == {2}


@needs_compiler
def test_convolutions_without_a_library_take_turns(stacks: list[tuple[int, bool]]) -> None:
    """They are products of matrices then; each epoch is the model's own, with its bits."""

    def build(k: int) -> md.Model:
        return md.Model(
            [
                layers.Input((6, 6, 1)),
                layers.Conv2D(3, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(2),
            ],
            loss="cross_entropy",
            optimizer=optim.SGD(0.1),
            seed=k,
            device="cuda",
        )

    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((20, 6, 6, 1)).astype(np.float32), rng.integers(0, 2, 20)
    with emulated_device():
        together, alone = ([build(k) for k in range(2)] for _ in range(2))
        md.fit_many(together, x, y, batch_size=BATCH, epochs=1, verbose=False)
        for model in alone:
            model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
        assert digests(together) == digests(alone)
    assert not stacks


def test_seats_of_other_data_are_other_stacks() -> None:
    """One gather serves all models: they must read the same arrays, and as many rows."""
    rows = np.arange(8)

    def piece(data: int, order: Any = rows, epochs: int = 1) -> stacked_group.Piece:
        return stacked_group.Piece(epochs, [2], [Seat([0], [data], order, [])])

    looks = stacked_group._looks
    assert looks(piece(16)) == looks(piece(16, rows + 1))
    for other in (piece(32), piece(16, rows[:4]), piece(16, epochs=2)):
        assert looks(piece(16)) != looks(other)


@every_device
@pytest.mark.parametrize("how", ["picked", "not aligned", "read otherwise too", "bytes"])
def test_batches_are_read_where_rows_lie(
    device: str, how: str, stacks: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of five larger models pick rows of the data; else batches are copied."""
    seen: list[int] = []
    find = slices.picked_rows

    def noted(items: Any, layout: Any, sources: Any, *how: Any) -> Any:
        found = find(items, layout, sources, *how)
        seen.append(len(found[1]))
        return found

    monkeypatch.setattr(slices, "picked_rows", noted)
    if how == "not aligned":
        monkeypatch.setattr(Data, "is_aligned", False)
    rng = np.random.default_rng(9)
    # On a GPU one step in TF32: in more of them its roundings grow as training amplifies them.
    count, width, epochs = (20, 64, 1) if device == "gpu" else (70, 64, 2)
    x: Any = rng.standard_normal((count, width), np.float32)
    if how == "bytes":
        x = rng.integers(0, 3, (count, width), np.uint8)
    y = rng.integers(0, 5, count)

    def build(k: int) -> md.Model:
        between: list[Any] = [
            layers.Dense(68, activation="relu"),
            layers.Dense(64, activation="relu"),
        ]
        if how == "read otherwise too":
            between = [layers.Residual([layers.Dense(64, activation="tanh")])]
        return md.Model(
            [layers.Input((width,)), *between, layers.Dense(5)],
            loss="cross_entropy",
            optimizer=optim.SGD(0.05 * (k + 1)),
            seed=k,
            device="cuda",
            precision="tf32",
        )

    with on(device):
        together, alone = ([build(k) for k in range(5)] for _ in range(2))
        began = [{name: np.array(v) for name, v in m.values().items()} for m in alone]
        histories = md.fit_many(together, x, y, batch_size=20, epochs=epochs, verbose=False)
        expected = [m.fit(x, y, batch_size=20, epochs=epochs, verbose=0) for m in alone]
    assert stacks
    assert all(went_well for _, went_well in stacks)
    assert max(seen) == (1 if how == "picked" else 0)
    # Of how far training moved them: six factors of a step are rounded to 2^-11, as many of the other way.
    # On the emulated device factors are exact.
    tolerance = 12 * 2.0**-11 if device == "gpu" else ROUNDINGS * np.finfo(np.float32).eps * 8
    for model, one, initial, history, own in zip(
        together, alone, began, histories, expected, strict=True
    ):
        for name, value in one.values().items():
            found, right = np.asarray(model.values()[name]), np.asarray(value)
            moved = np.abs(right - initial[name]).max()
            assert np.abs(found - right).max() <= tolerance * max(moved, 1e-3), name
        np.testing.assert_allclose(history["loss"], own["loss"], rtol=tolerance)
