"""Operators that concrete values have beside those that they share with lazy ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DTypeError
from magmadnn.graph.operators import FUNCTIONS, Operators


class ValueOperators(Operators):
    """Comparison by value, truth values, and operators that write in place.

    An Operation has none of these: it is compared by identity, and nothing of it can be written.
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

    def __and__(self, other: Any) -> Any:
        return self._logical("logical_and", other)

    def __or__(self, other: Any) -> Any:
        return self._logical("logical_or", other)

    def __xor__(self, other: Any) -> Any:
        return self._logical("not_equal", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Any:
        return self._logical("logical_not")

    def _logical(self, name: str, *others: Any) -> Any:
        for operand in (self, *others):
            dtype = operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype
            if dtype != np.bool_:
                raise DTypeError(f"{name}: expected bool, got {dtype.name}; compare first")
        return FUNCTIONS[name](self, *others)

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
