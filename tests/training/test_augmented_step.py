"""Images changed within the step of a GPU: those of threads on the processor, and `fit` with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.data import augment as A
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.errors import ArgumentError
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running.sliced import kept_slices
from magmadnn.training.loop.augmented_source import AugmentedSource, DrawnSource
from magmadnn.training.model.augmented_step import StepAugmentation
from tests.runtime.cuda.devices import DEVICES, distance, on

L = md.layers
ROWS, HEIGHT, WIDTH = 61, 9, 7
X = np.random.default_rng(2).uniform(0.1, 0.9, (ROWS, HEIGHT, WIDTH, 3)).astype(np.float32)
Y = np.arange(ROWS) % 3
EPS = 2.0**-23
LISTS: dict[str, list[A.Augmentation]] = {
    "crop": [A.RandomCrop(3)],
    "crop as far as it goes": [A.RandomCrop(6)],
    "crop by edges": [A.RandomCrop(11, "edge")],
    "flip": [A.RandomFlip()],
    "flip of rows": [A.RandomFlip(False, True)],
    "moves": [A.RandomFlip(True, True), A.RandomCrop(2), A.RandomFlip()],
    "rotation": [A.RandomRotation(40)],
    "cut-out": [A.Cutout(4)],
    "brightness": [A.RandomBrightness(0.3)],
    "contrast": [A.RandomContrast(0.6)],
    "saturation": [A.RandomSaturation(0.9)],
    "all": [
        A.RandomCrop(2), A.RandomContrast(0.4), A.RandomFlip(), A.RandomRotation(15), A.RandomBrightness(0.5),
        A.Cutout(3),
    ],
}  # fmt: skip
MOVES = ("crop", "crop as far as it goes", "crop by edges", "flip", "flip of rows", "moves")


def changed(
    pipeline: Pipeline, x: np.ndarray, rows: np.ndarray, epoch: int, way: str
) -> np.ndarray:
    """By the formulas of the step."""
    image = md.placeholder("x", (None, *x.shape[1:]), "float32")
    made = StepAugmentation(image, pipeline)
    (output,) = made.within([image * np.float32(1)])
    drawn = pipeline.numbers(rows, epoch, made.sides)
    feeds = {image.node: x[rows], made.drawn.node: drawn}
    (found,) = Executable([output.node], executor=way).run(feeds)
    return found


@pytest.mark.parametrize("way", ["native", "reference"])
@pytest.mark.parametrize("name", LISTS)
def test_images_are_those_of_the_processor(name: str, way: str) -> None:
    pipeline, rows = Pipeline(tuple(LISTS[name]), seed=5), np.arange(ROWS)[::-1].copy()
    for epoch in (0, 3):
        found = changed(pipeline, X, rows, epoch, way)
        expected = pipeline.images(X, rows, epoch)
        if name in MOVES:
            np.testing.assert_array_equal(found, expected)
        # places of a rotation differ by some roundings of up to 9, times differences of pixels below 1; means
        # of 63 values and a few operations of six transforms
        np.testing.assert_allclose(found, expected, rtol=0, atol=64 * EPS)
    assert not np.array_equal(changed(pipeline, X, rows, 1, way), found)


def test_colours_are_changed_as_they_were_before_standardising() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    x = ((X - np.array(mean)) / np.array(std)).astype(np.float32)
    pipeline = Pipeline((A.RandomContrast(0.5), A.RandomFlip()), 3, mean=mean, std=std)
    rows = np.arange(ROWS)
    expected = pipeline.images(x, rows, 2)
    np.testing.assert_allclose(changed(pipeline, x, rows, 2, "native"), expected, atol=100 * EPS)
    assert not np.allclose(expected, Pipeline(pipeline.transforms, 3).images(x, rows, 2), atol=0.01)


def network(device: str, **options: Any) -> md.Model:
    layers = [L.Input(X.shape[1:]), L.Conv2D(4, 3, activation="relu"), L.Flatten(), L.Dense(3)]
    return md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=3, device=device, **options
    )


def trained(
    device: str, augment: Any = "all", epochs: int = 3, x: Any = X, **options: Any
) -> md.Model:
    model = network(device)
    augment = LISTS[augment] if isinstance(augment, str) else augment
    model.fit(x, Y, batch_size=9, epochs=epochs, verbose=False, augment=augment, **options)
    return model


@pytest.mark.parametrize("device", DEVICES)
def test_a_fit_sees_the_images_of_the_processor(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, plain = trained("cpu"), trained("cpu", augment=[])
    monkeypatch.setattr(AugmentedSource, "__init__", None)  # no threads
    with on(device):
        there = trained("cuda")
        assert any(kept_slices._kept.values())  # not batch by batch
        apart = distance(there, here)
        assert there.predict(X).shape == (ROWS, 3)
        assert there.evaluate(X, Y) == there.evaluate(X, Y)
    assert apart < 2e-4 < 0.01 < distance(plain, here)


class StopAt(md.callbacks.Callback):
    """Stops within an epoch."""

    def batches(self, fit: Any) -> int:
        """One at a time."""
        return 1

    def on_batch_end(self, fit: Any) -> None:
        """In the second epoch."""
        if fit.steps == 11:
            fit.stop("for the test")


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_that_was_stopped_goes_on_bit_by_bit(device: str, tmp_path: Path) -> None:
    with on(device):
        whole = trained("cuda")
        trained("cuda", callbacks=[StopAt(), md.callbacks.Checkpoint(tmp_path, signals=False)])
        resumed = trained("cuda", callbacks=[md.callbacks.Checkpoint(tmp_path, signals=False)])
        assert distance(whole, resumed) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_has_no_formula_goes_through_threads(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DrawnSource, "__init__", None)

    class Doubled(A.Augmentation):
        """A user's own."""

        def apply(self, images: Any, draws: Any, use: str) -> Any:
            """Twice as bright."""
            return 2 * images

    with on(device):
        for own in ([A.RandomFlip(), A.Mixup(0.3)], [Doubled()]):
            there, here = trained("cuda", own), trained("cpu", own)
            assert distance(there, here) < 2e-4


@pytest.mark.parametrize("device", DEVICES)
def test_validation_rows_and_weights(device: str) -> None:
    options = {"validation_split": 0.2, "class_weight": "balanced"}
    with on(device):
        assert distance(trained("cuda", **options), trained("cpu", **options)) < 2e-4


def test_transforms_say_that_they_have_no_formula() -> None:
    pipeline = Pipeline((A.Mixup(0.3),), 1)
    with pytest.raises(ArgumentError, match="Mixup: is applied on the host only"):
        pipeline.numbers(np.arange(2), 0, (9, 7))


@pytest.mark.parametrize("device", DEVICES)
def test_images_may_lie_on_the_device(device: str) -> None:
    with on(device):
        there = trained("cuda", x=md.asarray(X, kind="device"))
        assert distance(there, trained("cuda")) == 0
        with pytest.raises(ArgumentError, match="x lies on a device, and augment has transforms"):
            trained("cuda", [A.Mixup(0.3)], x=md.asarray(X, kind="device"))
