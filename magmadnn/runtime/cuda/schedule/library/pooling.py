"""Pooling steps by kernels of our own: max pooling, and blocks of places as channels.

Two poolings that read the same image are one launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from magmadnn.compiler.cuda.library import gathered, pooling
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.regions.draft import Work
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.launch import Item

from .pairs import Pair, kernel_of, pairs_of

_VALUES, _NUMBERS, _INPUTS = "pooled", "pooled_numbers", "pooled_inputs"
_GATHERED = "gathered"
OF_POOLING = frozenset({_VALUES, _NUMBERS, _INPUTS, _GATHERED})


def takes_pooling(kernel: WholeLibrary) -> bool:
    """Whether a function is pooling, what its gradient is, or gathers places."""
    return kernel.function in OF_POOLING


class PoolingSteps:
    """Makes the launches of such steps.

    Args:
        layout: where values lie.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def of(self, work: Work, values: Mapping[str, int]) -> list[Item]:
        """The launch of one step; none where another step's does it too, or there are no elements."""
        kernel, node = kernel_of(work), work.needed[0]
        frames = [self._layout.frames[n] for n in (*node.inputs, node)]
        if not frames[-1].size:
            return []
        places, windows = frames[0].shape, frames[-1].shape
        if kernel.function == _INPUTS:
            places, windows = windows, places
        told: dict[str, Any] = dict(kernel.settings)
        span = self._layout.span
        if kernel.function == _GATHERED:
            gathers = gathered.Gathered(
                kernel.dtype, (places[1], places[2]), (windows[1], windows[2]), places[3],
                windows[3] // told["beside"], told["strides"],
                (told["padding"][0][0], told["padding"][1][0]), told["beside"],
            )  # fmt: skip
            launch = gathered.gathered(gathers, places[0], values["x0"], values["result"])
            return [Item(launch, (span(node.inputs[0]),), (span(node),))]
        before = (told["padding"][0][0], told["padding"][1][0])
        of = pooling.Pooled(
            kernel.dtype, (places[1], places[2]), (windows[1], windows[2]), places[3],
            told["size"], told["strides"], before,
        )  # fmt: skip
        if kernel.function == _INPUTS:
            given = [values[f"x{k}"] for k in range(kernel.operands)]
            launch = pooling.of_inputs(of, places[0], given, values["result"])
            return [Item(launch, tuple(map(span, node.inputs)), (span(node),))]
        first, last = self._pairs.get(work, (None, work))
        if last is not work:
            return []  # the later one's launch writes both
        found = {kernel.function: values["result"]}
        results = [node]
        if first is not None:
            results.append(first.needed[0])
            found[kernel_of(first).function] = self._layout.address(first.needed[0])
        wanted = (found.get(_VALUES, 0), found.get(_NUMBERS, 0))
        launch = pooling.largest(of, places[0], values["x0"], *wanted)
        return [Item(launch, (span(node.inputs[0]),), tuple(map(span, results)))]

    @cached_property
    def _pairs(self) -> dict[Work, Pair]:
        return pairs_of(self._layout.plan, (_VALUES, _NUMBERS))
