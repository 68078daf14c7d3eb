"""Functions of Python among what is launched: calls that no graph holds, and several launches as one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from .engine import Graph, NativeCall

_CALLED = ctypes.CFUNCTYPE(ctypes.c_int64)


class Called:
    """A function that native code calls, in any thread; it waits for the interpreter then.

    Attributes:
        error: what the function raised last, where native code called it.
    """

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._entry = _CALLED(self._run)  # as long as this is held
        address = ctypes.cast(self._entry, ctypes.c_void_p).value or 0
        self.call = NativeCall(name, (address,), self)

    def _run(self) -> int:
        try:
            self._function()
        except BaseException as error:
            self.error = error
            return 1
        return 0


class CalledAlone:
    """A function that is launched like a graph.

    Args:
        name: for errors.
        function: gives the stream what there is to do.
    """

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._function = function
        self.call = Called(name, function).call

    def launch(self) -> None:
        """Begin with it."""
        self._function()

    def moved(self, move: Callable[[int], int]) -> None:
        """No kernels."""


class Course:
    """Graphs and calls that are launched one after the other, as one.

    Args:
        pieces: in order.
    """

    def __init__(self, pieces: Sequence[Graph]) -> None:
        self._pieces = pieces
        self.call = Called("graphs and calls between them", self.launch).call

    def launch(self) -> None:
        """Begin with the first."""
        for piece in self._pieces:
            piece.launch()

    def moved(self, move: Callable[[int], int]) -> None:
        """Not kernels alone."""
