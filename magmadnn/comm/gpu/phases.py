"""Streams that are captured while they are given copies and products: CUDA graphs, launched in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

Gemm = Callable[..., None]
"""`cublasGemmEx` without its handle: numbers and addresses in its order."""

_HOPPER: Final = 9  # compute capability from which cuBLAS takes more workspace of its own accord
# cublasMath_t: parts of a sum are added in the arithmetic's dtype, not in that of a half result, or as usual
WIDE_SUMS, USUAL_MATH = 16, 0
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int
_GEMM: Final = (
    _POINTER, *(_NUMBER,) * 5,  # handle, operations, sizes
    _POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER, _NUMBER, _NUMBER,  # alpha, A and B
    _POINTER, _POINTER, _NUMBER, _NUMBER, _NUMBER, _NUMBER,  # beta, C, arithmetic, algorithm
)  # fmt: skip


class Captured:
    """A stream for captures, with cuBLAS on it.

    CuPy refuses to call cuBLAS while a stream is captured; so it is called here by its own interface, on the
    handle that products outside of graphs have too, which keeps their bits. In a graph it works in memory of
    ours, as much as it takes outside of graphs: it would put allocations into each graph.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.device.get_cublas_handle()  # CuPy loads the library with the first call
        version = cupy.cuda.nvrtc.getVersion()[0]
        self._blas: Any = ctypes.CDLL(f"libcublas.so.{version}")
        self._blas.cublasGemmEx.argtypes = _GEMM
        capability = int(cupy.cuda.Device().compute_capability)
        self._room = cupy.empty((32 if capability >= 10 * _HOPPER else 4) << 20, "uint8")

    @property
    def nbytes(self) -> int:
        """Bytes of the workspace."""
        return int(self._room.nbytes)

    def graph(self, phase: Callable[[Gemm], None]) -> Any:
        """What `phase` gives to the current stream and to those that wait for it and are waited for, as a
        graph of CuPy.

        Raises:
            RuntimeError, NotImplementedError: something in it cannot be captured.
        """
        with self._stream:
            # With each call outside of graphs CuPy gives the handle the current stream, and with it the
            # library's own workspace.
            handle = self._cupy.cuda.device.get_cublas_handle()
            self._called("cublasSetStream_v2", _POINTER(handle), _POINTER(int(self._stream.ptr)))
            self._called(
                "cublasSetWorkspace_v2",
                _POINTER(handle), _POINTER(int(self._room.data.ptr)), ctypes.c_size_t(self.nbytes),
            )  # fmt: skip

            def gemm(*words: int) -> None:
                self._called("cublasGemmEx", handle, *words)

            self._called("cublasSetMathMode", _POINTER(handle), _NUMBER(WIDE_SUMS))
            self._stream.begin_capture()
            try:
                phase(gemm)
            except BaseException:
                self._given_up()
                raise
            finally:
                self._called("cublasSetMathMode", _POINTER(handle), _NUMBER(USUAL_MATH))
            return self._stream.end_capture()

    def _given_up(self) -> None:
        """End a capture that failed, so that all its streams work as before."""
        try:
            self._stream.end_capture()
        except RuntimeError:
            return  # that it failed is known

    def _called(self, name: str, *words: Any) -> None:
        if status := getattr(self._blas, name)(*words):
            raise RuntimeError(f"{name} gives {status} while a stream is captured")
