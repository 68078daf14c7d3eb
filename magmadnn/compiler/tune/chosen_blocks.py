"""Choosing by measurement how a matrix product runs: its register tile, blocks, copies and vectors.

All ways have one order of summation (`llvm/gemm/gemm.py`), so the choice changes times and no bit: results
are equal over an empty file of measurements and a full one. Whatever changes the order is no matter of
measurement (`lower/product_rule.py`).

It is searched (`tune_search.py`) in two steps. While a program trains or predicts, from a second after its
first steps on, runs of its products take 3 % of its time: that finds what a kernel is told when it runs
(depth and height of blocks, copies), and the program goes on with it. They are runs of its own kernels on
other memory, so nothing is compiled for them, and first steps do not wait. `magmadnn tune run` searches all
products that programs had, with those ways for which other code must be compiled: tiles, vectors of another
width. Programs that start later run what it chose. `MAGMADNN_TUNE_SECONDS` limits what a process spends; 0
turns measuring off, and the rule decides everything.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.cuts import RULE, Way, cuts, way_called, ways
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.errors import ArgumentError

from .file import Record, Records
from .products import matrix_bytes, product_of, product_words, products, rotating, sets_of
from .search import Run, Search

SECONDS = 10.0  # for all products of a process
SHARE = 0.03  # of its time
AFTER = 1.0  # seconds from its first steps on
_VARIABLE = "MAGMADNN_TUNE_SECONDS"
_LEAST_PRODUCTS = 1_000_000  # smaller ones take some 20 microseconds, whatever is done
_LEAST_NOTED = 100_000  # those are left to the patient search
_LARGEST_BYTES = 64 << 20  # of the matrices to measure with

_NOTED = Record(RULE, {})  # a product that is known, and not measured

Runner = Callable[[Gemm, Mapping[str, int], Mapping[str, Way]], dict[str, Run]]


@dataclass
class Untried:
    """A product of a program that is laid out in memory, and has not been measured.

    Attributes:
        gemm: the product, without a choice.
        values: the slots of the largest part that is computed in one call.
        nbytes: of memory that `prepare` takes.
        prepare: gives what runs that once on memory of its own, told what the slot `cuts` is.
        choose: tells the program what that slot should be from now on.
        search: what is going on; None before it begins.
    """

    gemm: Gemm
    values: Mapping[str, int]
    nbytes: int
    prepare: Callable[[], Callable[[int], None]]
    choose: Callable[[int], None]
    search: Iterator[Record | None] | None = None


class Tuner:
    """Gives the way for each product, and measures those that are new while a program runs.

    Args:
        records: what was measured before.
        target: the machine.
        seconds: what measuring may take in all,
        share: and as a share of the time that passes,
        after: so many seconds from the first steps on.
        clock: seconds, from any start.

    Attributes:
        spent: seconds that measuring has taken.
    """

    def __init__(
        self,
        records: Records,
        target: Target,
        seconds: float = SECONDS,
        share: float = SHARE,
        after: float = AFTER,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.records, self.target, self.seconds = records, target, seconds
        self.spent = 0.0
        self._clock, self._share, self._after = clock, share, after
        self._next: float | None = None  # when a run may be timed again
        self._turn = ProcessLock()  # two that measure at once would disturb each other
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

    def cut(self, gemm: Gemm, values: Mapping[str, int]) -> int:
        """What the slot `cuts` should be, as far as is known.

        Args:
            gemm: the product, without a choice; what is done to its elements last does not matter.
            values: the slots of the largest part that is computed in one call, where the tile is the rule's.
        """
        return self._way(gemm, values).word

    def wants(self, product: Untried) -> bool:
        """Whether it is worth measuring how the loops of a product are cut, and nobody has."""
        return product.nbytes <= _LARGEST_BYTES and self.may_want(product.gemm, product.values)

    def may_want(self, gemm: Gemm, values: Mapping[str, int]) -> bool:
        """The same of a product of which nothing else is known yet."""
        large = products(values) >= _LEAST_PRODUCTS and self._counts(gemm, values)
        return large and self._known.get(product_words(gemm, values), _NOTED) == _NOTED

    def go_on(self, untried: list[Untried]) -> None:
        """Time a run of the first of these products, where there is time; those that are known are taken out.

        Called between steps.
        """
        if not self._turn.acquire(blocking=False):
            return
        try:
            while untried and self._is_known(untried[0]):
                known = untried.pop(0)
                known.choose(self.cut(known.gemm, known.values))
        finally:
            self._turn.release()

    def _is_known(self, product: Untried) -> bool:
        """Whether a product has been measured, if it is time to ask; a run of it is timed if not."""
        now = self._clock()
        if self._next is None:
            self._next = now + self._after
        if now < self._next or self.spent >= self.seconds:
            return False
        if not self.wants(product):
            return True
        try:
            record = self._timed(product)
        finally:
            cost = self._clock() - now
            self.spent, self._next = self.spent + cost, now + cost / self._share
        if record is not None:
            key = product_words(product.gemm, product.values)
            self._known[key] = record
            self.records.add({key: record})
        return record is not None

    def _timed(self, product: Untried) -> Record | None:
        """What was found, after one more run."""
        search, product.search = product.search, None  # one that is interrupted does not go on
        if search is None:
            rows, run = product.values["row1"] - product.values["row0"], product.prepare()
            words = cuts(product.gemm, self.target, rows, product.values["k"])
            runs = {name: partial(run, word) for name, word in words.items()}
            search = Search(runs, self._clock, run_seconds=0).steps()
        record, product.search = next(search), search
        return record

    def _counts(self, gemm: Gemm, values: Mapping[str, int]) -> bool:
        """Whether choices are made for a product at all."""
        return self.seconds > 0 and products(values) >= _LEAST_NOTED

    def _way(self, gemm: Gemm, values: Mapping[str, int]) -> Way:
        record = (
            self._known.get(product_words(gemm, values)) if self._counts(gemm, values) else None
        )
        if record is None or record.choice == RULE:
            return Way(gemm, 0)
        rows = values["row1"] - values["row0"]
        return way_called(record.choice, gemm, self.target, rows, values["k"])


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
            record = Search(runs, clock).until(until)
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
    """What measuring may take in this process: MAGMADNN_TUNE_SECONDS, or 10 s.

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
