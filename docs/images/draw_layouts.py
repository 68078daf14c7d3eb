"""Draws the pictures of docs/explanation/distributed-matrices.md from the library's own layouts and plans.

    python docs/images/draw_layouts.py

writes dmath-layouts.svg, dmath-ring.svg and dmath-grid.svg beside itself.
"""

from __future__ import annotations

from pathlib import Path

from magmadnn.dmath import Blocks, Columns, Layout, Replicated, Rows, cyclic
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products.plans import grid

HERE = Path(__file__).resolve().parent
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
SIDE = 120


def text(x: float, y: float, words: str, size: int = 12, fill: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="middle" '
        f'font-family="sans-serif">{words}</text>'
    )


def box(x: float, y: float, w: float, h: float, fill: str, line: str = "#fff") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}" stroke="{line}"/>'


def drawn(layout: Layout, x: float, y: float, side: float = SIDE, only: int | None = None) -> str:
    """A layout as coloured blocks with the numbers of their workers; `only` shows one worker's."""
    rows, columns = layout.shape
    parts = []
    for number, ((r0, r1), (c0, c1)) in enumerate(layout.boxes):
        holders = layout.holders[number]
        mine = only is None or only in holders
        fill = COLOURS[(only if only is not None else holders[0]) % 4] if mine else "#e6e6e6"
        left, top = x + c0 / columns * side, y + r0 / rows * side
        width, height = (c1 - c0) / columns * side, (r1 - r0) / rows * side
        parts.append(box(left, top, width, height, fill))
        words = ",".join(map(str, holders)) if len(holders) < 4 else "all"
        if width > 8 and height > 10 and only is None:
            size = 12 if height >= 16 else 9
            parts.append(text(left + width / 2, top + height / 2 + size / 3, words, size, "#fff"))
    return "".join(parts)


def page(width: int, height: int, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{box(0, 0, width, height, "#fff", "none")}{body}</svg>\n'
    )


def layouts() -> str:
    shape = (12, 12)
    shown = [
        ("Rows()", Rows()),
        ("Columns()", Columns()),
        ("Rows(block=1)", Rows(block=1)),
        ("Blocks((6, 6), cyclic(2, 2))", Blocks((6, 6), owners=cyclic(2, 2))),
        ("Blocks((3, 3), cyclic(2, 2))", Blocks((3, 3), owners=cyclic(2, 2))),
        ("Rows(sizes=(6, 0, 4, 2))", Rows(sizes=(6, 0, 4, 2))),
        (
            "any cuts, any owners",
            Blocks(cuts=((0, 5, 12), (0, 2, 7, 12)), owners=[[3, 0, 1], [2, 2, 0]]),
        ),
        ("Replicated()", Replicated()),
    ]
    parts = []
    for number, (name, recipe) in enumerate(shown):
        x, y = 40 + (number % 4) * 190, 40 + (number // 4) * 180
        parts.append(text(x + SIDE / 2, y - 10, name))
        parts.append(drawn(resolve(recipe, shape, 4), x, y))
    return page(790, 380, "".join(parts))


def ring() -> str:
    """Stages of a ring: what each worker multiplies (of A in black), and where its block of B goes."""
    workers, parts = 4, []
    for stage in range(workers):
        x = 100 + stage * 180
        parts.append(text(x + 45, 24, f"stage {stage}", 13))
        for worker in range(workers):
            y = 50 + worker * 80
            owner = (worker - stage) % workers
            parts.append(box(x, y, 22, 44, COLOURS[worker]))  # C stays
            parts.append(text(x + 11, y + 26, "C", 11, "#fff"))
            parts.append(text(x + 35, y + 27, "+="))
            parts.append(box(x + 48, y, 22, 44, COLOURS[worker]))
            parts.append(
                box(x + 48 + owner * 5.5, y, 5.5, 44, "#222")
            )  # the columns that it needs now
            parts.append(text(x + 59, y + 57, "A", 11))
            parts.append(box(x + 78, y + 12, 30, 20, COLOURS[owner]))
            parts.append(text(x + 93, y + 26, f"B{owner}", 11, "#fff"))
            if stage < workers - 1:
                to = 50 + ((worker + 1) % workers) * 80 + 22
                parts.append(
                    f'<path d="M{x + 110},{y + 22} C{x + 143},{y + 22} {x + 143},{to} {x + 170},{to}" '
                    f'stroke="{COLOURS[owner]}" fill="none" stroke-width="2" marker-end="url(#tip)"/>'
                )
            if stage == 0:
                parts.append(text(50, y + 26, f"worker {worker}"))
    tip = (
        '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="5" refY="3" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#555"/></marker></defs>'
    )
    return page(800, 380, tip + "".join(parts))


def grids() -> str:
    """Where A, B and the terms of C lie for a 2 x 2 x 1 and a 1 x 4 x 1 grid."""
    parts = []
    for row, (counts, words) in enumerate(
        [
            ((2, 1, 2), "grid 2 x 1 x 2"),
            ((2, 2, 1), "grid 2 x 2 x 1"),
            ((1, 4, 1), "grid 1 x 4 x 1"),
        ]
    ):
        y = 50 + row * 165
        parts.append(text(70, y + 60, words))
        for column, (name, layout) in enumerate(
            zip("ABC", grid(12, 12, 12, counts, (0, 1, 2), 4), strict=True)
        ):
            x = 160 + column * 190
            title = name if not layout.partial else "C, terms to be added"
            parts.append(text(x + SIDE / 2, y - 8, title))
            parts.append(drawn(layout, x, y))
    return page(720, 530, "".join(parts))


for file, picture in (("layouts", layouts), ("ring", ring), ("grid", grids)):
    (HERE / f"dmath-{file}.svg").write_text(picture(), encoding="utf-8")
