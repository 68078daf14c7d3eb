"""Losses and metrics are records of settings that are known by name: what both do for that."""

from __future__ import annotations

import inspect
import re
from abc import ABC
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph.own_names import check_name


class Named(ABC):
    """Base of `Loss` and `Metric`, which each say their `kind` and hold the classes that are `known`.

    A derived class is a frozen dataclass, known by `names` from its definition on. Names of magmadnn's own
    are refused.
    """

    kind: ClassVar[str]
    known: ClassVar[dict[str, type[Any]]]
    names: ClassVar[tuple[str, ...]] = ()  # the class's name in small letters where it gives none

    def __init_subclass__(cls) -> None:
        if not (cls.__name__.startswith("_") or inspect.isabstract(cls)):
            cls.names = cls.__dict__.get("names") or (snake_case(cls.__name__),)
            for name in cls.names:
                other = f'give yours another: names = ("my_{name}",) in the class'
                check_name(f"{cls.kind} {cls.__name__}", name, cls, cls.known, other)
            cls.known.update(dict.fromkeys(cls.names, cls))

    @property
    def name(self) -> str:
        """In errors, graphs, tables and histories."""
        return self.names[0]

    @classmethod
    def of_name(cls, name: str) -> Self:
        """The one called `name`, with its default settings.

        Raises:
            UnknownNameError: if there is none of that name.
            ArgumentError: if a setting has no default, so that the name is not enough.
        """
        if name not in cls.known:
            raise UnknownNameError.of(cls.kind, name, cls.known)
        found = cls.known[name]
        if needed := _needed(found):
            raise ArgumentError(
                f"{cls.kind} {name}: {', '.join(needed)} must be given; use {found.__name__}(...), "
                "not the name"
            )
        made: Self = found()
        return made


_without_default: WeakKeyDictionary[type[Any], list[str]] = WeakKeyDictionary()


def _needed(cls: type[Any]) -> list[str]:
    """The settings of a class that have no default."""
    found = _without_default.get(cls)
    if found is None:
        found = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]
        _without_default[cls] = found
    return found


def snake_case(name: str) -> str:
    """`MeanSquaredError` as `mean_squared_error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
