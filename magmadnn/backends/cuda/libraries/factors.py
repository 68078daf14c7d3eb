"""Factors of matrices and solutions by them: calls that a stream takes down when it is captured.

The libraries count in column order, where a matrix that is stored row by row is its transpose. Each function
is there for one matrix, and mostly for many small ones at once.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int, c_void_p

from magmadnn.backends.cuda.nodes.matrices import MatrixNode, by_order, is_together

from .handles import LOWER, UPPER, Handles, at, item_bytes, one

_LEFT, _RIGHT, _NON_UNIT, _UNIT = 0, 1, 0, 1  # CUBLAS_SIDE_..., CUBLAS_DIAG_...
_AS_IT_IS = 0  # CUBLAS_OP_N


class Factors:
    """Calls on one stream.

    Args:
        handles: of the libraries.
    """

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._alone: dict[str, Callable[[MatrixNode, int], None]] = {
            "potrf": self._potrf, "trsm": self._trsm, "getrf": self._getrf, "getrs": self._getrs,
            "geqrf": self._geqrf, "orgqr": self._orgqr,
        }  # fmt: skip
        self._together: dict[str, Callable[[MatrixNode], None]] = {
            "potrf": self._potrf_of_all, "trsm": self._trsm_of_all, "getrf": self._getrf_of_all,
            "getrs": self._getrs_of_all, "geqrf": self._geqrf_of_all,
        }  # fmt: skip
        self._words: dict[str, Callable[[MatrixNode], int]] = {
            "potrf": self._potrf_words, "getrf": self._getrf_words, "geqrf": self._geqrf_words,
            "orgqr": self._orgqr_words,
        }  # fmt: skip

    def workspace(self, node: MatrixNode) -> int:
        """Bytes of workspace on the device that the call of a node needs."""
        words = self._words.get(node.function)
        return 0 if words is None else words(node) * item_bytes(node)

    def call(self, node: MatrixNode) -> None:
        """Give the stream the call of a node: all matrices at once where they are small and many."""
        together = self._together.get(node.function)
        if together is not None and is_together(node.count, _side(node)):
            together(node)
            return
        for number in range(node.count):
            self._alone[node.function](node, number)

    # --- potrf: in column order the upper triangle of U^T U; alone the lower one of L L^T ---------

    def _potrf_words(self, node: MatrixNode) -> int:
        n, first = c_int(node.rows), c_void_p(node.operands[-1][0])
        return self._handles.words(node, "?potrf", c_int(LOWER), n, first, n)

    def _potrf(self, node: MatrixNode, number: int) -> None:
        n, matrix = c_int(node.rows), c_void_p(node.operands[-1][number])
        words = c_int(self._potrf_words(node))
        self._handles.by_solver(
            node, "?potrf", c_int(LOWER), n, matrix, n, c_void_p(node.workspace), words,
            at(node.info, number, 4),
        )  # fmt: skip

    def _potrf_of_all(self, node: MatrixNode) -> None:
        n, table = c_int(node.rows), c_void_p(node.tables[-1])
        self._handles.by_solver(
            node, "?potrfBatched", c_int(UPPER), n, table, n, c_void_p(node.info),
            c_int(node.count),
        )  # fmt: skip

    # --- trsm: op(A) X = B is X' op(A)' = B' in column order --------------------------------------

    def _trsm(self, node: MatrixNode, number: int) -> None:
        a, b = (c_void_p(table[number]) for table in node.operands)
        n, width = c_int(node.rows), c_int(node.columns)
        self._handles.by_blas(
            node, "?trsm_v2", *_triangle(node), width, n, one(node), a, n, b, width
        )

    def _trsm_of_all(self, node: MatrixNode) -> None:
        a, b = map(c_void_p, node.tables)
        n, width, count = c_int(node.rows), c_int(node.columns), c_int(node.count)
        self._handles.by_blas(
            node, "?trsmBatched", *_triangle(node), width, n, one(node), a, n, b, width, count
        )

    # --- getrf: the matrices lie column by column -------------------------------------------------

    def _getrf_words(self, node: MatrixNode) -> int:
        n, first = c_int(node.columns), c_void_p(node.operands[-1][0])
        return self._handles.words(node, "?getrf", n, n, first, n)

    def _getrf(self, node: MatrixNode, number: int) -> None:
        n, matrix = c_int(node.columns), c_void_p(node.operands[-1][number])
        self._handles.by_solver(
            node, "?getrf", n, n, matrix, n, c_void_p(node.workspace),
            at(node.pieces[0], number, 4 * node.columns), at(node.info, number, 4),
        )  # fmt: skip

    def _getrf_of_all(self, node: MatrixNode) -> None:
        n, table = c_int(node.columns), c_void_p(node.tables[-1])
        exchanges, info = c_void_p(node.pieces[0]), c_void_p(node.info)
        self._handles.by_blas(
            node, "?getrfBatched", n, table, n, exchanges, info, c_int(node.count)
        )

    # --- getrs: right sides are rows here, columns for the library --------------------------------

    def _getrs(self, node: MatrixNode, number: int) -> None:
        factors, right = (c_void_p(table[number]) for table in node.operands)
        n, width = c_int(node.columns), c_int(node.rows)
        if by_order(node.count, node.rows, node.settings[0]):
            for triangle, diagonal in ((LOWER, _UNIT), (UPPER, _NON_UNIT)):
                self._handles.by_blas(
                    node, "?trsm_v2", c_int(_LEFT), c_int(triangle), c_int(_AS_IT_IS), c_int(diagonal),
                    n, width, one(node), factors, n, right, n,
                )  # fmt: skip
            return
        self._handles.by_solver(
            node, "?getrs", c_int(node.settings[0]), n, width, factors, n,
            at(node.pieces[0], number, 4 * node.columns), right, n, at(node.info, number, 4),
        )  # fmt: skip

    def _getrs_of_all(self, node: MatrixNode) -> None:
        factors, right = map(c_void_p, node.tables)
        n, width, wrong = c_int(node.columns), c_int(node.rows), c_int()
        self._handles.by_blas(
            node, "?getrsBatched", c_int(node.settings[0]), n, width, factors, n,
            c_void_p(node.pieces[0]), right, n, byref(wrong), c_int(node.count),
        )  # fmt: skip

    # --- geqrf: what scales reflections, and the columns; orgqr: those, and columns of Q ----------

    def _geqrf_words(self, node: MatrixNode) -> int:
        m, n, first = c_int(node.height), c_int(node.width), c_void_p(node.operands[-1][0])
        return self._handles.words(node, "?geqrf", m, n, first, m)

    def _geqrf(self, node: MatrixNode, number: int) -> None:
        scales, matrix = (c_void_p(table[number]) for table in node.operands)
        m, n, words = c_int(node.height), c_int(node.width), c_int(self._geqrf_words(node))
        self._handles.by_solver(
            node, "?geqrf", m, n, matrix, m, scales, c_void_p(node.workspace), words,
            at(node.info, number, 4),
        )  # fmt: skip

    def _geqrf_of_all(self, node: MatrixNode) -> None:
        scales, matrices = map(c_void_p, node.tables)
        m, n, wrong = c_int(node.height), c_int(node.width), c_int()
        self._handles.by_blas(
            node, "?geqrfBatched", m, n, matrices, m, scales, byref(wrong), c_int(node.count)
        )

    def _orgqr_sizes(self, node: MatrixNode) -> tuple[c_int, c_int, c_int]:
        """Rows and columns of Q, and reflections."""
        m, count, given = node.columns, node.rows, node.height - 1
        return c_int(m), c_int(count), c_int(min(m, count, given))

    def _orgqr_words(self, node: MatrixNode) -> int:
        scales, first = (c_void_p(table[0]) for table in node.operands)
        m, count, given = self._orgqr_sizes(node)
        return self._handles.words(node, "?orgqr", m, count, given, first, m, scales)

    def _orgqr(self, node: MatrixNode, number: int) -> None:
        scales, matrix = (c_void_p(table[number]) for table in node.operands)
        m, count, given = self._orgqr_sizes(node)
        self._handles.by_solver(
            node, "?orgqr", m, count, given, matrix, m, scales, c_void_p(node.workspace),
            c_int(self._orgqr_words(node)), at(node.info, number, 4),
        )  # fmt: skip


def _triangle(node: MatrixNode) -> tuple[c_int, c_int, c_int, c_int]:
    """What trsm is told of the triangle."""
    lower, transpose = node.settings
    return c_int(_RIGHT), c_int(UPPER if lower else LOWER), c_int(transpose), c_int(_NON_UNIT)


def _side(node: MatrixNode) -> int:
    """The larger side of the matrices that a function factorises or has factors of."""
    if node.function in ("potrf", "trsm"):
        return node.rows
    return max(node.height, node.width) if node.function == "geqrf" else node.columns
