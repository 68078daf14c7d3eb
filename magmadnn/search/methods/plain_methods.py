"""Methods that learn nothing: all points of a grid, and random ones."""

from __future__ import annotations

from itertools import islice

from magmadnn.search.spaces.space import Point, Space

from .method import Method

ATTEMPTS = 100  # to draw a point that has not been there


class GridSearch(Method):
    """All points of the space, each exactly once; the last parameter changes fastest.

    Of a `log_uniform` range these are its ends and the powers of ten between them.

    Raises:
        ArgumentError: if a parameter is a `uniform` range of real numbers.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self._rest = space.gridded().points()
        self._first = [next(self._rest)]  # to refuse what has no points before anything is trained

    def points(self, first: int, count: int, cohort: int) -> list[Point]:
        """The next ones."""
        found: list[Point] = []
        while len(found) < count:
            more = self._first + list(islice(self._rest, count - len(found) - len(self._first)))
            self._first = []
            if not more:
                break
            found += filter(self.is_new, more)
        return found


class RandomSearch(Method):
    """Points drawn at random, each once; in a finite space it ends when there are no more.

    Source: Bergstra and Bengio, "Random search for hyper-parameter optimization", JMLR 13 (2012), section 2.
    """

    def points(self, first: int, count: int, cohort: int) -> list[Point]:
        """The next ones; each depends on the seed, its trial's number and the points before."""
        found: list[Point] = []
        for trial in range(first, first + count):
            point = self._new_point(trial)
            if point is None:
                break
            found.append(point)
        return found

    def _new_point(self, trial: int) -> Point | None:
        count = self.space.count
        if count is not None and len(self._seen) >= count:
            return None
        for attempt in range(ATTEMPTS):
            point = self.space.point_at(self.drawn(trial, attempt).tolist())
            if self.is_new(point):
                return point
        # Few are left: the first of them, in the order of the grid.
        return next(filter(self.is_new, self.space.points()), None) if count is not None else None
