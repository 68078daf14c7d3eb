"""Networks whose whole training step is compiled: no call of NumPy, and many batches in one native call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import NumericError
from magmadnn.optim import StepSlices
from magmadnn.runtime.cpu.sliced import slices
from magmadnn.runtime.cpu.sliced.slices import Saved
from tests.runtime.cuda.devices import DEVICES, on

RNG = np.random.default_rng(7)
ROWS = 103
X = RNG.normal(size=(ROWS, 7)).astype(np.float32)
Y = (X @ RNG.normal(size=(7, 3))).argmax(1)
SERIES = RNG.normal(size=(ROWS, 5, 7)).astype(np.float32)
WORDS = RNG.integers(0, 11, (ROWS, 6))
layers = md.layers


def model(middle: list[Any], **where: Any) -> md.Model:
    return md.Model(
        [layers.Input((7,)), *middle, layers.Dense(3)],
        loss="cross_entropy",
        optimizer=md.optim.Adam(0.01),
        metrics=["accuracy"],
        **where,
    )


def dropout(**where: Any) -> tuple[md.Model, Any, Any]:
    hidden = [layers.Dense(13, activation="tanh"), layers.Dropout(0.3), layers.Dense(11)]
    return model([layers.Dropout(0.1), *hidden, layers.Dropout(0.5)], **where), X, Y


def embedding(**where: Any) -> tuple[md.Model, Any, Any]:
    made = md.Model(
        [
            layers.Input((6,), dtype="int64"),
            layers.Embedding(11, 8),
            layers.Flatten(),
            layers.Dense(3),
        ],
        loss=md.losses.CrossEntropy(class_weight=(1.0, 2.0, 0.5)),
        optimizer=md.optim.SGD(0.1, momentum=0.9),
        metrics=["accuracy"],
        **where,
    )
    return made, WORDS, Y


def two_inputs(**where: Any) -> tuple[md.Model, Any, Any]:
    a, b = layers.Input((7,)), layers.Input((3,))
    joined = ops.concat([layers.Dense(5)(a), b], axis=1)
    made = md.Model(
        inputs=[a, b],
        outputs=layers.Dense(3)(joined),
        loss="cross_entropy",
        optimizer=md.optim.Adam(0.01),
        **where,
    )
    return made, [X, np.ascontiguousarray(X[:, :3])], Y


def counted(**where: Any) -> tuple[md.Model, Any, Any]:
    made = md.Model(
        [layers.Input((7,)), layers.Dense(5, activation="relu"), layers.Dense(3)],
        loss="cross_entropy",
        optimizer="sgd",
        metrics=[md.metrics.F1(), md.metrics.TopK(2), md.metrics.ConfusionMatrix()],
        **where,
    )
    return made, X, Y


def attention(**where: Any) -> tuple[md.Model, Any, Any]:
    x = layers.Input((5, 7))
    query, key, value = layers.Dense(8)(x), layers.Dense(8)(x), layers.Dense(8)(x)
    weights = ops.softmax(ops.matmul(query, ops.swapaxes(key, -1, -2)) * 8**-0.5)
    mixed = layers.LayerNorm()(layers.Dense(7)(ops.matmul(weights, value)) + x)
    made = md.Model(
        inputs=[x],
        outputs=layers.Dense(3)(layers.Flatten()(mixed)),
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.1, momentum=0.9),  # Adam: the key's bias has noise as gradient
        metrics=["accuracy"],
        **where,
    )
    return made, SERIES, Y


def mixed(precision: str) -> Callable[..., tuple[md.Model, Any, Any]]:
    def network(**where: Any) -> tuple[md.Model, Any, Any]:
        made = md.Model(
            [layers.Input((7,)), layers.Dense(11, activation="tanh"), layers.Dense(5, activation="relu"),
             layers.Dense(3)],
            loss="cross_entropy", optimizer="sgd", metrics=["accuracy"],
            precision=precision, **where,
        )  # fmt: skip
        return made, X, Y

    network.__name__ = precision
    return network


NETWORKS: list[Callable[..., tuple[md.Model, Any, Any]]] = [
    dropout, embedding, two_inputs, counted, attention, mixed("mixed_bf16"),
    mixed("mixed_fp16"),
]  # fmt: skip


class LookAtEachBatch(md.callbacks.Callback):
    """Does nothing, but makes batches run one by one."""

    def on_batch_end(self, fit: Any) -> None:
        pass


def trained(network: Any, single: bool = False, **where: Any) -> dict[str, Any]:
    made, x, y = network(**where)
    looks = [LookAtEachBatch()] if single else []
    made.fit(x, y, batch_size=17, epochs=3, verbose=False, callbacks=looks)
    return dict(made.values())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_whole_step_is_compiled(network: Any) -> None:
    made, x, y = network()
    assert ", 0 calls of NumPy" in made.plan(x, y)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches of each slice that runs."""
    found: list[int] = []
    run, launch = StepSlices.run, StepSlices.launch

    def counted(self: StepSlices, order: Any, count: int, follows: bool) -> Any:
        found.append(count)
        return run(self, order, count, follows)

    def launched(self: StepSlices, order: Any, count: int) -> Any:
        flight = launch(self, order, count)
        if flight is not None:  # else `run` follows
            found.append(count)
        return flight

    monkeypatch.setattr(StepSlices, "run", counted)
    monkeypatch.setattr(StepSlices, "launch", launched)
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_slices_give_the_bits_of_single_batches(network: Any, counts: list[int]) -> None:
    sliced = trained(network)
    assert sum(counts) == 3 * (ROWS // 17)  # all but the last batch of an epoch, which is smaller
    counts.clear()
    single = trained(network, single=True)
    assert not counts
    for name, value in sliced.items():
        assert np.array_equal(value, single[name]), name


@pytest.mark.parametrize("network", NETWORKS)
def test_training_agrees_with_the_reference(network: Any) -> None:
    near(trained(network), trained(network, executor="reference"))


def near(found: dict[str, Any], reference: dict[str, Any]) -> None:
    for name, value in found.items():
        # 21 steps of Adam, whose direction is a quotient of small numbers, in float32
        assert np.allclose(value, reference[name], rtol=1e-3, atol=1e-5), name


EMULATED, GPU = DEVICES  # the emulated one compiles with g++, which takes its time
LATER = pytest.param("emulated", marks=[*EMULATED.marks, pytest.mark.long])


@pytest.mark.parametrize("device", [LATER, GPU])
@pytest.mark.parametrize("network", NETWORKS)
def test_on_a_device(network: Any, device: str, counts: list[int]) -> None:
    """A whole step is compiled, slices have the bits of single batches, both agree with the reference."""
    with on(device):
        made, x, y = network(device="cuda")
        assert ", 0 calls of NumPy" in made.plan(x, y)
        sliced = trained(network, device="cuda")
        assert sum(counts) == 3 * (ROWS // 17)
        single = trained(network, single=True, device="cuda")
        assert sum(counts) == 3 * (ROWS // 17)
    for name, value in sliced.items():
        assert np.array_equal(value, single[name]), name
    near(sliced, trained(network, executor="reference"))


# --- weights of samples ---------------------------------------------------------------------------

WEIGHTS = RNG.uniform(0.2, 3.0, ROWS)


def from_arrays(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    return [X, Y], {"sample_weight": WEIGHTS, "batch_size": 17}


def with_classes(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    weights = {"sample_weight": WEIGHTS, "class_weight": {0: 1.0, 1: 0.5, 2: 3.0}}
    return [X, Y], {**weights, "batch_size": 17}


def from_files(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    np.save(folder / "x.npy", X)
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    return [mapped, Y], {"sample_weight": WEIGHTS, "batch_size": 17}


def from_a_function(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    def batches() -> Any:
        for k in range(0, ROWS - 16, 17):
            yield X[k : k + 17], Y[k : k + 17], WEIGHTS[k : k + 17]

    return [batches], {}


@pytest.mark.parametrize("source", [from_arrays, with_classes, from_files, from_a_function])
def test_weights_of_samples_take_part_in_slices(
    source: Any, tmp_path: Path, counts: list[int]
) -> None:
    """Parameters and the figures of every epoch have the bits of single batches."""
    results = []
    for looks in ([], [LookAtEachBatch()]):
        network = model([layers.Dense(13, activation="tanh")])
        data, settings = source(tmp_path)
        history = network.fit(*data, epochs=3, verbose=False, callbacks=looks, **settings)
        figures = [(row["loss"], row["accuracy"]) for row in history.rows]
        results.append((dict(network.values()), figures))
        if not looks:
            assert sum(counts) == 3 * (ROWS // 17)
            counts.clear()
    assert not counts
    (sliced, figures), (single, expected) = results
    assert figures == expected
    for name, value in sliced.items():
        assert np.array_equal(value, single[name]), name
    plain = model([layers.Dense(13, activation="tanh")])
    unweighted = plain.fit(X, Y, batch_size=17, epochs=3, verbose=False)
    assert unweighted.rows[-1]["loss"] != figures[-1][0]


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[Saved]:
    """Each batch is a slice; what variables were saved for."""
    found: list[Saved] = []
    save = Saved.save

    def noted(saved: Saved) -> None:
        found.append(saved)
        save(saved)

    monkeypatch.setattr(StepSlices, "longest", 1)
    monkeypatch.setattr(Saved, "save", noted)
    return found


class Stop(md.callbacks.Callback):
    """Asks to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_batch_end(self, fit: Any) -> None:
        if fit.steps == self.steps:
            fit.stop("enough")


def diverging(steps: int) -> md.Model:
    """The last of `steps` steps throws its weights so far that the next one overflows."""
    rate = md.optim.piecewise((steps - 1,), (0.1, 3e38))
    made = [layers.Input((7,)), layers.Dense(13, "tanh"), layers.Dropout(0.3), layers.Dense(3)]
    optimiser = md.optim.SGD(rate, momentum=0.9)
    return md.Model(made, loss="cross_entropy", optimizer=optimiser, seed=3)


@pytest.mark.parametrize("steps", [2, 7, 10, 11, 12, 17, 25])
def test_one_copy_of_variables_serves_slices_that_follow_each_other(
    steps: int, saves: list[Saved]
) -> None:
    """103 rows are ten slices and a smaller batch, after which variables are saved anew."""
    once: dict[str, Any] = {"batch_size": 10, "epochs": 3, "verbose": False}
    model, other = diverging(steps), diverging(steps)
    with pytest.raises(NumericError, match="dense"):
        model.fit(X, Y, **once)
    assert len(saves) == 1 + steps // 11
    other.fit(X, Y, **once, callbacks=[Stop(steps)])
    for got, expected in zip(model.values().values(), other.values().values(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_variables_are_saved_for_each_slice_where_somebody_may_write_them(
    saves: list[Saved],
) -> None:
    class PendingChecks(md.callbacks.Callback):
        def on_epoch_end(self, fit: Any) -> None:
            pass

    model = dropout()[0]
    model.fit(X, Y, batch_size=10, epochs=1, verbose=False, callbacks=[PendingChecks()])
    assert len(saves) == 10


def test_a_copy_of_variables_does_not_serve_for_long(
    saves: list[Saved], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_KEPT_SECONDS", -1.0)
    model = dropout()[0]
    model.fit(X, Y, batch_size=10, epochs=1, verbose=False)
    assert len(saves) == 10
