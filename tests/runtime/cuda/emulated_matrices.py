"""What cuSOLVER and cuBLAS do, by NumPy in this process's memory; matrices lie column by column."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.backends.cuda.nodes.matrices import by_order, is_together, sizes_of_singular

_GARBAGE = -7.5  # where a library leaves no result


def columns_at(address: int, rows: int, columns: int, dtype: str) -> np.ndarray:
    """A matrix that lies column by column."""
    kind = np.dtype(dtype)
    raw = (ctypes.c_char * (rows * columns * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind).reshape(columns, rows).T


def stack_at(address: int, number: int, rows: int, columns: int, dtype: str) -> np.ndarray:
    """A matrix of a packed stack of such."""
    step = rows * columns * np.dtype(dtype).itemsize
    return columns_at(address + number * step, rows, columns, dtype)


def compute_matrices(node: MatrixNode) -> None:
    """Compute all matrices of a call, in place, and say what was found."""
    for number in range(node.count):
        found = _FUNCTIONS[node.function](node, number)
        if found is not None:
            ctypes.c_int32.from_address(node.info + 4 * number).value = found


def _potrf(node: MatrixNode, number: int) -> int:
    goal = columns_at(node.operands[0][number], node.rows, node.rows, node.dtype)
    together = is_together(node.count, node.rows)
    try:
        factor = np.linalg.cholesky(goal.T if together else goal)
    except np.linalg.LinAlgError:
        return 1
    if not together:
        goal[:] = factor + np.triu(goal, 1)
        return 0
    goal[:] = factor.T + np.tril(factor, -1)  # the other triangle too, as cuSOLVER does
    return 0


def _trsm(node: MatrixNode, number: int) -> None:
    n, (lower, transpose) = node.rows, node.settings
    a = columns_at(node.operands[0][number], n, n, node.dtype).T
    goal = columns_at(node.operands[1][number], node.columns, n, node.dtype).T
    triangle = np.tril(a) if lower else np.triu(a)
    if np.diagonal(triangle).all():
        inverse = np.linalg.inv(triangle.astype(np.float64))
        goal[:] = (inverse.T if transpose else inverse) @ goal


def _getrf(node: MatrixNode, number: int) -> int:
    n = node.columns
    a = columns_at(node.operands[0][number], n, n, node.dtype)
    exchanges = stack_at(node.pieces[0], number, n, 1, "int32")[:, 0]
    found = 0
    for k in range(n):
        chosen = k + int(np.abs(a[k:, k]).argmax())
        exchanges[k] = chosen + 1
        a[[k, chosen]] = a[[chosen, k]]
        if a[k, k] == 0:
            found = found or k + 1
            continue
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return found


def _getrs(node: MatrixNode, number: int) -> int:
    n = node.columns
    factors = columns_at(node.operands[0][number], n, n, node.dtype).astype(np.float64)
    right = columns_at(node.operands[1][number], n, node.rows, node.dtype)
    exchanges = stack_at(node.pieces[0], number, n, 1, "int32")[:, 0]
    if not np.diagonal(factors).all():
        right[:] = np.nan
        return 0
    order = np.arange(n)
    if by_order(node.count, node.rows, node.settings[0]):  # rows are in order
        exchanges = exchanges[:0]
    for k, other in enumerate(exchanges - 1):
        order[[k, other]] = order[[other, k]]
    matrix = np.empty((n, n))
    matrix[order] = (np.tril(factors, -1) + np.eye(n)) @ np.triu(factors)
    right[:] = np.linalg.solve(matrix.T if node.settings[0] else matrix, right)
    return 0


def _geqrf(node: MatrixNode, number: int) -> int:
    m, n = node.height, node.width
    a = columns_at(node.operands[1][number], m, n, node.dtype)
    scales = columns_at(node.operands[0][number], min(m, n), 1, node.dtype)
    raw, found = np.linalg.qr(a, mode="raw")
    a[:], scales[:, 0] = raw.T, found
    return 0


def _orgqr(node: MatrixNode, number: int) -> int:
    m, count = node.columns, node.rows
    reflections = min(m, count, node.height - 1)
    a = columns_at(node.operands[1][number], m, count, node.dtype)
    scales = columns_at(node.operands[0][number], reflections, 1, node.dtype)[:, 0]
    q = np.eye(m, count)
    for k in reversed(range(reflections)):
        v = np.concatenate([np.zeros(k), [1.0], a[k + 1 :, k]])
        q -= scales[k] * np.outer(v, v @ q)
    a[:] = q
    return 0


def _syevd(node: MatrixNode, number: int) -> int:
    n, (lower, vectors) = node.width, node.settings
    a = stack_at(node.pieces[0], number, n, n, node.dtype)
    values = stack_at(node.pieces[1], number, n, 1, node.dtype)[:, 0]
    found, columns = np.linalg.eigh(a.T, "L" if lower else "U")
    values[:], a[:] = found, columns if vectors else _GARBAGE
    return 0


def _gesdd(node: MatrixNode, number: int) -> int:
    vectors, full = node.settings
    p, q, width = sizes_of_singular(node.height, node.width, full)
    a = stack_at(node.pieces[0], number, p, q, node.dtype)
    values = stack_at(node.pieces[1], number, q, 1, node.dtype)[:, 0]
    u, s, v = np.linalg.svd(a, full_matrices=width > q)
    values[:], a[:] = s, _GARBAGE
    if vectors:
        stack_at(node.pieces[2], number, p, width, node.dtype)[:] = u
        stack_at(node.pieces[3], number, q, q, node.dtype)[:] = v.T
    return 0


def _sgesv(node: MatrixNode, number: int) -> int:
    n, width = node.columns, node.rows - 1
    a = stack_at(node.pieces[0], number, n, n, node.dtype)
    b, x = (columns_at(table[number], n, width, node.dtype) for table in node.operands)
    try:
        inverse = np.linalg.inv(a.astype(np.float32)).astype(np.float64)
    except np.linalg.LinAlgError:
        return 1
    x[:] = 0
    for _ in range(5):
        x += inverse @ (b - a @ x)
    stack_at(node.pieces[1], number, 1, 1, "int32")[:] = 4
    return 0


_FUNCTIONS: dict[str, Callable[[MatrixNode, int], int | None]] = {
    "potrf": _potrf, "trsm": _trsm, "getrf": _getrf, "getrs": _getrs, "geqrf": _geqrf,
    "orgqr": _orgqr, "syevd": _syevd, "gesdd": _gesdd,
    "sgesv": _sgesv,
}  # fmt: skip
