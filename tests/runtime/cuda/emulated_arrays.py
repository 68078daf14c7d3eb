"""Arrays of another library than NumPy, with its interface: as CuPy's, they refuse to become NumPy's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class ForeignArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that NumPy's functions take, and give, through the protocols for other libraries."""

    __array_priority__ = 100.0

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _wrapped(getattr(ufunc, method)(*_own(inputs), **options))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        options = {k: _own([v])[0] for k, v in options.items()}
        if function is np.asarray:
            return ForeignArray(np.array(*arguments))  # `like` one of these: a copy from the host
        return _wrapped(function(*_own(arguments), **options))

    def __bool__(self) -> bool:
        return bool(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __int__(self) -> int:
        return int(self._array)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return map(_wrapped, self._array)

    def get(self) -> np.ndarray:
        """A copy as NumPy's."""
        return self._array.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array_"):  # CuPy's have no such door to their memory
            raise AttributeError(name)
        found = getattr(self._array, name)
        if not callable(found):
            return _wrapped(found)
        return lambda *a, **k: _wrapped(found(*_own(a), **k))

    def __getitem__(self, index: Any) -> Any:
        return _wrapped(self._array[_own([index])[0]])

    def __setitem__(self, index: Any, value: Any) -> None:
        assert isinstance(value, ForeignArray), "what is written lies on the host"
        self._array[index] = value._array


def _wrapped(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wrapped, value))
    return ForeignArray(value) if isinstance(value, np.ndarray | np.generic) else value


def _own(values: Sequence[Any]) -> list[Any]:
    made = []
    for value in values:
        if isinstance(value, ForeignArray):
            made.append(value._array)
        elif isinstance(value, (list, tuple)):
            made.append(type(value)(_own(value)))
        else:
            assert not isinstance(value, np.ndarray) or not value.ndim, (
                "an operand lies on the host"
            )
            made.append(value)
    return made
