"""Schedules: a setting as a function of the step.

A schedule is a frozen record that is called with the number of steps done so far (0 for the first step)
and gives the value for the next one. Any function of the step does as well; a record can also be compared,
printed, and kept as JSON. `growing_batch` is asked with the number of the epoch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from magmadnn.errors import ArgumentError

from .records import AT_LEAST_1, COUNT, FINITE, NUMBER, POSITIVE, VALUE, WHOLE, Record, Setting


@dataclass(frozen=True)
class Schedule(Record, ABC, family="schedule"):
    """A value for each step. Derive from it, as a frozen dataclass, for one of your own."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The value for the step after `step` steps."""


def value_at(value: Setting, step: int) -> float:
    """A setting's value after `step` steps."""
    result: float = value(step) if callable(value) else value
    return result


@dataclass(frozen=True)
class constant(Schedule):
    """`value`, always."""

    value: float = field(metadata=NUMBER)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return self.value


@dataclass(frozen=True)
class step_decay(Schedule):
    """initial * factor ** floor(step / every): times `factor` after each `every` steps."""

    initial: float = field(metadata=NUMBER)
    every: int = field(metadata=WHOLE)
    factor: float = field(default=0.1, metadata=POSITIVE)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        value: float = self.initial * self.factor ** (step // self.every)
        return value


@dataclass(frozen=True)
class exponential(Schedule):
    """initial * factor ** (step / every): as `step_decay`, but smoothly."""

    initial: float = field(metadata=NUMBER)
    factor: float = field(metadata=POSITIVE)
    every: int = field(default=1, metadata=WHOLE)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        value: float = self.initial * self.factor ** (step / self.every)
        return value


@dataclass(frozen=True)
class cosine(Schedule):
    """final + (initial - final) * (1 + cos(pi * step / steps)) / 2; `final` after `steps` steps.

    Loshchilov, Hutter, "SGDR", ICLR 2017, eq. (5), without restarts.
    """

    initial: float = field(metadata=NUMBER)
    steps: int = field(metadata=WHOLE)
    final: float = field(default=0.0, metadata=NUMBER)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        share = min(step, self.steps) / self.steps
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class warm_up(Schedule):
    """Rises evenly for `steps` steps, then goes on as `after`, which begins at its own step 0.

    after(0) * (step + 1) / (steps + 1) for step < steps; after(step - steps) from there on. So no step has
    the value 0, and none is repeated. Goyal et al., arXiv:1706.02677, section 2.2 (gradual warm-up).
    """

    after: Setting = field(metadata=VALUE)
    steps: int = field(metadata=WHOLE)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        if step < self.steps:
            return value_at(self.after, 0) * (step + 1) / (self.steps + 1)
        return value_at(self.after, step - self.steps)


@dataclass(frozen=True)
class piecewise(Schedule):
    """values[i] from step boundaries[i - 1] up to, but not including, boundaries[i].

    Args:
        boundaries: steps, rising.
        values: one more than boundaries.
    """

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check, and make the fields tuples."""
        object.__setattr__(self, "boundaries", _rising("piecewise: boundaries", self.boundaries))
        listed = _listed("piecewise: values", self.values)
        values = tuple(FINITE.check("piecewise", "each of values", v) for v in listed)
        if len(values) != len(self.boundaries) + 1:
            raise ArgumentError(
                f"piecewise: {len(self.boundaries)} boundaries need {len(self.boundaries) + 1} "
                f"values, got {len(values)}"
            )
        object.__setattr__(self, "values", values)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return self.values[bisect_right(self.boundaries, step)]


@dataclass(frozen=True)
class per_epoch(Schedule):
    """`schedule` asked with the number of the epoch: schedule(floor(step / steps_per_epoch)).

    For a schedule that counts epochs, where steps are counted.
    """

    schedule: Setting = field(metadata=VALUE)
    steps_per_epoch: int = field(metadata=WHOLE)

    def __call__(self, step: int) -> float:
        """See `Schedule`."""
        return value_at(self.schedule, step // self.steps_per_epoch)


@dataclass(frozen=True)
class growing_batch(Schedule):
    """A batch size that grows where the learning rate would be lowered; for `fit(batch_size=...)`.

    initial * factor ** (how many of `at` have come), at most `maximum`. It is asked with the number of the
    epoch. Smith, Kindermans, Ying, Le, "Don't decay the learning rate, increase the batch size",
    ICLR 2018 (arXiv:1711.00489), sections 2 and 3: the noise of SGD goes as
    learning_rate * (N / batch_size - 1) for N samples, so a batch `factor` times as large does what a
    learning rate divided by `factor` does, in fewer steps. Once the batch is a tenth of the samples, lower
    the learning rate instead.

    Args:
        initial: size of the first batches.
        at: epochs at which it grows, rising.
        factor: how much it grows; the paper takes 5 where a learning rate would be divided by 5.
        maximum: the largest size; none where it is left out.
    """

    initial: int = field(metadata=WHOLE)
    at: tuple[int, ...] = ()
    factor: float = field(default=5.0, metadata=AT_LEAST_1)
    maximum: int | None = field(default=None, metadata=WHOLE)

    def __post_init__(self) -> None:
        """Check, and make `at` a tuple."""
        super().__post_init__()
        object.__setattr__(self, "at", _rising("growing_batch: at", self.at))
        if self.maximum is not None and self.maximum < self.initial:
            raise ArgumentError(
                f"growing_batch: maximum must be at least initial, which is {self.initial}, "
                f"got {self.maximum}"
            )

    def __call__(self, step: int) -> int:
        """The batch size of an epoch, counted from 0."""
        size = round(self.initial * self.factor ** bisect_right(self.at, step))
        return size if self.maximum is None else min(size, self.maximum)


def _listed(what: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, (list, tuple)):
        raise ArgumentError(f"{what} must be a tuple, got {values!r}")
    return tuple(values)


def _rising(what: str, steps: Any) -> tuple[int, ...]:
    whole = tuple(int(COUNT.check(what, "each", s)) for s in _listed(what, steps))
    if list(whole) != sorted(set(whole)):
        raise ArgumentError(f"{what} must rise, got {whole}")
    return whole
