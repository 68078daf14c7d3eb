"""Steps that are convolutions of few channels with max pooling, and their gradients, by kernels of our own.

Values and numbers of places of the same operands are one launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from magmadnn.compiler.cuda.library.few_channels import launches
from magmadnn.compiler.cuda.library.few_channels.sizes import Few
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.regions.draft import Work
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.launch import Item

from .pairs import Pair, kernel_of, pairs_of

_VALUES, _NUMBERS, _INPUTS, _FILTERS = "few_pooled", "few_numbers", "few_inputs", "few_filters"
OF_FEW_POOLED = frozenset({_VALUES, _NUMBERS, _INPUTS, _FILTERS})


def takes_few_pooled(kernel: WholeLibrary) -> bool:
    """Whether a function is such a convolution, or one of its gradients."""
    return kernel.function in OF_FEW_POOLED


class FewPooledSteps:
    """Makes the launches of such steps.

    Args:
        layout: where values lie.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def of(self, work: Work, values: Mapping[str, int]) -> list[Item]:
        """The launch of one step; none where another step's does it too, or there are no elements."""
        kernel, node = kernel_of(work), work.needed[0]
        shapes = [self._layout.frames[n].shape for n in node.inputs]
        result = self._layout.frames[node].shape
        if 0 in result:
            return []
        told: dict[str, Any] = dict(kernel.settings)
        if kernel.function in (_VALUES, _NUMBERS):
            return self._forward(work, shapes, told, values)
        if kernel.function == _INPUTS:
            few = _few(kernel.dtype, result, shapes[2], shapes[0], told)
            given = {"y": "x0", "index": "x1", "w": "x2", "result": "result"}
            named = {slot: values[name] for slot, name in given.items()}
            launch = launches.pooled_inputs(few, told["size"], result[0], named)
        else:
            few = _few(kernel.dtype, shapes[0], result[1:], shapes[1], told)
            given = {"x": "x0", "y": "x1", "index": "x2", "result": "result"}
            named = {slot: values[name] for slot, name in given.items()}
            images, parts = shapes[0][0], result[0]
            launch = launches.pooled_filters(few, told["size"], images, parts, named)
        return [self._item(work, launch)]

    def _forward(
        self, work: Work, shapes: list[Any], told: dict[str, Any], values: Mapping[str, int]
    ) -> list[Item]:
        kernel, node = kernel_of(work), work.needed[0]
        first, last = self._pairs.get(work, (None, work))
        if last is not work:
            return []  # the later one's launch writes both
        slots = {_VALUES: "result", _NUMBERS: "index"}
        named = {"x": values["x0"], "w": values["x1"], "bias": values["x2"]}
        named[slots[kernel.function]] = values["result"]
        if first is not None:
            named[slots[kernel_of(first).function]] = self._layout.address(first.needed[0])
        few = _few(kernel.dtype, shapes[0], shapes[1], self._layout.frames[node].shape, told)
        launch = launches.pooled(few, told["size"], told["positive"], shapes[0][0], named)
        return [self._item(work, launch, first)]

    def _item(self, work: Work, launch: Launch, first: Work | None = None) -> Item:
        node, span = work.needed[0], self._layout.span
        results = [node] if first is None else [node, first.needed[0]]
        return Item(launch, tuple(map(span, node.inputs)), tuple(map(span, results)))

    @cached_property
    def _pairs(self) -> dict[Work, Pair]:
        return pairs_of(self._layout.plan, (_VALUES, _NUMBERS))


def _few(dtype: str, image: Any, filters: Any, pooled: Any, told: dict[str, Any]) -> Few:
    """The convolution, of shapes [n, *places, c], [*size, c, o] and [n, *pooled, o]."""
    rows, columns = (n * k for n, k in zip(pooled[1:3], told["size"], strict=True))
    before = (told["padding"][0][0], told["padding"][1][0])
    return Few(
        dtype, (image[1], image[2]), (rows, columns), (filters[0], filters[1]), image[3], pooled[3],
        (1, 1), before, (1, 1),
    )  # fmt: skip
