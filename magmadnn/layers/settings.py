"""What a layer's graphs were made of stays as it was."""

from __future__ import annotations

from abc import abstractmethod
from contextvars import ContextVar
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import FrozenError
from magmadnn.graph.operators import Operators
from magmadnn.tensor import Variable

CURRENT: ContextVar[Any] = ContextVar(
    "magmadnn_layer", default=None
)  # the layer that is being called


class KeepsSettings(ExplainsAttributes):
    """Base of layers, which refuse what would change nothing: graphs are made when a layer is called.

    Settings, parameters and layers that it is made of can be neither assigned nor deleted any more after
    that, but by the layer's own formula; `name` and `trainable` can, and what a layer of one's own keeps
    beside them.
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
        object.__setattr__(self, name, value)

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
            if name not in ("name", "trainable"):
                raise FrozenError(
                    f"{self}: {name} cannot be {what} once the layer was called, its graphs would stay as "
                    f"they are: make another one, {type(self).__name__}(..., {name}=...)"
                )
        elif isinstance(before, Operators):
            raise FrozenError(
                f"{self}: {name} is part of graphs that are made, another value in its place would change "
                f"nothing: write layer.{name}.assign(values)"
            )
        elif _holds_parts(before):
            raise FrozenError(
                f"{self}: {name} cannot be {what} once the layer was called, its graphs are made of what "
                f"it holds: make another {type(self).__name__}, and the model of it"
            )


def _holds_parts(value: Any) -> bool:
    """Whether it is a layer or a variable, or a list, a tuple or a dict of some."""
    if isinstance(value, dict):
        return any(map(_holds_parts, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_parts, value))
    return isinstance(value, (KeepsSettings, Variable))
