"""Whether images come in the units of training.

Bytes, 0 to 255, are easily given where those were 0 to 1, and prepared images where they are prepared again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError

_LOOKED_AT = 16  # rows, spread over all: whoever forgets to scale images does so with all of them
_BEYOND = 4.0  # a mean that images of 0 to 1 never have
_ROUNDING = 1e-9
_ENOUGH = 8  # rows, of which statistics mean something
_NEAR_0, _NEAR_1 = 0.3, 1.4  # a mean and a deviation of standardised images, of some rows
_OTHER = 1.7  # a deviation that is clearly not 1
_LEVELS = 20.0  # a mean and a deviation of training images that count levels


def check_units(x: NDArray[Any], mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuse images in units that are off by a factor such as 255.

    Training images are taken for values of 0 to 1 where mean and deviation allow it, which they do for no
    more than a variance of `mean * (1 - mean)` (Bhatia, Davis, "A better bound on the variance", 2000).

    Args:
        x: images [rows, height, width, channels] as they were given.
        mean: of each channel of the training images.
        std: likewise; infinite for channels that were constant.

    Raises:
        DataError: training images were of 0 to 1 and the mean of these is above 4, or some of their bytes;
            or training images had levels such as 0 to 255, and these are fractions from 0 to 1; or some
            eight of these or more are standardised and those of training were not.
    """
    if x.size == 0:
        return
    chosen = range(0, len(x), -(-len(x) // _LOOKED_AT))
    some = [np.asarray(x[k : k + 1]) for k in chosen]  # of any memory
    most = max(float(rows.max()) for rows in some)
    spread = [0.0 if deviation == math.inf else deviation for deviation in std]
    if most > _BEYOND:
        if any(s * s > m * (1.0 - m) + _ROUNDING for m, s in zip(mean, spread, strict=True)):
            return
        if x.dtype == np.uint8 or _mean_of(some) > _BEYOND:
            raise DataError(
                f"x: images have a mean of {_mean_of(some):.3g}, but {_words(mean, spread)}: these look like "
                "levels up to 255 where training had values from 0 to 1: divide them by 255"
            )
    elif 0.1 < most <= 1 and min(*mean, *spread) >= _LEVELS and _are_fractions(some):
        raise DataError(
            f"x: images have values from 0 to {most:.3g}, but {_words(mean, spread)}: these look like values "
            "from 0 to 1 where training had levels up to 255: multiply them by 255"
        )
    if len(some) >= _ENOUGH and _are_prepared(some, spread):
        raise DataError(
            f"x: images have a mean of 0 and a deviation of 1, but {_words(mean, spread)}: these look "
            "prepared already: give them as they were read, or, to predict, evaluate and fit, prepared=True"
        )


def _mean_of(some: Sequence[NDArray[Any]]) -> float:
    """The mean of the brightest channel; what is not finite is refused elsewhere."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.concatenate(some).mean(axis=(0, 1, 2), dtype=np.float64).max())


def _are_fractions(some: Sequence[NDArray[Any]]) -> bool:
    """Whether values are not below 0, and not all 0 or 1."""
    values = np.concatenate(some)
    return bool(values.min() >= 0 and (values != np.floor(values)).any())


def _are_prepared(some: Sequence[NDArray[Any]], spread: Sequence[float]) -> bool:
    """Whether each channel looks standardised, and those of training did not."""
    if min(float(rows.min()) for rows in some) >= 0:
        return False
    values = np.concatenate(some).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        means, deviations = values.mean(axis=(0, 1, 2)), values.std(axis=(0, 1, 2))
    known = [
        (m, s, of_training)
        for m, s, of_training in zip(means, deviations, spread, strict=True)
        if of_training > 0
    ]
    return bool(known) and all(
        abs(m) < _NEAR_0 and 1 / _NEAR_1 < s < _NEAR_1 and not 1 / _OTHER < of_training < _OTHER
        for m, s, of_training in known
    )


def _words(mean: Sequence[float], spread: Sequence[float]) -> str:
    middle, deviation = sum(mean) / len(mean), sum(spread) / len(spread)
    return f"those of training had {middle:.3g}, and a deviation of {deviation:.3g}"
