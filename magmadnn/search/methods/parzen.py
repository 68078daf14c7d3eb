"""TPE through Optuna's sampler, which is asked for points and told results here, and decides nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from magmadnn.errors import MissingExtraError
from magmadnn.ops import philox
from magmadnn.search.spaces.dimensions import Dimension, Range, Whole
from magmadnn.search.spaces.space import Point, Space, is_active
from magmadnn.training.arguments import at_least

from .method import Arrived
from .plain_methods import RandomSearch

_TRIES = 10  # to be given a point that has not been there


class Parzen(RandomSearch):
    """Tree-structured Parzen estimators: points that are likely among the good ones and not among the others.

    Each cohort is asked of a sampler that is told all trials of earlier cohorts, in order of their numbers,
    and whose seed is made of the search's and the cohort's number. The points are kept in the log, since
    other versions of Optuna may draw others.

    Source: Bergstra, Bardenet, Bengio, Kegl, "Algorithms for hyper-parameter optimization", NIPS 2011,
    section 4; Optuna's `TPESampler`.

    Args:
        space: what is searched.
        seed: of all that is drawn.
        cohort: trials that are asked for at a time.
        startup: trials at random before that.

    Raises:
        MissingExtraError: without Optuna.
    """

    learns = True
    keeps_points = True

    def __init__(self, space: Space, seed: int, *, cohort: int = 8, startup: int = 16) -> None:
        super().__init__(space, seed)
        at_least("search: tpe: cohort", cohort, 1)
        at_least("search: tpe: startup", startup, 1)
        self.cohort, self._startup = int(cohort), int(startup)
        self._finished: list[Arrived] = []

    def settings(self) -> dict[str, Any]:
        """Its arguments."""
        return {"cohort": self.cohort, "startup": self._startup}

    def check(self) -> None:
        """Look whether Optuna is there."""
        _optuna()

    def arrived(self, cohort: int, trials: Sequence[Arrived]) -> None:
        """Keep them for the next cohort."""
        self._finished += [trial for trial in trials if trial.scores]

    def points(self, first: int, count: int, cohort: int) -> list[Point]:
        """Points that the sampler gives; random ones at first, and where it gives none that is new."""
        if first < self._startup or not self._finished:
            return super().points(first, count, cohort)
        found: list[Point] = []
        with _quiet(_optuna()):
            study = self._told(cohort)
            for trial in range(first, first + count):
                point = self._asked(study) or self._new_point(trial)
                if point is None:
                    break
                found.append(point)
        return found

    def _told(self, cohort: int) -> Any:
        """A study that knows all finished trials."""
        optuna = _optuna()
        bits = philox.random_bits(self.seed, philox.stream_of("search: tpe", cohort), 1)
        sampler = optuna.samplers.TPESampler(
            seed=int(bits[0]), n_startup_trials=0, multivariate=True, group=True, constant_liar=True
        )
        directions = ["maximize"] * len(self._finished[0].scores)
        study = optuna.create_study(sampler=sampler, directions=directions)
        for trial in self._finished:
            study.add_trial(
                optuna.trial.create_trial(
                    params={n: self._inner(n, value) for n, value in trial.point.items()},
                    distributions={n: self._distribution(n) for n in trial.point},
                    values=list(trial.scores),
                )
            )
        return study

    def _asked(self, study: Any) -> Point | None:
        """A point that is new, or None."""
        for _ in range(_TRIES):
            trial = study.ask()
            found: Point = {}
            for name in self.space.order:
                dimension = self.space.dimensions[name]
                if is_active(dimension, found):
                    found[name] = self._suggested(trial, name, dimension)
            point = self.space.in_order(found)
            if self.is_new(point):
                return point
        return None

    def _suggested(self, trial: Any, name: str, dimension: Dimension) -> Any:
        if isinstance(dimension, Range):
            value = trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
            return min(max(value, dimension.low), dimension.high)
        if isinstance(dimension, Whole):
            return trial.suggest_int(name, dimension.low, dimension.high, log=dimension.log)
        last = (dimension.count or 1) - 1
        if dimension.ordered:
            return dimension.numbered(trial.suggest_int(name, 0, last))
        return dimension.numbered(trial.suggest_categorical(name, range(last + 1)))

    def _distribution(self, name: str) -> Any:
        kinds, dimension = _optuna().distributions, self.space.dimensions[name]
        if isinstance(dimension, Range):
            return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
        if isinstance(dimension, Whole):
            return kinds.IntDistribution(dimension.low, dimension.high, log=dimension.log)
        last = (dimension.count or 1) - 1
        if dimension.ordered:
            return kinds.IntDistribution(0, last)
        return kinds.CategoricalDistribution(range(last + 1))

    def _inner(self, name: str, value: Any) -> Any:
        """The value as Optuna has it: the number of one of a list."""
        dimension = self.space.dimensions[name]
        if isinstance(dimension, (Range, Whole)):
            return value
        return int((dimension.position(value) or 0.0) * (dimension.count or 1))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError.of("Optuna", "search: tpe", "search") from error
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without a line for each study, and without warnings that parts of Optuna may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
