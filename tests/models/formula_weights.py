"""Weights and images by a formula, the same in every environment."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _numbers(name: str, count: int) -> NDArray[Any]:
    """Numbers in -1..1 that look random: the finaliser of MurmurHash3 of name and place."""
    h = np.arange(count, dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    h ^= h >> np.uint32(16)
    return (h / 2.0**31 - 1).astype(np.float32)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor of a state dict: kernels keep the size of values, and nothing is 0 or 1."""
    drawn = _numbers(name, math.prod(shape)).reshape(shape)
    if name.endswith("running_var"):
        return 1 + drawn / 2
    if len(shape) > 1:
        return drawn * np.float32(math.sqrt(6 / math.prod(shape[1:])))  # as He's uniform
    if name.endswith("weight"):
        return 1 + drawn / 4
    return drawn / 8


def image(size: int) -> NDArray[Any]:
    """Two images, [2, size, size, 3]."""
    return _numbers("image", 6 * size * size).reshape(2, size, size, 3)


def images(count: int, size: int, channels: int) -> NDArray[Any]:
    """Images in -1..1, [count, size, size, channels]."""
    shape = (count, size, size, channels)
    return _numbers("images", math.prod(shape)).reshape(shape)


def classes(count: int, most: int) -> NDArray[Any]:
    """Class numbers below `most`."""
    return ((_numbers("classes", count) + 1) / 2 * most).astype(np.int64) % most
