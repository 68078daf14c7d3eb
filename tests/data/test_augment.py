"""Augmentation: what each transform does, and what its random numbers depend on."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.data import augment
from magmadnn.data.augment.augmentation import Draws
from magmadnn.data.augment.mixing import mixed
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from magmadnn.ops import philox

ALL = (
    augment.RandomCrop(2),
    augment.RandomCrop(7, "edge"),
    augment.RandomFlip(vertical=True),
    augment.RandomRotation(20),
    augment.Cutout(3),
    augment.RandomBrightness(0.3),
    augment.RandomContrast(0.4),
    augment.RandomSaturation(0.5),
)


def images(n: int = 12, height: int = 7, width: int = 6, channels: int = 3):
    count = n * height * width * channels
    drawn = philox.uniform(3, 9, count, np.float32)
    return drawn.reshape(n, height, width, channels)


def one(transform: augment.Augmentation, x=None, rows=None, seed=5, epoch=2):
    return augment.augmented(
        images() if x is None else x, [transform], seed=seed, epoch=epoch, rows=rows
    )


# --- random numbers ---


def test_a_row_is_changed_alike_in_any_company():
    every = augment.augmented(images(), ALL, seed=7, epoch=3)
    for rows in ([4], [11, 0, 4], [4, 4]):
        part = augment.augmented(images(), ALL, seed=7, epoch=3, rows=rows)
        np.testing.assert_array_equal(part, every[rows])


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_seed_epoch_and_row_decide(transform):
    same = np.repeat(images(1), 12, axis=0)
    first = one(transform, same)
    assert not np.array_equal(first, one(transform, same, seed=6))
    assert not np.array_equal(first, one(transform, same, epoch=3))
    assert len(np.unique(first.reshape(12, -1), axis=0)) > 2  # rows differ
    np.testing.assert_array_equal(first, one(transform, same))


def test_transforms_of_one_kind_draw_by_their_place():
    x = np.repeat(images(1), 40, axis=0)
    twice = augment.augmented(x, [augment.RandomFlip(), augment.RandomFlip()])
    assert not np.array_equal(twice, x)  # it would be, were both drawn alike


def test_draws_are_elements_of_philox_streams():
    draws = Draws(2**40 + 5, 9, np.array([6, 2, 2**31], np.int64)).uniform("use", 6)
    stream = philox.stream_of("augment use", 9)
    for k, row in enumerate((6, 2, 2**31)):
        for block, columns in ((0, slice(0, 4)), (1, slice(4, 6))):
            words = philox.random_bits(2**40 + 5, stream, 4, 4 * (block * 2**32 + row))
            np.testing.assert_array_equal(
                draws[k, columns] * 2**32, words[: columns.stop - columns.start]
            )


def test_what_is_given_stays_as_it_is():
    x = images()
    before = x.copy()
    augment.augmented(x, ALL)
    np.testing.assert_array_equal(x, before)


# --- each transform ---


def test_a_crop_is_a_part_of_the_mirrored_image():
    x, found = images(200, 5, 5), None
    found = one(augment.RandomCrop(2), x)
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    places = set()
    for k in range(200):
        fits = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if np.array_equal(padded[k, i : i + 5, j : j + 5], found[k])
        ]
        assert fits
        places.add(fits[0])
    # Each of 25 places is missed by 200 images with probability 25 * (24/25)**200 < 0.8 %; the seed is fixed.
    assert len(places) == 25


def test_flips_are_independent_and_half_of_the_images():
    x = images(400)
    found = one(augment.RandomFlip(True, True), x)
    ways = {
        "as it is": x, "across": x[:, :, ::-1], "down": x[:, ::-1], "both": x[:, ::-1, ::-1]
    }  # fmt: skip
    counts = {
        n: sum(np.array_equal(a, b) for a, b in zip(found, y, strict=True)) for n, y in ways.items()
    }
    assert sum(counts.values()) == 400
    # 100 each with standard deviation sqrt(400 * 3/16) = 8.7; four of them.
    assert all(abs(count - 100) < 35 for count in counts.values())


def test_a_rotation_is_about_the_middle():
    x = np.zeros((1, 9, 9, 1), np.float32)
    x[0, 4, 4] = 1  # stays under any angle
    x[0, 4, 7] = 3
    turns = [one(augment.RandomRotation(180), x, epoch=e)[0, ..., 0] for e in range(20)]
    for found in turns:
        assert found[4, 4] == pytest.approx(1, abs=1e-6)
        y, z = np.unravel_index(np.argmax(np.where(found == found[4, 4], 0, found)), (9, 9))
        # Interpolation spreads the point over its four neighbours, at most sqrt(1/2) away.
        assert abs(np.hypot(y - 4, z - 4) - 3) < 1
    small = one(augment.RandomRotation(1e-3), images())
    np.testing.assert_allclose(small, images(), atol=1e-3)


def test_a_rotation_of_a_plane_is_a_plane():
    # Bilinear interpolation is exact on v = row + 2 column, away from the edges.
    grid = np.arange(11)[:, None] + 2 * np.arange(11)[None]
    x = np.repeat(grid[None, ..., None], 30, axis=0).astype(np.float32)
    found = one(augment.RandomRotation(10), x)[:, 3:8, 3:8, 0]
    steps = np.diff(found, axis=1)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[:, :1, :1], steps.shape), atol=1e-4)
    angle = np.arctan2(1, 2)  # the gradient (1, 2) is turned, its length kept
    across = np.diff(found, axis=2)[:, 0, 0]
    length = np.hypot(steps[:, 0, 0], across)
    np.testing.assert_allclose(length, np.sqrt(5), rtol=1e-4)
    turned = np.rad2deg(np.arctan2(steps[:, 0, 0], across) - angle)
    assert 5 < np.abs(turned).max() <= 10


def test_cutout_sets_a_square_to_the_mean():
    x = images(100, 8, 8)
    found = one(augment.Cutout(4), x)
    for before, after in zip(x, found, strict=True):
        changed = (before != after).any(axis=-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        assert changed.sum() == len(rows) * len(columns)
        assert 2 <= len(rows) <= 4 and 2 <= len(columns) <= 4
        mean = before.mean(axis=(0, 1), dtype=np.float64)
        np.testing.assert_allclose(after[changed], np.tile(mean, (changed.sum(), 1)), rtol=1e-5)


def test_colours():
    x = images(300)
    bright = one(augment.RandomBrightness(0.3), x) / x
    factors = bright[:, 0, 0, 0]
    np.testing.assert_allclose(
        bright, np.broadcast_to(factors[:, None, None, None], x.shape), rtol=1e-5
    )
    assert 0.7 <= factors.min() < 0.72 and 1.28 < factors.max() <= 1.3
    contrast = one(augment.RandomContrast(0.5), x)
    luma = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(
        (contrast @ luma).mean(axis=(1, 2)), (x @ luma).mean(axis=(1, 2)), rtol=1e-4
    )
    saturated = one(augment.RandomSaturation(0.9), x)
    np.testing.assert_allclose(saturated @ luma, x @ luma, rtol=1e-4, atol=1e-5)
    assert np.abs(saturated - x).max() > 0.1


def test_pixels_are_moved_alike_in_standardised_images():
    moving = ALL[:5]
    x = images()
    scaled = (x - np.float32(0.5)) / np.float32(0.25)  # exact in float32 but for one rounding
    found = augment.augmented(scaled, moving, seed=1)
    expected = (augment.augmented(x, moving, seed=1) - 0.5) / 0.25
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_colours_are_changed_before_standardisation():
    x, mean, std = images(), (0.4, 0.5, 0.6), (0.2, 0.25, np.inf)
    scaled = ((x - np.array(mean)) / np.array(std)).astype(np.float32)
    pipeline = Pipeline((augment.RandomBrightness(0.5),), 3, mean, std)
    found = pipeline.images(scaled, np.arange(12), 0)
    raw = x.copy()
    raw[..., 2] = 0.6  # a channel that was constant in training has no other values
    changed = augment.augmented(raw, [augment.RandomBrightness(0.5)], seed=3)
    np.testing.assert_allclose(found, (changed - np.array(mean)) / np.array(std), atol=1e-5)


def test_mixup_mixes_images_and_targets_by_one_share():
    x, y = images(500), np.arange(500) * 7 % 4
    rows = np.arange(100, 500)
    pipeline = Pipeline((augment.RandomFlip(), augment.Mixup(0.4)), 3, classes=4)
    found, targets = pipeline.pairs(x, y, rows, 1, rows)
    flipped = Pipeline((augment.RandomFlip(),), 3).images(x, np.arange(500), 1)
    draws = Draws(3, 1, rows)
    mixup = augment.Mixup(0.4)
    partners, shares = mixup.partners(draws, "1 Mixup", rows), mixup.shares(draws, "1 Mixup")
    assert partners.min() >= 100 and len(set(partners)) > 200
    w = shares[:, None, None, None]
    np.testing.assert_allclose(found, w * flipped[rows] + (1 - w) * flipped[partners], atol=1e-6)
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-6)
    hot = np.eye(4, dtype=np.float32)
    expected = shares[:, None] * hot[y[rows]] + (1 - shares[:, None]) * hot[y[partners]]
    np.testing.assert_allclose(targets, expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0])
def test_shares_are_of_a_beta_distribution(alpha):
    shares = augment.Mixup(alpha).shares(Draws(1, 0, np.arange(4000)), "")
    assert 0 <= shares.min() and shares.max() <= 1
    # Mean 1/2, variance 1 / (4 (2 alpha + 1)), fourth central moment 3 / (16 (2a + 1)(2a + 3)); five sigma.
    variance = 1 / (4 * (2 * alpha + 1))
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(shares.mean() - 0.5) < 5 * np.sqrt(variance / 4000)
    assert abs(shares.var() - variance) < 5 * np.sqrt((fourth - variance**2) / 4000)


def test_mixing_is_linear():
    a, b = images(3), images(3)[::-1].copy()
    w = np.array([0.0, 0.3, 1.0], np.float32)
    expected = w[:, None, None, None] * a + (1 - w)[:, None, None, None] * b
    np.testing.assert_allclose(mixed(a.copy(), b, w), expected, atol=1e-6)


# --- presets and mistakes ---


def test_the_preset_does_not_mirror_grey_images():
    assert augment.standard((32, 32, 3)) == (augment.RandomCrop(4), augment.RandomFlip())
    assert augment.standard((28, 28, 1)) == (augment.RandomCrop(3),)
    assert augment.standard((1, 1, 1)) == (augment.RandomCrop(1, "edge"),)


class Custom(augment.Augmentation):
    """A user's own, which applies a function."""

    def __init__(self, function):
        self.function = function

    def apply(self, images, draws, use):
        return self.function(images)


def test_what_a_transform_of_the_users_gives_is_looked_at():
    found = augment.augmented(images(), Custom(lambda x: x.astype(np.float64) + 1))
    np.testing.assert_array_equal(found, images() + np.float32(1))
    assert found.dtype == np.float32


MISTAKES = {
    f"augment: Custom.apply has to return an array of the shape {images().shape} that it was given, got "
    f"shape {images()[:, 1:].shape}": lambda: augment.augmented(images(), Custom(lambda x: x[:, 1:])),
    f"augment: Custom.apply has to return an array of the shape {images().shape} that it was given, got "
    "NoneType": lambda: augment.augmented(images(), Custom(lambda x: None)),
    f"augmented: rows must be a list of whole numbers from 0 to {len(images()) - 1}, got [-1]": lambda: (
        augment.augmented(images(), "standard", rows=[-1])
    ),
    f"augmented: rows must be a list of whole numbers from 0 to {len(images()) - 1}, got [0.5]": lambda: (
        augment.augmented(images(), "standard", rows=[0.5])
    ),
    f"augmented: rows must be a list of whole numbers from 0 to {len(images()) - 1}, got [99]": lambda: (
        augment.augmented(images(), "standard", rows=[99])
    ),
    "augmented: seed must be a whole number from 0, got 0.5": lambda: augment.augmented(
        images(), "standard", seed=0.5
    ),
    "augmented: epoch must be a whole number from 0, got -1": lambda: augment.augmented(
        images(), "standard", epoch=-1
    ),
    "RandomCrop: padding must be a whole number from 1 to 4096, got 0": lambda: augment.RandomCrop(0),
    "RandomCrop: padding must be a whole number from 1 to 4096, got 1.5": lambda: augment.RandomCrop(1.5),
    "RandomRotation: degrees must be a number from 0.001 to 180, got 200": lambda: (
        augment.RandomRotation(200)
    ),
    "Mixup: alpha must be a number from 0.001 to 1, got 2": lambda: augment.Mixup(2),
    "RandomContrast: strength must be a number from 1e-06 to 1, got nan": lambda: augment.RandomContrast(
        float("nan")
    ),
    "RandomFlip: neither horizontal nor vertical: leave it out": lambda: augment.RandomFlip(False),
    "augment: Mixup has to be the last of the list": lambda: augment.augmented(
        images(), [augment.Mixup(), augment.RandomFlip()]
    ),
    "augmented: Mixup needs targets: leave it out to look at images": lambda: augment.augmented(
        images(), augment.Mixup()
    ),
    "augment: expected a list such as [md.data.augment.RandomCrop(4)], got 3 in it": lambda: (
        augment.augmented(images(), [3])
    ),
    "RandomCrop: padding 6 mirrors more than an image of 7 x 6 has: give less, or fill=\"edge\"": lambda: (
        augment.augmented(images(), augment.RandomCrop(6))
    ),
    "RandomSaturation: expected images of 3 channels, got 1: leave it out": lambda: augment.augmented(
        images(channels=1), augment.RandomSaturation()
    ),
    "augment: expected images [rows, height, width, channels], got x of shape (7, 6, 3)": lambda: (
        augment.augmented(images()[0], augment.RandomFlip())
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(words):
    with pytest.raises((ArgumentError, ShapeError)) as found:
        MISTAKES[words]()
    assert str(found.value) == words


def test_names_and_kinds():
    with pytest.raises(UnknownNameError, match="standard"):
        augment.augmented(images(), "standrad")
    with pytest.raises(DTypeError, match="images of numbers"):
        augment.augmented(np.full((2, 3, 3, 1), "a"), augment.RandomFlip())
