"""When workers multiplied and when elements were on their way, as `Session.trace` found it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.dmath.arrays.tracing import MESSAGE, PRODUCT
from magmadnn.errors import FileError


@dataclass(frozen=True)
class Span:
    """What one worker did.

    Attributes:
        worker: its number.
        kind: "product" of two blocks, or "message": elements on their way to this worker, until it has waited
            for them.
        what: sizes of the product, or bytes.
        start: seconds since the trace began.
        end: likewise.
    """

    worker: int
    kind: str
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of all workers.

    Attributes:
        spans: in order of their start.
        workers: how many there are.
    """

    spans: tuple[Span, ...]
    workers: int

    @classmethod
    def of(cls, told: Sequence[Sequence[Sequence[Any]]]) -> Timeline:
        """From what each worker told of itself."""
        first = min((one[2] for spans in told for one in spans), default=0.0)
        spans = [
            Span(worker, kind, what, start - first, end - first)
            for worker, found in enumerate(told)
            for kind, what, start, end in found
        ]
        return cls(tuple(sorted(spans, key=lambda one: (one.start, one.worker))), len(told))

    def seconds(self, worker: int, kind: str) -> float:
        """In which at least one span of this kind lasted."""
        return sum(end - start for start, end in self._covered(worker, kind))

    def hidden(self, worker: int) -> float:
        """The share of a worker's messages, by time, beside which it multiplied; 1 without messages."""
        messages = self._covered(worker, MESSAGE)
        total = sum(end - start for start, end in messages)
        beside = sum(
            max(0.0, min(e, end) - max(s, start))
            for s, e in messages
            for start, end in self._covered(worker, PRODUCT)
        )
        return beside / total if total > 0 else 1.0

    def _covered(self, worker: int, kind: str) -> list[tuple[float, float]]:
        """Times without overlaps."""
        found: list[tuple[float, float]] = []
        for one in self.spans:
            if (one.worker, one.kind) != (worker, kind):
                continue
            if found and one.start <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], one.end)
            else:
                found.append((one.start, one.end))
        return found

    def __str__(self) -> str:
        lines = ["worker     products     messages  beside products"]
        for worker in range(self.workers):
            times = [self.seconds(worker, kind) * 1e3 for kind in (PRODUCT, MESSAGE)]
            shown = f"{self.hidden(worker):16.0%}" if times[1] else ""
            lines.append(f"{worker:6d} {times[0]:9.3f} ms {times[1]:9.3f} ms {shown}".rstrip())
        return "\n".join(lines)

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the spans for chrome://tracing or ui.perfetto.dev: a row of products and one of messages for
        each worker.

        Raises:
            FileError: if the file cannot be written.
        """
        events: list[dict[str, Any]] = []
        for worker in range(self.workers):
            events.append(_named("process_name", worker, 0, f"worker {worker}"))
            events += [_named("thread_name", worker, row, kind + "s") for row, kind in _ROWS]
        for one in self.spans:
            row = next(row for row, kind in _ROWS if kind == one.kind)
            events.append(
                {
                    "ph": "X", "pid": one.worker, "tid": row, "name": one.what, "cat": one.kind,
                    "ts": 1e6 * one.start, "dur": 1e6 * (one.end - one.start),
                }
            )  # fmt: skip
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            told = f"trace: cannot write {path}: {error.strerror}; choose another file"
            raise FileError(told) from error


_ROWS = ((0, PRODUCT), (1, MESSAGE))


def _named(what: str, worker: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": worker, "tid": row, "args": {"name": name}}
