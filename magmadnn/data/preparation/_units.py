"""Whether images come in the units of training: bytes, 0 to 255, are easily given where those were 0 to 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.preparation._statistics import Floats
from magmadnn.errors import DataError

_LOOKED_AT = 16  # rows, spread over all: whoever forgets to scale images does so with all of them
_BEYOND = 4.0  # a mean that images of 0 to 1 never have
_LEVELS = 20.0  # a mean and a deviation of training images that count levels


def check_units(x: NDArray[np.generic], mean: Floats, std: Floats) -> None:
    """Refuse images in units that are off by a factor such as 255.

    Training images are taken for values of 0 to 1 where mean and deviation allow it, which they do for no
    more than a variance of `mean * (1 - mean)` (Bhatia, Davis, "A better bound on the variance", 2000).

    Args:
        x: images [rows, height, width, channels] as they were given.
        mean: of each channel of the training images.
        std: likewise; infinite for channels that were constant.

    Raises:
        DataError: training images were of 0 to 1 and the mean of these is above 4, or some of their bytes;
            or training images had levels such as 0 to 255, and these are fractions from 0 to 1.
    """
    if x.size == 0:
        return
    some = np.asarray(x[:: -(-len(x) // _LOOKED_AT)], np.float64)
    spread = np.where(np.isfinite(std), std, 0.0)
    of_training = f"those of training had {mean.mean():.3g}, and a deviation of {spread.mean():.3g}"
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused elsewhere
        found = some.mean(axis=(0, 1, 2))
        beyond = some.max() > _BEYOND if x.dtype == np.uint8 else (found > _BEYOND).any()
        if beyond and (spread**2 <= mean * (1.0 - mean) + 1e-9).all():
            raise DataError(
                f"x: images have a mean of {found.mean():.3g}, but {of_training}: these look like levels up "
                "to 255 where training had values from 0 to 1: divide them by 255"
            )
        if mean.min() < _LEVELS or spread.min() < _LEVELS or some.min() < 0:
            return
        if 0.1 < some.max() <= 1 and (some != np.floor(some)).any():
            raise DataError(
                f"x: images have values from 0 to {some.max():.3g}, but {of_training}: these look like "
                "values from 0 to 1 where training had levels up to 255: multiply them by 255"
            )
