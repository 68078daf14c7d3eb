"""What a search prints: a line for each trial that matters, and on a terminal how far it is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from magmadnn.storage.printing import SafeStream

from .fronts import front
from .trials.records import DONE, Job, Outcome

_CLEAR = "\r\x1b[K"
_PAUSE = 0.1  # seconds between two drawings
_MINUTE = 60.0
_FAILURES = 5  # that are printed


_Front = list[tuple[tuple[float, ...], str]]


class SearchProgress:
    """Prints a line for each trial that is better than all before, for the first failures, and once a minute.

    Trials that went to the end are compared with each other only, and those that did not likewise. The best
    is, as `Study.best`, among those that got furthest.

    On a terminal the last line says how many trials have ended; in files there are no control characters.

    Args:
        names: of the objectives.
        planned: how many trials there will be; None where that is not known.
        rungs: stages of training of a trial that goes to the end.
        output: where to; standard output where it is left out.
    """

    def __init__(
        self,
        names: Sequence[str],
        planned: int | None,
        rungs: int = 1,
        output: TextIO | None = None,
    ) -> None:
        self._output = SafeStream(output or sys.stdout)
        self._names, self._planned, self._rungs = list(names), planned, rungs
        self._begun = self._said = self._drawn = time.monotonic()
        self._trials: set[int] = set()
        # Scores and words of the front; of trials that have gone to the end, and of others.
        self._fronts: dict[bool, _Front] = {True: [], False: []}
        self._furthest: tuple[int, _Front] = (-1, [])  # rung, and the front of those that got there
        self._failures = 0

    def known(self, job: Job, outcome: Outcome, scores: tuple[float, ...]) -> None:
        """A training that had ended before."""
        self._trials.add(job.trial)
        if scores:
            self._is_best(scores, job, outcome)
        self._failures += outcome.state != DONE

    def told(self, job: Job, outcome: Outcome, scores: tuple[float, ...]) -> None:
        """A training has ended."""
        self._trials.add(job.trial)
        if outcome.state != DONE:
            self._failures += 1
            if self._failures <= _FAILURES:
                self._print(f"{_words(job)}: {outcome.state}: {outcome.reason}; {_point(job)}")
        elif scores and self._is_best(scores, job, outcome):
            self._print(f"{_words(job)}: {self._values(outcome)}; {_point(job)}")
        now = time.monotonic()
        if self._output.isatty():
            if now - self._drawn >= _PAUSE:
                self._drawn = now
                width = shutil.get_terminal_size().columns
                self._output.write(_CLEAR + self._status()[: width - 1])
                self._output.flush()
        elif now - self._said >= _MINUTE:
            self._print(self._status())

    def ended(self) -> None:
        """The search is over, or broken off."""
        self._print(self._status())

    def _is_best(self, scores: tuple[float, ...], job: Job, outcome: Outcome) -> bool:
        """Whether no trial before that went as far is as good; the fronts are kept."""
        after = f" after {job.epochs[-1]} epochs" if job.rung else ""
        own = scores, f"{self._values(outcome)} in trial {job.trial}{after}"
        is_whole = job.rung + 1 >= self._rungs
        self._fronts[is_whole], is_best = _with(self._fronts[is_whole], own)
        rung, best = self._furthest
        if job.rung >= rung:
            self._furthest = job.rung, _with(best if job.rung == rung else [], own)[0]
        return is_best

    def _values(self, outcome: Outcome) -> str:
        named = zip(self._names, outcome.values, strict=False)
        return ", ".join(f"{name} {value:.5g}" for name, value in named)

    def _status(self) -> str:
        of = "" if self._planned is None else f" of {self._planned:,}"
        words = [f"{len(self._trials):,}{of} trials"]
        if self._failures:
            words.append(f"{self._failures:,} without a value")
        best = self._furthest[1]
        if len(self._names) == 1 and best:
            words.append(f"best {best[0][1]}")
        elif best:
            words.append(f"{len(best)} on the front")
        seconds = round(time.monotonic() - self._begun)
        return ", ".join([*words, f"{seconds // 60}:{seconds % 60:02}"])

    def _print(self, line: str) -> None:
        self._said = time.monotonic()
        self._output.write((_CLEAR if self._output.isatty() else "") + line + "\n")
        self._output.flush()


def _with(known: _Front, own: tuple[tuple[float, ...], str]) -> tuple[_Front, bool]:
    """A front with one more, and whether that is on it."""
    all_of_them = [*known, own]
    on_front = front([scores for scores, _ in all_of_them])
    return [all_of_them[k] for k in on_front], len(known) in on_front


def _words(job: Job) -> str:
    rung = f" after {job.epochs[-1]} epochs" if job.rung or len(job.epochs) > 1 else ""
    return f"trial {job.trial}{rung}"


def _point(job: Job) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in job.point.items()
    )
