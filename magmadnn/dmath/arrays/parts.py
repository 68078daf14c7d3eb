"""The part of a spread array that one worker holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.team import Array, Data, Team
from magmadnn.dmath.layouts.layout import Layout


@dataclass
class Parts:
    """What this worker holds of an array.

    Attributes:
        team: the workers.
        layout: of the whole array; every worker knows it.
        dtype: of the elements.
        blocks: this worker's blocks, by number; empty ones are left out.
        data: shared with views.
        view: which view of the data this is: "" for all of it, "T" for the transposed, else a name of its
            own.
    """

    team: Team
    layout: Layout
    dtype: np.dtype[Any]
    blocks: dict[int, Array]
    data: Data = field(default_factory=Data)
    view: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.layout.shape)

    def with_blocks(self, blocks: Mapping[int, Array], layout: Layout | None = None) -> Parts:
        """A new array of these blocks, which are this worker's."""
        layout = layout or self.layout
        made = dict(blocks)
        dtype = next(iter(made.values())).dtype if made else self.dtype
        return Parts(self.team, layout, dtype, made)

    def transposed(self, axes: Sequence[int] | None = None) -> Parts:
        """A view with the axes in another order; nothing moves."""
        axes = tuple(reversed(range(self.ndim))) if axes is None else tuple(axes)
        blocks = {
            new: self.blocks[old].transpose(axes)
            for old, new in self.layout.transposed_blocks(axes)
            if old in self.blocks
        }
        view = self.view[:-1] if self.view.endswith("T") else self.view + "T"
        if axes != tuple(reversed(range(self.ndim))):
            view = f"{self.view}{axes}."
        return replace(self, layout=self.layout.transposed(axes), blocks=blocks, view=view)


def empty(team: Team, layout: Layout, dtype: np.dtype[Any]) -> Parts:
    """Parts whose elements are not set yet."""
    blocks = {
        block: team.xp.empty([high - low for low, high in layout.boxes[block]], dtype)
        for block in layout.held[team.rank]
    }
    return Parts(team, layout, dtype, blocks)
