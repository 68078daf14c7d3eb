"""Transformed filters are kept from run to run, and made anew when anybody wrote the filters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.llvm.driver.driver import Driver
from magmadnn.graph import Node
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.lasting_steps import LastingSteps
from magmadnn.runtime.threads import thread_count

ROWS, PLACES, CHANNELS = 3, 8, 97
RNG = np.random.default_rng(3)
X = RNG.standard_normal((ROWS, PLACES, PLACES, CHANNELS)).astype(np.float32)
Y = RNG.integers(0, 4, ROWS)


def network(places: int = PLACES, **settings: Any) -> md.Model:
    x = md.layers.Input((places, places, CHANNELS))
    hidden = md.layers.Conv2D(101, 3, padding=1, activation="relu", name="one")(x)
    hidden = md.layers.Conv2D(103, 3, padding=1, name="two")(hidden)
    logits = md.layers.Dense(4)(md.layers.GlobalAveragePooling2D()(hidden))
    return md.Model(inputs=x, outputs=logits, loss="cross_entropy", seed=1, **settings)


def fresh(model: md.Model, x: Any = X) -> Any:
    """What a program that has never run gives."""
    nodes: list[Node] = [output.node for output in model.outputs]
    (found,) = Executable(nodes, executor="native").run({model.inputs[0].node: x})
    return found


@pytest.fixture(name="made")
def _made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever transforms are made."""
    count: list[int] = []
    run = LastingSteps.run

    def counted(self: LastingSteps, drive: Callable[[Driver], bool]) -> bool:
        def driven(driver: Driver) -> bool:
            count.append(1)
            return drive(driver)

        return run(self, driven)

    monkeypatch.setattr(LastingSteps, "run", counted)
    return count


def test_transforms_are_made_once(made: list[int]) -> None:
    model = network()
    first = model.predict(X)
    assert len(made) == 1
    for _ in range(3):
        assert np.array_equal(model.predict(X), first)
    assert len(made) == 1
    assert np.array_equal(fresh(model), first)


def test_results_do_not_depend_on_threads(made: list[int]) -> None:
    model, found, before = network(), [], thread_count()
    try:
        for count in (1, 2, 3):
            md.set_threads(count)
            found += [model.predict(X), model.predict(X)]
    finally:
        md.set_threads(before)
    assert all(np.array_equal(found[0], other) for other in found)
    assert len(made) == 3


# Each way gets a folder for files, and gives what writes the parameters of a model once more.
Writer = Callable[[md.Model, Path], Callable[[], Any]]


def kernel(model: md.Model, layer: str = "two") -> Any:
    return model.named()[f"{layer}/kernel"]


def by_view(model: md.Model, _: Path) -> Callable[[], Any]:
    view = kernel(model).value.numpy()  # held since before the first prediction

    def write() -> None:
        view[1, 2, 5, 7] += 0.25

    return write


def by_last_bit(model: md.Model, _: Path) -> Callable[[], Any]:
    words = kernel(model).value.numpy().reshape(-1).view(np.uint32)

    def write() -> None:
        words[-1] ^= 1 << 22

    return write


def by_array(model: md.Model, _: Path) -> Callable[[], Any]:
    array = np.asarray(kernel(model, "one").value)

    def write() -> None:
        array[...] *= 1.25

    return write


def by_dlpack(model: md.Model, _: Path) -> Callable[[], Any]:
    array = np.from_dlpack(kernel(model).value)

    def write() -> None:
        np.add(array, 0.5, out=array)

    return write if array.flags.writeable else by_view(model, _)


def by_variable(model: md.Model, _: Path) -> Callable[[], Any]:
    return lambda: kernel(model).assign(kernel(model).value.read() + 0.5)


def by_element(model: md.Model, _: Path) -> Callable[[], Any]:
    def write() -> None:
        kernel(model).value[0, 0, 0, 0] = float(kernel(model).value[0, 0, 0, 0]) + 1

    return write


def by_memory(model: md.Model, _: Path) -> Callable[[], Any]:
    numbers = itertools.count(1)
    return lambda: kernel(model).value.memory.set(-1, next(numbers))


def by_fill(model: md.Model, _: Path) -> Callable[[], Any]:
    numbers = itertools.count(1)
    return lambda: kernel(model).value.memory.fill(next(numbers) / 8)


def by_model(model: md.Model, _: Path) -> Callable[[], Any]:
    return lambda: model.assign({n: v * 1.5 for n, v in model.values().items()})


def by_fit(model: md.Model, _: Path) -> Callable[[], Any]:
    model.optimizer = md.optim.SGD(0.1)
    return lambda: model.fit(X, Y, epochs=1, batch_size=2, verbose=False)


def by_adam(model: md.Model, _: Path) -> Callable[[], Any]:
    model.optimizer = md.optim.Adam(0.01)
    return lambda: model.fit(X, Y, epochs=2, batch_size=ROWS, verbose=False)


def by_update(model: md.Model, _: Path) -> Callable[[], Any]:
    """An update of one's own, whose program ran before."""
    node = kernel(model).node
    double = Executable([], [(node, md.ops.multiply(kernel(model), 2.0).node)], executor="native")
    double.run({})
    return lambda: double.run({})


def by_checkpoint(model: md.Model, folder: Path) -> Callable[[], Any]:
    """The best parameters of a training come back."""
    model.optimizer = md.optim.SGD(0.5)
    keep = md.callbacks.EarlyStopping(patience=1, restore_best=True)
    return lambda: model.fit(
        X, Y, epochs=3, verbose=False, callbacks=[keep], validation_data=(X, (Y + 1) % 4)
    )


WAYS: list[Writer] = [
    by_view, by_last_bit, by_array, by_dlpack, by_variable, by_element, by_memory, by_fill, by_model,
    by_fit, by_adam, by_update, by_checkpoint,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nobody_sees_old_filters(way: Writer, tmp_path: Path) -> None:
    model = network()
    write = way(model, tmp_path)
    before = model.predict(X)
    for _ in range(2):
        write()
        after = model.predict(X)
        assert not np.array_equal(after, before)
        assert np.array_equal(after, fresh(model))
        assert np.array_equal(after, model.predict(X))
        before = after


def test_callbacks_see_and_write_new_filters() -> None:
    seen = []

    class Look(md.callbacks.Callback):
        def on_epoch_end(self, fit: Any) -> None:
            kernel(model).value.numpy()[...] *= 0.9
            seen.append(np.array_equal(model.predict(X), fresh(model)))

    model = network(optimizer="sgd")
    model.predict(X)
    model.fit(X, Y, epochs=3, batch_size=2, verbose=False, callbacks=[Look()])
    assert seen == [True] * 3
    assert np.array_equal(model.predict(X), fresh(model))


def test_transforms_that_were_interrupted_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = network(), LastingSteps.run
    model.predict(X)

    def interrupted(self: LastingSteps, drive: Callable[[Driver], bool]) -> bool:
        def broken(driver: Driver) -> bool:
            raise KeyboardInterrupt

        return run(self, broken)

    kernel(model).value.numpy()[...] = 3
    with monkeypatch.context() as patch:
        patch.setattr(LastingSteps, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.predict(X)
    assert np.array_equal(model.predict(X), fresh(model))


def test_one_image_is_summed_directly_where_that_reads_less() -> None:
    """Four tiles of 8 x 8 places; a larger batch, and sixteen tiles, take transformed filters."""
    model, larger = network(), network(2 * PLACES)
    plans = [m.plan(batch_size=rows) for m, rows in ((model, 1), (model, 2), (larger, 1))]
    assert ["winograd" in plan for plan in plans] == [False, True, True]
    one, several = model.predict(X[:1]), model.predict(X)
    assert not np.array_equal(one, several[:1])  # other sums
    assert np.abs(one - several[:1]).max() < 1e-4 * np.abs(one).max()
    assert np.array_equal(one, model.predict(X[:1]))


def test_small_networks_and_trainings_keep_nothing(made: list[int]) -> None:
    x = md.layers.Input((7,))
    model = md.Model(inputs=x, outputs=md.layers.Dense(5)(x), loss="mse", optimizer="sgd")
    model.fit(RNG.random((8, 7)), RNG.random((8, 5)), epochs=2, verbose=False)
    model.predict(RNG.random((8, 7)))
    trained = network(optimizer="sgd")
    trained.fit(X, Y, epochs=2, verbose=False)
    assert not made
