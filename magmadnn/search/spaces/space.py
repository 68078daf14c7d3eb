"""A space: parameters by name, each with its dimension, and the points in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magmadnn.errors import ArgumentError, UnknownNameError, quoted

from .dimensions import Choice, Dimension, Range, Steps, Value, Whole, listed, plain_value, spelled

Point = dict[str, Value]

_KINDS = "uniform, log_uniform, integer, log_integer, choice, grid"


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        dimensions: of the parameters, by name, in the user's order.
        order: the names such that a parameter comes after those that its conditions name.
    """

    dimensions: Mapping[str, Dimension]
    order: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any] | Space) -> Space:
        """The space that a user wrote: dimensions, and plain values for what is the same at all points.

        Raises:
            ArgumentError: if it is empty, or something in it is no dimension and no value.
            UnknownNameError: if a condition names a parameter that there is not.
        """
        if isinstance(given, Space):
            return given
        if not isinstance(given, Mapping):
            raise ArgumentError(
                f"space: expected a dict of parameters, got {quoted(given)}: write "
                '{"learning_rate": md.search.log_uniform(1e-4, 1e-1)}'
            )
        dimensions = {_name(name): _dimension(name, value) for name, value in given.items()}
        if not any((one.count or 2) > 1 for one in dimensions.values()):
            raise ArgumentError(
                "space: there is nothing to search: give at least one parameter with several values"
            )
        for name, dimension in dimensions.items():
            _check_conditions(name, dimension, dimensions)
        return cls(dimensions, _ordered(dimensions))

    def gridded(self) -> Space:
        """The space of which a grid search has all points: see `Dimension.gridded`."""
        return Space({name: one.gridded for name, one in self.dimensions.items()}, self.order)

    def point_at(self, positions: Sequence[float]) -> Point:
        """The point at positions in [0, 1), one for each parameter in the space's order."""
        placed = dict(zip(self.dimensions, positions, strict=True))
        found: Point = {}
        for name in self.order:
            if is_active(self.dimensions[name], found):
                found[name] = self.dimensions[name].at(placed[name])
        return self.in_order(found)

    def positions_of(self, point: Point) -> list[float | None]:
        """The other way round; None for parameters that the point does not have."""
        return [
            one.position(point[name]) if name in point else None
            for name, one in self.dimensions.items()
        ]

    def in_order(self, point: Point) -> Point:
        """The point with its parameters in the space's order."""
        return {name: point[name] for name in self.dimensions if name in point}

    @property
    def count(self) -> int | None:
        """How many points a space without conditions has; None where a parameter is a real number.

        With conditions it is an upper bound: a parameter that is left out makes no two points.
        """
        total = 1
        for one in self.dimensions.values():
            if one.count is None:
                return None
            total *= one.count
        return total

    def points(self) -> Iterator[Point]:
        """All points, each once; the last parameter changes fastest.

        Raises:
            ArgumentError: if a parameter is a range of real numbers.
        """
        for name, one in self.dimensions.items():
            if one.count is None:
                raise ArgumentError(f"grid: {name} is a range of real numbers, {one.text}")
        yield from map(self.in_order, self._extended({}, 0))

    def _extended(self, begun: Point, depth: int) -> Iterator[Point]:
        """All points whose first parameters, in order of conditions, are those of `begun`."""
        if depth == len(self.order):
            yield begun
            return
        name = self.order[depth]
        one = self.dimensions[name]
        if not is_active(one, begun):
            yield from self._extended(begun, depth + 1)
            return
        for number in range(one.count or 0):
            yield from self._extended({**begun, name: one.numbered(number)}, depth + 1)

    def checked(self, point: Mapping[str, Any], where: str) -> Point:
        """A point that a user gave, complete.

        Raises:
            UnknownNameError: for a parameter that the space does not have.
            ArgumentError: if one is missing, has a value that the space does not have, or should be left out.
        """
        for name in point:
            if name not in self.dimensions:
                raise UnknownNameError.of(f"{where}: parameter", name, self.dimensions)
        found: Point = {}
        for name in self.order:
            one = self.dimensions[name]
            if is_active(one, found) != (name in point):
                words = "left out" if name in point else "given"
                raise ArgumentError(f"{where}: {name} has to be {words} where the space says so")
            if name not in point:
                continue
            value = plain_value(f"{where}: {name}", point[name])
            position = one.position(value)
            if position is None:
                raise ArgumentError(f"{where}: {name} is {value!r}, which {one.text} does not have")
            found[name] = value
        return self.in_order(found)

    def plain(self) -> dict[str, Any]:
        """The space as JSON data, from which `space_of_plain` makes it again."""
        return {name: _plain(one) for name, one in self.dimensions.items()}

    def renamed(self, names: Mapping[str, str]) -> Space:
        """The space with parameters called otherwise."""
        made = {}
        for name, one in self.dimensions.items():
            conditions = tuple((names.get(other, other), v) for other, v in one.conditions)
            made[names.get(name, name)] = replace(one, conditions=conditions)
        return Space.of(made)


def is_active(dimension: Dimension, point: Point) -> bool:
    """Whether a point with these parameters has the one of this dimension."""
    return all(
        name in point and any(spelled(point[name]) == spelled(value) for value in values)
        for name, values in dimension.conditions
    )


def key_of(point: Point) -> str:
    """The one spelling of a point, whatever order its parameters have."""
    return json.dumps({name: listed(point[name]) for name in sorted(point)})


def fingerprint(space: Space) -> str:
    """16 hexadecimal digits that tell spaces apart."""
    text = json.dumps(space.plain())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def space_of_plain(plain: Mapping[str, Any]) -> Space:
    """The space that `Space.plain` gave; also what a space.toml holds.

    Raises:
        ArgumentError: if it is no such thing, naming the parameter.
    """
    from .plain_spaces import dimension_of_plain

    return Space.of({name: dimension_of_plain(name, value) for name, value in plain.items()})


def _plain(dimension: Dimension) -> dict[str, Any]:
    found = dimension.plain()
    if dimension.conditions:
        found["when"] = {name: [listed(v) for v in values] for name, values in dimension.conditions}
    return found


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(
            f"space: a parameter's name must be one of Python's, as build has it, got {quoted(name)}"
        )
    return name


def _dimension(name: str, value: Any) -> Dimension:
    if isinstance(value, (Range, Whole, Steps, Choice)):
        return value
    if isinstance(value, (list, set, frozenset, range)):
        raise ArgumentError(
            f"space: {name}: a list may be several values or one; write "
            f"md.search.choice({list(value)!r:.60}) "
            "for several, a tuple for one"
        )
    if callable(value):
        raise ArgumentError(f"space: {name}: expected one of {_KINDS}, got {quoted(value)}")
    return Choice((plain_value(f"space: {name}", value),))


def _check_conditions(name: str, dimension: Dimension, dimensions: Mapping[str, Dimension]) -> None:
    """Look whether conditions name parameters, and values that these can have."""
    for other, values in dimension.conditions:
        if other not in dimensions:
            raise UnknownNameError.of(f"space: {name}: condition on a parameter", other, dimensions)
        for value in values:
            if dimensions[other].position(value) is None:
                raise ArgumentError(
                    f"space: {name}: its condition is {other}={value!r}, which "
                    f"{dimensions[other].text} does not have"
                )


def _ordered(dimensions: Mapping[str, Dimension]) -> tuple[str, ...]:
    """The names with those first that conditions of others name, otherwise as they stand."""
    placed: list[str] = []
    while len(placed) < len(dimensions):
        ready = [
            name
            for name, one in dimensions.items()
            if name not in placed and all(other in placed for other, _ in one.conditions)
        ]
        if not ready:
            rest = [name for name in dimensions if name not in placed]
            raise ArgumentError(f"space: the conditions of {', '.join(rest)} depend on each other")
        placed.append(ready[0])
    return tuple(placed)
