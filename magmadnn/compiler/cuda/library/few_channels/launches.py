"""Launches of these kernels.

Many models, each with images and filters of its own, are one launch, with a model for each row of blocks.
"""

from __future__ import annotations

from magmadnn.backends.cuda.engine import ConvolutionNode
from magmadnn.compiler.cuda.text.variant import Launch

from .filters import LANES, OUTPUTS, FewFilters, FewSums
from .forward import FewForward
from .inputs import FewInputs
from .pooled import FewPooled
from .sizes import THREADS, Few
from .spread import FewPooledFilters, FewPooledInputs

_PARTS = 512  # of sums over all places, at most


def forward(few: Few, call: ConvolutionNode, models: int = 0) -> Launch:
    """The convolution, with what follows it; `models` as for `few_of`."""
    variant = FewForward(few, bool(call.bias), bool(call.added), call.positive)
    values = {"x": call.x, "w": call.w, "bias": call.bias, "added": call.added, "result": call.y}
    return _of_places(variant, call, values, models)


def inputs(few: Few, call: ConvolutionNode, models: int = 0) -> Launch:
    """The gradient for inputs."""
    values = {"w": call.w, "y": call.y, "result": call.x}
    return _of_places(FewInputs(few), call, values, models)


def _of_places(
    variant: FewForward | FewInputs, call: ConvolutionNode, values: dict[str, int], models: int
) -> Launch:
    values["images"] = call.shapes[0][0]
    arguments = tuple(values[slot] for slot in variant.slots)
    grid = (-(-variant.threads(values["images"]) // THREADS), max(models, 1), 1)
    return Launch(variant, grid, (THREADS, 1, 1), arguments, variant.of.filter_bytes)


def part_bytes(few: Few, call: ConvolutionNode, models: int = 0) -> int:
    """Memory of the parts that gradients for filters are summed from."""
    return max(models, 1) * _cut(few, call, models)[0] * few.filter_bytes


def _cut(few: Few, call: ConvolutionNode, models: int) -> tuple[int, int]:
    """How many blocks give parts of a model's sums, and rows of windows of each."""
    rows, lanes = call.shapes[2][0] * few.windows[0], FewFilters(few).lanes
    each = -(-rows // max(_PARTS // max(models, 1), 1) // lanes) * lanes
    return -(-rows // each), each


def filters(few: Few, call: ConvolutionNode, parts: int, models: int = 0) -> tuple[Launch, Launch]:
    """The gradient for filters: parts, which are written to an address, and their sums."""
    blocks, each = _cut(few, call, models)
    first, count = FewFilters(few), max(models, 1)
    given = (call.shapes[0][0], each, call.x, call.y, parts)
    last = FewSums(few.dtype, few.taps, few.outputs, few.is_many)
    grid = (-(-few.taps * few.outputs // OUTPUTS), count, 1)
    return (
        Launch(first, (blocks, count, 1), (first.threads, 1, 1), given, first.shared_bytes),
        Launch(last, grid, (OUTPUTS * LANES, 1, 1), (blocks, parts, call.w), last.shared_bytes),
    )


# --- with max pooling -----------------------------------------------------------------------------


def pooled(
    few: Few, pool: tuple[int, int], positive: bool, images: int, values: dict[str, int]
) -> Launch:
    """A convolution with bias whose result is pooled; `values` are addresses, of results those wanted."""
    variant = FewPooled(
        few, biased=True, adds=False, positive=positive, pool=pool,
        values="result" in values, numbers="index" in values,
    )  # fmt: skip
    return _of_images(variant, images, values)


def pooled_inputs(few: Few, pool: tuple[int, int], images: int, values: dict[str, int]) -> Launch:
    """The gradient for images."""
    return _of_images(FewPooledInputs(few, pool), images, values)


def _of_images(variant: FewPooled | FewPooledInputs, images: int, values: dict[str, int]) -> Launch:
    told = {**values, "images": images}
    grid = (-(-variant.threads(images) // THREADS), 1, 1)
    arguments = tuple(told[slot] for slot in variant.slots)
    return Launch(variant, grid, (THREADS, 1, 1), arguments, variant.of.filter_bytes)


def pooled_filters(
    few: Few, pool: tuple[int, int], images: int, parts: int, values: dict[str, int]
) -> Launch:
    """So many parts of the gradient for filters, which are zero where there are fewer rows of windows."""
    variant = FewPooledFilters(few, pool)
    told = {**values, "images": images, "each": -(-images * few.windows[0] // parts)}
    arguments = tuple(told[slot] for slot in variant.slots)
    threads = (variant.threads, 1, 1)
    return Launch(variant, (parts, 1, 1), threads, arguments, variant.shared_bytes)
