"""Cholesky factors, solutions of equations, norms: made of panels of columns that take turns on the
workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import Columns, resolve
from magmadnn.errors import NumericError

PANEL = 128  # columns of a panel
NOT_A_NUMBER = -2  # in place of the row of a pivot


def _in_panels(x: Parts, dtype: np.dtype[Any]) -> Parts:
    """A copy whose columns lie in panels, which workers take in turn."""
    layout = resolve(Columns(block=PANEL), x.shape, x.team.size)
    return remap(x, layout, dtype)


def _broadcast(team: Team, array: Array, root: int) -> Array:
    if team.size > 1 and array.size:
        if team.rank == root:
            team.count.sent_bytes += array.nbytes * (team.size - 1)
            team.count.planned_bytes += array.nbytes * (team.size - 1)
            team.count.messages += team.size - 1
        team.comm.broadcast(array, root=root)
    return array


def computed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What factors are computed in: float32 for halves, float64 for integers."""
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def cholesky(x: Parts) -> Parts:
    """The lower factor L of a Hermitian positive definite matrix, A = L L^H, from its lower triangle.

    Right-looking, by panels: the owner of a panel factors its diagonal block and solves for the rows below,
    everyone gets the panel, and updates the panels that it owns (Golub, Van Loan, Matrix Computations,
    algorithm 4.2.5 in blocks).

    Raises:
        NumericError: if a leading minor is not positive; on all workers alike.
    """
    team = x.team
    made = _in_panels(x, computed_dtype(x.dtype))
    n, cuts = x.shape[0], made.layout.cuts[1]
    for panel in range(len(cuts) - 1):
        low, high = cuts[panel], cuts[panel + 1]
        owner, bad = made.layout.holders[panel][0], -1
        column = team.xp.empty((n - low, high - low), made.dtype)
        if team.rank == owner and high > low:
            block = made.blocks[panel]
            block[:low] = 0
            bad = _factor_panel(team, block[low:])
            column[...] = block[low:]
        if team.xp is np:
            bad_at = np.array([bad], np.int64)
            _broadcast(team, bad_at, owner)
            bad = int(bad_at[0])
        else:
            bad = int(team.comm.exchange(bad)[owner])
        if bad >= 0:
            raise NumericError(
                f"cholesky: the leading minor of order {low + bad + 1} is not positive: the matrix "
                f"is not positive definite"
            )
        _broadcast(team, column, owner)
        for number, block in made.blocks.items():
            if number > panel:
                c0, c1 = made.layout.boxes[number][1]
                block[c0:] -= column[c0 - low :] @ column[c0 - low : c1 - low].conj().T
    return made


def _factor_panel(team: Team, block: Array) -> int:
    """Factor the diagonal block of a panel and solve for what is below; the row that fails, or -1."""
    xp, width = team.xp, block.shape[1]
    top = xp.tril(block[:width])
    top = top + xp.tril(top, -1).conj().T
    try:
        factor = xp.linalg.cholesky(top)
    except np.linalg.LinAlgError:
        factor = None
    if factor is None or not team.on_host(xp.isfinite(factor).all()):
        return _first_bad_minor(team.on_host(top))
    block[:width] = factor
    block[width:] = xp.linalg.solve(factor, block[width:].conj().T).conj().T  # A L^-H
    return -1


def _first_bad_minor(top: Array) -> int:
    top = top.astype(np.result_type(top.dtype, np.float64))
    for order in range(1, len(top) + 1):
        try:
            factor = np.linalg.cholesky(top[:order, :order])
        except np.linalg.LinAlgError:
            return order - 1
        if not np.isfinite(factor).all():
            return order - 1
    return 0


def solve(a: Parts, b: Parts) -> Parts:
    """The solution of A X = B by LU factors with partial pivoting, A square.

    Panels of columns lie on one worker each, so that a pivot is found without messages; everyone gets the
    factored panel, exchanges rows and updates its own columns, those of B among them, which are spread as
    the panels are.

    Raises:
        NumericError: if A is singular to working precision, or NaN is where a pivot is wanted.
    """
    team = a.team
    dtype = computed_dtype(np.result_type(a.dtype, b.dtype))
    left = _in_panels(a, dtype)
    right = remap(b, resolve(Columns(), b.shape, team.size), dtype)
    for low, _, rows in _eliminated(left, right):
        if NOT_A_NUMBER in rows:
            raise NumericError(
                f"solve: elimination meets NaN in column {low + rows.index(NOT_A_NUMBER)}: the matrix "
                "has NaN or infinity in it, or overflows"
            )
        if min(rows) < 0:
            raise NumericError(
                f"solve: the matrix is singular: no pivot in column {low + rows.index(min(rows))}"
            )
    _substitute_back(left, right, dtype)
    return right


def determinant(a: Parts) -> Parts:
    """Sign, log |det| and determinant of a real square matrix, by LU factors as in `solve`: [3]."""
    team, dtype = a.team, computed_dtype(a.dtype)
    left = _in_panels(a, dtype)
    sign, log, product = 1.0, 0.0, np.ones((), dtype)
    with np.errstate(over="ignore", under="ignore"):
        for _, diagonal, rows in _eliminated(left, None):
            if NOT_A_NUMBER in rows:
                sign = log = np.nan
                product = np.full((), np.nan, dtype)
                break
            if min(rows) < 0:
                sign, log, product = 0.0, -np.inf, np.zeros((), dtype)
                break
            swaps = sum(pivot != j for j, pivot in enumerate(rows))
            sign *= (-1.0) ** swaps * float(np.prod(np.sign(diagonal)))
            log += float(np.log(np.abs(diagonal.astype(np.float64))).sum())
            product = product * dtype.type((-1.0) ** swaps) * np.prod(diagonal)
    where = Layout((3,), ((0, 3),), ((0,),), team.size)
    values = np.array([sign, log, product], dtype)
    return Parts(team, where, dtype, {0: team.on_device(values)} if team.rank == 0 else {})


def _eliminated(left: Parts, right: Parts | None) -> Iterator[tuple[int, Array, list[int]]]:
    """Factor panel after panel, in place, and change the right side too.

    Yields:
        The panel's first column, the diagonal of its upper factor (NumPy's), and the row that each row was
        exchanged with, counted from the first column; -1 where there is no pivot, and then nothing follows.
    """
    team, dtype = left.team, left.dtype
    n, cuts = left.shape[0], left.layout.cuts[1]
    for panel in range(len(cuts) - 1):
        low, high = cuts[panel], cuts[panel + 1]
        if low == high:
            continue
        owner = left.layout.holders[panel][0]
        column = team.xp.empty((n - low, high - low), dtype)
        pivots = team.xp.zeros(high - low, np.int64)
        if team.rank == owner:
            column[...] = left.blocks[panel][low:]
            pivots[...] = team.on_device(np.array(_lu_panel(team, column), np.int64))
            left.blocks[panel][low:] = column
        _broadcast(team, pivots, owner)
        rows = team.on_host(pivots).tolist()
        if min(rows) < 0:
            yield low, np.zeros(0), rows
            return
        _broadcast(team, column, owner)
        for number, block in left.blocks.items():
            if number > panel:
                _update(team.xp, block[low:], column, rows)
        for block in right.blocks.values() if right is not None else ():
            _update(team.xp, block[low:], column, rows)
        yield low, team.on_host(team.xp.diagonal(column)), rows


def _lu_panel(team: Team, column: Array) -> list[int]:
    """LU factors of a panel in place, rows exchanged; the row that each was exchanged with, or -1 for no
    pivot, `NOT_A_NUMBER` for one that is NaN.
    """
    xp, rows = team.xp, list[int]()
    for j in range(column.shape[1]):
        pivot = j + int(team.on_host(xp.argmax(xp.abs(column[j:, j]))))
        value = complex(team.on_host(column[pivot, j]))
        if value == 0 or value != value:
            return [*rows, *[-1 if value == 0 else NOT_A_NUMBER] * (column.shape[1] - j)]
        if pivot != j:
            column[[j, pivot]] = column[[pivot, j]]
        rows.append(pivot)
        column[j + 1 :, j] /= column[j, j]
        column[j + 1 :, j + 1 :] -= column[j + 1 :, j : j + 1] * column[j, j + 1 :]
    return rows


def _update(xp: Any, block: Array, column: Array, rows: list[int]) -> None:
    """Exchange rows, solve with the panel's unit lower triangle, and subtract the rest."""
    width = column.shape[1]
    for j, pivot in enumerate(rows):
        if pivot != j:
            block[[j, pivot]] = block[[pivot, j]]
    lower = xp.tril(column[:width], -1) + xp.eye(width, dtype=column.dtype)
    block[:width] = xp.linalg.solve(lower, block[:width])
    block[width:] -= column[width:] @ block[:width]


def _substitute_back(left: Parts, right: Parts, dtype: np.dtype[Any]) -> None:
    """Solve with the upper triangle, the last panel first."""
    team, cuts = left.team, left.layout.cuts[1]
    for panel in range(len(cuts) - 2, -1, -1):
        low, high = cuts[panel], cuts[panel + 1]
        if low == high:
            continue
        owner = left.layout.holders[panel][0]
        column = team.xp.empty((high, high - low), dtype)
        if team.rank == owner:
            column[...] = left.blocks[panel][:high]
        _broadcast(team, column, owner)
        upper = team.xp.triu(column[low:])
        for block in right.blocks.values():
            block[low:high] = team.xp.linalg.solve(upper, block[low:high])
            block[:low] -= column[:low] @ block[low:high]


def tri(x: Parts, lower: bool, k: int = 0) -> Parts:
    """Matrices [..., m, n] with zeros above their k-th diagonal, or below it."""
    xp, blocks = x.team.xp, {}
    for number, block in x.blocks.items():
        (r0, _), (c0, _) = x.layout.boxes[number][-2:]
        blocks[number] = (xp.tril if lower else xp.triu)(block, k + r0 - c0)
    return Parts(x.team, x.layout, x.dtype, blocks)


def first_columns(layout: Layout) -> Layout:
    """The layout of a matrix with one column that lies as a vector does."""
    return Layout((*layout.shape, 1), (*layout.cuts, (0, 1)), layout.holders, layout.workers)


def as_column(x: Parts) -> Parts:
    """A vector as a matrix of one column; a view."""
    blocks = {n: b.reshape(-1, 1) for n, b in x.blocks.items()}
    return Parts(x.team, first_columns(x.layout), x.dtype, blocks)
