"""fit with augmentation: the same training for any number of threads, and after a stop."""

from __future__ import annotations

import time

import numpy as np
import pytest

import magmadnn as md
from magmadnn.data import augment
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.errors import ArgumentError, CheckpointError, MagmaDNNError, ShapeError
from magmadnn.ops import philox
from magmadnn.training.loop.augmented_source import AugmentedSource

ROWS, SHAPE, CLASSES = 106, (6, 5, 3), 4
LIST = [augment.RandomCrop(2), augment.RandomFlip(), augment.Cutout(2), augment.RandomContrast(0.3)]


def images(rows: int = ROWS):
    drawn = philox.uniform(8, 1, rows * 90, np.float32).reshape(rows, *SHAPE)
    y = np.arange(rows) * 7 % CLASSES
    drawn[np.arange(rows), y, 2, :] += 2  # so that there is something to learn
    return drawn, y


X, Y = images()


def model(**options) -> md.Model:
    return md.Model(
        [md.layers.Input(SHAPE), md.layers.Flatten(), md.layers.Dense(9, activation="relu"),
         md.layers.Dense(CLASSES)],
        **{"loss": "cross_entropy", "optimizer": "adam", "metrics": ["accuracy"], "seed": 4, **options},
    )  # fmt: skip


def parameters(made: md.Model):
    return np.concatenate([np.ravel(np.asarray(v)) for v in made.values().values()])


def trained(made: md.Model | None = None, **options):
    made = made or model()
    settings = {"batch_size": 10, "epochs": 3, "augment": LIST, "verbose": False} | options
    history = made.fit(X, Y, **settings)
    return parameters(made), history


@pytest.mark.parametrize("mixup", [False, True])
def test_batches_are_the_same_for_any_number_of_workers(mixup):
    transforms = (*LIST, augment.Mixup(0.3)) if mixup else tuple(LIST)
    found = []
    for workers in (1, 2, 4):
        pipeline = Pipeline(transforms, 3, classes=CLASSES if mixup else None)
        source = AugmentedSource(
            X, Y, np.arange(ROWS, dtype=np.float32), pipeline=pipeline, workers=workers, seed=3
        )
        found.append(list(source.epoch(2, 10, 1)))
    assert [len(batches) for batches in found] == [10, 10, 10]
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(first.inputs[0], second.inputs[0])
            np.testing.assert_array_equal(first.targets[0], second.targets[0])
            np.testing.assert_array_equal(first.weights, second.weights)
    order = md.data.order(ROWS, 3, 2)[10:20]
    np.testing.assert_array_equal(found[0][0].weights, order)
    if not mixup:
        expected = augment.augmented(X, LIST, seed=3, epoch=2, rows=order)
        np.testing.assert_array_equal(found[0][0].inputs[0], expected)
        np.testing.assert_array_equal(found[0][0].targets[0], Y[order])


def test_training_is_the_same_for_any_number_of_workers():
    one, _ = trained()
    for workers in (2, 4):
        np.testing.assert_array_equal(one, trained(loader_workers=workers)[0])
    assert not np.array_equal(one, trained(augment=None)[0])


def test_an_epoch_at_a_time_is_the_same_as_all_at_once():
    made = model()
    for _ in range(3):
        found, _ = trained(made, epochs=1)
    np.testing.assert_array_equal(found, trained()[0])


class StopAt(md.callbacks.Callback):
    """Stops within an epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def batches(self, fit) -> int:
        return 1

    def on_batch_end(self, fit) -> None:
        if fit.steps == self.steps:
            fit.stop("for the test")


@pytest.mark.parametrize("mixup", [False, True])
@pytest.mark.parametrize("steps", [4, 11, 17])
def test_a_training_that_was_stopped_goes_on_bit_by_bit(tmp_path, steps, mixup):
    chosen = [*LIST, augment.Mixup(0.3)] if mixup else LIST
    whole, history = trained(augment=chosen)
    keep = md.callbacks.Checkpoint(tmp_path / "t", signals=False)
    trained(augment=chosen, callbacks=[StopAt(steps), keep])
    made = model()
    keep = md.callbacks.Checkpoint(tmp_path / "t", signals=False)
    found, resumed = trained(made, augment=chosen, callbacks=[keep], loader_workers=2)
    np.testing.assert_array_equal(found, whole)
    assert resumed["loss"] == pytest.approx(history["loss"], rel=1e-6)


def test_a_checkpoint_of_other_augmentation_is_refused(tmp_path):
    trained(callbacks=[StopAt(3), md.callbacks.Checkpoint(tmp_path / "t", signals=False)])
    with pytest.raises(CheckpointError, match="augment is"):
        trained(
            augment=[augment.RandomCrop(1)],
            callbacks=[md.callbacks.Checkpoint(tmp_path / "t", signals=False)],
        )


def test_validation_rows_are_not_changed():
    made = model()
    _, history = trained(made, epochs=1, validation_split=0.3)
    _, held = md.data.split_rows(ROWS, 0.3, 4)
    found = made.evaluate(X[held], Y[held])
    assert history["val_loss"][-1] == pytest.approx(found["loss"], rel=1e-5)
    assert history["val_accuracy"][-1] == found["accuracy"]


def test_bytes_memory_maps_and_the_preset_will_do(tmp_path):
    np.save(tmp_path / "x.npy", (X * 50).astype(np.uint8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = []
    for x in (mapped, np.asarray(mapped), np.asarray(mapped).astype(np.float32)):
        made = model()
        made.fit(x, Y, batch_size=10, augment="standard", verbose=False)
        found.append(parameters(made))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    none = model()
    none.fit(X, Y, batch_size=10, augment="none", verbose=False)
    plain = model()
    plain.fit(X, Y, batch_size=10, verbose=False)
    np.testing.assert_array_equal(parameters(none), parameters(plain))


def test_a_model_learns_from_changed_images():
    _, history = trained(epochs=40, augment=[augment.RandomFlip(), augment.Mixup(0.2)])
    assert history["loss"][-1] < 0.7 * history["loss"][0]


def test_images_are_standardised_around_colours():
    made = model(preparation=md.data.Standardize())
    made.fit(X, Y, batch_size=10, augment=[augment.RandomBrightness(0.2)], verbose=False)
    assert made.evaluate(X, Y)["loss"] > 0


def of_places(transforms, y):
    """A model with a target for each place."""
    made = md.Model(
        [md.layers.Input(X.shape[1:]), md.layers.Conv2D(4, 3, padding="same")],
        loss="mse" if y.ndim == 4 else "cross_entropy", optimizer="sgd",
    )  # fmt: skip
    return made.fit(X, y, augment=transforms, verbose=False)


PLACES = np.zeros(X.shape[:3], np.int64)
AREA = PLACES.shape[1:]
STAY = (
    "which would stay: give an iterable of batches in which your own code changes both, or transforms of "
    "colour"
)


def test_targets_of_places_go_with_transforms_that_move_nothing():
    of_places([augment.RandomBrightness(), augment.Cutout(2)], PLACES)
    of_places([augment.Mixup()], np.zeros((*X.shape[:3], 4), np.float32))


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        ("binary_cross_entropy", 1, Y % 2),
        ("binary_cross_entropy", 3, np.stack([Y % 2, Y // 2, Y == 1], axis=1)),
        ("mse", 1, Y[:, None]),
        ("mse", 2, np.stack([Y, 7 - Y], axis=1)),
        ("cross_entropy", 4, np.eye(4, dtype=int)[Y]),
    ],
)
def test_mixup_mixes_whole_numbers_that_are_no_class_numbers_as_such(loss, outputs, targets):
    """Only [rows] and [rows, 1] beside several outputs number classes."""

    def trained(y):
        layers = [md.layers.Input(X.shape[1:]), md.layers.Flatten(), md.layers.Dense(outputs)]
        made = md.Model(layers, loss=loss, optimizer="sgd", seed=1)
        return made.fit(X, y, batch_size=17, verbose=False, augment=[augment.Mixup(0.5)])["loss"]

    wanted = trained(targets.astype(np.float32))
    assert trained(targets) == wanted
    if set(np.unique(targets)) <= {0, 1}:
        assert trained(targets.astype(bool)) == wanted


def test_mixup_numbers_two_classes_by_truth_values_too():
    def trained(y):
        layers = [md.layers.Input(X.shape[1:]), md.layers.Flatten(), md.layers.Dense(2)]
        made = md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=1)
        return made.fit(X, y, batch_size=17, verbose=False, augment=[augment.Mixup(0.5)])["loss"]

    assert trained(Y > 1) == trained((Y > 1).astype(int))


MISTAKES = {
    "fit: Mixup mixes targets, and hinge takes whole ones: leave one out, or take "
    '"binary_cross_entropy"': lambda: (
        md.Model([md.layers.Input(X.shape[1:]), md.layers.Flatten(), md.layers.Dense(1)], loss="hinge",
                 optimizer="sgd").fit(X, Y % 2, augment=[augment.Mixup()])
    ),
    f"fit: RandomFlip moves pixels, and y has targets for places, of shape {AREA}, {STAY}": (
        lambda: of_places([augment.RandomBrightness(), augment.RandomFlip()], PLACES)
    ),
    f"fit: RandomCrop moves pixels, and y has targets for places, of shape {(*AREA, 4)}, {STAY}": (
        lambda: of_places("standard", np.zeros((*PLACES.shape, 4), np.float32))
    ),
    f"fit: Mixup mixes images, and y has targets for places, of shape {AREA}, {STAY}": (
        lambda: of_places([augment.Mixup()], PLACES)
    ),
    "fit: validation_split, sample_weight, class_weight and augment need x and y as arrays": lambda: (
        model().fit(md.data.batches((X, Y), 10), augment=LIST)
    ),
    "fit: augment: expected images [rows, height, width, channels], got x of shape (106, 90)": lambda: (
        md.Model([md.layers.Input((90,)), md.layers.Dense(4)], loss="cross_entropy", optimizer="sgd").fit(
            X.reshape(ROWS, 90), Y, augment=LIST
        )
    ),
    "fit: loader_workers must be a whole number from 1 to 1024, got 0": lambda: (
        trained(loader_workers=0)
    ),
    "fit: Mixup mixes targets, and sample_weight or class_weight weighs samples: leave one out": lambda: (
        trained(augment=[augment.Mixup()], class_weight="balanced")
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(words):
    with pytest.raises((ArgumentError, ShapeError)) as found:
        MISTAKES[words]()
    assert str(found.value) == words
    assert isinstance(found.value, MagmaDNNError)


def test_a_profile_says_how_long_fit_waited_for_its_data() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6), np.float32), rng.integers(0, 3, 40)

    def slow():
        for k in range(0, 40, 10):
            time.sleep(0.05)
            yield x[k : k + 10], y[k : k + 10]

    model = md.Model(
        [md.layers.Input(6), md.layers.Dense(3)], loss="cross_entropy", optimizer="sgd"
    )
    assert "waited" not in str(model.profile(x, y))
    model.fit(slow, epochs=2, verbose=0)
    waited, seconds = model.profile(x, y).waited
    assert 6 * 0.05 <= waited <= seconds < 8  # the first batch is looked at before
    assert f"the last fit waited {waited:.3g} s of {seconds:.3g} s" in str(model.profile(x, y))
    model.fit(x, y, batch_size=10, epochs=1, verbose=0)
    assert model.profile(x, y).waited[0] < 0.05
