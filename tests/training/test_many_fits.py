"""Many models in one call end with the bits of their own fits: layers, losses, optimisers, rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import magmadnn as md
from magmadnn import layers, losses, optim
from magmadnn.errors import NumericError
from magmadnn.losses.conversion import FunctionLoss
from magmadnn.runtime.cpu.sliced.legs import Leg
from magmadnn.runtime.threads import thread_count
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.loop.fit import Fit
from magmadnn.training.many.course import FitCourse
from magmadnn.training.many.running import grids, scheduler
from tests.layers.layer_cases import CASES, Case
from tests.losses.test_losses import CASES as LOSSES
from tests.losses.test_losses import Case as LossCase
from tests.optim.test_steps import ALL as OPTIMISERS

Build = Callable[[int], md.Model]
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(53, 7)).astype(np.float32)
Y = DRAW.integers(0, 3, 53)
BATCH = 8  # six whole batches and one of five rows


def network(seed: int = 0, optimizer: Any = None, **given: Any) -> md.Model:
    return md.Model(
        [layers.Input((7,)), layers.Dense(11, activation="tanh"), layers.Dense(3)],
        loss=given.pop("loss", "cross_entropy"),
        optimizer=optimizer or optim.Adam(0.02),
        metrics=["accuracy"],
        seed=seed,
        **given,
    )


def digests(models: Sequence[md.Model]) -> list[str]:
    return [parameters_sha256(m.values().items()) for m in models]


def measured(history: md.History) -> list[dict[str, float]]:
    """The rows without times."""
    times = ("seconds", "samples_per_second")
    return [{k: v for k, v in row.items() if k not in times} for row in history]


def assert_same_as_alone(
    build: Build, x: Any, y: Any, count: int = 3, epochs: int = 2, **given: Any
) -> list[md.Model]:
    """Trains the models together and each alone; gives those that were trained together."""
    together, alone = ([build(k) for k in range(count)] for _ in range(2))
    histories = md.fit_many(together, x, y, batch_size=BATCH, epochs=epochs, **given)
    for model, history in zip(alone, histories, strict=True):
        own = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, **given)
        assert measured(own) == measured(history)
    assert digests(together) == digests(alone)
    assert [m.epochs_done for m in together] == [epochs] * count
    return together


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_every_layer(case: Case) -> None:
    x, y = case.draw(29), np.random.default_rng(1).normal(size=29).astype(np.float32)

    def build(seed: int) -> md.Model:
        bare = case.model()
        out = layers.Dense(1)(layers.Flatten()(bare.outputs[0]))
        return md.Model(
            inputs=bare.inputs, outputs=out, loss="mse", optimizer=optim.Adam(0.01), seed=seed
        )

    models = assert_same_as_alone(build, x if len(x) > 1 else x[0], y[:, None])
    assert len(set(digests(models))) == 3


@pytest.mark.parametrize("case", LOSSES, ids=[c.name for c in LOSSES])
def test_every_loss(case: LossCase) -> None:
    prediction, truth = case.draw(29)
    size = int(np.prod(prediction.shape[1:]))
    x = np.random.default_rng(2).normal(size=(29, 5)).astype(np.float32)
    target = truth if truth.dtype.kind in "iu" else truth.astype(np.float32)

    def build(seed: int) -> md.Model:
        net = [layers.Input((5,)), layers.Dense(size), layers.Reshape(prediction.shape[1:])]
        return md.Model(net, loss=case.loss, optimizer=optim.SGD(0.05), seed=seed)

    assert_same_as_alone(build, x, target)


@pytest.mark.parametrize("optimizer", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_every_optimiser(optimizer: optim.Optimizer) -> None:
    assert_same_as_alone(lambda seed: network(seed, optimizer), X, Y)


@pytest.mark.parametrize("precision", ["float32", "float64", "mixed_bf16", "mixed_fp16"])
def test_every_precision(precision: str) -> None:
    assert_same_as_alone(lambda seed: network(seed, precision=precision), X, Y)


def test_rates_batch_sizes_and_numbers_of_epochs_of_each_model() -> None:
    rates, sizes, epochs = (0.1, 0.01, 0.001, 0.01), [8, 8, 16, 64], [3, 1, 2, 5]

    def made() -> list[md.Model]:
        return [network(k // 2, optim.SGD(rate, momentum=0.5)) for k, rate in enumerate(rates)]

    together, alone = made(), made()
    histories = md.fit_many(together, X, Y, batch_size=sizes, epochs=epochs)
    for model, size, count in zip(alone, sizes, epochs, strict=True):
        model.fit(X, Y, batch_size=size, epochs=count, verbose=0)
    assert digests(together) == digests(alone)
    assert [len(h) for h in histories] == epochs


def test_models_of_different_structure() -> None:
    def build(k: int) -> md.Model:
        hidden = [layers.Dense(5 + 3 * k), layers.Dropout(0.1 * k), layers.BatchNorm()][: k + 1]
        return md.Model(
            [layers.Input((7,)), *hidden, layers.Dense(3)],
            loss="cross_entropy",
            optimizer="adam",
            seed=k,
        )

    assert_same_as_alone(build, X, Y)


def test_settings_of_layers_and_losses_of_each_model() -> None:
    """Constants of the graph: what is compiled and copied for one must not serve another."""

    def build(k: int) -> md.Model:
        weights = {0: 1.0 + k, 1: 0.5, 2: 2.0 / (k + 1)}
        net = [
            layers.Input((7,)),
            layers.Dense(9, kernel_regularizer=layers.L2(0.01 * k + 0.001)),
            layers.Activation("leaky_relu"),
            layers.Dropout(0.1 + 0.15 * k),
            layers.Dense(3),
        ]
        loss = md.losses.CrossEntropy(label_smoothing=0.05 * k, class_weight=weights)
        return md.Model(net, loss=loss, optimizer=optim.AdamW(0.01, weight_decay=0.01 * k), seed=1)

    models = assert_same_as_alone(build, X, Y, count=4)
    assert len(set(digests(models))) == 4


def test_rows_of_each_model() -> None:
    draw = np.random.default_rng(3)
    bootstrap = draw.integers(0, 53, 53)
    half = draw.permutation(53)[:20]
    mask = Y != 1
    rows = [bootstrap, half, mask, None]
    weight = draw.uniform(0.5, 2, 53).astype(np.float32)
    together, alone = ([network(k) for k in range(4)] for _ in range(2))
    md.fit_many(together, X, Y, batch_size=BATCH, epochs=2, rows=rows, sample_weight=weight)
    for model, own in zip(
        alone, [bootstrap, half, np.flatnonzero(mask), np.arange(53)], strict=True
    ):
        model.fit(X[own], Y[own], sample_weight=weight[own], batch_size=BATCH, epochs=2, verbose=0)
    assert digests(together) == digests(alone)


def test_rows_with_weights_of_their_classes() -> None:
    own = np.flatnonzero(Y != 2)[:21]
    first, second = network(1), network(1)
    md.fit_many([first], X, Y, rows=[own], class_weight="balanced", batch_size=BATCH)
    second.fit(X[own], Y[own], class_weight="balanced", batch_size=BATCH, verbose=0)
    assert digests([first]) == digests([second])


def test_validation_on_rows_of_each_model() -> None:
    folds = [np.arange(k, 53, 3) for k in range(3)]
    others = [np.setdiff1d(np.arange(53), f) for f in folds]
    together, alone = ([network(k) for k in range(3)] for _ in range(2))
    histories = md.fit_many(
        together, X, Y, batch_size=BATCH, epochs=2, rows=others, validation_rows=folds
    )
    for k, model in enumerate(alone):
        held = (X[folds[k]], Y[folds[k]])
        own = model.fit(
            X[others[k]], Y[others[k]], batch_size=BATCH, epochs=2, verbose=0, validation_data=held
        )
        assert measured(own) == measured(histories[k])
    assert digests(together) == digests(alone)


def test_validation_on_rows_of_the_training_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    given: Any = {"batch_size": BATCH, "verbose": False}

    def said(rows: Any, held: Any) -> str:
        md.fit_many([network(k) for k in range(2)], X, Y, rows=rows, validation_rows=held, **given)
        return capsys.readouterr().err

    low, high = np.arange(30), np.arange(27, 53)
    assert said([low, high], [high[3:], low[:27]]) == said([low, low], [None, None]) == ""
    few = "fit_many: models[1] is trained on 3 of its 30 validation_rows; validation figures are then too"
    assert few in said([low, high], [high[3:], low])
    all_of_them = (
        "models[0] is trained on all rows: give rows=[...] without the 26 of validation_rows;"
    )
    assert all_of_them in said(None, [high, low])


def test_a_few_draws_may_all_be_of_the_first_two_rows() -> None:
    models = [network(k) for k in range(2)]
    md.fit_many(models, X[:9], Y[:9], rows=[np.arange(9) % 2, None], verbose=False)
    assert models[0].epochs_done == 1


def test_gradients_of_several_batches() -> None:
    assert_same_as_alone(network, X, Y, accumulate=3)


def test_a_share_of_its_rows_that_each_model_keeps_back() -> None:
    assert_same_as_alone(network, X, Y, validation_split=0.25)


def test_early_stopping_of_each_model() -> None:
    stop = md.callbacks.EarlyStopping(patience=0, restore_best=True)

    def build(k: int) -> md.Model:
        return network(k, optim.SGD((3.0, 0.001, 1.0)[k]))

    together, alone = ([build(k) for k in range(3)] for _ in range(2))
    given: dict[str, Any] = {"validation_data": (X[:19], Y[:19]), "batch_size": BATCH, "epochs": 12}
    histories = md.fit_many(together, X, Y, callbacks=[stop], **given)
    lengths = []
    for model, history in zip(alone, histories, strict=True):
        own = model.fit(
            X, Y, callbacks=[md.callbacks.EarlyStopping(restore_best=True)], verbose=0, **given
        )
        assert measured(own) == measured(history)
        assert own.stopped == history.stopped
        lengths.append(len(own))
    assert digests(together) == digests(alone)
    assert len(set(lengths)) > 1
    assert stop.best_epoch is None  # copies were used


def test_a_model_that_becomes_nan_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of its second epoch: the first has its row."""
    target = X[:, :1] * 2

    def build(k: int) -> md.Model:
        net = [layers.Input((7,)), layers.Dense(5), layers.Dense(1)]
        return md.Model(net, loss="mse", optimizer=optim.SGD(0.3 if k == 1 else 0.01), seed=k)

    together, alone = ([build(k) for k in range(3)] for _ in range(2))
    histories = md.fit_many(together, X, target, batch_size=BATCH, epochs=4)
    for k in (0, 2):
        alone[k].fit(X, target, batch_size=BATCH, epochs=4, verbose=0)
    with pytest.raises(NumericError) as caught:
        alone[1].fit(X, target, batch_size=BATCH, epochs=4, verbose=0)
    assert digests(together) == digests(alone)
    assert [len(h) for h in histories] == [4, 1, 4]
    assert [h.stopped for h in histories] == [None, str(caught.value), None]
    assert "models[1] is left out, the others go on: " in capsys.readouterr().err


def test_a_second_call_goes_on() -> None:
    together, alone = ([network(k) for k in range(2)] for _ in range(2))
    for _ in range(2):
        md.fit_many(together, X, Y, batch_size=BATCH, epochs=2)
    together[1].fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    for k, model in enumerate(alone):
        model.fit(X, Y, batch_size=BATCH, epochs=4 + k, verbose=0)
    assert digests(together) == digests(alone)


def test_callbacks_by_a_function_of_the_number() -> None:
    seen: dict[int, list[NDArray[Any]]] = {}

    def watch(number: int) -> list[md.callbacks.Callback]:
        def note(fit: Any) -> None:
            seen.setdefault(number, []).append(fit.row["loss"])

        return [md.callbacks.LambdaCallback(on_epoch_end=note)]

    models = [network(k) for k in range(3)]
    histories = md.fit_many(models, X, Y, batch_size=BATCH, epochs=3, callbacks=watch)
    assert [seen[k] for k in range(3)] == [h["loss"] for h in histories]


def test_losses_that_have_a_name_are_all_there() -> None:
    """A loss that is new needs a case."""
    own = {c for c in losses.Loss.known.values() if c.__module__.startswith("magmadnn.losses.c")}
    own |= {c for c in losses.Loss.known.values() if c.__module__ == losses.regression.__name__}
    assert {type(c.loss) for c in LOSSES} == own - {FunctionLoss}


# --- the fast way ---------------------------------------------------------------------------------


@pytest.fixture
def plain_epochs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Epochs that were run by Python."""
    found: list[int] = []
    run = Fit.run_epoch

    def counted(fit: Fit) -> None:
        found.append(fit.epoch)
        run(fit)

    monkeypatch.setattr(Fit, "run_epoch", counted)
    return found


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_epochs_run_natively_with_the_same_bits_on_any_number_of_threads(
    threads: int, plain_epochs: list[int]
) -> None:
    before = thread_count()
    md.set_threads(threads)
    try:
        models = [network(k, md.optim.Adam(md.optim.cosine(0.05, steps=40))) for k in range(9)]
        held = {"validation_data": (X[:21], Y[:21])}
        histories = md.fit_many(models, X, Y, batch_size=BATCH, epochs=7, **held)
        assert not plain_epochs
        alone = network(4, md.optim.Adam(md.optim.cosine(0.05, steps=40)))
        own = alone.fit(X, Y, batch_size=BATCH, epochs=7, verbose=0, **held)
    finally:
        md.set_threads(before)
    assert digests([alone]) == digests([models[4]])
    assert measured(own) == measured(histories[4])
    assert all(row["seconds"] > 0 for row in histories[4])


def test_tasks_are_made_for_the_first_of_models_that_are_built_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make = Leg.__init__

    def counted(leg: Leg, *args: Any) -> None:
        made.append(args[4])
        make(leg, *args)

    monkeypatch.setattr(Leg, "__init__", counted)

    def build(k: int) -> md.Model:
        net = [layers.Input((7,)), layers.Dense(13), layers.Dropout(0.2), layers.Dense(3)]
        return md.Model(net, loss="cross_entropy", optimizer=optim.Adam(0.01 + k), seed=k)

    models = [build(k) for k in range(6)]
    md.fit_many(models, X, Y, batch_size=BATCH, epochs=2, validation_data=(X[:20], Y[:20]))
    assert sorted(made) == [5, 8, 20]  # the last batch, whole ones, and what is evaluated
    md.fit_many(models, X, Y, batch_size=BATCH, epochs=2, validation_data=(X[:20], Y[:20]))
    assert len(made) == 3


def test_an_epoch_that_is_long_is_cut_into_pieces(
    monkeypatch: pytest.MonkeyPatch, plain_epochs: list[int]
) -> None:
    monkeypatch.setattr(scheduler, "_SECONDS", 1e-6)
    pieces: list[int] = []
    program = FitCourse.program

    def counted(course: FitCourse, seconds: float) -> Any:
        pieces.append(course.fit.batch)
        return program(course, seconds)

    monkeypatch.setattr(FitCourse, "program", counted)
    assert_same_as_alone(network, X, Y, validation_data=(X[:21], Y[:21]))
    assert {1, 2, 3} <= set(pieces)


def test_callbacks_that_look_at_batches_have_their_turn(plain_epochs: list[int]) -> None:
    seen: list[list[float]] = [[], []]

    def watch(number: int) -> list[md.callbacks.Callback]:
        note = seen[number].append
        return [md.callbacks.LambdaCallback(on_batch_end=lambda fit: note(fit.last_loss))]

    together, alone = ([network(k) for k in range(2)] for _ in range(2))
    md.fit_many(together, X, Y, batch_size=BATCH, epochs=2, callbacks=watch)
    assert [len(s) for s in seen] == [14, 14]
    assert plain_epochs.count(0) == 2
    for model in alone:
        model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0)
    assert digests(together) == digests(alone)


def test_callbacks_hear_of_every_epoch() -> None:
    heard: list[tuple[str, int]] = []

    class Aside(md.callbacks.Callback):
        stands_aside = True

        def on_epoch_begin(self, fit: Fit) -> None:
            heard.append(("begin", fit.epoch))

        def on_epoch_end(self, fit: Fit) -> None:
            heard.append(("end", fit.epoch))

    md.fit_many([network()], X, Y, batch_size=BATCH, epochs=3, callbacks=[Aside()])
    assert heard == [(w, e + k) for e in range(3) for w, k in (("begin", 0), ("end", 1))]


def test_an_error_of_a_callback_names_the_model_and_ends_the_others() -> None:
    ended: list[int] = []

    class Failing(md.callbacks.Callback):
        def __init__(self, number: int) -> None:
            self.number = number

        def on_epoch_end(self, fit: Fit) -> None:
            if self.number == 1 and fit.epoch == 2:
                raise KeyError("broken")

        def on_train_end(self, fit: Fit) -> None:
            ended.append(self.number)

    models = [network(k) for k in range(3)]
    with pytest.raises(KeyError) as caught:
        md.fit_many(
            models, X, Y, batch_size=BATCH, epochs=50, callbacks=lambda number: [Failing(number)]
        )
    assert "in the training of models[1]" in caught.value.__notes__
    assert 1 in ended
    assert len(set(ended)) == len(ended)  # those that had begun, each once
    models[2].fit(X, Y, verbose=0)  # it is not taken for one that is being trained


def test_a_schedule_that_ends_with_the_training_is_not_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    models = [network(k, optim.Adam(optim.cosine(0.02, 4 * 7))) for k in range(3)]
    md.fit_many(models, X, Y, batch_size=BATCH, epochs=4, verbose=False)
    assert "so nothing is learnt" not in capfd.readouterr().err


def test_what_is_evaluated_is_the_objective_of_training_where_targets_look_alike() -> None:
    weights = np.linspace(0.5, 2.0, 53).astype(np.float32)
    held = X[:19] + 1, Y[:19]
    for given, validation, shared in [
        ({}, held, True),
        ({"sample_weight": weights}, held, False),
        ({"sample_weight": weights}, (*held, weights[:19]), True),
    ]:
        model, other = network(), network()
        history = model.fit(X, Y, validation_data=validation, verbose=0, **given)
        assert model._evaluation is not None and model._step is not None
        assert (model._evaluation[1] is model._step[1]) == shared
        other.assign(model.values())  # which has never trained
        keys = dict(zip(("x", "y", "sample_weight"), validation, strict=False))
        found = other.evaluate(**keys)
        for name in ("loss", "accuracy"):
            assert history[f"val_{name}"][-1] == pytest.approx(float(found[name]), rel=1e-6)


def test_models_of_the_processor_leave_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier call left on a device that cannot be used any more ends no training here."""

    def refused() -> None:
        raise AssertionError("a device was asked for")

    monkeypatch.setattr(grids, "_let_go", refused)
    models = [network(seed) for seed in range(2)]
    md.fit_many(models, X, Y, epochs=1, verbose=False)
    assert [m.epochs_done for m in models] == [1, 1]
