"""The values that one parameter of a search may have: ranges, grids, choices.

Each dimension maps positions in [0, 1) to its values and back. All methods work on positions, so they know no
kind of dimension.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Self

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, quoted

Value = Any  # None, bool, int, float, str, or a tuple of such
Condition = tuple[str, tuple[Value, ...]]

_MOST = 2**53  # integers that float64 tells apart
_MOST_STEPS = 10**9


@dataclass(frozen=True)
class Dimension:
    """The values of a parameter.

    Attributes:
        conditions: (parameter, values): the parameter is there only at points where each of these other
            parameters has one of its values.
    """

    conditions: tuple[Condition, ...] = field(default=(), kw_only=True)

    def when(self, **conditions: Any) -> Self:
        """The dimension, for points where other parameters have these values; elsewhere it is left out.

        `md.search.uniform(0.0, 0.99).when(optimizer="sgd")`; a list stands for any one of its values.

        Args:
            conditions: parameter=value, or parameter=[values].

        Raises:
            ArgumentError: without a condition, or for an empty list.
        """
        if not conditions:
            raise ArgumentError('when: give a condition, such as when(optimizer="sgd")')
        made = []
        for name, values in conditions.items():
            listed = tuple(values) if isinstance(values, (list, set, frozenset)) else (values,)
            if not listed:
                raise ArgumentError(f"when: {name}: the list of values is empty; give at least one")
            made.append((name, tuple(plain_value(f"when: {name}", v) for v in listed)))
        return replace(self, conditions=(*self.conditions, *made))

    @property
    @abstractmethod
    def count(self) -> int | None:
        """How many values there are; None for a range of real numbers."""

    @abstractmethod
    def at(self, position: float) -> Value:
        """The value at a position in [0, 1)."""

    @abstractmethod
    def position(self, value: Value) -> float | None:
        """A position in [0, 1] whose value this is; None if it is no value of the dimension."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The dimension as JSON data: `{"uniform": [0.0, 1.0]}`."""

    def values(self) -> list[Value]:
        """All values in order.

        Raises:
            ArgumentError: for a range of real numbers.
        """
        if self.count is None:
            raise ArgumentError(f"{self.text}: has no list of values")
        return [self.numbered(k) for k in range(self.count)]

    def numbered(self, number: int) -> Value:
        """The value of this number, from 0."""
        assert self.count is not None
        return self.at((number + 0.5) / self.count)

    @property
    def gridded(self) -> Dimension:
        """What stands in a grid for it: itself, unless it has no steps of its own."""
        return self

    @property
    def ordered(self) -> bool:
        """Whether neighbouring positions have neighbouring values."""
        return True

    @property
    def text(self) -> str:
        """The call that makes it: `uniform(0.0, 1.0)`."""
        (name, given), *more = self.plain().items()
        words = [repr(given) if name == "choice" else ", ".join(map(repr, given))]
        return f"{name}({', '.join([*words, *(f'{k}={v!r}' for k, v in more)])})"


@dataclass(frozen=True)
class Range(Dimension):
    """Real numbers from `low` to `high`; with `log` their logarithms are spread evenly."""

    low: float
    high: float
    log: bool = False

    @property
    def count(self) -> int | None:
        """There is no number of them."""
        return None

    def at(self, position: float) -> float:
        """`low + position * (high - low)`, or the same of logarithms; never beyond the ends."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + position * (high - low))
        else:
            value = self.low * (1.0 - position) + self.high * position
        return min(max(value, self.low), self.high)

    def position(self, value: Value) -> float | None:
        """Where the value lies between the ends."""
        if not is_number(value) or not self.low <= value <= self.high:
            return None
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max((math.log(value) - low) / (high - low), 0.0), 1.0)
        width = self.high / 2 - self.low / 2  # of the range halved: the whole one may be infinite
        return float(min(max((value / 2 - self.low / 2) / width, 0.0), 1.0))

    @property
    def gridded(self) -> Dimension:
        """What stands in a grid for it: of logarithms the ends and the powers of ten between them."""
        if not self.log:
            return self
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = [float(f"1e{k}") for k in range(first, last + 1)]
        between = [power for power in powers if self.low < power < self.high]
        return replace(choice([self.low, *between, self.high]), conditions=self.conditions)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"log_uniform" if self.log else "uniform": [self.low, self.high]}


@dataclass(frozen=True)
class Whole(Dimension):
    """Whole numbers from `low` to `high`, both included; with `log` small ones come more often."""

    low: int
    high: int
    log: bool = False

    @property
    def count(self) -> int | None:
        """high - low + 1."""
        return self.high - self.low + 1

    def numbered(self, number: int) -> int:
        """`low + number`."""
        return self.low + number

    def at(self, position: float) -> int:
        """Each number has the same share of positions, or a share like its step of the logarithm."""
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            value = round(math.exp(low + position * (high - low)))
        else:
            value = self.low + int(position * (self.high - self.low + 1))
        return min(max(value, self.low), self.high)

    def position(self, value: Value) -> float | None:
        """The middle of the number's share."""
        if isinstance(value, bool) or not isinstance(value, Integral):
            return None
        value = int(value)
        if not self.low <= value <= self.high:
            return None
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return float((math.log(value) - low) / (high - low))
        return float((value - self.low + 0.5) / (self.high - self.low + 1))

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"log_integer" if self.log else "integer": [self.low, self.high]}


@dataclass(frozen=True)
class Steps(Dimension):
    """Numbers from `start` to `stop` in steps, both included, each the float nearest to its decimal."""

    start: float
    stop: float
    step: float

    @property
    def count(self) -> int | None:
        """(stop - start) / step + 1, which is whole."""
        start, stop, step, _ = _whole_ends(self.start, self.stop, self.step)
        return (stop - start) // step + 1

    def numbered(self, number: int) -> float:
        """`start + number * step` as one division of integers: 0.3 is 0.3 and not 0.30000000000000004."""
        start, _, step, unit = _whole_ends(self.start, self.stop, self.step)
        value = start + number * step
        whole = all(isinstance(part, int) for part in (self.start, self.stop, self.step))
        return value if whole else value / unit  # rounded once, to the nearest

    def at(self, position: float) -> float:
        """Each value has the same share of positions."""
        count = self.count or 1
        return self.numbered(min(int(position * count), count - 1))

    def position(self, value: Value) -> float | None:
        """The middle of the value's share."""
        if not is_number(value):
            return None
        number = round((_exact(_number("value", value)) - _exact(self.start)) / _exact(self.step))
        count = self.count or 1
        if not 0 <= number < count or self.numbered(number) != value:
            return None
        return (number + 0.5) / count

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"grid": [self.start, self.stop], "step": self.step}


@dataclass(frozen=True)
class Choice(Dimension):
    """One of several values."""

    options: tuple[Value, ...]

    @property
    def count(self) -> int | None:
        """How many there are."""
        return len(self.options)

    @property
    def ordered(self) -> bool:
        """Numbers in order are; names are not."""
        numbers = all(is_number(value) for value in self.options)
        return numbers and list(self.options) == sorted(self.options)

    def numbered(self, number: int) -> Value:
        """The value that stands there in the list."""
        return self.options[number]

    def at(self, position: float) -> Value:
        """Each value has the same share of positions."""
        return self.options[min(int(position * len(self.options)), len(self.options) - 1)]

    def position(self, value: Value) -> float | None:
        """The middle of the value's share."""
        wanted = spelled(value)
        for number, option in enumerate(self.options):
            if spelled(option) == wanted:
                return (number + 0.5) / len(self.options)
        return None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"choice": [listed(option) for option in self.options]}


# --- the constructors that users call -------------------------------------------------------------


@checked_call
def uniform(low: float, high: float) -> Dimension:
    """Real numbers from `low` to `high`, spread evenly.

    Raises:
        ArgumentError: if low is not below high, or one is no finite number.
    """
    low, high = _number("uniform: low", low), _number("uniform: high", high)
    _below("uniform", low, high)
    return Range(float(low), float(high))


@checked_call
def log_uniform(low: float, high: float) -> Dimension:
    """Positive numbers from `low` to `high` whose logarithms are spread evenly: rates, decays.

    Raises:
        ArgumentError: if low is not above 0 and below high, or one is no finite number.
    """
    low, high = _number("log_uniform: low", low), _number("log_uniform: high", high)
    _below("log_uniform", low, high)
    if low <= 0:
        raise ArgumentError(
            f"log_uniform: low must be above 0, got {low!r}; use uniform for ranges with 0 in them"
        )
    return Range(float(low), float(high), log=True)


@checked_call
def integer(low: int, high: int) -> Dimension:
    """Whole numbers from `low` to `high`, both included.

    Raises:
        ArgumentError: if low is above high, or one is no integer.
    """
    return _whole_numbers("integer", low, high)


@checked_call
def log_integer(low: int, high: int) -> Dimension:
    """Whole numbers from `low` to `high`, both included, whose logarithms are spread evenly: widths.

    Raises:
        ArgumentError: if low is below 1 or above high, or one is no integer.
    """
    if isinstance(low, Integral) and low < 1:
        raise ArgumentError(f"log_integer: low must be at least 1, got {low!r}; use integer")
    return replace(_whole_numbers("log_integer", low, high), log=True)


@checked_call
def choice(values: Sequence[Any]) -> Dimension:
    """One of several values: None, booleans, numbers, texts, or lists of such.

    Raises:
        ArgumentError: if there is none, one comes twice, or one is something else, such as an object: a log
            and a file could not hold it. Give names, and let `build` look them up.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise ArgumentError(f"choice: expected a list such as [32, 64], got {quoted(values)}")
    made = tuple(plain_value("choice", value) for value in values)
    if not made:
        raise ArgumentError("choice: the list of values is empty; give at least one")
    texts = [spelled(value) for value in made]
    if twice := [value for value, text in zip(made, texts, strict=True) if texts.count(text) > 1]:
        raise ArgumentError(f"choice: {twice[0]!r} is there twice; give each value once")
    return Choice(made)


@checked_call
def grid(start: float, stop: float, *, step: float) -> Dimension:
    """Numbers from `start` to `stop`, both included, at distances of `step`.

    Numbers count as the decimals that they are written as, so `grid(0.0, 0.3, step=0.1)` is 0.0, 0.1, 0.2 and
    0.3, without an error of rounding. Whole start, stop and step give whole numbers.

    Raises:
        ArgumentError: if start is above stop, step is not above 0, or steps do not end at stop.
    """
    start, stop, step = (
        _number(f"grid: {name}", value)
        for name, value in (("start", start), ("stop", stop), ("step", step))
    )
    if step <= 0:
        raise ArgumentError(f"grid: step must be above 0, got {step!r}")
    if start > stop:
        raise ArgumentError(
            f"grid: start {start!r} is above stop {stop!r}; write grid({stop!r}, {start!r}, step={step!r})"
        )
    count = (_exact(stop) - _exact(start)) / _exact(step)
    if count > _MOST_STEPS:
        raise ArgumentError(f"grid: has more than {_MOST_STEPS:,} values; give a larger step")
    if count != int(count):
        last = Steps(start, stop, step).numbered(int(count))
        raise ArgumentError(
            f"grid: steps of {step!r} from {start!r} do not end at {stop!r}: the last is {last}; give "
            f"stop={last}, or a step that fits"
        )
    return Steps(start, stop, step)


# --- checks ---------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def plain_value(where: str, value: Any) -> Value:
    """A value that a log can hold and give back: NumPy's become Python's, lists become tuples.

    Raises:
        ArgumentError: for something else.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and -_MOST <= value <= _MOST:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(plain_value(where, part) for part in value)
    raise ArgumentError(
        f"{where}: expected None, True or False, a finite number, text, or a list of such, got "
        f"{quoted(value)}; give a name, and let build look it up"
    )


def spelled(value: Value) -> str:
    """The value's one spelling, which tells 1 from 1.0 and from True."""
    return json.dumps(listed(value))


def listed(value: Value) -> Any:
    """The value as JSON holds it: tuples are lists."""
    return [listed(part) for part in value] if isinstance(value, tuple) else value


def as_tuples(value: Any) -> Value:
    """The other way round."""
    return tuple(as_tuples(part) for part in value) if isinstance(value, list) else value


def _number(where: str, value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not is_number(value) or not isinstance(value, (int, float)):
        raise ArgumentError(f"{where} must be a finite number, got {quoted(value)}")
    if isinstance(value, int) and abs(value) > _MOST:
        raise ArgumentError(f"{where} must be at most 2**53 in size, got {quoted(value)}")
    return value


def _below(name: str, low: float, high: float) -> None:
    if low > high:
        raise ArgumentError(
            f"{name}: low {low!r} is above high {high!r}; write {name}({high!r}, {low!r})"
        )
    if low == high:
        raise ArgumentError(
            f"{name}: low and high are both {low!r}; give that value itself in the space"
        )


def _whole_numbers(name: str, low: Any, high: Any) -> Whole:
    for end, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, Integral) or abs(int(value)) > _MOST:
            raise ArgumentError(f"{name}: {end} must be an integer, got {quoted(value)}")
    if low > high:
        raise ArgumentError(
            f"{name}: low {low!r} is above high {high!r}; write {name}({high!r}, {low!r})"
        )
    return Whole(int(low), int(high))


@lru_cache(maxsize=256)
def _whole_ends(start: float, stop: float, step: float) -> tuple[int, int, int, int]:
    """Start, stop and step as multiples of 1 / unit, and unit."""
    exact = [_exact(value) for value in (start, stop, step)]
    unit = math.lcm(*(value.denominator for value in exact))
    first, last, by = (int(value * unit) for value in exact)
    return first, last, by, unit


def _exact(value: float) -> Fraction:
    """The decimal that a number is written as."""
    return Fraction(repr(value))
