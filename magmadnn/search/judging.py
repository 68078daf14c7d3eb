"""The judge of a search: values of objectives, which are better, and whether the search may end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from magmadnn.errors import UnknownNameError

from .objectives import (
    Metrics,
    NoValueError,
    Objective,
    Reaches,
    check_measured,
    comparable,
    direction_known,
)
from .spelling import RUN, Spelling
from .trials.records import DONE, FAILED, Outcome


class Judge:
    """What outcomes are worth.

    What metrics say of themselves, whether high or low is better, is known from the first outcome on.

    Args:
        objectives: what is searched for.
        until: when the search may end.
        spelled: how messages spell arguments.
    """

    def __init__(
        self, objectives: Sequence[Objective], until: Reaches | None, spelled: Spelling = RUN
    ) -> None:
        self._spelled = spelled
        self._objectives, self._until = tuple(objectives), until
        self._rises = direction_known({})
        self._has_learnt = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the objectives."""
        return tuple(one.name for one in self._objectives)

    @property
    def signs(self) -> tuple[int, ...]:
        """1 or -1 for each; 1 for all as long as no trial has an outcome."""
        if not self._has_learnt:
            return (1,) * len(self._objectives)
        return tuple(one.sign_in(self._rises) for one in self._objectives)

    @property
    def has_functions(self) -> bool:
        """Whether an objective is a function."""
        return any(one.function is not None for one in self._objectives)

    def valued(self, outcome: Outcome) -> Outcome:
        """The outcome with the values of the objectives; one without them has failed.

        Raises:
            UnknownNameError: an objective names a metric that there is not.
            ArgumentError: nobody has said which values of a metric are better.
        """
        if outcome.state != DONE:
            return outcome
        self._learn(outcome)
        try:
            metrics = Metrics(outcome.metrics)
            values = tuple(one.value(metrics) for one in self._objectives)
        except NoValueError as error:
            return replace(outcome, state=FAILED, reason=str(error))
        except UnknownNameError:
            raise
        except Exception as error:
            reason = f"objective: {type(error).__name__}: {error}"
            return replace(outcome, state=FAILED, reason=reason)
        return replace(outcome, values=values)

    def scores(self, outcome: Outcome) -> tuple[float, ...]:
        """The values such that higher is better; empty where there are none."""
        if not outcome.values:
            return ()
        self._learn(outcome)
        return comparable(outcome.values, self.signs)

    def is_reached(self, outcome: Outcome) -> bool:
        """Whether the search ends with this outcome."""
        if self._until is None or outcome.state != DONE:
            return False
        self._learn(outcome)
        return self._until.holds(outcome.metrics, self._rises)

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Know what metrics say of themselves from outcomes that a log held."""
        for outcome in outcomes:
            if outcome.rises:
                self._learn(outcome)
                return

    def _learn(self, outcome: Outcome) -> None:
        """What metrics say of themselves; objectives and `until` are checked by the first outcome."""
        if self._has_learnt or not outcome.rises:
            return
        rises = direction_known(outcome.rises)
        measured = {name: rises.get(name) for name in outcome.metrics}
        check_measured(self._objectives, self._until, measured, self._spelled)
        self._rises, self._has_learnt = rises, True
