"""Augmentation: images that are changed at random while a network is trained.

Give a list of these to `fit`: `model.fit(x, y, augment=[md.data.augment.RandomCrop(4)])`. What happens to an
image depends on the seed, the epoch and the image's row only; not on batches, threads or a stop in between.
"""

from __future__ import annotations

from magmadnn.calls import check_public
from magmadnn.data.augment.augmentation import Augmentation as Augmentation
from magmadnn.data.augment.colour import RandomBrightness as RandomBrightness
from magmadnn.data.augment.colour import RandomContrast as RandomContrast
from magmadnn.data.augment.colour import RandomSaturation as RandomSaturation
from magmadnn.data.augment.geometry import Cutout as Cutout
from magmadnn.data.augment.geometry import RandomCrop as RandomCrop
from magmadnn.data.augment.geometry import RandomFlip as RandomFlip
from magmadnn.data.augment.geometry import RandomRotation as RandomRotation
from magmadnn.data.augment.mixing import Mixup as Mixup
from magmadnn.data.augment.pipeline import augmented as augmented
from magmadnn.data.augment.pipeline import standard as standard

__all__ = [
    "Augmentation",
    "Cutout",
    "Mixup",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomRotation",
    "RandomSaturation",
    "augmented",
    "standard",
]

check_public(vars())
