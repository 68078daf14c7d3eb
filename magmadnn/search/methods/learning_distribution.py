"""Random search that updates its distribution: the cross-entropy method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.search.fronts import ranking
from magmadnn.search.spaces.dimensions import Dimension, is_number
from magmadnn.search.spaces.space import Point, Space
from magmadnn.training.arguments import at_least

from .method import Arrived
from .plain_methods import ATTEMPTS, RandomSearch

_NARROWEST = 0.02  # standard deviation of positions, so that a parameter is never settled


@dataclass
class _Belief:
    """Where good values of a parameter are.

    Attributes:
        middle: mean of positions, of an ordered parameter.
        width: their standard deviation; None: all positions alike.
        shares: of the values, of a parameter without order; None: all alike.
    """

    middle: float = 0.5
    width: float | None = None
    shares: list[float] | None = None


class CrossEntropy(RandomSearch):
    """Draws a generation, moves the distribution towards its best points, draws the next from that.

    With positions p of a parameter in [0, 1): the next generation has the truncated normal distribution whose
    mean and standard deviation are `smoothing` times those of the best `elite` of the last generation, plus
    (1 - smoothing) times those before; a parameter without order has shares of its values in their place.

    Source: de Boer, Kroese, Mannor, Rubinstein, "A tutorial on the cross-entropy method", Annals of
    Operations Research 134 (2005), section 3 with smoothed updates.

    Args:
        space: what is searched.
        seed: of all that is drawn.
        generation: trials that are drawn at a time.
        elite: share of them that the distribution moves towards.
        smoothing: how far it moves, above 0 and up to 1.

    Raises:
        ArgumentError: if one of these is out of range.
    """

    learns = True

    def __init__(
        self,
        space: Space,
        seed: int,
        *,
        generation: int = 20,
        elite: float = 0.25,
        smoothing: float = 0.7,
    ) -> None:
        super().__init__(space, seed)
        at_least("search: cem: generation", generation, 2)
        for name, value in (("elite", elite), ("smoothing", smoothing)):
            if not is_number(value) or not 0 < value <= 1:
                raise ArgumentError(
                    f"search: cem: {name} must be above 0 and up to 1, got {value!r}"
                )
        self.cohort, self._elite, self._smoothing = int(generation), elite, smoothing
        self._beliefs = {name: _Belief() for name in space.dimensions}

    def settings(self) -> dict[str, Any]:
        """Its arguments."""
        return {"generation": self.cohort, "elite": self._elite, "smoothing": self._smoothing}

    def arrived(self, cohort: int, trials: Sequence[Arrived]) -> None:
        """Move towards the best of the generation."""
        valued = [trial for trial in trials if trial.scores]
        count = max(2, round(self._elite * len(trials)))
        best = [valued[k].point for k in ranking([trial.scores for trial in valued])[:count]]
        for name, dimension in self.space.dimensions.items():
            values = [point[name] for point in best if name in point]
            if len(values) > 1:
                self._move(self._beliefs[name], dimension, values)

    def _move(self, belief: _Belief, dimension: Dimension, values: list[Any]) -> None:
        positions = [dimension.position(value) or 0.0 for value in values]
        new, old = self._smoothing, 1 - self._smoothing
        if not dimension.ordered:
            count = dimension.count or 1
            shares = [0.0] * count
            for position in positions:
                shares[min(int(position * count), count - 1)] += 1 / len(positions)
            before = belief.shares or [1 / count] * count
            belief.shares = [new * a + old * b for a, b in zip(shares, before, strict=True)]
            return
        middle = fmean(positions)
        width = fmean((p - middle) ** 2 for p in positions) ** 0.5
        belief.middle = new * middle + old * belief.middle
        before_width = 12**-0.5 if belief.width is None else belief.width  # that of [0, 1)
        belief.width = max(new * width + old * before_width, _NARROWEST)

    def _new_point(self, trial: int) -> Point | None:
        for attempt in range(ATTEMPTS):
            drawn = self.drawn(trial, attempt).tolist()
            placed = [
                _placed(self._beliefs[name], dimension, u)
                for (name, dimension), u in zip(self.space.dimensions.items(), drawn, strict=True)
            ]
            point = self.space.point_at(placed)
            if self.is_new(point):
                return point
        return super()._new_point(trial)  # what is believed to be good has been there


def _placed(belief: _Belief, dimension: Dimension, u: float) -> float:
    """The position that a uniform number stands for."""
    if belief.shares is not None:
        count, total = len(belief.shares), 0.0
        for number, share in enumerate(belief.shares):
            total += share
            if u < total:
                return (number + 0.5) / count
        return 1 - 0.5 / count
    if belief.width is None:
        return u
    normal = NormalDist(belief.middle, belief.width)
    low, high = normal.cdf(0.0), normal.cdf(1.0)
    inner = min(max(low + u * (high - low), 1e-15), 1 - 1e-15)
    return min(max(normal.inv_cdf(inner), 0.0), 1 - 2**-53)
