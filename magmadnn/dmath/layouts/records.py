"""Layouts, and recipes of layouts, as JSON: what travels to workers before shapes are known there."""

from __future__ import annotations

from typing import Any

from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import (
    Blocks,
    Columns,
    LayoutLike,
    OwnerRule,
    Replicated,
    Rows,
)
from magmadnn.errors import ArgumentError, quoted

_STRIPS = {"Rows": Rows, "Columns": Columns}


def record_of(what: str, like: LayoutLike) -> dict[str, Any]:
    """A layout or recipe as JSON.

    Raises:
        ArgumentError: if it is none of `md.dmath`.
    """
    if isinstance(like, type) and issubclass(like, (Rows, Columns, Replicated)):
        like = like()
    if isinstance(like, Layout):
        return {"layout": like.record()}
    if isinstance(like, (Rows, Columns)):
        kind = type(like).__name__
        return {"kind": kind, "sizes": like.sizes, "on": like.on, "block": like.block}
    if isinstance(like, Replicated):
        return {"kind": "Replicated", "on": like.on}
    if isinstance(like, Blocks):
        owners: Any = like.owners
        if isinstance(owners, OwnerRule):
            owners = {"counts": owners.counts, "first": owners.first}
        return {"kind": "Blocks", "shape": like.shape, "owners": owners, "cuts": like.cuts}
    raise ArgumentError(f"{what}: expected a layout such as md.dmath.Rows(), got {quoted(like)}")


def of_record(record: dict[str, Any]) -> LayoutLike:
    """What `record_of` wrote; lists may stand in place of tuples."""
    if "layout" in record:
        return Layout.of_record(record["layout"])
    kind = record["kind"]
    if kind in _STRIPS:
        return _STRIPS[kind](_tuple(record["sizes"]), _tuple(record["on"]), record["block"])
    if kind == "Replicated":
        return Replicated(_tuple(record["on"]))
    owners = record["owners"]
    if isinstance(owners, dict):
        owners = OwnerRule(tuple(owners["counts"]), owners["first"])
    cuts = record["cuts"]
    return Blocks(
        _tuple(record["shape"]), owners, None if cuts is None else tuple(map(tuple, cuts))
    )


def _tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)
