"""What a layer's graphs were made of stays as it was."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import FrozenError
from magmadnn.graph.operators import Operators

CURRENT: ContextVar[Any] = ContextVar(
    "magmadnn_layer", default=None
)  # the layer that is being called


class KeepsSettings(ExplainsAttributes):
    """Base of layers, which refuse what would change nothing: graphs are made when a layer is called.

    Settings and parameters cannot be assigned any more after that, but by the layer's own formula; `name`
    and `trainable` can, and what a layer of one's own keeps beside them.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        held = vars(self)
        if held.get("_built") and name in held and held[name] is not value:
            if CURRENT.get() is not self:
                self._refuse(name, held[name])
        object.__setattr__(self, name, value)

    def _refuse(self, name: str, before: Any) -> None:
        """Raise FrozenError for a parameter, or for a setting that graphs were made with."""
        if isinstance(before, Operators):
            raise FrozenError(
                f"{self}: {name} is part of graphs that are made, another value in its place would change "
                f"nothing: write layer.{name}.assign(values)"
            )
        if name in self._names() and name not in ("name", "trainable"):  # type: ignore[attr-defined]  # of Layer
            raise FrozenError(
                f"{self}: {name} cannot be set once the layer was called, its graphs would stay as they "
                f"are: make another one, {type(self).__name__}(..., {name}=...)"
            )
