"""Kernels and cuBLAS's products on streams of their own, through CuPy and ctypes."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_uint, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

from magmadnn.backends.cuda import _driver as driver
from magmadnn.errors import DeviceError

from .kernels import BLOCK, BLOCKS, OPTIONS, PANEL, TEXT, THREADS

_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LARGER_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_AS_IT_IS, _TURNED = c_int(0), c_int(1)  # CUBLAS_OP_N, CUBLAS_OP_T
_FLOAT, _HALF = c_int(0), c_int(2)  # CUDA_R_32F, CUDA_R_16F
_IN_FLOAT, _ANY = c_int(68), c_int(-1)  # CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
# Blocks of clusters that factorise panels of few rows: they wait less for each other, and find room sooner.
FEWER_BLOCKS = (2, 8)
_OF_SUBSTITUTE = 512  # threads of a block, of which each multiprocessor has one

# What sgemm is given, so that plain numbers may be: there are hundreds of calls.
_OF_SGEMM = (
    c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p,
    c_void_p, c_int,
)  # fmt: skip


_MOST_ARGUMENTS = 16  # of a kernel
_OF_LAUNCH = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
_OF_ALL_AT_ONCE = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p)


class Kernel:
    """Launches of a kernel, some 2,500 in one elimination.

    Args:
        function: CuPy's.
        together: whether all blocks have to be on the device at once.
    """

    def __init__(self, function: Any, *, together: bool = False) -> None:
        self.address, self._module = int(function.kernel.ptr), function
        self._name = "cuLaunchCooperativeKernel" if together else "cuLaunchKernel"
        place = driver.address_of(self._name)
        self._launch: Any = (_OF_ALL_AT_ONCE if together else _OF_LAUNCH)(place)
        self._last = () if together else (None,)
        # The driver copies what a kernel is given; of a word, numbers of four bytes are the first half.
        self._values = (c_uint64 * _MOST_ARGUMENTS)()
        begin = ctypes.addressof(self._values)
        self._places = (c_void_p * _MOST_ARGUMENTS)(*range(begin, begin + 8 * _MOST_ARGUMENTS, 8))

    def __call__(
        self, blocks: int, threads: int, shared: int, stream: int, arguments: tuple[int, ...]
    ) -> None:
        """Launch it; floating point numbers are given as words."""
        self._values[: len(arguments)] = list(arguments)
        if status := self._launch(
            self.address, blocks, 1, 1, threads, 1, 1, shared, stream, self._places, *self._last
        ):
            driver.fail(self._name, status)


@lru_cache
def _word(value: float) -> int:
    """The word of a number of float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@lru_cache
def _place_of(value: float) -> Any:
    """Where a number of float32 lies."""
    return byref(c_float(value))


@lru_cache
def _module(device: int, width: int, blocks: int) -> Any:
    """All kernels where a panel has most blocks, else the one that factorises a panel."""
    import cupy

    options = (*OPTIONS, f"-DWIDTH={width}", f"-DROWS={32 // width}", f"-DCLUSTER={blocks}")
    return cupy.RawModule(code=TEXT if blocks == BLOCKS else PANEL, options=options)


class Calls:
    """What one stream is given. Matrices lie row by row: an address, and elements from row to row.

    Args:
        cupy: the package.
        device: its number.
        width: columns of a panel: 32, 16 or 8.
        stream: CuPy's.
    """

    def __init__(self, cupy: Any, device: int, width: int, stream: Any) -> None:
        self.width = width
        module = _module(device, width, BLOCKS)
        self._kernels = {
            name: Kernel(module.get_function(name), together=name == "substitute")
            for name in (
                "exchange", "split_left", "split_right", "invert_lower", "invert_upper", "substitute",
                "narrow",
            )
        }  # fmt: skip
        self._staged = 32 * (width + 4) * 4  # bytes of a warp
        most = self._staged * (THREADS // 32)
        for blocks in (*FEWER_BLOCKS, BLOCKS):
            panel = Kernel(_module(device, width, blocks).get_function("panel"))
            self._kernels[f"panel {blocks}"] = panel
            for attribute, value in ((_DYNAMIC_SHARED_BYTES, most), (_LARGER_CLUSTERS, 1)):
                driver.call(
                    "cuFuncSetAttribute", c_void_p(panel.address), c_int(attribute), c_int(value)
                )
        self._stream = int(stream.ptr)
        self._processors = cupy.cuda.Device(device).attributes["MultiProcessorCount"]
        cupy.cuda.device.get_cublas_handle()  # CuPy loads the library with the first call
        version = cupy.cuda.nvrtc.getVersion()[0]
        self._blas = ctypes.CDLL(f"libcublas.so.{version}")
        self._sgemm = self._blas.cublasSgemm_v2
        self._sgemm.argtypes = _OF_SGEMM
        self._handle = c_void_p()
        self._blas_call("cublasCreate_v2", byref(self._handle))
        self._blas_call("cublasSetStream_v2", self._handle, c_void_p(stream.ptr))

    def close(self) -> None:
        """Give back what cuBLAS holds."""
        self._blas_call("cublasDestroy_v2", self._handle)

    def _blas_call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._blas, name)(*arguments):
            raise DeviceError(f"the device failed: {name} gives status {status}")

    def leave(self, processors: int) -> None:
        """Have cuBLAS leave so many multiprocessors to other streams, at most half, where it knows how."""
        if hasattr(self._blas, "cublasSetSmCountTarget"):
            most = max(self._processors - processors, self._processors // 2, 1)
            self._blas_call("cublasSetSmCountTarget", self._handle, c_int(most))

    def _launch(
        self, name: str, blocks: int, threads: int, *arguments: int, shared: int = 0
    ) -> None:
        self._kernels[name](blocks, threads, shared, self._stream, arguments)

    # --- kernels ----------------------------------------------------------------------------------

    def panel(self, a: int, ld: int, rows: int, moves: int, wrong: int) -> None:
        """Factorise a panel of so many rows."""
        of_thread = 32 // self.width
        blocks = next((b for b in FEWER_BLOCKS if b * THREADS * of_thread >= rows), BLOCKS)
        threads = min(-(-rows // (blocks * of_thread * 32)) * 32, THREADS)
        self._launch(
            f"panel {blocks}", blocks, threads, a, ld, rows, moves, wrong,
            shared=self._staged * (threads // 32),
        )  # fmt: skip

    def exchange(
        self, a: int, ld: int, begin: int, end: int, moves: int, *,
        hole: int | None = None, gap: int = 0, steps: int = 1, triangle: bool = False, rows: int = 0,
    ) -> None:  # fmt: skip
        """Exchange rows in columns from `begin` up to `end` without those in the hole, and in `rows`."""
        count = end - begin - gap + (rows != 0)
        if count <= 0:
            return
        self._launch(
            "exchange", -(-count // 128), 128, a, ld, begin, end, end + 1 if hole is None else hole,
            gap, moves, steps, triangle, rows,
        )  # fmt: skip

    def split_left(self, a: int, ld: int, to: int, rows: int, scale: float) -> None:
        """Halves of [rows, BLOCK] beside each other."""
        blocks = -(-rows * (BLOCK // 4) // 256)
        self._launch("split_left", blocks, 256, a, ld, to, rows, _word(scale))

    def split_right(self, a: int, copy: int, ld: int, to: int, columns: int, scale: float) -> None:
        """Halves of [BLOCK, columns], packed, below each other; and a copy of it elsewhere."""
        blocks = -(-columns // 4 * BLOCK // 256)
        self._launch("split_right", blocks, 256, a, copy, ld, to, columns, _word(scale))

    def invert(self, a: int, ld: int, to: int, triangles: int, *, lower: bool) -> None:
        """Inverses of triangles of 32 rows along the diagonal."""
        self._launch("invert_lower" if lower else "invert_upper", triangles, 32, a, ld, to)

    def substitute(
        self, a: int, ld: int, inverses: int, rest: int, x: int, blocks: int, count: int, *, lower: bool
    ) -> None:  # fmt: skip
        """x with T x = rest for a triangle T, by inverses of blocks on its diagonal; `rest` is overwritten.

        Blocks of the grid meet at `count`, a word that is 0.
        """
        self._launch(
            "substitute", self._processors, _OF_SUBSTITUTE, a, ld, inverses, rest, x,
            blocks, lower, count,
        )  # fmt: skip

    def narrow(
        self, a: int, n: int, to: int, total: int, scale: float, sums: int, most: int
    ) -> None:
        """[n, n] of float64, scaled, as [total, total] of float32."""
        (word,) = struct.unpack("<Q", struct.pack("<d", scale))
        self._launch("narrow", total, 256, a, n, to, total, word, sums, most)

    def residual(self, a: int, x: int, r: int, n: int, count: int) -> None:
        """r [count, n] becomes r - x A^T in float64, for A [n, n]."""
        less, more, size, one = c_double(-1), c_double(1), c_int(n), c_int(1)
        if count == 1:
            self._blas_call(
                "cublasDgemv_v2", self._handle, _TURNED, size, size, byref(less), c_void_p(a), size,
                c_void_p(x), one, byref(more), c_void_p(r), one,
            )  # fmt: skip
            return
        self._blas_call(
            "cublasDgemm_v2", self._handle, _TURNED, _AS_IT_IS, size, c_int(count), size, byref(less),
            c_void_p(a), size, c_void_p(x), size, byref(more), c_void_p(r), size,
        )  # fmt: skip

    # --- products ---------------------------------------------------------------------------------

    def of_halves(
        self, left: int, right: int, to: int, ld: int, rows: int, columns: int, alpha: float,
        beta: float,
    ) -> None:  # fmt: skip
        """to [rows, columns] = alpha left right + beta to, of halves."""
        first, second = c_float(alpha), c_float(beta)
        self._blas_call(
            "cublasGemmEx", self._handle, _AS_IT_IS, _AS_IT_IS, c_int(columns), c_int(rows),
            c_int(3 * BLOCK), byref(first), c_void_p(right), _HALF, c_int(columns), c_void_p(left),
            _HALF, c_int(3 * BLOCK), byref(second), c_void_p(to), _FLOAT, c_int(ld), _IN_FLOAT, _ANY,
        )  # fmt: skip

    def product(
        self, a: int, lda: int, b: int, ldb: int, to: int, ld: int, rows: int, columns: int,
        inner: int, alpha: float, beta: float,
    ) -> None:  # fmt: skip
        """to = alpha a b + beta to in float32."""
        if status := self._sgemm(
            self._handle, 0, 0, columns, rows, inner, _place_of(alpha), b, ldb, a, lda, _place_of(beta),
            to, ld,
        ):  # fmt: skip
            raise DeviceError(f"the device failed: cublasSgemm gives status {status}")

    def products(
        self, a: tuple[int, int, int], b: tuple[int, int, int], to: tuple[int, int, int],
        side: int, count: int, alpha: float,
    ) -> None:  # fmt: skip
        """Many of them, square: an address, elements from row to row, and from matrix to matrix."""
        first, second = c_float(alpha), c_float(0)
        n = c_int(side)
        parts = [
            part for address, ld, step in (b, a)
            for part in (c_void_p(address), c_int(ld), c_longlong(step))
        ]  # fmt: skip
        self._blas_call(
            "cublasSgemmStridedBatched", self._handle, _AS_IT_IS, _AS_IT_IS, n, n, n, byref(first),
            *parts, byref(second), c_void_p(to[0]), c_int(to[1]), c_longlong(to[2]), c_int(count),
        )  # fmt: skip

    def sides(
        self, a: int, lda: int, x: int, ldx: int, to: int, ld: int, rows: int, count: int,
        alpha: float, beta: float,
    ) -> None:  # fmt: skip
        """to = alpha a x + beta to for a [rows, BLOCK] and so many right sides, one behind the other."""
        first, second = c_float(alpha), c_float(beta)
        self._blas_call(
            "cublasSgemm_v2", self._handle, _TURNED, _AS_IT_IS, c_int(rows), c_int(count),
            c_int(BLOCK), byref(first), c_void_p(a), c_int(lda), c_void_p(x), c_int(ldx),
            byref(second), c_void_p(to), c_int(ld),
        )  # fmt: skip
