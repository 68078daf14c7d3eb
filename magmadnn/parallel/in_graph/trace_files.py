"""Sums over ranks as a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from magmadnn.errors import FileError

from .beside import Span


def write_trace(path: str | Path, rank: int, spans: Sequence[Span]) -> None:
    """Write sums and waits of a rank, a row each.

    Raises:
        FileError: if the file cannot be written.
    """
    text = json.dumps({"traceEvents": list(_events(rank, spans)), "displayTimeUnit": "ns"})
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        told = f"trace: cannot write {path}: {error.strerror}; choose another file"
        raise FileError(told) from error


def _events(rank: int, spans: Sequence[Span]) -> Iterable[dict[str, Any]]:
    first = min((span.begun for span in spans), default=0.0)
    for row, name in enumerate(("sums under way", "waits for them")):
        named = {"name": "thread_name", "ph": "M", "pid": rank, "tid": row}
        yield {**named, "args": {"name": name}}
    for span in spans:
        waited = max(span.ended, span.wanted)
        for row, begin, end in ((0, span.begun, span.ended), (1, span.wanted, waited)):
            yield {
                "ph": "X", "pid": rank, "tid": row, "ts": 1e6 * (begin - first),
                "dur": 1e6 * (end - begin), "name": f"sum {span.number}",
                "args": {"bytes": span.nbytes, "hidden": span.hidden},
            }  # fmt: skip
