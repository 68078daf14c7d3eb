"""Draws the picture of docs/explanation/parallel-training.md: layers of which each rank has a part.

    python docs/images/draw_placements.py

writes placements.svg beside itself, from the program that the library makes for two ranks.
"""

from __future__ import annotations

from draw_layouts import COLOURS, HERE, box, page, text

import magmadnn as md
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.placing import Partial, Replicate, Shard, local_shape
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import as_dtype
from magmadnn.parallel.placements.distribute import Distribution

RANKS = 2
SCALE = 11


def leaf(name: str, *shape: int) -> Node:
    return placeholder(name, Spec(shape, as_dtype("float32")))


def matrix(x: float, y: float, shape: tuple[int, ...], placement: object) -> str:
    """A matrix, its parts in the colours of their ranks; two sheets where each rank has terms of all."""
    rows, columns = shape
    w, h = columns * SCALE, rows * SCALE
    if isinstance(placement, Partial):
        return box(x, y, w, h, COLOURS[0]) + box(x + 6, y + 6, w, h, COLOURS[1])
    if isinstance(placement, Replicate):
        return box(x, y, w, h, "#9a9a9a")
    assert isinstance(placement, Shard)
    part = local_shape(shape, placement, RANKS)
    height, width = part[0] * SCALE, part[1] * SCALE
    dx, dy = (0, height) if placement.axis == 0 else (width, 0)
    return "".join(box(x + r * dx, y + r * dy, width, height, COLOURS[r]) for r in range(RANKS))


def draw() -> str:
    """Two Dense layers, split by columns and by rows; then the same by rows of the batch."""
    x, a, b = leaf("x", 6, 4), leaf("A", 4, 8), leaf("B", 8, 4)
    h = md.ops.tanh(md.ops.matmul(x, a))
    y = md.ops.matmul(h, b)
    parts = []
    for row, (title, given) in enumerate(
        (
            ("model parallel: columns, then rows", {x: Replicate(), a: Shard(1), b: Shard(0)}),
            ("data parallel: rows of the batch", {x: Shard(0), a: Replicate(), b: Replicate()}),
        )
    ):
        own = {
            n: (p, placeholder(n.name, Spec(local_shape(n.shape, p, RANKS), n.dtype)))
            for n, p in given.items()
        }
        found = Distribution(Program((y,)), own, RANKS)
        top, left = 66 + row * 190, 30
        parts.append(text(170, top - 34, title, 14))
        for name, node, then in (
            ("x", x, "@"), ("A", a, "="), ("h = tanh(x A)", h, "@"), ("B", b, "="), ("h B", y, ""),
        ):  # fmt: skip
            width = node.shape[1] * SCALE
            parts.append(text(left + width / 2, top - 10, name))
            parts.append(matrix(left, top, node.shape, found.placements[node]))
            words = str(found.placements[node]).replace("axis=", "")
            parts.append(text(left + width / 2, top + 112, words, 10, "#555"))
            left += width + 80
            parts.append(text(left - 40, top + 40, then, 16))
        sent = ", ".join(one.op for one in found.sent()) or "nothing"
        parts.append(text(left + 30, top + 40, f"then {sent}", 13))
    parts.append(box(30, 396, 12, 12, COLOURS[0]) + text(70, 407, "rank 0"))
    parts.append(box(110, 396, 12, 12, COLOURS[1]) + text(150, 407, "rank 1"))
    parts.append(box(190, 396, 12, 12, "#9a9a9a") + text(250, 407, "whole on both"))
    return page(920, 424, "".join(parts))


if __name__ == "__main__":
    (HERE / "placements.svg").write_text(draw(), encoding="utf-8")
