"""Products by magmadnn, as a kernel or tasks alone and in an Executable, and by NumPy."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.contenders.blas import operands
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.driver.driver import Driver
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import scratch_bytes
from magmadnn.compiler.lower.size_rules import selected
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.threads import thread_count


class BareKernel:
    """C = op(A) op(B) by the kernel that a program would take, on one core."""

    def __init__(self, m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> None:
        a, b = operands(m, k, n, ta, tb, dtype)
        self._c = np.zeros((m, n), dtype)
        sizes = {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k}
        strides = {"lda": a.shape[1], "ldb": b.shape[1], "ldc": n}
        made = selected(Gemm(dtype, ta, tb), {**sizes, **strides})
        block = kernel.block(made, **sizes, **strides, a=a, b=b, c=self._c)
        space = kernel.scratch(scratch_bytes(made, host()))
        (loaded,) = kernel.load([made])
        self._kept = (a, b, block, space, loaded)
        # Converted once: a run is the call alone, as in the contenders from C.
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        addresses = (ctypes.c_void_p(x.ctypes.data) for x in (block, space))
        self.run = partial(call(loaded.address), *addresses, ctypes.c_int64(0))

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._c}


class InExecutable:
    """The same as a program of one product whose result goes into a variable."""

    def __init__(self, m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> None:
        a, b = operands(m, k, n, ta, tb, dtype)
        x, y = md.placeholder("a", a.shape, dtype), md.placeholder("b", b.shape, dtype)
        self.result = md.variable("c", np.zeros((m, n), dtype))
        product = (x.T if ta else x) @ (y.T if tb else y)
        self.program = Executable([], [(self.result.node, product.node)], executor="native")
        self.feeds = {x.node: a, y.node: b}

    def run(self) -> None:
        self.program.run(self.feeds)

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": np.array(self.result.value.read())}


class OnThreads:
    """The tasks of that program on all threads, called like the kernel on one core."""

    def __init__(self, m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> None:
        whole = InExecutable(m, k, n, ta, tb, dtype)
        plan, threads = whole.program.native.plan, thread_count()
        instance = Instance(plan, {}, threads, prepared=False)
        for node, value in whole.feeds.items():
            instance.arrays[node][...] = value
        tasks = instance.tasks(threads)
        phases = [phase for number in range(plan.phase_count) for phase in tasks.phase(number)]
        driver = Driver(phases, tasks.useful_threads, tasks.scratch_bytes)
        self._c, self._kept = whole.result, instance
        self.run = partial(driver.run, 0, 1)

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": np.array(self._c.value.read())}


class InNumPy:
    """`numpy.matmul` into an array that is there."""

    def __init__(self, m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> None:
        a, b = operands(m, k, n, ta, tb, dtype)
        self._a, self._b = a.T if ta else a, b.T if tb else b
        self._c = np.zeros((m, n), dtype)

    def run(self) -> None:
        np.matmul(self._a, self._b, out=self._c)

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._c}
