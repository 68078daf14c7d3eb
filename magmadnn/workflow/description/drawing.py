"""The graph of dependencies as SVG: steps in columns, by how many come before them."""

from __future__ import annotations

from html import escape

from .dependencies import Step, earlier, steps_of
from .reading import Description

_WIDTH, _ROW, _GAP, _COLUMN = 190, 24, 18, 250
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.b{fill:#f6f8fa;stroke:#57606a}.g{fill:#eef4fb;"
    "stroke:#0969da}.s{fill:#57606a;font-size:11px}path{fill:none;stroke:#57606a;stroke-width:1.4}"
)


def svg(description: Description) -> str:
    """A picture that stands by itself."""
    steps = {s.name: s for s in steps_of(description)}
    before = earlier({name: s.after for name, s in steps.items()})
    depth: dict[str, int] = {}
    for name in sorted(steps, key=lambda one: len(before[one])):
        depth[name] = max((depth[p] + 1 for p in steps[name].after), default=0)
    tops: dict[int, int] = {}
    places: dict[str, tuple[int, int, int]] = {}
    for name, step in steps.items():
        column, height = depth[name], _ROW * (len(step.modules) + step.is_group) + 12
        top = tops.get(column, 10)
        places[name] = (10 + column * _COLUMN, top, height)
        tops[column] = top + height + _GAP
    parts = [_box(description, steps[name], *place) for name, place in places.items()]
    arrows = [_arrow(places[p], places[name]) for name, s in steps.items() for p in s.after]
    width = 10 + (max(depth.values()) * _COLUMN) + _WIDTH + 10
    height = max(tops.values())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(description.model.name)}</title><style>{_STYLE}</style>'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#57606a"/></marker></defs>'
        f'<rect width="100%" height="100%" style="fill:#fff"/>{"".join(arrows)}{"".join(parts)}</svg>'
    )


def _box(description: Description, step: Step, x: int, y: int, height: int) -> str:
    kind = "g" if step.is_group else "b"
    made = [f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{height}" rx="5"/>']
    line = y + 19
    if step.is_group:
        end = f"until {step.until}" if step.until else f"{step.iterations} times"
        made.append(_text(x + 8, line, step.name, end))
        line += _ROW
    for name in step.modules:
        module = description.module(name)
        many = "rank" if module.ranks == 1 else "ranks"
        often = f"{module.copies} x " if module.copies > 1 else ""
        made.append(
            _text(x + (20 if step.is_group else 8), line, name, f"{often}{module.ranks} {many}")
        )
        line += _ROW
    return "".join(made)


def _text(x: int, y: int, name: str, about: str) -> str:
    shown = name if len(name) <= 18 else f"{name[:16]}.."
    room = 32 - len(shown)
    side = about if len(about) <= room else f"{about[: room - 1]}."
    beside = f'<tspan class="s">{escape(side)}</tspan>'
    return f'<text x="{x}" y="{y}" data-name="{escape(name)}">{escape(shown)} {beside}</text>'


def _arrow(start: tuple[int, int, int], end: tuple[int, int, int]) -> str:
    x, y = start[0] + _WIDTH, start[1] + start[2] // 2
    to_x, to_y = end[0], end[1] + end[2] // 2
    half = (x + to_x) // 2
    return f'<path d="M{x} {y}C{half} {y} {half} {to_y} {to_x} {to_y}" marker-end="url(#a)"/>'
