"""cuSOLVER and cuBLAS through ctypes: functions of matrices on a stream of our own, in place."""

from __future__ import annotations

from typing import Any

from magmadnn.backends.cuda import _driver as driver
from magmadnn.backends.cuda.nodes.matrices import MatrixNode

from .factors import Factors
from .handles import Copy, Handles
from .recorded import RecordedCall
from .refinements import Refinements
from .repeated import Captured
from .spectra import Spectra


class MatrixFunctions:
    """Calls on one stream.

    Args:
        blas: cuBLAS, as `ctypes.CDLL` gives it.
        solver: cuSOLVER, likewise.
        stream: what calls are given to.
        copy: begins to copy from the host.
        captured: makes graphs of many short calls, see `Repeated`.
    """

    def __init__(
        self, blas: Any, solver: Any, stream: int, copy: Copy = driver.copy,
        captured: Captured | None = None,
    ) -> None:  # fmt: skip
        handles = Handles(blas, solver, stream)
        self._caller = handles.caller
        self._factors, self._spectra = Factors(handles), Spectra(handles, copy, captured)
        self._refinements = Refinements(handles, copy)

    def workspace(self, node: MatrixNode) -> int:
        """Bytes of workspace on the device that the call of a node needs."""
        return self._of(node).workspace(node)

    def call(self, node: MatrixNode) -> None:
        """Give the stream the call of a node."""
        self._of(node).call(node)

    def recorded(self, node: MatrixNode) -> list[RecordedCall]:
        """What `call` calls of the libraries, to be called later: of functions that look at no values."""
        assert node.is_captured
        with self._caller.recording() as found:
            self.call(node)
        return found

    def _of(self, node: MatrixNode) -> Factors | Spectra | Refinements:
        if node.function == "sgesv":
            return self._refinements
        return self._factors if node.is_captured else self._spectra
