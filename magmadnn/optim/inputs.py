"""The settings of a step: inputs that are fed at each run, so that changing one rebuilds nothing.

In the update they are scalars. A `Scalar` is a float64 node without axes. Among themselves scalars stay in
float64, so `1 - beta2**t` keeps its digits; beside an array they take the array's dtype, as Python's numbers
do, so a formula with float32 gradients stays in float32.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, as_nodes, node_of, placeholder, record
from magmadnn.graph.op import Op
from magmadnn.graph.operators import Operators
from magmadnn.memory.dtypes import is_floating

from .parts import Transform
from .records import Range, Record, Setting, fields_of, range_of


class Scalar(Operators):
    """A float64 scalar that takes the dtype of the arrays it meets."""

    __slots__ = ("_casts", "_made", "node")
    __magmadnn_priority__: ClassVar[int] = 30  # above Operation: it decides the dtype

    def __init__(self, node: Node) -> None:
        self.node = node
        # this number in other dtypes, and what was made of it: each parameter asks for both
        self._casts: dict[np.dtype[Any], Node] = {}
        self._made: dict[Hashable, Scalar] = {}

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Any:
        arrays = [node_of(x) for x in operands if not isinstance(x, Scalar)]
        dtypes = [n.dtype for n in arrays if n is not None and is_floating(n.dtype)]
        if all(n is None for n in arrays):
            return cls._of_scalars(op, operands, attributes)
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
        settled = [x._as(dtype) if isinstance(x, Scalar) else x for x in operands]
        return op(*settled, **attributes)

    @classmethod
    def _of_scalars(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Scalar:
        """What is made of scalars and numbers alone: once, however many parameters ask for it."""
        known = next(x for x in operands if isinstance(x, Scalar))._made
        each = (x.node if isinstance(x, Scalar) else (type(x), repr(x)) for x in operands)
        key = (op.name, *each, *attributes.items())
        if key not in known:
            known[key] = cls(record(op, as_nodes(op.words, operands), attributes))
        return known[key]

    def _as(self, dtype: np.dtype[Any]) -> Node:
        if dtype == self.node.dtype:
            return self.node
        if dtype not in self._casts:
            self._casts[dtype] = ops.cast(self.node, dtype)
        return self._casts[dtype]

    def __repr__(self) -> str:
        return f"<Scalar {self.node.label}>"


def distinct(name: str, taken: Iterable[str]) -> str:
    """`name`, or name_2, name_3, ... where it is taken."""
    number, found = 2, name
    names = taken if isinstance(taken, dict) else set(taken)
    while found in names:
        found, number = f"{name}_{number}", number + 1
    return found


@dataclass(frozen=True)
class Input:
    """One setting: a scalar of the graph, and where its value comes from."""

    node: Node
    allowed: Range
    own: Setting  # the optimiser's number or schedule


def numbers_of(parts: Sequence[Transform]) -> dict[str, tuple[int, Any]]:
    """Where the settings of a chain stand: number of the part and its field, by the setting's name.

    Every field of a part that holds a number or a schedule is one, under the field's name; a second one of
    that name is name_2.
    """
    found: dict[str, tuple[int, Any]] = {}
    for number, part in enumerate(parts):
        for field in fields_of(type(part)):
            value = getattr(part, field.name)
            if not isinstance(value, bool) and (isinstance(value, (int, float)) or callable(value)):
                found[distinct(field.name, found)] = (number, field)
    return found


def with_settings(parts: Sequence[Transform], given: Mapping[str, Setting]) -> list[Transform]:
    """The parts with other numbers or schedules, as far as they have them."""
    found, places = list(parts), numbers_of(parts)
    for name in given.keys() & places.keys():
        value = given[name]
        number, field = places[name]
        found[number] = replace(found[number], **{field.name: value})
    return found


def numbers_in(optimizer: Record, parts: Sequence[Transform]) -> dict[str, float] | None:
    """The settings of a step by name, where all are numbers; None where one is a schedule.

    Raises:
        ArgumentError: if one is out of range.
    """
    where, found = type(optimizer).__name__, dict[str, float]()
    for name, (number, field) in numbers_of(parts).items():
        value = getattr(parts[number], field.name)
        if callable(value):
            return None
        found[name] = range_of(field).check(where, name, value)
    return found


class Settings:
    """All settings of a step, by name (see `numbers_of`), with what was set over them.

    Attributes:
        overrides: what was set over the optimiser's own.
        touched: names of what was set since somebody emptied this.
    """

    def __init__(self, optimizer: Record, parts: Sequence[Transform]) -> None:
        self._optimizer = optimizer
        self._inputs: dict[str, Input] = {}
        self.overrides: dict[str, Setting] = {}  # replaced, never changed
        # The values, where all are numbers, and the overrides that they are of.
        self._numbers: tuple[dict[str, Setting] | None, dict[str, float] | None] = (None, None)
        self.touched: set[str] = set()
        self.scalars: list[dict[str, Scalar]] = [{} for _ in parts]
        for name, (number, field) in numbers_of(parts).items():
            node = placeholder(name, Spec((), np.dtype(np.float64)))
            value = getattr(parts[number], field.name)
            self._inputs[name] = Input(node, range_of(field), value)
            self.scalars[number][field.name] = Scalar(node)

    def values(self, step: int) -> dict[str, float]:
        """The values for the step after `step` steps.

        Raises:
            ArgumentError: if a schedule gives a value that its setting cannot be.
        """
        known, kept = self._numbers
        if kept is not None and known is self.overrides:
            return dict(kept)
        where, values = type(self._optimizer).__name__, {}
        for name, entry in self._inputs.items():
            source = self.overrides.get(name, entry.own)
            value, why = source, ""
            if callable(source):
                value, why = source(step), f" from {source!r} at step {step}"
            values[name] = entry.allowed.check(where, name, value, why)
        if self.fixed:
            self._numbers = (self.overrides, dict(values))
        return values

    @property
    def fixed(self) -> bool:
        """Whether all settings are numbers, the same for every step."""
        if self._numbers[0] is self.overrides:
            return True
        sources = [self.overrides.get(k, entry.own) for k, entry in self._inputs.items()]
        return not any(map(callable, sources))

    def feeds(self, step: int) -> dict[Node, float]:
        """What to feed for the step after `step` steps."""
        return {self._inputs[name].node: value for name, value in self.values(step).items()}

    @property
    def nodes(self) -> list[Node]:
        """The inputs."""
        return [entry.node for entry in self._inputs.values()]

    @property
    def names(self) -> dict[Node, str]:
        """The inputs by node; no name of another leaf of a step begins with a colon."""
        return {entry.node: f":{name}" for name, entry in self._inputs.items()}

    def node(self, name: str) -> Node | None:
        """The input of a setting; None if there is no such setting."""
        entry = self._inputs.get(name)
        return None if entry is None else entry.node

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
        self.touched |= given.keys()

    def source(self, name: str) -> Setting | None:
        """The number or schedule that a setting has now; None if there is no such setting."""
        if name not in self._inputs:
            return None
        return self.overrides.get(name, self._inputs[name].own)

    def _unknown(self, where: str, name: str) -> ArgumentError:
        value = getattr(self._optimizer, name, None)
        own = name in {f.name for f in fields(self._optimizer)}
        if own and (value is None or isinstance(value, (int, float))):
            return ArgumentError(
                f"{where}: {name} is {value!r}, so this step was built without it and it cannot be "
                "set; make the optimiser with another value"
            )
        return UnknownNameError.of(f"{where}: setting", name, self._inputs)
