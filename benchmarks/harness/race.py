"""Contenders take turns: the same work, checked first, then blocks in changing order."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import report
from .cases import Case, Check, Claim, Entry, Figure, Result, Settings
from .worker import ContenderError, Worker

PEAK = "peak"
PEAK_STEPS = 4_000_000


def measured(claim: Claim, settings: Settings) -> list[Result]:
    """The results of a claim's cases."""
    results = []
    with tempfile.TemporaryDirectory(prefix="magmadnn-bench-") as folder:
        race = Race(settings, Path(folder))
        try:
            for case in claim.cases:
                start = time.monotonic()
                results.append(race.run(case))
                print(report.rows(results[-1]), file=sys.stderr)
                print(f"({time.monotonic() - start:.0f} s)\n", file=sys.stderr, flush=True)
                if not claim.shared:
                    race.close()
        finally:
            race.close()
    return results


class Race:
    """Processes of contenders, by name, and the caches that they keep during a run."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self._workers: dict[str, Worker] = {}

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers = {}

    def run(self, case: Case) -> Result:
        """Check and measure one case."""
        figures = {entry.name: Figure() for entry in case.entries}
        peak = Figure()
        self._start(case)
        failed = self._check(case, figures)
        repeats = {} if case.unit == "errors" else self._prepare(case, figures)
        peak_flops = self._prepare_peak(case) if case.flops else 0.0
        for number in range(self.settings.blocks):
            if peak_flops:
                peak.blocks.append(peak_flops / self._workers[PEAK].timed())
            shift = number % len(case.entries)
            for entry in (*case.entries[shift:], *case.entries[:shift]):
                if not figures[entry.name].error:
                    self._block(case, entry, repeats.get(entry.name, 1), figures[entry.name])
        return Result(case, self.settings, figures, peak, failed)

    # --- before -----------------------------------------------------------------------------------

    def _start(self, case: Case) -> None:
        """All processes at once, so that libraries are imported side by side."""
        for entry in case.entries:
            if not entry.fresh:
                self._worker(entry).load(entry.make)

    def _check(self, case: Case, figures: Mapping[str, Figure]) -> list[str]:
        """Lines about results that do not agree; contenders that fail are noted in their figures."""
        lines = []
        for check in case.checks:
            found: dict[str, Mapping[str, Any]] = {}
            for entry in case.entries:
                if figures[entry.name].error or (check.names and entry.name not in check.names):
                    continue
                try:
                    worker = self._worker(entry)
                    worker.make(entry.make, {**entry.arguments, **check.changes})
                    found[entry.name] = worker.check()
                except ContenderError as error:
                    figures[entry.name].error = str(error)
            lines += _differences(check, found)
        return lines

    def _prepare(self, case: Case, figures: Mapping[str, Figure]) -> dict[str, int]:
        """Make and warm up; how many runs of each contender fill a block."""
        repeats = {}
        for entry in case.entries:
            figure = figures[entry.name]
            try:
                if entry.fresh == "warm":
                    self._fresh(entry, "seconds")
                elif not entry.fresh and not figure.error:
                    repeats[entry.name] = self._warmed_up(entry)
            except ContenderError as error:
                figure.error = str(error)
        return repeats

    def _warmed_up(self, entry: Entry) -> int:
        worker, wanted = self._worker(entry), self.settings.seconds
        worker.make(entry.make, entry.arguments)
        worker.warm_up()
        once = worker.timed()
        if once < wanted / 10:  # short runs: the first ones say little
            once = worker.timed(max(1, int(wanted / 10 / max(once, 1e-7))))
        return max(1, math.ceil(wanted / max(once, 1e-7)))

    def _prepare_peak(self, case: Case) -> float:
        """Make the contender that measures the peak; FLOPs of one of its runs."""
        arguments: dict[str, Any] = {"dtype": case.dtype}
        if self.settings.device == "cuda":
            entry = Entry(PEAK, "benchmarks.contenders.torch_cuda:LargeProduct")
        else:
            entry = Entry(PEAK, "benchmarks.contenders.peak:AllCores")
            arguments |= {"threads": self.settings.threads, "steps": PEAK_STEPS}
        worker = self._worker(entry)
        worker.make(entry.make, arguments)
        worker.timed()
        flops: float = worker.check()
        return flops

    # --- blocks -----------------------------------------------------------------------------------

    def _block(self, case: Case, entry: Entry, repeats: int, figure: Figure) -> None:
        try:
            if case.unit == "errors":
                worker = self._worker(entry)
                worker.make(entry.make, {**entry.arguments, "seed": len(figure.blocks)})
                figure.blocks.append(worker.check())
            elif entry.fresh:
                figure.blocks.append(self._fresh(entry, case.unit))
            else:
                figure.blocks.append(self._worker(entry).timed(repeats))
        except ContenderError as error:
            figure.error, figure.blocks = str(error), []

    def _fresh(self, entry: Entry, unit: str) -> float:
        """The first run in a new process."""
        caches = self.folder / f"caches-{entry.name.replace(' ', '-')}"
        if entry.fresh == "cold":
            shutil.rmtree(caches, ignore_errors=True)
        worker = self._started(entry, caches)
        try:
            worker.make(entry.make, entry.arguments)
            seconds = worker.timed()
            return seconds if unit == "seconds" else worker.peak_bytes()
        finally:
            worker.close()

    def _worker(self, entry: Entry) -> Worker:
        if entry.name not in self._workers:
            self._workers[entry.name] = self._started(entry, self.folder / "caches")
        return self._workers[entry.name]

    def _started(self, entry: Entry, caches: Path) -> Worker:
        return Worker(entry.threads or self.settings.threads, caches, self.settings.device)


def _differences(check: Check, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where a contender's results differ from the first one's."""
    lines = []
    (first, expected), *others = found.items() if found else [("", {})]
    for name, values in others:
        if set(values) != set(expected):
            lines.append(f"{name} gave {sorted(values)}, {first} {sorted(expected)}")
            continue
        for key, value in values.items():
            if check.keys and key not in check.keys:
                continue
            own = np.asarray(expected[key], np.float64)
            scale = float(np.abs(own).max(initial=1e-30))
            error = float(np.abs(own - np.asarray(value, np.float64)).max(initial=0.0)) / scale
            if not error <= check.tolerance:  # NaN is a difference too
                lines.append(
                    f"{key} of {name} differs from {first}'s by {error:.1e} of its largest value, "
                    f"more than {check.tolerance:.1e}"
                )
    return lines
