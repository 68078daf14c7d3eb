"""Augmentation that mixes two images and their targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.augment.augmentation import Augmentation, Draws, Floats, Images, in_range
from magmadnn.errors import ArgumentError

_TRIES = 32  # of drawing a share; all fail once in 2**32 at alpha 1, and far less often below


@dataclass(frozen=True)
class Mixup(Augmentation):
    """`w * x + (1 - w) * x'`, and likewise of the targets, with w drawn from Beta(alpha, alpha).

    Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond empirical risk minimization", ICLR 2018, section 2. x' is
    any training image, with the augmentation it has in this epoch itself. Class numbers become probabilities
    of the classes, which the loss "cross_entropy" takes. It has to be the last in a list.

    Attributes:
        alpha: above 0, at most 1; near 0 most images stay nearly as they are.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        in_range(self, "alpha", 1e-3, 1)

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """Not possible for images without the others.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("Mixup: has to be the last of the list, and needs targets")

    def partners(self, draws: Draws, use: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the one of `rows` that it is mixed with."""
        numbers = (draws.uniform(f"{use} partner", 1)[:, 0] * len(rows)).astype(np.int64)
        return rows[numbers]

    def shares(self, draws: Draws, use: str) -> NDArray[np.float32]:
        """The w of each row: [n].

        From uniform u and v, X = u**(1/alpha) and Y = v**(1/alpha), X / (X + Y) where X + Y <= 1: Johnk,
        Metrika 8 (1964).
        """
        u = 1.0 - draws.uniform(f"{use} share", 2 * _TRIES)  # in (0, 1]
        x, y = np.log(u.reshape(-1, _TRIES, 2)).transpose(2, 0, 1) / self.alpha
        total: Floats = np.logaddexp(x, y)
        first = np.argmax(total <= 0, axis=1)[:, None]  # 0 where none is, which is seldom
        chosen: Floats = np.exp(np.take_along_axis(x - total, first, 1))[:, 0]
        return chosen.astype(np.float32)


def mixed(
    first: NDArray[np.float32], second: NDArray[np.float32], shares: NDArray[np.float32]
) -> NDArray[np.float32]:
    """`w * first + (1 - w) * second`, with a w for each row; first may be written to."""
    w = shares.reshape(-1, *([1] * (first.ndim - 1)))
    first -= second
    first *= w
    first += second
    return first
