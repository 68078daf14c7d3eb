"""The page of a study: pictures and table in one HTML file, which fetches and runs nothing."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from magmadnn.errors import shown
from magmadnn.search.findings import Findings
from magmadnn.search.importances import importance_of
from magmadnn.search.trials.records import Trial
from magmadnn.storage.disk import worded
from magmadnn.storage.durable import write_file

from .drawing import PICTURES, check_drawing, picture

PAGE, TABLE = "index.html", "trials.csv"
_MOST_ROWS = 500  # of the table in the page; the file has all
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1c1c1c; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; border: 1px solid #ddd; white-space: nowrap; }
th { font-weight: 600; background: #f4f4f4; } .name { text-align: left; } .scroll { overflow-x: auto; }
.best td { background: #fdf0dc; } img { max-width: 100%; height: auto; }
"""
_WORDS = {
    "history": "The objective of each trial in their order, and the best so far.",
    "front": "What each trial reached, against the second objective or the time that it took.",
    "parallel": "A line for each trial, through the values of its parameters to what it reached.",
    "importance": "How much of the objective's variance each parameter explains by itself; ranks stand "
    "for values.",
}


def write_page(study: Findings, folder: Path) -> Path:
    """Write `index.html`, the pictures as PNG and the table as CSV; the path of the page.

    Raises:
        MissingExtraError: without matplotlib.
        ArgumentError: no trial has a value yet.
        FileError: it cannot be written.
    """
    check_drawing(study)
    pictures = {name: picture(study, name) for name in PICTURES}
    with worded("cannot write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        write_file(folder / f"{name}.png", data)
    study.table().to_csv(folder / TABLE)
    write_file(folder / PAGE, _page(study, pictures).encode())
    return folder / PAGE


def _page(study: Findings, pictures: Mapping[str, bytes]) -> str:
    title = f"Search of {len(study.trials):,} trials by {study.method}"
    best = study.pareto() if len(study.objectives) > 1 else [study.best]
    parts = [
        f"<h1>{_text(title)}</h1>",
        _summary(study),
        f"<h2>{'Pareto front' if len(study.objectives) > 1 else 'Best trial'}</h2>",
        _trials(study, best, set()),
    ]
    for name, data in pictures.items():
        uri = "data:image/png;base64," + base64.b64encode(data).decode()
        parts.append(
            f'<h2>{name.capitalize()}</h2><p>{_WORDS[name]}</p><img alt="{name}" src="{uri}">'
        )
    parts += ["<h2>Space</h2>", _space(study), "<h2>Trials</h2>"]
    if len(study.trials) > _MOST_ROWS:
        parts.append(f"<p>The first {_MOST_ROWS}; all are in {TABLE}.</p>")
    parts.append(_trials(study, study.trials[:_MOST_ROWS], {trial.number for trial in best}))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _summary(study: Findings) -> str:
    states: dict[str, int] = {}
    for trial in study.trials:
        states[trial.state] = states.get(trial.state, 0) + 1
    words = [f"{count:,} {state}" for state, count in states.items()]
    ways = [
        f"{name} (the {'higher' if sign > 0 else 'lower'} the better)"
        for name, sign in zip(study.objectives, study.signs, strict=True)
    ]
    seconds = sum(trial.metrics.get("seconds", 0.0) for trial in study.trials)
    epochs = sum(trial.metrics.get("epochs", 0.0) for trial in study.trials)
    line = f"{', '.join(words)}; {epochs:,.0f} epochs in {seconds:,.1f} seconds of training."
    return f"<p>Searched for {_text(' and '.join(ways))}. {_text(line)}</p>"


def _space(study: Findings) -> str:
    shares = importance_of(study.space, study.trials)
    rows = [["parameter", "values", "when", "importance"]]
    for name, dimension in study.space.dimensions.items():
        when = ", ".join(f"{n} is {' or '.join(map(str, v))}" for n, v in dimension.conditions)
        share = f"{shares[name]:.0%}" if name in shares else ""
        rows.append([name, dimension.text, when, share])
    return _table(rows, set())


def _trials(study: Findings, trials: Sequence[Trial], marked: set[int]) -> str:
    table = study.table()
    columns = [c for c in table.columns if c != "reason" or any(table["reason"])]
    numbers = {trial.number for trial in trials}
    lines = [row for row in table if row["trial"] in numbers]
    rows = [columns, *([_cell(row.get(c)) for c in columns] for row in lines)]
    return _table(rows, {k + 1 for k, row in enumerate(lines) if row["trial"] in marked})


def _table(rows: Sequence[Sequence[str]], marked: set[int]) -> str:
    lines = []
    for k, row in enumerate(rows):
        kind = "td" if k else "th"
        cells = "".join(f"<{kind}{_name_class(cell)}>{_text(cell)}</{kind}>" for cell in row)
        lines.append(f"<tr{' class=best' if k in marked else ''}>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _name_class(cell: str) -> str:
    return "" if cell[:1].isdigit() or cell[:1] == "-" else ' class="name"'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _text(words: object) -> str:
    """Text from outside, as a page may hold it."""
    return escape(shown(words, 300))
