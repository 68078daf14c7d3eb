"""Weights of samples for each output of a model: in training, evaluation, validation and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

RNG = np.random.default_rng(31)
X = RNG.normal(size=(61, 4)).astype(np.float32)
KIND = RNG.integers(0, 3, 61)
TEMP = (X @ RNG.normal(size=4) + 2).astype(np.float32)
Y = {"kind": KIND, "temp": TEMP}
WEIGHTS = {"kind": RNG.uniform(0, 2, 61), "temp": RNG.uniform(0, 2, 61)}
EPS = 2.0**-23


def network(**changes: Any) -> md.Model:
    x = md.layers.Input((4,))
    hidden = md.layers.Dense(5, activation="tanh", kernel_regularizer=md.layers.L2(0.01))(x)
    kind, temp = (md.layers.Dense(n, name=name)(hidden) for n, name in ((3, "kind"), (1, "temp")))
    given = {
        "loss": {"kind": "cross_entropy", "temp": "mse"},
        "metrics": {"kind": ["accuracy"], "temp": ["mae", "r2"]},
        "optimizer": md.optim.SGD(0.01),
        "seed": 5,
        **changes,
    }
    return md.Model(inputs=[x], outputs=[kind, temp], **given)


def figures(model: md.Model, weights: dict[str, Any]) -> dict[str, float]:
    """Losses and metrics, computed here."""
    z, temp = (p.astype(np.float64) for p in model.predict(X))
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    residual, w = temp[:, 0] - TEMP, weights["temp"]
    around = TEMP - np.average(TEMP.astype(np.float64), weights=w)
    return {
        "kind_loss": np.average(-log_p[np.arange(61), KIND], weights=weights["kind"]),
        "temp_loss": np.average(residual**2, weights=w),
        "kind_accuracy": np.average(z.argmax(1) == KIND, weights=weights["kind"]),
        "temp_mae": np.average(abs(residual), weights=w),
        "temp_r2": 1 - np.average(residual**2, weights=w) / np.average(around**2, weights=w),
    }


def test_each_output_is_measured_by_its_own_weights() -> None:
    model = network()
    for weights in (WEIGHTS, {"temp": WEIGHTS["temp"]}, [WEIGHTS["kind"], WEIGHTS["temp"]]):
        by_name = weights if isinstance(weights, dict) else WEIGHTS
        expected = figures(model, {"kind": np.ones(61)} | by_name)
        found = model.evaluate(X, Y, sample_weight=weights, batch_size=7)
        for name, value in expected.items():
            # sums of up to 61 float32 values of order 1 to 10; weights are float32 too
            assert found[name] == pytest.approx(value, rel=61 * EPS, abs=61 * EPS), name


def test_equal_weights_of_all_outputs_are_the_weights_of_the_rows() -> None:
    w = WEIGHTS["kind"]
    same = [network(), network()]
    for model, weights in zip(same, (w, {"kind": w, "temp": w}), strict=True):
        model.fit(X, Y, batch_size=13, epochs=3, sample_weight=weights, verbose=False)
    for a, b in zip(*(m.parameters() for m in same), strict=True):
        np.testing.assert_allclose(a.value.read(), b.value.read(), rtol=64 * EPS, atol=8 * EPS)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_training_minimises_the_weighted_losses(executor: str) -> None:
    """The same as losses of one's own that find the weights beside the targets."""

    def kind(predictions: Any, both: Any) -> Any:
        losses = md.losses.CrossEntropy().per_sample(predictions, md.ops.cast(both[:, 0], "int64"))
        return md.ops.sum(losses * both[:, 1]) / md.ops.sum(both[:, 1])

    def temp(predictions: Any, both: Any) -> Any:
        losses = md.ops.square(predictions[:, 0] - both[:, 0])
        return md.ops.sum(losses * both[:, 1]) / md.ops.sum(both[:, 1])

    both = {name: np.stack([Y[name], WEIGHTS[name]], axis=1).astype("f4") for name in Y}
    own = network(loss={"kind": kind, "temp": temp}, metrics=(), executor=executor)
    ours = network(metrics=(), executor=executor)
    options = {"batch_size": 61, "epochs": 3, "shuffle": False, "verbose": False}
    ours.fit(X, Y, sample_weight=WEIGHTS, **options)
    own.fit(X, both, **options)
    for a, b in zip(ours.parameters(), own.parameters(), strict=True):
        np.testing.assert_allclose(a.value.read(), b.value.read(), rtol=64 * EPS, atol=8 * EPS)


def test_validation_and_the_history_weigh_as_evaluate_does() -> None:
    model = network()
    before = figures(model, WEIGHTS)
    held = (X, Y, {"temp": WEIGHTS["temp"]})
    options = {"batch_size": 61, "epochs": 1, "verbose": False}
    row = model.fit(X, Y, sample_weight=WEIGHTS, validation_data=held, **options).rows[0]
    for name, value in before.items():
        assert row[name] == pytest.approx(value, rel=61 * EPS, abs=61 * EPS), name
    after = model.evaluate(X, Y, sample_weight={"temp": WEIGHTS["temp"]})
    assert {name: row[f"val_{name}"] for name in after} == after


def test_slices_and_single_batches_have_the_same_bits() -> None:
    found = []
    for single in (False, True):
        model = network()
        watch = md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)
        history = model.fit(
            X, Y, batch_size=9, epochs=2, sample_weight=WEIGHTS, verbose=False,
            callbacks=[watch] if single else [],
        )  # fmt: skip
        values = [p.value.read().tobytes() for p in model.parameters()]
        found.append((values, history["loss"], history["temp_r2"]))
    assert found[0] == found[1]


def test_batches_of_a_stream_may_have_weights_by_output() -> None:
    def batches() -> Any:
        for k in range(0, 61, 20):
            part = slice(k, k + 20)
            y, w = ({name: a[part] for name, a in columns.items()} for columns in (Y, WEIGHTS))
            yield X[part], y, w

    streamed, whole = network(), network()
    expected = whole.evaluate(X, Y, sample_weight=WEIGHTS, batch_size=20)
    assert streamed.evaluate(batches()) == expected
    a = streamed.fit(batches, epochs=2, verbose=False)
    options = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": False}
    b = whole.fit(X, Y, sample_weight=WEIGHTS, **options)
    for name in ("loss", "kind_loss", "temp_r2"):
        assert a[name] == b[name]


def test_a_single_output_may_be_named_too() -> None:
    x = md.layers.Input((4,))
    model = md.Model(inputs=x, outputs=md.layers.Dense(1, name="temp")(x), loss="mse")
    w = WEIGHTS["temp"]
    found = model.evaluate(X, TEMP, sample_weight={"temp": w})
    assert found == model.evaluate(X, TEMP, sample_weight=w)


def test_a_checkpoint_is_of_the_weights_of_all_outputs(tmp_path) -> None:
    def trained(weights: Any) -> None:
        keep = md.callbacks.Checkpoint(tmp_path, signals=False)
        network().fit(X, Y, sample_weight=weights, epochs=1, callbacks=[keep], verbose=False)

    trained(WEIGHTS)
    with pytest.raises(MagmaDNNError, match=r"is of another training: sample_weight\['temp'\] is"):
        trained(WEIGHTS | {"temp": WEIGHTS["kind"]})


def streamed(*weights: Any) -> Any:
    return [(X[:9], {n: y[:9] for n, y in Y.items()}, w) for w in weights]


MISTAKES: dict[str, tuple[Any, type[MagmaDNNError], str]] = {
    "name": (
        lambda m: m.fit(X, Y, sample_weight={"tmep": TEMP}), UnknownNameError,
        "fit: sample_weight: output 'tmep' is not known: did you mean 'temp'?",
    ),
    "rows": (
        lambda m: m.evaluate(X, Y, sample_weight={"temp": TEMP[1:]}), ShapeError,
        "evaluate: sample_weight['temp'] must have shape (61,), got (60,)",
    ),
    "negative": (
        lambda m: m.fit(X, Y, sample_weight={"temp": -abs(TEMP)}), DataError,
        "fit: sample_weight['temp'] must be finite and not negative",
    ),
    "text": (
        lambda m: m.fit(X, Y, sample_weight={"temp": np.array(["a"] * 61)}), DTypeError,
        "fit: sample_weight['temp'] must be a number for each row, got <U1",
    ),
    "nothing": (
        lambda m: m.fit(X, Y, sample_weight={}), ArgumentError,
        "fit: sample_weight is an empty dict",
    ),
    "zeros": (
        lambda m: m.fit(X, Y, sample_weight={"temp": 0 * TEMP}), DataError,
        "fit: the weights of all rows are 0 for the output 'temp'; loss_weights of the model leave",
    ),
    "list": (
        lambda m: m.fit(X, Y, sample_weight=[WEIGHTS["temp"]]), ArgumentError,
        "fit: sample_weight has 1 arrays for 2 outputs; give one for each of kind, temp",
    ),
    "matrix": (
        lambda m: m.fit(X, Y, sample_weight=np.ones((61, 2))), ShapeError,
        "fit: sample_weight must have shape (61,), got (61, 2)",
    ),
    "validation": (
        lambda m: m.fit(X, Y, validation_data=(X, Y, {"flux": TEMP})), UnknownNameError,
        "fit: validation_data: sample_weight: output 'flux' is not known",
    ),
    "stream": (
        lambda m: m.fit(streamed({"flux": TEMP[:9]})), UnknownNameError,
        "weights: output 'flux' is not known",
    ),
    "kinds of a stream": (
        lambda m: m.fit(streamed({"temp": WEIGHTS["temp"][:9]}, WEIGHTS["temp"][:9])), DataError,
        "this batch has weights of one kind, the first had others",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "error", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(act: Any, error: type[MagmaDNNError], text: str) -> None:
    with pytest.raises(MagmaDNNError) as raised:
        act(network())
    assert type(raised.value) is error
    assert str(raised.value).startswith(text), str(raised.value)


def test_columns_in_dicts_are_compared_by_their_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    targets = {name: pandas.Series(y) for name, y in Y.items()}
    weights = {name: pandas.Series(w) for name, w in WEIGHTS.items()}
    model = network()
    expected = model.evaluate(X, Y, sample_weight=WEIGHTS)
    assert model.evaluate(frame, targets, sample_weight=weights) == expected
    turned = weights["temp"][::-1]
    with pytest.raises(
        DataError, match=r"^fit: row 0 is labelled 0 in x but 60 in sample_weight\['temp'\]"
    ):
        model.fit(frame, targets, sample_weight=weights | {"temp": turned}, verbose=False)
    with pytest.raises(DataError, match=r"^fit: row 0 is labelled 0 in x but 60 in y\['temp'\]"):
        model.fit(frame, targets | {"temp": targets["temp"][::-1]}, verbose=False)


@needs_compiler
def test_on_a_device_they_weigh_as_on_the_processor() -> None:
    with emulated_device():
        models = network(device="cuda"), network()
        rows = [
            m.fit(X, Y, batch_size=9, epochs=2, sample_weight=WEIGHTS, verbose=False).rows
            for m in models
        ]
        for a, b in zip(*rows, strict=True):
            for name in ("loss", "kind_loss", "temp_loss", "temp_r2"):
                # 14 steps on parameters that are rounded in another order
                assert a[name] == pytest.approx(b[name], rel=14 * 64 * EPS), name
