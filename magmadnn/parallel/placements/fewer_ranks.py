"""Dense layers on the first of the ranks: how many compute which layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magmadnn.graph.placing import On

from .splits import Splittable, dense_in_turns


@dataclass(frozen=True, eq=False)
class Shared:
    """How ranks share layers.

    Attributes:
        splits: what a layer is split by, by path.
        some: the ranks of layers that only some compute, by path.
        layouts: what `Hybrid(layers=...)` takes for it, by path.
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
    splits = dense_in_turns(layers, counts, ranks)
    some: dict[str, On] = {
        path: tuple(range(counts[path])) for path in splits if counts.get(path, ranks) < ranks
    }
    layouts: dict[str, Any] = {
        path: recipes[split](on=some[path]) if path in some else split
        for path, split in splits.items()
    }
    return Shared(splits, some, layouts)
