"""Spectra and factors of matrices that one worker computes: of a stack each worker those that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.layouts.layout import Layout, even_cuts
from magmadnn.errors import IndexOutOfRangeError, NumericError

from .factors import computed_dtype
from .reducing import axes_of, whole_along

Shape = tuple[int, ...]


def result_shapes(name: str, m: int, n: int, whole: bool) -> list[Shape]:
    """Shapes of the results for one matrix [m, n].

    Args:
        name: of the function.
        m: rows.
        n: columns.
        whole: whether orthogonal factors are square.
    """
    k = min(m, n)
    table: dict[str, list[Shape]] = {
        "qr": [(m, m if whole else k), (m if whole else k, n)],
        "svd": [(m, m if whole else k), (k,), (n if whole else k, n)],
        "svdvals": [(k,)],
        "eigh": [(n,), (n, n)],
        "eigvalsh": [(n,)],
        "slogdet": [(), (), ()],
        "pinv": [(n, m)],
        "matrix_rank": [()],
    }
    return table[name]


def of_matrices(x: Parts, name: str, **settings: Any) -> Parts:
    """The results for each matrix of a stack [..., m, n], as rows [..., count] in which all stand.

    Raises:
        NumericError: if a library's iteration does not converge.
    """
    layout = matrices_whole(x.layout)
    moved = remap(x, layout, computed_dtype(x.dtype), share=True)
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    count = sum(map(prod, result_shapes(name, m, n, settings.get("whole", False))))
    cuts = (*layout.cuts[:-2], (0, count))
    rows = Layout((*lead, count), cuts, layout.holders, layout.workers)
    xp, blocks, failed = x.team.xp, dict[int, Array](), ""
    for number in rows.held[x.team.rank]:  # of empty matrices too, of which there are no blocks
        sizes = [high - low for low, high in layout.boxes[number]]
        block = moved.blocks.get(number, xp.empty(sizes, moved.dtype))
        try:
            blocks[number] = _row(xp, name, block, count, settings)
        except np.linalg.LinAlgError as error:
            failed = str(error)
    told = [text for text in x.team.comm.exchange(failed) if text]
    if told:  # on all workers alike
        raise NumericError(f"{name}: {told[0]}")
    return Parts(x.team, rows, moved.dtype, blocks)


def matrices_whole(layout: Layout) -> Layout:
    """A layout in which no matrix is cut: a stack by its first axis, a matrix on the first worker."""
    shape, workers = layout.shape, layout.workers
    whole = tuple((0, n) for n in shape)
    if len(shape) == 2:
        return Layout(shape, whole, ((0,),), workers)
    cuts = (even_cuts(shape[0], workers), *whole[1:])
    return Layout(shape, cuts, tuple((w,) for w in range(workers)), workers)


def _row(xp: Any, name: str, x: Array, count: int, settings: dict[str, Any]) -> Array:
    """Results of the matrices of a block, each flat, one behind the other."""
    found = _FUNCTIONS[name](xp, x, **settings)
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    row = xp.empty((*lead, count), x.dtype)
    at = 0
    shapes = result_shapes(name, m, n, settings.get("whole", False))
    for shape, one in zip(shapes, found, strict=True):
        size = prod(shape)
        row[..., at : at + size] = xp.asarray(one).reshape(*lead, size)
        at += size
    return row


def _svd(xp: Any, x: Array, whole: bool) -> Sequence[Array]:
    if not x.size:  # libraries differ in what they take
        return _empty_svd(xp, x, whole)
    found: Sequence[Array] = xp.linalg.svd(x, full_matrices=whole)
    return found


def _empty_svd(xp: Any, x: Array, whole: bool) -> Sequence[Array]:
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    left, _, right = result_shapes("svd", m, n, whole)
    u, v = (xp.zeros((*lead, *shape), x.dtype) for shape in (left, right))
    u[..., :, :] = xp.eye(*left, dtype=x.dtype)
    v[..., :, :] = xp.eye(*right, dtype=x.dtype)
    return u, xp.zeros((*lead, min(m, n)), x.dtype), v


def _values(xp: Any, x: Array) -> Array:
    if not x.size:
        return xp.zeros((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
    return xp.linalg.svd(x, compute_uv=False)


def _is_kept(xp: Any, s: Array, x: Array, rtol: float | None) -> Array:
    """Which singular values count: above `rtol` times the largest."""
    rtol = max(x.shape[-2:]) * float(xp.finfo(s.dtype).eps) if rtol is None else rtol
    largest = s.max(axis=-1, keepdims=True) if s.shape[-1] else s
    return s > rtol * largest


def _pinv(xp: Any, x: Array, rtol: float | None) -> Sequence[Array]:
    u, s, v = _svd(xp, x, False)
    s = s.real
    kept = _is_kept(xp, s, x, rtol)
    inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0)
    left = inverse[..., None] * xp.swapaxes(u.conj(), -1, -2)
    return (xp.swapaxes(v.conj(), -1, -2) @ left,)


def _slogdet(xp: Any, x: Array) -> Sequence[Array]:
    sign, log = xp.linalg.slogdet(x)
    return sign, log, xp.linalg.det(x)


_FUNCTIONS: dict[str, Callable[..., Sequence[Array]]] = {
    "qr": lambda xp, x, whole: xp.linalg.qr(x, mode="complete" if whole else "reduced"),
    "svd": _svd,
    "svdvals": lambda xp, x: (_values(xp, x),),
    "eigh": lambda xp, x: xp.linalg.eigh(x),
    "eigvalsh": lambda xp, x: (xp.linalg.eigvalsh(x),),
    "slogdet": _slogdet,
    "pinv": _pinv,
    "matrix_rank": lambda xp, x, rtol: (_is_kept(xp, _values(xp, x), x, rtol).sum(axis=-1),),
}


def taken_along(x: Parts, indices: Parts, axis: int) -> Parts:
    """`take_along_axis`: the axis is brought together on a worker first where it is cut.

    Raises:
        IndexOutOfRangeError: for an index beyond the axis; on all workers alike.
    """
    (axis,) = axes_of("take_along_axis", axis, x.ndim)
    x = remap(x, whole_along(x.layout, axis), share=True)
    cuts = tuple((0, indices.shape[i]) if i == axis else c for i, c in enumerate(x.layout.cuts))
    there = remap(
        indices, Layout(indices.shape, cuts, x.layout.holders, x.layout.workers), share=True
    )
    xp, size, bad = x.team.xp, x.shape[axis], [0, 0]
    for block in there.blocks.values():
        low, high = (int(x.team.on_host(one)) for one in (block.min(), block.max()))
        bad = [min(bad[0], low), max(bad[1], high)]
    for low, high in x.team.comm.exchange(bad):
        if low < -size or high >= max(size, 1):
            raise IndexOutOfRangeError(
                f"take_along_axis: index {low if low < -size else high} is beyond axis {axis} of size {size}"
            )
    blocks = {
        number: xp.take_along_axis(x.blocks[number], block, axis)
        for number, block in there.blocks.items()
    }
    return Parts(x.team, there.layout, x.dtype, blocks)
