"""Choosing by measurement how a matrix product runs: its register tile, blocks, copies and vectors.

All ways have one order of summation (`emit/llvm/gemm.py`), so the choice changes times and no bit: results
are equal over an empty file of measurements and a full one. Whatever changes the order is no matter of
measurement (`select.py`).

It is measured in two steps. Before its first steps a process may spend 30 ms in all on what
a kernel is told when it runs (depth and height of blocks, copies); a product that has not been measured when
that is used up runs by the rule, and the next process goes on. A process that has to compile its kernels
measures nothing and only notes its products. `magmadnn tune run` searches all that were noted, with those
ways for which other code must be compiled: tiles, vectors of another width. Programs that start later run
what it chose. `MAGMADNN_TUNE_SECONDS` sets another limit for a process; 0 turns measuring off, and the rule
decides everything.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from magmadnn.errors import ArgumentError

from .emit.llvm.gemm_cuts import RULE, Way, cuts, way_called, ways
from .emit.llvm.target import Target, host
from .kernels.gemm import Gemm
from .tune_file import Record, Records
from .tune_products import (
    matrix_bytes,
    prepared,
    product_of,
    product_words,
    products,
    rotating,
    sets_of,
)
from .tune_search import Run, Search

SECONDS = 0.03  # for all products of a process: a warm start takes 0.1 s
_VARIABLE = "MAGMADNN_TUNE_SECONDS"
_LEAST_PRODUCTS = 1_000_000  # smaller ones take some 20 microseconds, whatever is done
_LEAST_NOTED = 100_000  # those are left to the patient search
_PER_SECOND = 2e9  # multiplications: a careful guess before the first run
_LARGEST_BYTES = 64 << 20  # of the matrices to measure with
_ROUNDS = 2  # over all ways
_FINAL_ROUNDS = 3  # over the rule and those near the best: one disturbed run must decide nothing
_NEAR = 1.15  # times the best
_WORTH = 0.97  # of the rule's time: what another way must do to be chosen

_NOTED = Record(RULE, {})  # a product that is known, and not measured

Runner = Callable[[Gemm, Mapping[str, int], Mapping[str, Way]], dict[str, Run]]


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

    def note(self, met: Iterable[tuple[Gemm, Mapping[str, int]]]) -> None:
        """Keep which products there are, for the patient search."""
        keys = {product_words(gemm, values) for gemm, values in met if self._counts(gemm, values)}
        fresh = dict.fromkeys(sorted(keys - self._known.keys()), _NOTED)
        if fresh:
            self._known |= fresh
            self.records.add(fresh)

    def kernel(self, gemm: Gemm, values: Mapping[str, int]) -> Gemm:
        """The product with the tile that was chosen for it; `values` as for `cut`."""
        return self._way(gemm, values).gemm

    def cut(self, gemm: Gemm, values: Mapping[str, int], measure: bool = True) -> int:
        """What the slot `cuts` should be.

        Args:
            gemm: the product, without a choice; what is done to its elements last does not matter.
            values: the slots of the largest part that is computed in one call, where the tile is the rule's.
            measure: whether a new product may be measured now.
        """
        if measure and self._counts(gemm, values) and products(values) >= _LEAST_PRODUCTS:
            key = product_words(gemm, values)
            if self._known.get(key, _NOTED) == _NOTED:
                found = self._measured(gemm, values)
                if found is not None:
                    self._known[key] = found
                    self.records.add({key: found})
        return self._way(gemm, values).word

    def _counts(self, gemm: Gemm, values: Mapping[str, int]) -> bool:
        """Whether choices are made for a product at all."""
        return self.seconds > 0 and not gemm.scaled and products(values) >= _LEAST_NOTED

    def _way(self, gemm: Gemm, values: Mapping[str, int]) -> Way:
        record = (
            self._known.get(product_words(gemm, values)) if self._counts(gemm, values) else None
        )
        if record is None or record.choice == RULE:
            return Way(gemm, 0)
        rows = values["row1"] - values["row0"]
        return way_called(record.choice, gemm, self.target, rows, values["k"])

    def _measured(self, gemm: Gemm, values: Mapping[str, int]) -> Record | None:
        """The best way to cut the loops; None where there is no time to find it."""
        expected = products(values) / _PER_SECOND
        if expected > self.seconds - self.spent or matrix_bytes(gemm, values) > _LARGEST_BYTES:
            return None
        words = cuts(gemm, self.target, values["row1"] - values["row0"], values["k"])
        start = self._clock()
        try:
            found = {name: Way(gemm, word) for name, word in words.items()}
            times = self._timed(self._runner(gemm, values, found), expected, start)
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


def search_all(
    records: Records,
    target: Target,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    runner: Runner = rotating,
) -> Iterator[tuple[str, Record | None]]:
    """The patient search for every product of a file, one after the other; the file keeps what is found.

    Args:
        records: the file.
        target: the machine.
        seconds: for all; each product may take an equal share of what is left.
        clock: seconds, from any start.
        runner: makes what is to be timed: for each way a call.

    Yields:
        Each product in words with what was found; None, where its share of the time did not suffice.
    """
    end = clock() + seconds
    left = [(words, found) for words in records.read() if (found := product_of(words))]
    left.sort(
        key=lambda each: -products(each[1][1])
    )  # the slowest first: others take what they leave
    for number, (words, (gemm, values)) in enumerate(left):
        share = (end - clock()) / (len(left) - number)
        until = clock() + share
        record = None
        if matrix_bytes(gemm, values) <= _LARGEST_BYTES:
            rows = values["row1"] - values["row0"]
            runs = runner(gemm, values, ways(gemm, target, rows, values["k"]))
            record = Search(runs, clock, until).record()
        if record is not None and runner is rotating:
            record = record.of_one(sets_of(gemm, values))
        if record is not None:
            records.add({words: record})
        yield words, record


@functools.cache
def tuner() -> Tuner:
    """The tuner of this process.

    Raises:
        ArgumentError: MAGMADNN_TUNE_SECONDS is not a number of at least 0.
    """
    return Tuner(Records(host()), host(), limit_seconds())


def limit_seconds() -> float:
    """What measuring may take in this process: MAGMADNN_TUNE_SECONDS, or 0.03 s.

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
