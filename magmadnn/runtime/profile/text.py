"""What a profile holds and shows: tables, and a trace for Chrome's viewer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from magmadnn.compiler.rates import Rates
from magmadnn.errors import FileError

_LONGEST_TITLE = 60
_HEAD = ("us", "share", "GFLOP/s", "of peak", "GB/s", "of bandwidth")


@dataclass(frozen=True)
class StepTime:
    """One step of a plan.

    Attributes:
        number: its place in the plan,
        phase: and the phase that it belongs to.
        title: kernel, matrix and nodes.
        layer: the layer or optimiser that it is part of.
        seconds: mean time of a run, summed over the threads that share it.
        flops: operations, and
        nbytes: bytes read and written, as the plan counts them.
        peak: operations a second that a core can do in the step's dtype.
    """

    number: int
    phase: int
    title: str
    layer: str
    seconds: float
    flops: int
    nbytes: int
    peak: float


@dataclass(frozen=True)
class Span:
    """A part of a step in the last run that was measured.

    Attributes:
        step: its number.
        thread: the number of the thread that did it.
        begin: seconds from the begin of the first step,
        seconds: and how long it took.
    """

    step: int
    thread: int
    begin: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a program goes; `print` it for tables.

    Shares of bandwidth above 100 % mean that data lay in a cache.

    Attributes:
        steps: in running order.
        seconds: of a whole run from outside, the median.
        runs: how many runs were measured.
        threads: on how many threads.
        rates: limits of one core, or of the device, measured just before.
        device: what it ran on, if not on the processor's cores.
        spans: what happened when in the last run, by begin; none on a device.
        waited: seconds that the last training waited for data, and of its epochs; None where there was none.
            Of several workers that which waited longest.
        waited_by_worker: the same of each worker of `md.workers`, by number; empty where there was one.
    """

    steps: tuple[StepTime, ...]
    seconds: float
    runs: int
    threads: int
    rates: Rates
    device: str = ""
    spans: tuple[Span, ...] = ()
    waited: tuple[float, float] | None = None
    waited_by_worker: tuple[tuple[float, float], ...] = ()

    @property
    def step_seconds(self) -> float:
        """Time of all steps, summed over threads."""
        return sum(step.seconds for step in self.steps)

    def layers(self) -> dict[str, list[StepTime]]:
        """The steps of each layer, in the order in which layers first appear."""
        found: dict[str, list[StepTime]] = {}
        for step in self.steps:
            found.setdefault(step.layer or "(none)", []).append(step)
        return found

    def __str__(self) -> str:
        by_step = [
            (f"{s.number} {_shortened(s.title)}", s.layer, self._figures([s])) for s in self.steps
        ]
        by_layer = [(name, "", self._figures(steps)) for name, steps in self.layers().items()]
        flops = ", ".join(f"{v / 1e9:.1f} GFLOP/s in {k}" for k, v in self.rates.flops.items())
        where, how, whose = f"{self.threads} threads", "of core time", "a core"
        if self.device:
            where, how, whose = self.device, "one after the other", "it"
        return "\n".join(
            [
                *_table(("step", "layer", *_HEAD), by_step),
                "",
                *_table(("layer", "", *_HEAD), by_layer),
                "",
                (
                    f"a run takes {1e6 * self.seconds:.1f} us on {where} (of {self.runs}, "
                    f"the median); its steps take {1e6 * self.step_seconds:.1f} us {how}"
                ),
                f"{whose} does {flops} at most, and moves {self.rates.bandwidth / 1e9:.1f} GB/s",
                *self._stall(),
            ]
        )

    def _stall(self) -> list[str]:
        """How long training waited for its data."""
        if self.waited is None:
            return []
        workers = {f"worker {n} in ": one for n, one in enumerate(self.waited_by_worker)}
        return [
            f"{worker}the last fit waited {waited:.3g} s of {seconds:.3g} s "
            f"({100 * waited / max(seconds, 1e-9):.1f} %) for its data"
            for worker, (waited, seconds) in (workers or {"": self.waited}).items()
        ]

    def _figures(self, steps: Sequence[StepTime]) -> list[str]:
        seconds = sum(s.seconds for s in steps) or 1e-12
        flops, nbytes = sum(s.flops for s in steps), sum(s.nbytes for s in steps)
        at_peak = sum(s.flops / s.peak for s in steps)
        return [
            f"{1e6 * seconds:.2f}",
            f"{100 * seconds / (self.step_seconds or 1e-12):.1f} %",
            f"{flops / seconds / 1e9:.2f}",
            f"{100 * at_peak / seconds:.1f} %",
            f"{nbytes / seconds / 1e9:.2f}",
            f"{100 * nbytes / seconds / self.rates.bandwidth:.1f} %",
        ]

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write one run as a trace for chrome://tracing or ui.perfetto.dev.

        Where spans are known, each thread is a row with what it did in the last run, when it did it.
        Otherwise steps have their mean times and stand one after the other.

        Raises:
            FileError: if the file cannot be written.
        """
        text = json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ns"}, indent=1)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            told = f"trace: cannot write {path}: {error.strerror}; choose another file"
            raise FileError(told) from error

    def _events(self) -> Iterable[dict[str, Any]]:
        spans = self.spans or self._in_turn()
        for row in sorted({span.thread for span in spans}):
            name = f"thread {row}" if self.spans else "steps"
            named = {"name": "thread_name", "ph": "M", "pid": 0, "tid": row}
            yield {**named, "args": {"name": name}}
        for span in spans:
            step = self.steps[span.step]
            counted = {"phase": step.phase, "operations": step.flops, "bytes": step.nbytes}
            yield {
                "ph": "X", "pid": 0, "tid": span.thread, "ts": 1e6 * span.begin,
                "dur": 1e6 * span.seconds, "name": step.title, "cat": step.layer or "(none)",
                "args": {"layer": step.layer, **counted},
            }  # fmt: skip

    def _in_turn(self) -> list[Span]:
        """The steps one after the other, as if on one thread."""
        ends = [0.0, *accumulate(step.seconds for step in self.steps)]
        return [Span(k, 0, ends[k], step.seconds) for k, step in enumerate(self.steps)]


def _shortened(title: str) -> str:
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def _table(head: Sequence[str], rows: Sequence[tuple[str, str, list[str]]]) -> list[str]:
    """Lines: two columns of text to the left, figures to the right."""
    cells = [list(head), *([name, layer, *figures] for name, layer, figures in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    lines = []
    for row in cells:
        texts = [row[k].ljust(widths[k]) for k in range(2) if widths[k]]
        texts += [row[k].rjust(widths[k]) for k in range(2, len(row))]
        lines.append("  ".join(texts))
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
