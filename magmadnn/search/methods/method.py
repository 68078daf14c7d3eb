"""What a method of search is: points for cohorts of trials, and which trials go on at a rung.

A method is asked at fixed logical points only: a cohort's points when the cohorts that it learns of have
arrived completely; a rung of a cohort when all trials of this and of earlier cohorts have arrived at the rung
before. So what it decides does not depend on how many workers there are, or which of them was faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn.ops import philox
from magmadnn.search.spaces.space import Point, Space, key_of

_BLOCK = 64  # trials whose first attempts are drawn in one call

Scores = tuple[float, ...]  # of the objectives, higher is better


@dataclass(frozen=True)
class Arrived:
    """A trial as a method sees it.

    Attributes:
        number: of the trial.
        point: its parameters.
        scores: after a rung; empty where it has failed.
    """

    number: int
    point: Point
    scores: Scores


class Method:
    """A way to search.

    Args:
        space: what is searched.
        seed: of all that is drawn.

    Attributes:
        cohort: how many new trials are decided on at a time.
        learns: whether a cohort's points depend on the results of earlier ones.
        keeps_points: whether the log has to hold the points, since other versions of a library may draw
            others.
    """

    cohort: int = 64
    learns: ClassVar[bool] = False
    keeps_points: ClassVar[bool] = False

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.seed = space, seed
        self._seen: set[str] = set()
        self._drawn: tuple[int, NDArray[np.float64]] | None = None  # first attempts of a block

    def check(self) -> None:  # most need nothing
        """Look, before a search begins, whether what the method needs is there.

        Raises:
            MissingExtraError: a library is not.
        """

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """After how many epochs of a trial it is decided who goes on; the last is `epochs`."""
        return (epochs,)

    def points(self, first: int, count: int, cohort: int) -> list[Point]:
        """Points for the trials from `first` on; fewer than `count` where the space has no more.

        Those that were known before (`known`) do not come again.
        """
        raise AssertionError

    def known(self, points: Sequence[Point]) -> None:
        """Points of trials that others decided on: the user's own, or those that a log holds."""
        self._seen.update(map(key_of, points))

    def arrived(self, cohort: int, trials: Sequence[Arrived]) -> None:
        """All trials of a cohort have ended; told in order of cohorts."""

    def promoted(self, cohort: int, rung: int, trials: Sequence[Arrived]) -> list[int]:
        """Which trials, of this cohort or of earlier ones, go on after a rung.

        Args:
            cohort: whose trials have all arrived at the rung.
            rung: its number, from 0.
            trials: those that arrived there in the stage (cohort, rung).
        """
        return []

    def settings(self) -> Mapping[str, Any]:
        """The arguments that it was made with; part of what a study is."""
        return {}

    # --- for methods that draw ---------------------------------------------------------------------

    def drawn(self, trial: int, attempt: int = 0) -> NDArray[np.float64]:
        """Random positions in [0, 1), one for each parameter, by seed, trial and attempt only."""
        count = len(self.space.dimensions)
        stream = philox.stream_of("search: points", attempt)
        if attempt:
            return philox.uniform(self.seed, stream, count, start=trial * count)
        block = trial // _BLOCK
        if self._drawn is None or self._drawn[0] != block:
            many = philox.uniform(self.seed, stream, _BLOCK * count, start=block * _BLOCK * count)
            self._drawn = block, many.reshape(_BLOCK, count)
        found: NDArray[np.float64] = self._drawn[1][trial % _BLOCK]
        return found

    def is_new(self, point: Point) -> bool:
        """Whether no trial has had the point; it counts as known from now on."""
        key = key_of(point)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True
