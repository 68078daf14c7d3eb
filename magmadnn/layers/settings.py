"""What a layer's graphs were made of stays as it was."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Final

import numpy as np

from magmadnn.calls import ExplainsAttributes, FixedDict, FixedList
from magmadnn.errors import ArgumentError, FrozenError
from magmadnn.graph.operators import Operators
from magmadnn.tensor import Variable

CURRENT: ContextVar[Any] = ContextVar(
    "magmadnn_layer", default=None
)  # the layer that is being called


class Changes:
    """How often names, and `trainable`, of layers that were called were set: whether they were meanwhile."""

    names: ClassVar[int] = 0
    trainable: ClassVar[int] = 0


class KeepsSettings(ExplainsAttributes):
    """Base of layers, which refuse what would change nothing: graphs are made when a layer is called.

    Settings, parameters and layers that it is made of can be neither assigned nor deleted any more after
    that, nor lists and dicts that hold them changed in place, but by the layer's own formula; `name` and
    `trainable` can, and what a layer of one's own keeps beside them.
    """

    @classmethod
    @abstractmethod
    def _names(cls) -> dict[str, None]:
        """The names of the settings, in their order."""

    def __setattr__(self, name: str, value: Any) -> None:
        held = vars(self)
        if held.get("_built") and name in held and held[name] is not value:
            if CURRENT.get() is not self:
                self._refuse(name, held[name], "set")
            if name in _STAYS_OPEN:
                self._check_open(name, value)
        elif type(value) in _SETTLED and value._keeper is not self:  # of another layer
            value = dict(value) if isinstance(value, dict) else list(value)
        object.__setattr__(self, name, value)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """What a copy is made of; arrays in it can be written again."""
        vars(self).update(state)
        if state.get("_settled_once"):
            names = self._names()
            for name, value in state.items():
                if name in names and isinstance(value, _CHANGING):
                    _lock(value)

    def __delattr__(self, name: str) -> None:
        held = vars(self)
        if held.get("_built") and name in held and CURRENT.get() is not self:
            self._refuse(name, held[name], "deleted")
        object.__delattr__(self, name)

    def _refuse(self, name: str, before: Any, what: str) -> None:
        """Raise FrozenError for a parameter, a layer, or a setting that graphs were made with.

        Args:
            name: of the attribute.
            before: what it is now.
            what: is to be done with it.
        """
        if name in self._names():
            if name not in _STAYS_OPEN:
                raise FrozenError(
                    f"{self}: {name} cannot be {what} once the layer was called, its graphs would stay as "
                    f"they are: make another one, {type(self).__name__}(..., {name}=...)"
                )
        elif isinstance(before, Operators):
            raise FrozenError(
                f"{self}: {name} is part of graphs that are made, another value in its place would change "
                f"nothing: write layer.{name}.assign(values)"
            )
        elif what == _IN_PLACE or _holds_parts(before):
            raise FrozenError(
                f"{self}: {name} cannot be {what} once the layer was called, its graphs are made of what "
                f"it holds: make another {type(self).__name__}, and the model of it"
            )

    def _check_open(self, name: str, value: Any) -> None:
        """Look at what `name` or `trainable` of a layer that was called becomes, as its class does at first.

        Raises:
            ArgumentError: it is no name, or no truth value.
        """
        if name == "trainable":
            Changes.trainable += 1
            if not isinstance(value, (bool, np.bool_)):
                raise ArgumentError(f"{self}: trainable must be True or False, got {value!r}")
            return
        Changes.names += 1
        if value is not None and (not isinstance(value, str) or not value):
            raise ArgumentError(f"{self}: name must be text or None, got {value!r}")

    def check_change(self, name: str) -> None:
        """Look whether a list or a dict that the layer was called with may be changed now.

        Raises:
            FrozenError: the layer's formula is not at work.
        """
        if CURRENT.get() is not self:
            self._refuse(name, vars(self).get(name), _IN_PLACE)

    def _settle(self) -> None:
        """From the first call on: settings, and what holds parts, are not changed in place."""
        if vars(self).get("_settled_once"):
            return
        object.__setattr__(self, "_settled_once", True)
        names = self._names()
        for name, value in list(vars(self).items()):
            if isinstance(value, _CHANGING) and name not in _OWN and type(value) not in _SETTLED:
                if name in names or _holds_parts(value):
                    object.__setattr__(self, name, self._settled(name, value))

    def _settled(self, name: str, value: Any) -> Any:
        """The same as one that refuses changes, and so what it holds."""
        if type(value) is list:
            return FixedList([self._settled(name, one) for one in value], self, name)
        if type(value) is dict:
            return FixedDict({k: self._settled(name, v) for k, v in value.items()}, self, name)
        if type(value) is tuple:
            return tuple([self._settled(name, one) for one in value])
        if type(value) is np.ndarray and value.flags.writeable:
            value = value.copy()
            value.flags.writeable = False
        return value


_IN_PLACE: Final = "changed in place"
_STAYS_OPEN: Final = ("name", "trainable")
_OWN: Final = ("_own", "_beside", "_parent")  # of the base, which it changes itself
_CHANGING: Final = (list, dict, tuple, np.ndarray)
_SETTLED: Final = (FixedList, FixedDict)


def _lock(value: Any) -> None:
    """Let arrays in a setting not be written to."""
    if type(value) is np.ndarray:
        value.flags.writeable = False
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            _lock(one)


def _holds_parts(value: Any) -> bool:
    """Whether it is a layer or a variable, or a list, a tuple or a dict of some."""
    if isinstance(value, dict):
        return any(map(_holds_parts, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_parts, value))
    return isinstance(value, (KeepsSettings, Variable))
