"""Choosing by measurement how the loops of a matrix product are cut.

All ways have one order of summation (`emit/llvm/gemm.py`), so the choice changes times and no bit: results
are equal over an empty file of measurements and a full one. Whatever changes the order is no matter of
measurement (`select.py`).

Measuring may cost each process a tenth of a second in all, before its first steps; a product that has not
been measured when that is used up runs by the rule, and the next process goes on. A process that has to
compile its kernels measures nothing. `MAGMADNN_TUNE_SECONDS` sets another limit; 0 turns measuring off, and
the rule decides everything.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.graph.spec import as_dtype

from .emit.llvm import kernel
from .emit.llvm.cache import kernel_cache
from .emit.llvm.gemm_cuts import RULE, cuts
from .emit.llvm.target import Target, host
from .emit.llvm.writers import scratch_bytes
from .kernels.gemm import Gemm, Loading
from .tune_file import Record, Records

SECONDS = 0.1  # for all products of a process
_VARIABLE = "MAGMADNN_TUNE_SECONDS"
_LEAST_PRODUCTS = 1_000_000  # smaller ones take some 20 microseconds, whatever is done
_PER_SECOND = 2e9  # multiplications: a careful guess before the first run
_LARGEST_BYTES = 64 << 20  # of the matrices to measure with
_ROUNDS = 2  # over all ways
_FINAL_ROUNDS = 3  # over the rule and those near the best: one disturbed run must decide nothing
_NEAR = 1.15  # times the best
_WORTH = 0.97  # of the rule's time: what another way must do to be chosen

Run = Callable[[], None]
Runner = Callable[[Gemm, Mapping[str, int], Mapping[str, int]], dict[str, Run]]


class Tuner:
    """Gives the way for each product, and measures those that are new while there is time left.

    Args:
        records: what was measured before.
        target: the machine.
        seconds: what measuring may take in all.
        clock: seconds, from any start.
        runner: makes what is to be timed: for each way a call.

    Attributes:
        spent: seconds that measuring has taken.
    """

    def __init__(
        self,
        records: Records,
        target: Target,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.perf_counter,
        runner: Runner | None = None,
    ) -> None:
        self.records, self.target, self.seconds = records, target, seconds
        self.spent = 0.0
        self._clock, self._runner = clock, runner or prepared
        self._known = records.read() if seconds > 0 else {}

    def cut(self, gemm: Gemm, values: Mapping[str, int], measure: bool = True) -> int:
        """What the slot `cuts` should be.

        Args:
            gemm: the product; what is done to its elements last does not matter.
            values: the slots of the part that is computed in one call.
            measure: whether a new product may be measured now.
        """
        if self.seconds <= 0 or gemm.scaled or _products(values) < _LEAST_PRODUCTS:
            return 0
        rows, key = values["row1"] - values["row0"], product_words(gemm, values)
        ways = cuts(gemm, self.target, rows, values["k"])
        if key not in self._known and measure:
            found = self._measured(gemm, values, ways)
            if found is not None:
                self._known[key] = found
                self.records.add({key: found})
        record = self._known.get(key)
        return ways.get(record.choice, 0) if record is not None else 0

    def _measured(
        self, gemm: Gemm, values: Mapping[str, int], ways: Mapping[str, int]
    ) -> Record | None:
        """The best way; None where there is no time to find it."""
        expected = _products(values) / _PER_SECOND
        if expected > self.seconds - self.spent or _matrix_bytes(gemm, values) > _LARGEST_BYTES:
            return None
        start = self._clock()
        try:
            times = self._timed(self._runner(gemm, values, ways), expected, start)
        finally:
            self.spent += self._clock() - start
        if times is None:
            return None
        best = min(times, key=lambda name: times[name])
        choice = best if times[best] < _WORTH * times[RULE] else RULE
        return Record(choice, {name: round(t * 1e6, 1) for name, t in times.items()})

    def _timed(
        self, runs: Mapping[str, Run], expected: float, start: float
    ) -> dict[str, float] | None:
        """The best time of each way, in rounds; None where another run might not end in time."""
        end = start + self.seconds - self.spent
        times: dict[str, float] = {}

        def timed(name: str) -> bool:
            before = self._clock()
            if before + max(times.values(), default=expected) > end:
                return False
            runs[name]()
            times[name] = min(self._clock() - before, times.get(name, math.inf))
            return True

        # The first run fetches code and matrices into the caches.
        if not all(timed(name) for name in (RULE, *list(runs) * _ROUNDS)):
            return None
        near = [n for n in runs if n == RULE or times[n] <= _NEAR * min(times.values())]
        return times if all(timed(name) for name in near * _FINAL_ROUNDS) else None


@functools.cache
def tuner() -> Tuner:
    """The tuner of this process.

    Raises:
        ArgumentError: MAGMADNN_TUNE_SECONDS is not a number of at least 0.
    """
    return Tuner(Records(host()), host(), limit_seconds())


def limit_seconds() -> float:
    """What measuring may take in this process: MAGMADNN_TUNE_SECONDS, or a tenth of a second.

    Raises:
        ArgumentError: it is not a number of at least 0.
    """
    text = os.environ.get(_VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ArgumentError(f"{_VARIABLE} must be a number of at least 0, got {text!r}")
    return seconds


def product_words(gemm: Gemm, values: Mapping[str, int]) -> str:
    """A product as text: dtypes, m x k x n, how A and B are stored, elements from row to row."""
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    stored = "NT"[gemm.transpose_a] + "NT"[gemm.transpose_b]
    apart = " ".join(str(values[slot]) for slot in ("lda", "ldb", "ldc"))
    read = "".join(f" {load.stored} as {load.digits}," for load in _loads(gemm))
    return f"{gemm.dtype}{read} {rows} x {values['k']} x {columns} {stored}, rows {apart} apart"


def _loads(gemm: Gemm) -> list[Loading]:
    """How A and B are read, if one of them is converted; the other's elements are what they are."""
    if gemm.load_a is None and gemm.load_b is None:
        return []
    return [load or Loading(gemm.dtype, gemm.dtype) for load in (gemm.load_a, gemm.load_b)]


def _products(values: Mapping[str, int]) -> int:
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    return rows * columns * values["k"]


def _stored(gemm: Gemm) -> dict[str, np.dtype[Any]]:
    """The dtypes of the matrices in memory."""
    a, b = (load.stored if load else gemm.dtype for load in (gemm.load_a, gemm.load_b))
    return {"a": as_dtype(a), "b": as_dtype(b), "c": as_dtype(gemm.dtype)}


def _shapes(gemm: Gemm, values: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Rows, and elements from row to row, of the matrices as they are stored."""
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    return {
        "a": (values["k"] if gemm.transpose_a else rows, values["lda"]),
        "b": (columns if gemm.transpose_b else values["k"], values["ldb"]),
        "c": (rows, values["ldc"]),
    }


def _matrix_bytes(gemm: Gemm, values: Mapping[str, int]) -> int:
    stored = _stored(gemm)
    sizes = {name: rows * apart for name, (rows, apart) in _shapes(gemm, values).items()}
    return sum(size * stored[name].itemsize for name, size in sizes.items())


def prepared(
    gemm: Gemm, values: Mapping[str, int], ways: Mapping[str, int]
) -> dict[str, Callable[[], None]]:
    """A call of the bare product for each way, on matrices of the same strides."""
    made = Gemm(
        gemm.dtype, gemm.transpose_a, gemm.transpose_b, load_a=gemm.load_a, load_b=gemm.load_b
    )
    (loaded,) = kernel.load([made], cache=kernel_cache())
    space = kernel.scratch(scratch_bytes(made, host()))
    stored = _stored(gemm)
    matrices: dict[str, Any] = {}
    for name, (rows, apart) in _shapes(gemm, values).items():
        nbytes = max(rows * apart, 1) * stored[name].itemsize
        matrices[name] = kernel.scratch(nbytes).view(stored[name])
        matrices[name][:] = 0.5
    sizes = {
        "row0": 0, "row1": values["row1"] - values["row0"], "column0": 0,
        "column1": values["column1"] - values["column0"], "k": values["k"],
        **{slot: values[slot] for slot in ("lda", "ldb", "ldc")},
    }  # fmt: skip

    def call(word: int) -> Callable[[], None]:
        block = kernel.block(made, **sizes, **matrices, cuts=word)

        def run(held: Mapping[str, Any] = matrices) -> None:  # the block holds addresses only
            loaded(block, space)

        return run

    return {name: call(word) for name, word in ways.items()}
