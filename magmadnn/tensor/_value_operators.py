"""Operators that concrete values have beside those that they share with lazy ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from numpy.typing import NDArray

from magmadnn.graph.operators import FUNCTIONS, Operators


class ValueOperators(Operators):
    """Comparison by value, and operators that write in place.

    An Operation has none of these: nothing of it can be written.
    """

    __slots__ = ()

    @abstractmethod
    def read(self) -> NDArray[Any]:
        """The values."""

    @abstractmethod
    def write(self, values: NDArray[Any]) -> None:
        """Set the values."""

    def __eq__(self, other: object) -> Any:
        return NotImplemented if _no_number(other) else FUNCTIONS["equal"](self, other)

    def __ne__(self, other: object) -> Any:
        return NotImplemented if _no_number(other) else FUNCTIONS["not_equal"](self, other)

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(self + other)

    def __isub__(self, other: Any) -> Any:
        return self._in_place(self - other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place(self * other)

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place(self / other)

    def _in_place(self, result: Any) -> Any:
        """`t += x` writes into t's memory, as NumPy does, so that its views see it."""
        if not isinstance(result, ValueOperators):
            return result  # an Operation: nothing is computed yet
        self.write(result.read())
        return self


def _no_number(other: object) -> bool:
    return other is None or isinstance(other, str)
