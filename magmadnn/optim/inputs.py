"""The settings of a step: inputs that are fed at each run, so that changing one rebuilds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder

from .parts import Transform
from .records import Range, Record, Setting, range_of
from .scalars import Scalar
from .schedules import value_at


def distinct(name: str, taken: Iterable[str]) -> str:
    """`name`, or name_2, name_3, ... where it is taken."""
    names, number, found = set(taken), 2, name
    while found in names:
        found, number = f"{name}_{number}", number + 1
    return found


@dataclass(frozen=True)
class Input:
    """One setting: a scalar of the graph, and where its value comes from."""

    node: Node
    allowed: Range
    own: Setting  # the optimiser's number or schedule


class Settings:
    """All settings of a step, by name, with what was set over them.

    Every field of a part that holds a number or a schedule is one, under the field's name; a second one of
    that name is name_2.
    """

    def __init__(self, optimizer: Record, parts: Sequence[Transform]) -> None:
        self._optimizer = optimizer
        self._inputs: dict[str, Input] = {}
        self.overrides: dict[str, Setting] = {}
        self.scalars = [self._scalars(part) for part in parts]

    def _scalars(self, part: Transform) -> dict[str, Scalar]:
        """The inputs of one part, by the names of its fields."""
        found = {}
        for field in fields(part):
            value = getattr(part, field.name)
            if isinstance(value, bool) or not (isinstance(value, (int, float)) or callable(value)):
                continue
            name = distinct(field.name, self._inputs)
            node = placeholder(name, Spec((), np.dtype(np.float64)))
            self._inputs[name] = Input(node, range_of(field), value)
            found[field.name] = Scalar(node)
        return found

    def values(self, step: int) -> dict[str, float]:
        """The values for the step after `step` steps.

        Raises:
            ArgumentError: if a schedule gives a value that its setting cannot be.
        """
        where, values = type(self._optimizer).__name__, {}
        for name, entry in self._inputs.items():
            source = self.overrides.get(name, entry.own)
            value = value_at(source, step)
            why = f" from {source!r} at step {step}" if callable(source) else ""
            values[name] = entry.allowed.check(where, name, value, why)
        return values

    @property
    def fixed(self) -> bool:
        """Whether all settings are numbers, the same for every step."""
        sources = [self.overrides.get(k, entry.own) for k, entry in self._inputs.items()]
        return not any(map(callable, sources))

    def feeds(self, step: int) -> dict[Node, float]:
        """What to feed for the step after `step` steps."""
        return {self._inputs[name].node: value for name, value in self.values(step).items()}

    @property
    def nodes(self) -> list[Node]:
        """The inputs."""
        return [entry.node for entry in self._inputs.values()]

    def set(self, given: Mapping[str, Any]) -> None:
        """Use other numbers or schedules from the next step on; None goes back to the optimiser's own.

        Raises:
            UnknownNameError: if there is no such setting. Nothing is changed then.
            ArgumentError: if a number is out of range, or the setting has no part in this step.
        """
        where, fresh = type(self._optimizer).__name__, dict(self.overrides)
        for name, value in given.items():
            if name not in self._inputs:
                raise self._unknown(where, name)
            if value is None:
                fresh.pop(name, None)
            elif callable(value):
                fresh[name] = value
            else:
                fresh[name] = self._inputs[name].allowed.check(where, name, value)
        self.overrides = fresh

    def _unknown(self, where: str, name: str) -> ArgumentError:
        value = getattr(self._optimizer, name, None)
        own = name in {f.name for f in fields(self._optimizer)}
        if own and (value is None or isinstance(value, (int, float))):
            return ArgumentError(
                f"{where}: {name} is {value!r}, so this step was built without it and it cannot be "
                "set; make the optimiser with another value"
            )
        return UnknownNameError.of(f"{where}: setting", name, self._inputs)
