"""What is searched for: one or several figures of the metrics of a trial, and when the search may end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magmadnn.errors import ArgumentError, MagmaDNNError, UnknownNameError, quoted

from .spelling import RUN, Spelling

_LOWER = ("loss", "seconds", "epochs")


class Metrics(dict[str, float]):
    """The metrics of a trial: a name that is not there is told with the nearest that is.

    Attributes:
        asked: the names that were asked for.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.asked.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> float:
        raise UnknownNameError.of("search: objective: metric", name, self)


class NoValueError(MagmaDNNError):
    """An objective gave no finite number for a trial, which has failed therefore."""


@dataclass(frozen=True)
class Objective:
    """One figure of a trial; the better the higher `sign * value`.

    Attributes:
        name: a metric, or the function's.
        function: of the metrics; None for the metric itself.
        sign: 1 where higher is better, -1 where lower is, 0 where the metric says it.
        is_kept: whether it was read from a study, which keeps a function's name and values, not the function.
    """

    name: str
    function: Callable[[Mapping[str, float]], Any] | None
    sign: int
    is_kept: bool = False

    def value(self, metrics: Metrics) -> float:
        """The figure.

        Raises:
            NoValueError: it is no finite number.
            UnknownNameError: there is no such metric.
        """
        found = metrics[self.name] if self.function is None else self.function(metrics)
        if hasattr(found, "item") and getattr(found, "ndim", None) == 0:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise NoValueError(f"{self._words} gave {_shown(found)}, expected a number")
        if not math.isfinite(found):
            raise NoValueError(f"{self._words} is {float(found)}")
        return float(found)

    @property
    def _words(self) -> str:
        return "the objective" if self.name == "objective" else f"objective {self.name}"

    def sign_in(self, rises: Mapping[str, bool | None]) -> int:
        """1 or -1, by what the metrics say of themselves where that is needed: see `check_measured`."""
        return self.sign or (1 if rises.get(self.name) else -1)


def objectives_of(given: Any) -> tuple[Objective, ...]:
    """The objectives that a user gave: None, a name, a function, or a list or dict of such.

    None is the loss. A name is better in the direction that the metric says; `"max accuracy"` and
    `"min seconds"` say it themselves. Functions are maximised.

    Raises:
        ArgumentError: if it is something else, or two have one name.
    """
    if given is None:
        given = "loss"
    if isinstance(given, Mapping):
        made = [_named(name, one) for name, one in given.items()]
    elif isinstance(given, (list, tuple)):
        made = [_one(one) for one in given]
    else:
        made = [_one(given)]
    names = [one.name for one in made]
    if not made or len(set(names)) < len(names):
        raise ArgumentError(
            f"search: objective: expected one or several of different names, got {quoted(given)}; functions "
            'get names in a dict: {"score": lambda m: ...}'
        )
    return tuple(made)


def reads_time(objectives: Sequence[Objective]) -> bool:
    """Whether one may depend on the time that training takes: a function may read all metrics."""
    return any(one.function is not None or one.name.endswith("seconds") for one in objectives)


@dataclass(frozen=True)
class Reaches:
    """Ends a search at the first trial whose metric is at least as good as a value; see `reaches`."""

    metric: str
    value: float

    def __repr__(self) -> str:
        return f"reaches({self.metric!r}, {self.value!r})"

    def holds(self, metrics: Mapping[str, float], rises: Mapping[str, bool | None]) -> bool:
        """Whether a trial with these metrics ends the search; that there are such, `check_measured` looks."""
        found = metrics[self.metric]
        sign = Objective(self.metric, None, 0).sign_in(rises)
        return sign * found >= sign * self.value


def reaches(metric: str, value: float) -> Reaches:
    """For `until=`: the search ends with the first trial, by number, that has a metric as good as this.

    Args:
        metric: of the validation rows, such as "accuracy"; whether high or low is good is what it says of
            itself.
        value: that is good enough.

    Raises:
        ArgumentError: if the value is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentError(f"reaches: value must be a finite number, got {quoted(value)}")
    if not isinstance(metric, str):
        raise ArgumentError(f"reaches: metric must be a name, got {quoted(metric)}")
    return Reaches(metric, float(value))


def check_measured(
    objectives: Sequence[Objective],
    until: Reaches | None,
    rises: Mapping[str, bool | None],
    spelled: Spelling = RUN,
) -> None:
    """Look whether objectives and `until` are metrics that there are, which say what is better.

    Args:
        objectives: what is searched for.
        until: when the search may end.
        rises: of each metric that there is whether higher is better; None where it does not say.
        spelled: how messages spell arguments.

    Raises:
        UnknownNameError: one is not there; says the nearest name.
        ArgumentError: nobody has said which values of one are better.
    """
    where = f"{spelled.begin}{spelled.named('objective')}: "
    for one in objectives:
        if one.function is not None or (one.is_kept and one.sign):
            continue
        if one.name not in rises:
            raise UnknownNameError.of(f"{where}metric", one.name, rises)
        if not one.sign and rises[one.name] is None:
            raise ArgumentError(
                f"{where}whether {one.name!r} is better when it is low or high is not known; give "
                f'"min {one.name}" or "max {one.name}"'
            )
    if until is None:
        return
    where = f"{spelled.begin}{spelled.named('until')}: "
    if until.metric not in rises:
        raise UnknownNameError.of(f"{where}metric", until.metric, rises)
    if rises[until.metric] is None:
        known = ", ".join(name for name, higher in rises.items() if higher is not None)
        raise ArgumentError(
            f"{where}whether {until.metric!r} is good when it is low or high is not known; give "
            f"one of {known}"
        )


def direction_known(rises: Mapping[str, bool | None]) -> dict[str, bool | None]:
    """What metrics say of themselves, with what is always measured: less time is better."""
    return {**dict.fromkeys(_LOWER, False), **rises}


def _one(given: Any) -> Objective:
    if callable(given):
        name = getattr(given, "__name__", "")
        return Objective("objective" if name in ("", "<lambda>") else name, given, 1)
    if isinstance(given, str):
        first, _, rest = given.partition(" ")
        if first in ("max", "min") and rest:
            return Objective(rest, None, 1 if first == "max" else -1)
        return Objective(given, None, 0)
    raise ArgumentError(
        f'search: objective: expected a metric such as "accuracy", or a function of the metrics, got '
        f"{quoted(given)}"
    )


def _named(name: Any, given: Any) -> Objective:
    one = _one(given)
    if not isinstance(name, str) or (one.function is None and one.name != name):
        raise ArgumentError(
            f"search: objective: {quoted(name)}: expected a function of the metrics"
        )
    return Objective(name, one.function, one.sign)


def comparable(values: Sequence[float], signs: Sequence[int]) -> tuple[float, ...]:
    """Values such that higher is better."""
    return tuple(sign * value for sign, value in zip(signs, values, strict=True))


def _shown(found: object) -> str:
    """What an objective gave that is no number; of several not each, which differ from trial to trial."""
    if isinstance(found, (tuple, list, dict, set)):
        return f"a {type(found).__name__} of {len(found)}"
    shape = getattr(found, "shape", None)
    return quoted(found) if shape is None else f"an array of shape {tuple(shape)}"
