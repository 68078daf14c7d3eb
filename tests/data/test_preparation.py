"""Statistics of the training rows, applied, undone and stored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data import validation
from magmadnn.errors import DataError, DTypeError, ShapeError
from magmadnn.ops import philox

EPS = np.finfo(np.float64).eps


def sample(rows: int, *shape: int) -> np.ndarray:
    """Columns of very different size, all far from 0."""
    count = rows * math.prod(shape)
    noise = philox.normal(5, philox.stream_of("sample"), count).reshape(rows, *shape)
    scale = 10.0 ** np.arange(-3, -3 + shape[-1])
    return (noise + 3.0) * scale


@pytest.mark.parametrize("block", [1 << 18, 7])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 2), (7, 3)])
def test_statistics_are_per_last_axis(shape, block, monkeypatch):
    monkeypatch.setattr(validation, "_BLOCK", block)
    x = sample(41, *shape)
    preparation = data.Preparation.fit(x, np.arange(41) % 2)
    axes = tuple(range(x.ndim - 1))
    # Rounding of a sum of n numbers, relative to the numbers' size (3 deviations from 0).
    tolerance = 8 * EPS * math.sqrt(x.size / shape[-1])
    np.testing.assert_allclose(preparation.mean, x.mean(axis=axes), rtol=tolerance)
    np.testing.assert_allclose(preparation.std, x.std(axis=axes), rtol=4 * tolerance)
    assert preparation.input_shape == shape


def test_inputs_are_standardised_with_the_training_statistics():
    x = sample(43, 3)
    preparation = data.Preparation.fit(x[:31], np.arange(31) % 2)
    scaled = preparation.apply_inputs(x[31:])
    expected = (x[31:] - x[:31].mean(axis=0)) / x[:31].std(axis=0)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, rtol=np.finfo(np.float32).eps, atol=1e-12)
    exact = preparation.apply_inputs(x, np.float64)
    # Scaling a column that is three deviations from 0 cancels about two bits.
    assert np.abs(exact[:31].mean(axis=0)).max() < 32 * EPS
    assert np.abs(exact[:31].std(axis=0) - 1.0).max() < 32 * EPS


def test_a_constant_column_is_not_used_whatever_it_holds_later():
    """0.1 + ... + 0.1 is rounded, so the deviation of equal numbers need not be exactly 0."""
    x = np.full((7, 3), 0.1)
    x[:, 1] = np.arange(7)
    x[:, 2] = 1e-200 * np.arange(7)  # its squares vanish
    preparation = data.Preparation.fit(x, np.arange(7) % 2)
    assert preparation.std == (math.inf, 2.0, math.inf)
    assert preparation.constant == ("0", "2")
    x[:, 0] = 1e6  # nothing was learnt of such values
    assert not preparation.apply_inputs(x)[:, [0, 2]].any()
    plain = json.loads(json.dumps(preparation.to_json(), allow_nan=False))
    assert data.Preparation.from_json(plain) == preparation


@pytest.mark.parametrize("block", [1 << 18, 5])
def test_missing_values_are_filled_with_the_mean_of_the_known(block, monkeypatch):
    monkeypatch.setattr(validation, "_BLOCK", block)
    x = sample(11, 3)
    x[[2, 5], 1] = np.nan
    x[:5, 2] = np.nan  # whole blocks without a known value
    preparation = data.Preparation.fit(x, np.arange(11) % 2, missing="mean")
    np.testing.assert_allclose(preparation.mean, np.nanmean(x, axis=0), rtol=16 * EPS)
    np.testing.assert_allclose(preparation.std, np.nanstd(x, axis=0), rtol=64 * EPS)
    scaled = preparation.apply_inputs(x)
    assert (scaled[np.isnan(x)] == 0.0).all()
    assert np.isnan(x[2, 1])  # the input is left as it was


def test_missing_values_are_an_error_unless_asked_for():
    x = sample(11, 3)
    preparation = data.Preparation.fit(x, np.arange(11) % 2)
    x[7, 1] = np.nan
    message = "x: row 7, column 1 is nan, expected finite numbers: repair or leave out the row"
    for call in (
        lambda: preparation.apply_inputs(x),
        lambda: data.Preparation.fit(x, np.arange(11) % 2),
    ):
        with pytest.raises(DataError) as error:
            call()
        assert str(error.value) == message
    x[7, 1] = np.inf
    with pytest.raises(DataError, match="row 7, column 1 is inf"):
        data.Preparation.fit(x, np.arange(11) % 2, missing="mean")


def test_bad_values_in_later_blocks_are_named_by_their_row(monkeypatch):
    monkeypatch.setattr(validation, "_BLOCK", 6)
    x, labels = sample(11, 3), np.arange(11) % 2
    preparation = data.Preparation.fit(x, labels)
    x[7, 1] = np.nan
    for call in (
        lambda: preparation.apply_inputs(x),
        lambda: data.Preparation.fit(x, labels),
    ):
        with pytest.raises(DataError, match="row 7, column 1 is nan"):
            call()


def test_inputs_and_targets_that_do_not_go_together():
    with pytest.raises(ShapeError, match=r"x has the shape \(5, 2\) and the target \(4,\)"):
        data.Preparation.fit(sample(5, 2), np.arange(4))
    two = data.Preparation.fit(sample(5, 2), sample(5, 2))
    with pytest.raises(ShapeError, match=r"predictions have the shape \(5, 3\)"):
        two.restore_target(sample(5, 3))


def test_a_column_without_known_values_is_named():
    x = sample(11, 3)
    x[:, 2] = np.nan
    with pytest.raises(DataError, match="x: column 2 has no known value in the training rows"):
        data.Preparation.fit(x, np.arange(11) % 2, missing="mean")


def test_classes_become_numbers_and_names_again():
    raw = np.array(["no", "yes", "maybe", "no"])
    preparation = data.Preparation.fit(sample(4, 2), raw)
    assert preparation.task == "classification"
    assert preparation.classes == ("maybe", "no", "yes")
    labels = preparation.apply_target(raw)
    assert labels.tolist() == [1, 2, 0, 1]
    assert preparation.restore_target(labels).tolist() == raw.tolist()
    with pytest.raises(DataError, match=r"prediction 3 is outside the classes 0\.\.2"):
        preparation.restore_target(np.array([0, 3]))
    with pytest.raises(DTypeError, match="class numbers are of type float64"):
        preparation.restore_target(np.array([0.0]))


@pytest.mark.parametrize("shape", [(), (2,)])
def test_quantities_are_scaled_and_restored(shape):
    raw = sample(37, *(shape or (1,))).reshape(37, *shape) + 100.0
    preparation = data.Preparation.fit(sample(37, 2), raw)
    assert preparation.task == "regression"
    assert preparation.target_shape == shape
    scaled = preparation.apply_target(raw)
    assert scaled.dtype == np.float32
    assert scaled.shape == raw.shape
    np.testing.assert_allclose(
        scaled, (raw - raw.mean(axis=0)) / raw.std(axis=0), rtol=1e-6, atol=1e-9
    )
    restored = preparation.restore_target(scaled)
    assert restored.dtype == np.float64
    # float32 keeps 24 bits of a scaled value below 4.
    error = 4 * np.finfo(np.float32).eps * raw.std(axis=0)
    assert (np.abs(restored - raw) <= error).all()


def test_predictions_with_one_column_are_restored_too():
    preparation = data.Preparation.fit(sample(5, 2), np.array([1.5, 2.5, 4.0, 0.5, 7.0]))
    assert preparation.restore_target(np.zeros((3, 1))).tolist() == [[3.1]] * 3


def test_the_task_can_be_given():
    grades = 3 + np.arange(100) % 6
    assert data.Preparation.fit(sample(100, 2), grades).task == "classification"
    regression = data.Preparation.fit(sample(100, 2), grades, task="regression")
    assert regression.task == "regression"
    assert regression.target_mean == (float(grades.mean()),)
    with pytest.raises(DTypeError, match="expected numbers of the shape"):
        data.Preparation.fit(sample(2, 2), np.array(["a", "b"]), task="regression")


def test_stored_as_plain_data(wine, text_file):
    texts = data.read_table(text_file("a,b,y\n1,p,5\n2,q,6\n4,p,7\n", "texts.csv"))
    cases = [
        data.Preparation.fit(sample(7, 3, 4, 2), np.arange(7) % 2),
        data.Preparation.fit(sample(7, 3) / 3.0, sample(7, 2), missing="mean"),
        data.Preparation.fit(texts.x, texts.target, schema=texts.schema, task="regression"),
        data.Preparation.fit(sample(2, 1), np.array(["a", "b"]), missing="drop"),
    ]
    for preparation in cases:
        stored = json.loads(json.dumps(preparation.to_json()))
        assert data.Preparation.from_json(stored) == preparation


DAMAGE = {
    "no task": ({"task": None}, "the saved data is damaged: there is no task"),
    "a text for a list": ({"mean": "12"}, "mean is '12'"),
    "other elements": ({"std": ["1.0", 2.0]}, r"std is \['1.0', 2.0\]"),
    "lengths": ({"std": [1.0]}, "std needs 2 finite numbers"),
    "not positive": ({"std": [1.0, 0.0]}, "std needs 2 finite numbers"),
    "not finite": ({"mean": [1.0, math.nan]}, "mean needs 2 finite numbers"),
    "classes gone": ({"classes": []}, "classification does not go with the classes"),
    "classes twice": ({"classes": ["a", "a"]}, "classification does not go with the classes"),
    "shape": ({"input_shape": [3]}, "mean needs 3 finite numbers"),
    "columns": ({"schema": {"columns": []}}, "the saved description is damaged"),
}


@pytest.mark.parametrize("case", DAMAGE.values(), ids=DAMAGE)
def test_damaged_data_is_refused(case):
    change, message = case
    stored = data.Preparation.fit(sample(5, 2), np.array(list("abaab"))).to_json()
    with pytest.raises(DataError, match=message):
        data.Preparation.from_json({**stored, **change})


def test_rows_of_another_shape_are_refused():
    preparation = data.Preparation.fit(sample(5, 2), sample(5, 1)[:, 0])
    with pytest.raises(ShapeError, match=r"rows of the shape \(3,\), expected \(2,\) as in train"):
        preparation.apply_inputs(sample(5, 3))
    with pytest.raises(ShapeError, match=r"target has rows of the shape \(2,\), expected \(\)"):
        preparation.apply_target(sample(5, 2))
    with pytest.raises(DataError, match="target: row 1 is nan"):
        preparation.apply_target(np.array([1.0, np.nan]))


def test_a_memory_map_is_fitted_without_being_loaded(tmp_path):
    x = sample(97, 3, 2).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels = np.arange(97) % 2
    assert data.Preparation.fit(mapped, labels) == data.Preparation.fit(x, labels)


def test_lists_are_taken_as_arrays() -> None:
    rows, target = [[1.0, 2.0], [3.0, 5.0], [5.0, 4.0]], [0.5, 1.5, 4.0]
    made = data.Preparation.fit(rows, target)
    assert made == data.Preparation.fit(np.array(rows), np.array(target))
    assert np.array_equal(made.apply_inputs(rows), made.apply_inputs(np.array(rows)))
    assert made.restore_target([0.0]) == pytest.approx(2.0)
