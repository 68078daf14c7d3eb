"""The state of a run as text."""

from __future__ import annotations

from pathlib import Path

from magmadnn.workflow.description.history import History


def status_table(folder: Path, history: History) -> str:
    """A line for each module run, and one for the whole."""
    rows = []
    for run in history.runs.values():
        state = "running" if run.ended is None else "done" if run.good else "failed"
        if history.finish and run.ended is None:
            state = "ended"
        seconds = (history.seconds if run.ended is None else run.ended) - run.begun
        why = f"  {run.reason}" if run.reason else ""
        rows.append(f"{state:8} {seconds:9.3f} {run.waited:8.3f} {run.moved:13,}  {run.key}{why}")
    head = f"{'state':8} {'seconds':>9} {'waited':>8} {'tuple bytes':>13}  module run"
    whole = history.finish or "not finished"
    text = f": {history.text}" if history.text else ""
    return "\n".join([head, *rows, f"{folder}: {whole} after {history.seconds:.3f} s{text}"])
