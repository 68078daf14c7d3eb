"""A page of a run that stands by itself: what was planned beside what came, waiting, bytes, failures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from magmadnn.workflow.description.cores import in_words
from magmadnn.workflow.description.drawing import svg
from magmadnn.workflow.description.history import History
from magmadnn.workflow.description.planning import Planned, plan_of
from magmadnn.workflow.description.reading import Description

_LEFT, _WIDTH, _ROW, _MOST = 190, 760, 26, 400
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#1b1f24;"
    "background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em}table{border-collapse:collapse;"
    "font-variant-numeric:tabular-nums}td,th{padding:.2em .9em .2em 0;text-align:left;border-bottom:1px "
    "solid #d0d7de}td.n,th.n{text-align:right}svg{max-width:100%;height:auto}.fail{color:#a40e26}figure{"
    "margin:0;overflow-x:auto}figcaption{color:#57606a}"
)
_CHART = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.p{fill:#d0d7de}.d{fill:#0969da}.f{fill:#cf222e}"
    ".r{fill:#bf8700}.w{fill:#fff;fill-opacity:.55}.l{stroke:#d0d7de}.t{fill:#57606a}"
)


def page(description: Description, history: History) -> str:
    """The page."""
    name = escape(description.model.name)
    planned = plan_of(description, None, history.typical())
    state = history.finish or "running"
    why = f'<p class="fail">{escape(history.text)}</p>' if history.text else ""
    head = (
        f"<p>{escape(state)} after {history.seconds:.3f} s on {history.ranks} ranks; planned were "
        f"{planned.seconds:.3f} s.</p>"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>{head}{why}<h2>Planned and measured</h2>"
        f"<figure>{_chart(planned.runs, history)}<figcaption>Above planned, from the median time of each "
        "module; below measured, paler where it waited for tuples.</figcaption></figure>"
        f"<h2>Module runs</h2>{_table(history)}{_servers(history)}"
        f"<h2>Dependencies</h2><figure>{svg(description)}</figure></body></html>"
    )


def _chart(planned: Sequence[Planned], history: History) -> str:
    """A row for each run: its planned bar above its measured one; the attempts of one run share a row."""
    plans = {one.key: one for one in planned}
    keys = list(dict.fromkeys([*plans, *(run.key for run in history.runs.values())]))
    left_out = max(0, len(keys) - _MOST)
    keys = keys[:_MOST]
    whole = max([history.seconds, *(one.end for one in planned), 1e-9])
    scale = _WIDTH / whole
    height = _ROW * len(keys) + 30
    parts = []
    for k in range(6):
        x = _LEFT + _WIDTH * k / 5
        parts.append(f'<line class="l" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}"/>')
        anchor = "end" if k == 5 else "middle"
        words = f"{whole * k / 5:.3g} s"
        parts.append(
            f'<text class="t" x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{words}</text>'
        )
    for row, key in enumerate(keys):
        y = row * _ROW + 4
        shown = key if len(key) <= 25 else f"{key[:23]}.."
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(shown)}</text>')
        if key in plans:
            one = plans[key]
            parts.append(
                _bar("p", one.begin, one.end, y, 7, scale, f"planned {one.end - one.begin:.3f} s")
            )
    rows = {key: row for row, key in enumerate(keys)}
    for run in history.runs.values():
        if run.key not in rows:
            continue
        y, end = rows[run.key] * _ROW + 12, history.seconds if run.ended is None else run.ended
        kind = "r" if run.ended is None else "d" if run.good else "f"
        about = f"{end - run.begun:.3f} s, waited {run.waited:.3f} s"
        parts.append(_bar(kind, run.begun, end, y, 9, scale, about))
        if run.waited:
            parts.append(
                _bar(
                    "w", run.begun, run.begun + min(run.waited, end - run.begun), y, 9, scale, about
                )
            )
    note = f"<p>{left_out} more runs are not shown.</p>" if left_out else ""
    width = _LEFT + _WIDTH + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>planned and measured times</title><style>{_CHART}</style>'
        f"{''.join(parts)}</svg>{note}"
    )


def _bar(kind: str, begin: float, end: float, y: int, high: int, scale: float, about: str) -> str:
    width = max(1.0, (end - begin) * scale)
    return (
        f'<rect class="{kind}" x="{_LEFT + begin * scale:.1f}" y="{y}" width="{width:.1f}" height="{high}">'
        f"<title>{about}</title></rect>"
    )


def _table(history: History) -> str:
    rows = []
    for run in list(history.runs.values())[:_MOST]:
        end = history.seconds if run.ended is None else run.ended
        state = "running" if run.ended is None else "done" if run.good else "failed"
        why = f' <span class="fail">{escape(run.reason)}</span>' if run.reason else ""
        ranks = f"{run.ranks[0]}-{run.ranks[-1]}" if len(run.ranks) > 1 else str(run.ranks[0])
        place = " ".join(in_words(cores) for cores in run.cores)
        rows.append(
            f"<tr><td>{escape(run.key)}</td><td>{state}{why}</td><td>{ranks}</td><td>{place}</td>"
            f'<td class="n">'
            f'{run.begun:.3f}</td><td class="n">{end - run.begun:.3f}</td><td class="n">{run.waited:.3f}</td>'
            f'<td class="n">{run.moved:,}</td></tr>'
        )
    heads = ("run", "state", "ranks", "cores", "began (s)", "took (s)", "waited (s)", "tuple bytes")
    cells = "".join(f"<th{'' if k < 4 else ' class=n'}>{head}</th>" for k, head in enumerate(heads))
    return f"<table><tr>{cells}</tr>{''.join(rows)}</table>"


def _servers(history: History) -> str:
    if not history.statistics:
        return ""
    rows = "".join(
        f'<tr><td>{one["server"]}</td><td class="n">{one["puts"]:,}</td><td class="n">'
        f'{one["bytes_put"]:,}</td><td class="n">{one["held"]:,}</td></tr>'
        for one in sorted(history.statistics, key=lambda one: int(one["server"]))
    )
    head = "<tr><th>server</th><th class=n>puts</th><th class=n>bytes</th><th class=n>left over</th></tr>"
    return f"<h2>Tuple servers</h2><table>{head}{rows}</table>"
