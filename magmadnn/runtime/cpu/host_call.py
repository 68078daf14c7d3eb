"""A step that NumPy computes, as a task of the driver: a native thread calls back into Python.

The driver calls an address with an argument block; here the address is that of a Python function. So a plan
with such steps runs many batches in one call as others do. A callback holds the interpreter's lock and takes
some microseconds beside what NumPy takes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from magmadnn.comm.groups import Binding

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class RowFault(Exception):
    """A kernel that the function ran found the number of a row that is not there."""


class HostCall:
    """A Python function at an address, called as kernels are (`compiler/llvm/kernel.py`).

    Attributes:
        address: what native code calls.
        failure: what the function raised when it last failed, until somebody takes it.
    """

    def __init__(self, function: Callable[[], None], faults: NDArray[np.int64]) -> None:
        """`faults[0]` becomes 1 when the function raises; nothing else tells native code of it."""
        self._function, self._faults = function, faults
        self._callback = _FUNCTION(self._run)
        self.address: int = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.failure: BaseException | None = None

    def _run(self, _arguments: int, _scratch: int, _batch: int) -> None:
        try:
            with np.errstate(all="ignore"):  # a thread of the driver has warnings of its own
                self._function()
        except RowFault:
            self._faults[0] = 1
        except BaseException as error:  # nothing may be raised through native code
            self.failure = error
            self._faults[0] = 1

    def take_failure(self) -> BaseException | None:
        """What the function raised, once."""
        failure, self.failure = self.failure, None
        return failure


class HostCalls:
    """The callbacks of a plan.

    Args:
        faults: `faults[0]` becomes 1 when one of them raises.
    """

    def __init__(self, faults: NDArray[np.int64]) -> None:
        self._faults = faults
        self._made: list[HostCall] = []
        self._has_collectives = False
        self._binding: Binding | None = None

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return bool(self._made)

    def made(self, function: Callable[[], None], among_ranks: bool) -> HostCall:
        """A callback; `among_ranks`: one whose collectives run on the groups of the run's thread."""
        if among_ranks:
            self._has_collectives = True
            function = functools.partial(self._in_groups, function)
        self._made.append(HostCall(function, self._faults))
        return self._made[-1]

    def begin(self) -> None:
        """Before a run, on the thread that asks for it."""
        if self._has_collectives:
            self._binding = Binding()

    def _in_groups(self, function: Callable[[], None]) -> None:
        assert self._binding is not None
        with self._binding.here():
            function()

    def raise_failure(self) -> None:
        """Raise what a function raised, once."""
        for failure in [call.take_failure() for call in self._made]:
            if failure is not None:
                raise failure
