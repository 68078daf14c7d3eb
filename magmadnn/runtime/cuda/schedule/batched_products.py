"""Products of stacks of matrices: where the matrices lie, for one launch or for a library's products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from magmadnn.backends.cuda.engine import ProductNode
from magmadnn.compiler.cuda.gemm.stacked import Axes
from magmadnn.compiler.kernels.gemm import Gemm, axis_slots
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import product_of
from magmadnn.graph.dim import bind_shape
from magmadnn.runtime.cuda.layout import Layout


@dataclass(frozen=True)
class Group:
    """Products of a stack that are one call of the library.

    Attributes:
        product: the call.
        slots: addresses of results whose matrices do not follow each other, those of the first product;
        rows: and of all of them, which follow each other with the same distance.
    """

    product: ProductNode
    slots: Mapping[str, int]
    rows: int


def groups_of(
    whole: ProductNode,
    axes: Mapping[str, Axes],
    addresses: Mapping[str, int],
    items: Mapping[str, int],
    finished: Mapping[str, int] | None,
) -> list[Group]:
    """The library's calls for the products of a stack: as few as there can be.

    Products along some axes are one call where one step leads from each to the next, of all three matrices.

    Args:
        whole: the product of all rows of the result, of which each gets its part.
        axes: as `stack_axes` gives them; without `c`, matrices of C follow each other.
        addresses: of the first matrix of A, B, and of what is in `axes` besides.
        items: bytes of their elements.
        finished: elements from row to row of results in `axes` that a kernel stores behind each call, which
            takes rows that lie equally far apart; None where there is none, or one for the whole stack.
    """
    sizes = [size for size, _ in axes["a"]]
    rows = whole.sizes[0] // max(math.prod(sizes), 1)
    inner = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    packed = tuple((n, rows * whole.strides[2] * k) for n, k in zip(sizes, inner, strict=True))
    own = finished is not None and "c" not in axes  # C is room, in which groups follow each other
    lies = {"c": packed, **axes}
    together = max(
        (
            some
            for length in range(len(sizes) + 1)
            for some in itertools.combinations(range(len(sizes)), length)
            if all(_step(of, some) is not None for s, of in lies.items() if s != "c" or not own)
            and all(_step(lies[s], some) in (0, rows * row) for s, row in (finished or {}).items())
        ),
        key=lambda some: math.prod(sizes[k] for k in some),
    )
    count, groups = math.prod(sizes[k] for k in together), list[Group]()
    steps = {slot: _step(of, together) or 0 for slot, of in lies.items()}
    if own:
        steps["c"] = rows * whole.strides[2]
    others = [k for k in range(len(sizes)) if k not in together]
    for number, index in enumerate(np.ndindex(*(sizes[k] for k in others))):
        at = dict(addresses)
        for slot, of in lies.items():
            begin = sum(of[k][1] * i for k, i in zip(others, index, strict=True))
            if slot == "c" and own:
                begin = number * count * steps["c"]
            at[slot] += begin * items[slot]
        product = replace(
            whole, sizes=(rows, *whole.sizes[1:]), a=at["a"], b=at["b"], c=at["c"], count=count,
            steps=(steps["a"], steps["b"], steps["c"]) if count > 1 else (0, 0, 0),
        )  # fmt: skip
        groups.append(Group(product, {s: at[s] for s in at if s not in "ab"}, count * rows))
    return groups


def _step(axes: Axes, some: Sequence[int]) -> int | None:
    """Elements from one matrix to the next along some axes; None where there is no one step."""
    found, reach = 0, None
    for size, step in (axes[k] for k in reversed(some)):
        if size == 1:
            continue
        if step < 0 or reach not in (None, step):
            return None
        found, reach = step if reach is None else found, step * size
    return found


def apart(gemm: Gemm, values: Mapping[str, int]) -> tuple[Gemm, dict[str, Axes]]:
    """A product whose first factor's rows are two axes of memory, as one of a stack that shares the second.

    Returns:
        The product of each matrix, and the axes that `stack_axes` gives of a stack.
    """
    sizes = [values[slot] for slot in axis_slots("a", "row")]
    (count, step), (_, row) = zip(sizes[-4::2], sizes[-3::2], strict=True)
    assert row == values["lda"]
    return replace(gemm, joined_a=0), {"a": ((count, step),), "b": ((count, 0),)}


def stack_axes(work: Work, layout: Layout) -> dict[str, Axes]:
    """The axes along which matrices are stacked: of factors `a` and `b`, and of results that lie apart.

    Matrices along each, the same of all, and elements from one to the next: 0 where one serves all.
    """
    node = product_of(work.region)
    leading = bind_shape(node.shape, layout.sizes)[:-2]
    assert work.lowered is not None
    lies = dict(zip("ab", node.inputs, strict=False))
    lies |= {slot: n for slot, n, _ in work.lowered.writes if layout.plan.lies_apart(n)}
    found = {}
    for slot, value in lies.items():
        frame = layout.frames[value]
        strides = np.broadcast_to(frame, (*leading, *frame.shape[-2:])).strides
        steps = [stride // frame.itemsize for stride in strides[:-2]]
        found[slot] = tuple(zip(leading, steps, strict=True))
    return found
