"""What operations would do, without doing them: layouts of results, bytes that would be sent, candidates of
products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.functions import (
    elementwise,
    images,
    moving,
    reducing,
    spectra,
    transforms,
    views,
)
from magmadnn.dmath.functions.factors import PANEL
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.layouts.recipes import Columns, resolve
from magmadnn.dmath.products.arithmetic import arithmetic_of, kind_of, travelling_size
from magmadnn.dmath.products.choosing import explained, ranked
from magmadnn.dmath.products.rates import Rates
from magmadnn.memory.dtypes import as_dtype


@dataclass(frozen=True)
class Foretold:
    """What an operation would do.

    Attributes:
        lies: where its result would lie.
        text: for people: the bytes that would be sent; of a product the candidates.
        what: the operation in a few words.
        workers: how many compute; 0 for views, which move nothing.
        seconds: predicted; None where nothing predicts them.
    """

    lies: Layout
    text: str
    what: str
    workers: int
    seconds: float | None = None


def stages(found: Sequence[Foretold], size: int) -> str:
    """A line for each operation, with how many workers compute; empty for one operation or one worker.

    Args:
        found: the operations, in order.
        size: how many workers there are.
    """
    steps = [one for one in found if one.workers]
    if len(steps) < 2 or size < 2:
        return ""
    lines = [f"stages, of {size} workers:", "   workers    predicted  operation"]
    for one in steps:
        time = "" if one.seconds is None else f"{one.seconds * 1e3:9.3f} ms"
        lines.append(f"   {one.workers:7d} {time:>12}  {one.what}")
    return "\n".join(lines)


def foretold(
    op: str,
    operands: Sequence[tuple[Layout, np.dtype[Any]] | None],
    settings: Mapping[str, Any],
    target: Layout | None,
    shape: Sequence[int],
    rates: Callable[[str], Rates],
) -> Foretold:
    """Where the result of an operation would lie, and what would be done for it.

    Args:
        op: of the record.
        operands: layout and dtype of each; None for numbers.
        settings: of the record.
        target: the layout that was asked for.
        shape: of the result.
        rates: to predict from, by kind of arithmetic.
    """
    layouts = [x[0] for x in operands if x is not None]
    sizes = [x[1].itemsize for x in operands if x is not None]
    if op == "matmul":
        dtypes = [x[1] for x in operands if x is not None]
        return _product(layouts, dtypes, settings, target, tuple(shape), rates)
    if op in ("view", "transpose"):
        bare = Parts(None, layouts[0], np.dtype(np.int8), {})  # type: ignore[arg-type]  # no blocks, no team
        if op == "transpose":
            lies = layouts[0].transposed(settings["axes"])
        else:
            lies = views.view(bare, settings["key"]).layout
        return Foretold(lies, f"{op}: moves nothing", op, 0)
    lies, what, sent = _moved(op, layouts, sizes, settings, target, tuple(shape))
    text = f"{what}: sends {sent} MB; result: {lies}"
    return Foretold(lies, text, what, len(lies.active))


def _moved(
    op: str,
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    settings: Mapping[str, Any],
    target: Layout | None,
    shape: tuple[int, ...],
) -> tuple[Layout, str, str]:
    """Of an operation that is no product: where its result would lie, its name, and the MB that it sends."""
    workers = layouts[0].workers if layouts else (target.workers if target else 1)
    if op == "fft":
        how = [settings[name] for name in ("name", "axes", "size", "pencils")]
        lies, steps = transforms.ended(layouts[0], *how)
        sent = (
            sum(int(traffic(*step).sum()) for step in steps) * as_dtype(settings["dtype"]).itemsize
        )
        return lies, settings["name"], f"at most {sent / 1e6:.2f}"
    if op in moving.MOVES:
        lies, moves = moving.ended(op, layouts, settings)
        sent = sum(int(traffic(was, to).sum()) * sizes[i] for i, was, to in moves)
        return lies, op, f"{sent / 1e6:.2f}"
    lies = target or _natural(op, layouts, settings, shape, workers)
    sent = 0
    if op in _WHOLE:
        whole = [_whole(op, layout, settings) for layout in layouts[:1]]
        if op == "take_along_axis":
            whole.append(lies)
        changes = zip(layouts, whole, sizes, strict=False)
        sent = sum(int(traffic(was, to).sum()) * size for was, to, size in changes)
    elif op in ("remap", "replica"):
        sent = int(traffic(layouts[0], lies).sum()) * sizes[0]
    elif op == "reduce":
        axes = tuple(settings["axis"])
        partial = reducing.partial_layout(layouts[0], axes)
        sent = int(traffic(partial, resolve(target, partial.shape, workers)).sum()) * sizes[0]
    elif op not in (
        "array",
        "windows",
        "full",
        "eye",
        "arange",
        "random",
        "load",
        "copy",
        "norm",
    ):
        for layout, size in zip(layouts, sizes, strict=True):
            needed = elementwise.induced(lies, layout.shape)
            sent += int(traffic(layout, needed).sum()) * size
    most = "at most " if settings.get("error") else "at least " if op in _IN_PANELS else ""
    return lies, settings.get("name", op), f"{most}{sent / 1e6:.2f}"


_IN_PANELS = ("cholesky", "solve", "determinant")  # which send each panel to all, too
_WHOLE = ("along", "of_matrices", "take_along_axis", *_IN_PANELS)


def _whole(op: str, layout: Layout, settings: Mapping[str, Any]) -> Layout:
    """Where the first operand of such an operation is brought."""
    if op in _IN_PANELS:
        return resolve(Columns(block=PANEL), layout.shape, layout.workers)
    if op == "of_matrices":
        return spectra.matrices_whole(layout)
    return reducing.whole_along(layout, settings["axis"])


def _with_axis(layout: Layout, axis: int, count: int | None) -> Layout:
    """The layout with so many elements along an axis that is not cut; without the axis for None."""
    new = [] if count is None else [(0, count)]
    cuts = (*layout.cuts[:axis], *new, *layout.cuts[axis + 1 :])
    return Layout(tuple(cut[-1] for cut in cuts), cuts, layout.holders, layout.workers)


def _natural(
    op: str,
    layouts: Sequence[Layout],
    settings: Mapping[str, Any],
    shape: tuple[int, ...],
    workers: int,
) -> Layout:
    if op in ("along", "take_along_axis"):
        found, axis = _whole(op, layouts[0], settings), settings["axis"]
        return _with_axis(found, axis, shape[axis] if len(shape) == len(found.shape) else None)
    if op == "of_matrices":
        found = _whole(op, layouts[0], settings)
        return _with_axis(_with_axis(found, len(shape), None), len(shape) - 1, shape[-1])
    if op in ("remap", "copy", "tri"):
        return layouts[0]
    if op == "windows":
        lies = images.by_images(layouts[0])
        return Layout(shape, (lies.cuts[0], *((0, n) for n in shape[1:])), lies.holders, workers)
    if op == "cholesky":
        return _whole(op, layouts[0], settings)
    if op == "solve" and len(shape) == 2:
        return resolve(Columns(), shape, workers)
    if op in ("solve", "determinant"):  # a vector
        return Layout(shape, ((0, *shape),), ((0,),), workers)
    if op in ("reduce", "norm", "vdot") or not layouts:
        return resolve(None, shape, workers)
    return elementwise.common(op, layouts)


def _product(
    layouts: Sequence[Layout],
    dtypes: Sequence[np.dtype[Any]],
    settings: Mapping[str, Any],
    target: Layout | None,
    shape: tuple[int, ...],
    rates: Callable[[str], Rates],
) -> Foretold:
    a, b = layouts
    how = arithmetic_of(*dtypes, as_dtype(settings["dtype"]), settings.get("compute"))
    itemsize = travelling_size(dtypes, how, settings.get("wire"))
    left = a if len(a.shape) == 2 else _matrix(a).transposed((1, 0))
    right = b if len(b.shape) == 2 else _matrix(b)
    within = target if len(shape) == 2 else None
    known = rates(kind_of(how))
    found = ranked(left, right, within, itemsize, known, not settings.get("fixed", False))
    head = f"matmul: {' x '.join(map(str, left.shape))} by {' x '.join(map(str, right.shape))}"
    plan = found[0].plan
    lies = plan.target if len(shape) == 2 else target or resolve(None, shape, a.workers)
    text = f"{head}\n{explained(found, itemsize, order=known.order)}\n   a {a}\n   b {b}\n   result {lies}"
    return Foretold(lies, text, head.replace(":", ""), found[0].active, found[0].seconds)


def _matrix(layout: Layout) -> Layout:
    """The layout of a vector as a column."""
    return Layout((*layout.shape, 1), (*layout.cuts, (0, 1)), layout.holders, layout.workers)
