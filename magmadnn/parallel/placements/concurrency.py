"""Dense layers on the first of the ranks: how many compute which layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magmadnn.graph.placing import On

from .splits import Splittable


@dataclass(frozen=True, eq=False)
class Shared:
    """How ranks share layers.

    Attributes:
        splits: what a layer is split by, by path.
        some: the ranks of layers that only some compute, by path.
        layouts: the same for `Hybrid`.
    """

    splits: Mapping[str, str]
    some: Mapping[str, On] = field(default_factory=dict)
    layouts: Mapping[str, Any] = field(default_factory=dict)


def shared_by(layers: Sequence[Splittable], counts: Mapping[str, int], ranks: int) -> Shared:
    """Dense layers by columns and rows in turns, each on the first of the ranks.

    Args:
        layers: that can be split, in the order of computation.
        counts: how many ranks compute a layer, by path; all where nothing is said.
        ranks: how many there are.
    """
    from magmadnn.dmath.layouts.recipes import Columns, Replicated, Rows

    recipes = {"columns": Columns, "rows": Rows, "data": Replicated}
    splits: dict[str, str] = {}
    some: dict[str, On] = {}
    layouts: dict[str, Any] = {}
    opened = 0  # how many ranks have columns of the layer before
    for one in layers:
        if not one.is_dense:
            continue
        path = str(one.layer.path)
        count = counts.get(path, ranks)
        order = ("rows", "columns") if opened == count else ("columns", "rows")
        split = next((s for s in order if count > 1 and one.fits(s, count)), "data")
        opened = count if split == "columns" else 0
        splits[path] = split
        if count < ranks:
            some[path] = tuple(range(count))
        layouts[path] = recipes[split](on=some[path]) if path in some else split
    return Shared(splits, some, layouts)
