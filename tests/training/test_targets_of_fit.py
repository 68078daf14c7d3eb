"""What targets and batch sizes `fit` takes: forms of the same labels train the same way."""

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError

RNG = np.random.default_rng(6)


def test_class_numbers_may_be_of_any_integer_type_and_of_bool():
    x = RNG.normal(size=(24, 5)).astype(np.float32)
    y = (np.arange(24) % 2).astype(np.int64)

    def losses(y, **options):
        layers = [md.layers.Input((5,)), md.layers.Dense(2)]
        model = md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=3)
        return model.fit(x, y, batch_size=8, epochs=2, verbose=False, **options)["loss"]

    expected = losses(y)
    for same in (y.astype(bool), y.astype(np.uint8), y[:, None], np.eye(2, dtype=bool)[y]):
        assert losses(same) == expected, same.dtype
    # a column is no row of one class: weights of classes are those of the labels in it
    assert losses(y[:, None], class_weight={0: 1.0, 1: 3.0}) == losses(
        y, class_weight={0: 1.0, 1: 3.0}
    )
    assert losses(y, class_weight={0: 1.0, 1: 3.0}) != expected


def test_a_sample_may_have_a_class_for_each_place_in_it():
    x = RNG.normal(size=(12, 4, 5)).astype(np.float32)
    y = RNG.integers(0, 3, (12, 4))

    def fitted(y):
        layers = [md.layers.Input((4, 5)), md.layers.Dense(3)]
        model = md.Model(
            layers, loss="cross_entropy", optimizer="sgd", metrics=["accuracy"], seed=3
        )
        return model.fit(x, y, batch_size=5, epochs=2, verbose=False)

    expected = fitted(y)["loss"]
    assert expected[1] < expected[0]
    assert fitted(y[..., None])["loss"] == expected
    np.testing.assert_allclose(fitted(np.eye(3, dtype=np.float32)[y])["loss"], expected, rtol=1e-6)


def test_a_batch_size_may_be_an_integer_of_numpy():
    x, y = RNG.normal(size=(24, 5)).astype(np.float32), np.arange(24) % 3
    losses = []
    for size in (8, np.int64(8), lambda epoch: np.int32(8)):
        layers = [md.layers.Input((5,)), md.layers.Dense(3)]
        model = md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=3)
        losses.append(model.fit(x, y, batch_size=size, verbose=False)["loss"])
    assert losses[0] == losses[1] == losses[2]


def test_weights_of_validation_rows_are_repeats():
    x, y = RNG.normal(size=(31, 5)).astype(np.float32), np.arange(31) % 3
    weights = RNG.integers(0, 4, 31)
    repeated = np.repeat(np.arange(31), weights)

    def row(*validation):
        layers = [md.layers.Input((5,)), md.layers.Dense(3)]
        model = md.Model(
            layers, loss="cross_entropy", optimizer="sgd", metrics=["accuracy"], seed=3
        )
        return model.fit(x, y, batch_size=8, validation_data=validation, verbose=False).rows[0]

    weighted, plain = row(x, y, weights), row(x, y)
    expected = row(x[repeated], y[repeated])
    # 46 terms in other orders
    for name in ("val_loss", "val_accuracy"):
        np.testing.assert_allclose(weighted[name], expected[name], rtol=46 * 6e-8)
        assert abs(weighted[name] - plain[name]) > 1e-3


def test_a_row_of_many_classes_that_is_refused_is_shown_in_short():
    x, y = RNG.normal(size=(3, 2)).astype(np.float32), np.full((3, 5000), 1 / 5000, np.float32)
    y[1, 4999] = 0.5
    layers = [md.layers.Input((2,)), md.layers.Dense(5000)]
    model = md.Model(layers, loss="cross_entropy", optimizer="sgd")
    with pytest.raises(
        DataError, match=r"^y: row 1 is \[.*\.\.\..*, 0\.5\], for cross_entropy"
    ) as told:
        model.fit(x, y, verbose=False)
    assert len(str(told.value)) < 500
