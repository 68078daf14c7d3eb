"""Models that are given tables and raw data: columns by name, and a preparation kept with the model."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.storage.checkpoint import State, load_state, save_state

ROWS = 120
RANDOM = np.random.default_rng(7)
A, B, C = RANDOM.normal(size=(3, ROWS)) * [[1.0], [30.0], [0.1]] + [[0.0], [500.0], [5.0]]
HEAT = 4000 + 200 * A - 7 * (B - 500)
SITE = np.array(["clay", "loam", "sand"])[np.arange(ROWS) % 3]
SOIL = np.where(A + 10 * (C - 5) > 0, "wet", "dry")


@pytest.fixture(params=["pandas", "polars"])
def frame_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return pytest.importorskip(request.param).DataFrame  # type: ignore[no-any-return]


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas")


def table(frame_of: Callable[..., Any], order: str = "abc", **more: Any) -> Any:
    columns = {"a": A, "b": B, "c": C}
    return frame_of({**{name: columns[name] for name in order}, **more})


def network(inputs: int = 3, outputs: int = 1, **options: Any) -> md.Model:
    layers = [
        md.layers.Input((inputs,)),
        md.layers.Dense(8, activation="tanh"),
        md.layers.Dense(outputs),
    ]
    defaults = {"loss": "mse", "optimizer": md.optim.Adam(0.05), "metrics": ["rmse", "r2"]}
    return md.Model(layers, **{**defaults, **options})


def classifier(inputs: int = 3, **options: Any) -> md.Model:
    return network(inputs, 2, loss="cross_entropy", metrics=["accuracy"], **options)


def trained(frame_of: Callable[..., Any], **options: Any) -> md.Model:
    model = network(preparation=md.data.Standardize(), **options)
    model.fit(table(frame_of), HEAT, epochs=20, verbose=False)
    return model


# --- columns without a preparation ------------------------------------------------------------


def test_targets_that_are_objects_are_taken_as_numbers():
    x, y = np.stack([A, B / 100, C], axis=1), HEAT / 1000
    model, plain = network(seed=3), network(seed=3)
    as_objects = y.astype(object)
    found = model.fit(x, as_objects, verbose=False, validation_data=(x, as_objects))
    expected = plain.fit(x, y, verbose=False, validation_data=(x, y))
    assert found["loss"] == expected["loss"] and found["val_loss"] == expected["val_loss"]


def test_columns_go_by_their_names_in_every_call(frame_of):
    small = np.stack([A, B / 100, C], axis=1)
    frame = frame_of({"a": A, "b": B / 100, "c": C})
    swapped = frame_of({"c": C, "a": A, "b": B / 100})
    target = HEAT / 1000
    model, plain = network(seed=3), network(seed=3)
    model.fit(frame, target, epochs=2, verbose=False, validation_data=(swapped, target))
    history = plain.fit(small, target, epochs=2, verbose=False, validation_data=(small, target))
    expected = plain.predict(small)
    assert np.array_equal(model.predict(frame), expected)
    assert np.array_equal(model.predict(swapped), expected)
    assert np.array_equal(model.predict(small), expected)
    assert model.evaluate(swapped, target) == plain.evaluate(small, target)
    model.fit(swapped, target, epochs=1, verbose=False)
    plain.fit(small, target, epochs=1, verbose=False)
    assert np.array_equal(model.predict(swapped), plain.predict(small))
    assert len(history) == 2


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"a": None}, UnknownNameError, "predict: x: input column 'a' is not known: known are b, c"),
        ({"d": A}, DataError, "predict: x: has the column 'd', which the training table did not have: leave"),
        ({"a": SITE}, DataError, "predict: x: column 'a' holds categories, expected numbers as in training"),
        ({"a": [math.nan, *A[1:]]}, DataError, "predict: x: values are missing in 1 row (row 0)"),
    ],
)  # fmt: skip
def test_other_columns_are_refused(pandas, change, error, text):
    model = network()
    model.fit(table(pandas.DataFrame), HEAT / 1000, epochs=1, verbose=False)
    columns = {"a": A, "b": B, "c": C, **change}
    frame = pandas.DataFrame({k: v for k, v in columns.items() if v is not None})
    with pytest.raises(MagmaDNNError) as raised:
        model.predict(frame)
    assert type(raised.value) is error
    assert str(raised.value).startswith(text)


def test_columns_are_saved_and_loaded(frame_of, tmp_path):
    model = network()
    model.fit(table(frame_of), HEAT / 1000, epochs=1, verbose=False)
    model.save(tmp_path / "m")
    again = md.load(tmp_path / "m")
    assert again.columns == model.columns
    assert np.array_equal(again.predict(table(frame_of, "cab")), model.predict(table(frame_of)))
    with pytest.raises(UnknownNameError, match="input column 'c' is not known"):
        again.predict(table(frame_of, "ab"))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(made.predict(table(frame_of, "bca")), model.predict(table(frame_of)))


def test_several_inputs_keep_the_columns_of_each(pandas):
    first, second = md.layers.Input((2,), name="first"), md.layers.Input((1,), name="second")
    joined = md.ops.concat([first, second], axis=1)
    model = md.Model(
        inputs=[first, second], outputs=[md.layers.Dense(1)(joined)], loss="mse", optimizer="adam"
    )
    one, two = pandas.DataFrame({"a": A, "b": B / 100}), pandas.DataFrame({"c": C})
    model.fit([one, two], HEAT / 1000, epochs=1, verbose=False)
    expected = model.predict([one, two])
    assert np.array_equal(model.predict({"second": two, "first": one[["b", "a"]]}), expected)
    with pytest.raises(UnknownNameError, match=r"predict: x\['second'\]: input column 'c'"):
        model.predict({"second": two.rename(columns={"c": "x"}), "first": one})


def test_a_failed_fit_leaves_no_columns_behind(pandas):
    model = network()
    with pytest.raises(ShapeError):
        model.fit(pandas.DataFrame({"a": A, "b": B}), HEAT, verbose=False)
    model.fit(table(pandas.DataFrame), HEAT / 1000, epochs=1, verbose=False)


def test_rows_in_another_order_are_refused_everywhere(pandas):
    frame, target = table(pandas.DataFrame), pandas.Series(HEAT / 1000, name="heat")
    shuffled = target.sample(frac=1.0, random_state=0)
    model = network()
    for act in (
        lambda: model.fit(frame, shuffled, verbose=False),
        lambda: model.evaluate(frame, shuffled),
        lambda: model.fit(frame, target, verbose=False, validation_data=(frame, shuffled)),
        lambda: model.fit(frame, target, verbose=False, sample_weight=abs(shuffled)),
    ):
        with pytest.raises(DataError, match="row 0 is labelled 0 in x but"):
            act()


def test_tables_that_cannot_be_trained_on(pandas):
    frame, model = table(pandas.DataFrame), network(4)
    for data, text in (
        (frame.assign(site=SITE), "column 'site' holds categories, which need a preparation"),
        (frame.assign(heat=HEAT), "the target 'heat' stands among the inputs' columns too"),
        (
            frame.assign(day=pandas.Timestamp("2020-01-01", tz="UTC")),
            "column 'day' holds dates with a time zone, which need a preparation",
        ),
    ):
        with pytest.raises(MagmaDNNError, match=text):
            model.fit(data, pandas.Series(HEAT, name="heat"), verbose=False)
    with pytest.raises(DataError, match="a batch holds a table, whose columns would go by place"):
        network().fit([(frame, HEAT)], verbose=False)


# --- a preparation ----------------------------------------------------------------------------


def test_predictions_and_metrics_are_in_the_targets_units(frame_of):
    model = trained(frame_of)
    predicted = model.predict(table(frame_of, "cba"))
    assert (predicted.shape, predicted.dtype) == ((ROWS,), np.float64)
    rmse = math.sqrt(np.mean((predicted - HEAT) ** 2))
    assert rmse < 0.5 * HEAT.std()
    found = model.evaluate(table(frame_of), HEAT)
    # Outputs are float32 before they are scaled back.
    assert found["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert found["loss"] == pytest.approx((rmse / HEAT.std()) ** 2, rel=1e-4)
    history = model.fit(table(frame_of), HEAT, epochs=1, verbose=False, validation_split=0.25)
    assert history["val_rmse"][0] > 100 * math.sqrt(history["val_loss"][0])


def test_metrics_of_ones_own_see_the_targets_units(frame_of):
    def relative(predictions: Any, targets: Any) -> Any:
        return md.ops.abs(predictions - targets) / targets

    model = trained(frame_of, metrics=[relative])
    error = np.abs(model.predict(table(frame_of)) - HEAT) / HEAT
    assert model.evaluate(table(frame_of), HEAT)["relative"] == pytest.approx(
        error.mean(), rel=1e-4
    )


def test_the_same_numbers_as_preparing_by_hand(frame_of):
    model = trained(frame_of)
    made = md.data.Preparation.fit(np.stack([A, B, C], 1), HEAT)
    plain = network()
    x, y = made.apply_inputs(np.stack([A, B, C], 1)), made.apply_target(HEAT)
    plain.fit(x, y, epochs=20, verbose=False)
    assert np.array_equal(plain.values()["dense_1/kernel"], model.values()["dense_1/kernel"])
    by_hand = made.restore_target(plain.predict(x)[:, 0])
    assert np.array_equal(model.predict(table(frame_of)), by_hand)
    assert np.array_equal(model.predict(x, prepared=True), by_hand)
    again = network(preparation=made)
    again.fit(x, y, epochs=20, verbose=False, prepared=True)
    assert np.array_equal(again.predict(np.stack([A, B, C], 1)), by_hand)


def test_classes_come_back_as_they_are_in_the_data(frame_of, tmp_path):
    numbers = np.where(SOIL == "wet", 7, 3)
    for labels in (SOIL, numbers, SOIL == "wet"):
        model = classifier(6, preparation=md.data.Standardize())
        frame = table(frame_of, site=SITE)
        model.fit(frame, labels, epochs=15, verbose=False, class_weight={labels[0]: 1.0, labels[1]: 1.0}
                  if labels[0] != labels[1] else "balanced")  # fmt: skip
        model.save(tmp_path / "m")
        again = md.load(tmp_path / "m")
        found = again.predict_class(table(frame_of, "cab", site=SITE))
        assert found.dtype.kind == labels.dtype.kind
        assert (found == labels).mean() > 0.9
        assert again.evaluate(frame, labels)["accuracy"] == pytest.approx((found == labels).mean())
        names = again.preparation.classes
        likely = again.predict_probability(frame).argmax(1)
        assert [names[k] for k in likely] == [str(label) for label in found]


def test_statistics_leave_out_the_rows_that_validate(frame_of):
    kept, held = md.data.split_rows(ROWS, 0.25, 0)
    b = B.copy()
    b[held] = 1e6
    model = network(preparation=md.data.Standardize())
    model.fit(
        frame_of({"a": A, "b": b, "c": C}), HEAT, epochs=1, verbose=False, validation_split=0.25
    )
    assert model.preparation.mean[1] == pytest.approx(B[kept].mean(), rel=1e-12)
    assert model.preparation.target_mean[0] == pytest.approx(HEAT[kept].mean(), rel=1e-12)
    before = model.preparation
    model.fit(table(frame_of), HEAT, epochs=1, verbose=False)
    assert model.preparation is before  # what was learnt is relative to it


def test_missing_values_are_filled_or_refused(pandas):
    frame = table(pandas.DataFrame)
    frame.loc[3, "b"] = None
    with pytest.raises(
        DataError, match=r"fit: x: values are missing in 1 row \(row 3\) \(columns 'b'\)"
    ):
        network(preparation=md.data.Standardize()).fit(frame, HEAT, verbose=False)
    model = network(preparation=md.data.Standardize(missing="mean"))
    model.fit(frame, HEAT, epochs=1, verbose=False)
    assert np.isfinite(model.predict(frame)).all()


def test_several_targets_in_their_own_units(pandas):
    frame, target = table(pandas.DataFrame), pandas.DataFrame({"heat": HEAT, "flow": C * 1e-3})
    model = network(outputs=2, preparation=md.data.Standardize(), metrics=["r2"])
    model.fit(frame, target, epochs=40, verbose=False)
    found = model.predict(frame)
    assert found.shape == (ROWS, 2)
    assert abs(found.mean(axis=0) / target.to_numpy().mean(axis=0) - 1).max() < 0.05
    assert model.preparation.target_names == ("heat", "flow")
    assert model.evaluate(frame, target[["flow", "heat"]]) == model.evaluate(frame, target)


def test_metrics_of_several_targets_are_those_of_each_in_its_units(pandas):
    def largest(predictions: Any, targets: Any) -> Any:
        return md.ops.abs(predictions - targets)

    frame, target = table(pandas.DataFrame), pandas.DataFrame({"heat": HEAT, "flow": C * 1e-3})
    metrics = ["rmse", "mse", "mae", "r2", largest]
    model = network(outputs=2, preparation=md.data.Standardize(), metrics=metrics)
    history = model.fit(frame, target, epochs=2, verbose=False, validation_split=0.25)
    weights = np.linspace(0.0, 2.0, ROWS)
    truth, found = target.to_numpy(), model.predict(frame)
    for w in (None, weights):
        figures = model.evaluate(frame, target, sample_weight=w, batch_size=13)
        assert list(figures)[1:] == [
            f"{name}_{metric}"
            for metric in ("rmse", "mse", "mae", "r2", "largest")
            for name in ("heat", "flow")
        ]
        for k, name in enumerate(("heat", "flow")):
            residual = found[:, k] - truth[:, k]
            squared, absolute = (np.average(v, weights=w) for v in (residual**2, abs(residual)))
            spread = np.average((truth[:, k] - np.average(truth[:, k], weights=w)) ** 2, weights=w)
            expected = {
                "rmse": squared**0.5, "mse": squared, "mae": absolute, "r2": 1 - squared / spread,
                "largest": absolute,
            }  # fmt: skip
            for metric, value in expected.items():
                # Outputs and standardised targets are float32.
                assert figures[f"{name}_{metric}"] == pytest.approx(value, rel=1e-5, abs=1e-7), (
                    metric
                )
    assert {"val_heat_rmse", "val_flow_r2"} <= set(history.columns)


def test_a_target_whose_metrics_would_read_as_validation_is_refused(pandas):
    target = pandas.DataFrame({"val": HEAT, "flow": C})
    model = network(outputs=2, preparation=md.data.Standardize(), metrics=["rmse"])
    with pytest.raises(ArgumentError, match="in the column 'val_rmse' of the history, which means"):
        model.fit(table(pandas.DataFrame), target, verbose=False)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda m, f: m.predict(f), ArgumentError, "predict: the preparation is not fitted yet: fit does"),
        (lambda m, f: m.evaluate(f, HEAT), ArgumentError, "evaluate: the preparation is not fitted yet"),
        (lambda m, f: m.fit([(A, HEAT)]), ArgumentError, "fit: batches of an iterable are not prepared"),
        (lambda m, f: m.fit(f.assign(s=SITE), HEAT), ShapeError, "fit: x becomes (6,) inputs (a, b, c, s="),
        (lambda m, f: m.fit(f, SOIL), MagmaDNNError, "fit: target: is of type <U3"),
        (lambda m, f: network(preparation="yes"), ArgumentError, "Model: preparation must be md.data."),
        (lambda m, f: md.data.Standardize(missing="drop"), UnknownNameError, "missing 'drop' is not known"),
        (
            lambda m, f: classifier(preparation=md.data.Preparation.fit(f, HEAT)).fit(f, HEAT),
            ArgumentError,
            "fit: the loss is one of classification, but the preparation one of regression",
        ),
        (
            lambda m, f: classifier(preparation=md.data.Standardize()).fit(f, SOIL, class_weight={"moist": 1}),  # noqa: E501
            UnknownNameError,
            "fit: class_weight: class 'moist' is not known",
        ),
    ],
)  # fmt: skip
def test_mistakes_with_a_preparation(pandas, act, error, text):
    with pytest.raises(MagmaDNNError) as raised:
        act(network(preparation=md.data.Standardize()), table(pandas.DataFrame))
    assert isinstance(raised.value, error)
    assert str(raised.value).startswith(text), str(raised.value)
    assert "\n" not in str(raised.value)


def test_whole_numbers_are_quantities_where_the_loss_says_so(pandas):
    grades = np.clip(np.round(A + 5), 3, 8).astype(int)
    model = network(preparation=md.data.Standardize())
    model.fit(table(pandas.DataFrame), pandas.Series(grades), epochs=10, verbose=False)
    assert model.preparation.task == "regression"
    assert 3 < model.predict(table(pandas.DataFrame)).mean() < 8


# --- folders ----------------------------------------------------------------------------------


def test_a_folder_of_the_command_line_takes_raw_rows(frame_of, tmp_path, monkeypatch):
    from magmadnn.cli import main

    monkeypatch.chdir(tmp_path)
    lines = [f"{a:.6f},{b:.6f},{c:.6f},{h:.6f}" for a, b, c, h in zip(A, B, C, HEAT, strict=True)]
    Path("t.csv").write_text("a,b,c,heat\n" + "\n".join(lines) + "\n")
    assert (
        main(
            ["train", "--data", "t.csv", "--epochs", "2", "--hidden", "4", "--out", "r", "--quiet"]
        )
        == 0
    )
    assert main(["predict", "r", "--data", "t.csv", "--out", "p.csv", "--quiet"]) == 0
    predicted = np.loadtxt("p.csv", skiprows=1)
    model = md.load("r")
    frame = table(frame_of, "cba", heat=HEAT)  # the target may be there
    np.testing.assert_allclose(model.predict(frame), predicted, rtol=1e-6)


def test_folders_of_before_load_and_damaged_ones_are_refused(frame_of, tmp_path):
    model = trained(frame_of)
    model.save(tmp_path / "m")
    state = load_state(tmp_path / "m")

    def changed(**fields: Any) -> Path:
        record = json.loads(json.dumps(state.record))
        for name, value in fields.items():
            record["model"][name] = value
        save_state(tmp_path / "n", State(state.tensors, record), replace=True)
        return tmp_path / "n"

    record = json.loads(json.dumps(state.record))
    made = record["model"].pop("preparation")
    record["model"].pop("columns")
    record["extra"] = {
        "preparation": {k: v for k, v in made.items() if k not in ("version", "labels")}
    }
    save_state(tmp_path / "old", State(state.tensors, record))
    old = md.load(tmp_path / "old")
    assert np.array_equal(old.predict(table(frame_of)), model.predict(table(frame_of)))
    record["extra"] = {}
    save_state(tmp_path / "older", State(state.tensors, record))
    assert md.load(tmp_path / "older").preparation is None
    for damaged in (
        {"preparation": {**made, "mean": [1.0]}},
        {"preparation": {**made, "std": [0.0, 1.0, 1.0]}},
        {"preparation": {**made, "labels": "colour"}},
        {"preparation": {**made, "version": 99}},
        {"preparation": {**made, "schema": {}}},
        {"preparation": []},
        {"columns": []},
        {"columns": {"input": {"columns": 3}}},
    ):
        with pytest.raises(CheckpointError):
            md.load(changed(**damaged))
