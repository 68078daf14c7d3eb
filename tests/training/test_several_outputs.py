"""Several outputs: names, losses, weights and metrics, targets by name, what is measured of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md

RNG = np.random.default_rng(12)
X = RNG.normal(size=(61, 4)).astype(np.float32)
KIND = RNG.integers(0, 3, 61)
TEMP = (X @ RNG.normal(size=4) + 2).astype(np.float32)
FLUX = RNG.normal(size=(61, 2)).astype(np.float32)
Y = {"kind": KIND, "temp": TEMP, "output_2": FLUX}
LOSS = {"kind": "cross_entropy", "temp": "mse", "output_2": "mae"}
METRICS = {"temp": ["mae", "rmse"], "kind": "accuracy"}
EPS = 2.0**-23


def network(**changes: Any) -> md.Model:
    x = md.layers.Input((4,))
    kind, temp = (md.layers.Dense(n, name=name)(x) for n, name in ((3, "kind"), (1, "temp")))
    flux = md.ops.concat([temp, 2 * temp], axis=1)
    given = {
        "loss": LOSS,
        "metrics": METRICS,
        "optimizer": md.optim.SGD(0.01),
        "seed": 5,
        **changes,
    }
    return md.Model(inputs=[x], outputs=[kind, temp, flux], **given)


def figures(model: md.Model) -> dict[str, float]:
    """Losses and metrics, computed here."""
    z, temp, flux = (p.astype(np.float64) for p in model.predict(X))
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    residual = temp[:, 0] - TEMP
    return {
        "kind_loss": -log_p[np.arange(61), KIND].mean(), "temp_loss": (residual**2).mean(),
        "output_2_loss": np.abs(flux - FLUX).mean(), "kind_accuracy": (z.argmax(1) == KIND).mean(),
        "temp_mae": np.abs(residual).mean(), "temp_rmse": (residual**2).mean() ** 0.5,
    }  # fmt: skip


def test_each_output_has_columns_of_its_own() -> None:
    model = network()
    assert model.output_names == ["kind", "temp", "output_2"]
    expected = figures(model)
    found = model.evaluate(X, Y, batch_size=7)
    assert list(found) == ["loss", *expected]
    for name, value in expected.items():
        # sums of up to 61 float32 values of order 1 to 10
        assert found[name] == pytest.approx(value, rel=61 * EPS), name
    parts = [found[f"{name}_loss"] for name in LOSS]
    assert found["loss"] == pytest.approx(sum(parts), rel=8 * 2.0**-52)


def test_the_history_has_the_same_columns_in_training_and_validation() -> None:
    model = network()
    expected = figures(model)
    row = model.fit(X, Y, batch_size=61, epochs=1, validation_data=(X, Y), verbose=False).rows[0]
    after = model.evaluate(X, Y)
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=61 * EPS), name  # before the step
        assert row[f"val_{name}"] == after[name], name
    assert row["val_loss"] == after["loss"]


def test_losses_are_added_by_their_weights() -> None:
    weights = {"kind": 0.25, "output_2": 0.0}  # temp is left out: 1
    found = network(loss_weights=weights).evaluate(X, Y)
    expected = 0.25 * found["kind_loss"] + found["temp_loss"]
    assert found["loss"] == pytest.approx(expected, rel=8 * 2.0**-52)
    assert found["output_2_loss"] > 0

    def trained(**changes: Any) -> list[Any]:
        model = network(**changes)
        model.fit(X, Y, batch_size=61, epochs=2, shuffle=False, verbose=False)
        return [p.value.read() for p in model.parameters()]

    def quarter(predictions: Any, targets: Any) -> Any:
        return 0.25 * md.losses.cross_entropy(predictions, targets)

    def nothing(predictions: Any, targets: Any) -> Any:
        return 0.0 * md.losses.mae(predictions, targets)

    same = trained(loss=[quarter, "mse", nothing], metrics=[])
    for a, b in zip(trained(loss_weights=weights, metrics=[]), same, strict=True):
        np.testing.assert_allclose(a, b, rtol=64 * EPS, atol=8 * EPS)


def test_lists_in_order_say_the_same_as_dicts() -> None:
    named = network(loss_weights={"kind": 2, "temp": 3, "output_2": 4})
    ordered = network(
        loss=list(LOSS.values()),
        metrics=[["accuracy"], ["mae", "rmse"], []],
        loss_weights=[2, 3, 4],
    )
    expected = named.evaluate(X, Y)
    assert ordered.evaluate(X, [KIND, TEMP, FLUX]) == expected
    assert ordered.evaluate(X, Y) == expected
    assert named.evaluate(X, (KIND, TEMP, FLUX)) == expected


def test_batches_of_a_stream_may_have_targets_by_name() -> None:
    def batches() -> Any:
        for k in range(0, 61, 20):
            yield X[k : k + 20], {name: y[k : k + 20] for name, y in reversed(Y.items())}

    streamed, whole = network(), network()
    assert streamed.evaluate(batches()) == whole.evaluate(X, Y, batch_size=20)
    a = streamed.fit(batches, epochs=2, verbose=False)
    b = whole.fit(X, Y, batch_size=20, epochs=2, shuffle=False, verbose=False)
    for name in ("loss", "kind_loss", "temp_rmse"):
        assert a[name] == b[name]


def test_classes_and_probabilities_of_an_output_are_chosen_by_its_name() -> None:
    model = network()
    logits = model.predict(X)[0].astype(np.float64)
    np.testing.assert_array_equal(model.predict_class(X, output="kind"), logits.argmax(1))
    p = model.predict_probability(X, output="kind")
    np.testing.assert_allclose(
        p, np.exp(logits) / np.exp(logits).sum(1, keepdims=True), rtol=32 * EPS
    )
    x = md.layers.Input((4,))
    both = [md.layers.Dense(n)(x) for n in (3, 5)]
    losses = ["cross_entropy", "binary_cross_entropy"]
    classes = md.Model(inputs=[x], outputs=both, loss=losses).predict_class(X)
    assert [c.shape for c in classes] == [(61,), (61, 5)]


def test_a_saved_model_keeps_losses_weights_and_metrics_by_name(tmp_path: Path) -> None:
    model = network(loss_weights={"temp": 0.5})
    model.save(tmp_path / "net")
    again = md.load(tmp_path / "net")
    assert (again.loss, again.loss_weights, again.metrics) == (LOSS, {"temp": 0.5}, METRICS)
    assert again.evaluate(X, Y) == model.evaluate(X, Y)


def test_a_model_that_was_saved_before_losses_had_weights_loads(tmp_path: Path) -> None:
    from magmadnn.training.model.loading import model_from
    from magmadnn.training.model.saving import model_record

    record = json.loads(json.dumps(model_record(network())))
    del record["loss_weights"]
    assert model_from(record).loss_weights is None


def test_other_weights_and_metrics_are_compiled_anew() -> None:
    model = network()
    before = model.evaluate(X, Y)
    model.loss_weights = {"temp": 3.0}
    assert model.evaluate(X, Y)["loss"] == pytest.approx(
        before["loss"] + 2 * before["temp_loss"], rel=1e-12
    )
    model.metrics = {"temp": ["r2"]}
    assert "temp_r2" in model.evaluate(X, Y)


def test_names_of_outputs_are_unique() -> None:
    x = md.layers.Input((4,))
    dense = md.layers.Dense(1, name="temp")
    other = md.layers.Dense(1, name="temp_2", activation="relu")
    model = md.Model(inputs=[x], outputs=[dense(x), dense(x * 2), other(x), -x], loss="mse")
    assert model.output_names == ["temp", "temp_2", "temp_2_2", "output_3"]
    y = {name: np.zeros((61, 4 if name == "output_3" else 1), "f4") for name in model.output_names}
    found = model.evaluate(X, y)
    assert len(found) == 5
    assert found["output_3_loss"] == pytest.approx((X.astype(float) ** 2).mean(), rel=61 * EPS)


def test_metrics_of_one_name_are_told_apart() -> None:
    metrics = [md.metrics.Precision(0.1), md.metrics.Precision(0.9)]
    model = network(metrics={"output_2": []}, loss=["cross_entropy", "binary_cross_entropy", "mae"])
    model.metrics = {"temp": metrics}
    found = model.evaluate(X, [KIND, KIND > 0, FLUX])
    z = model.predict(X)[1][:, 0]
    for column, threshold in (("temp_precision", 0.1), ("temp_precision_2", 0.9)):
        assert found[column] == pytest.approx((KIND > 0)[z > threshold].mean(), rel=1e-14)
