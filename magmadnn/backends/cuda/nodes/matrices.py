"""A call of cuBLAS or cuSOLVER for matrices, as a node of a graph or between graphs."""

from __future__ import annotations

from dataclasses import dataclass

# Functions that a stream takes down when it is captured. The others look at values on the host while they
# run, so a graph is cut where they are called.
CAPTURED = frozenset({"potrf", "trsm", "getrf", "getrs", "geqrf", "orgqr"})

# Rows of matrices of which the library decomposes many at once into singular values; it gives all of U then.
SMALL_SINGULAR = 32
# Rows up to which functions of many matrices at once are called: they are made for small ones.
LARGEST_TOGETHER = 256


def is_together(matrices: int, rows: int) -> bool:
    """Whether a function of many matrices at once is called.

    Cholesky factors of others are lower triangles to the library, which takes half the time of upper ones.
    """
    return matrices > 1 and rows <= LARGEST_TOGETHER


# Right sides from which on rows are put in order by a kernel of our own: cuSOLVER exchanges them one after
# the other, which takes as long as both triangles.
LEAST_ORDERED = 64


def by_order(matrices: int, sides: int, transpose: bool) -> bool:
    """Whether getrs is given right sides in the order of rows of the factors, and solves two triangles."""
    return matrices == 1 and sides >= LEAST_ORDERED and not transpose


# Columns up to which singular values alone are found by the QR method, those of more by the polar
# decomposition: of 80 columns it takes an H200 1.4 ms where Jacobi's method takes 2.3.
MOST_BY_QR = 64


def by_qr(height: int, width: int, vectors: bool) -> bool:
    """Whether singular values are found by the QR method."""
    return not vectors and min(height, width) <= MOST_BY_QR


# Columns from which on the polar decomposition is faster than Jacobi's method with vectors.
LEAST_POLAR = 192


def by_polar(height: int, width: int, vectors: bool) -> bool:
    """Whether singular values are found by the polar decomposition, which wants a copy to fall back to."""
    q = min(height, width)
    return q >= LEAST_POLAR if vectors else q > MOST_BY_QR


def sizes_of_singular(height: int, width: int, full: bool) -> tuple[int, int, int]:
    """Rows and columns of a matrix that is not wider than high, and for how many columns U has memory."""
    p, q = max(height, width), min(height, width)
    return p, q, p if full or p <= SMALL_SINGULAR else q


@dataclass(frozen=True)
class MatrixNode:
    """A function of BLAS or LAPACK for each matrix of a stack: by cuBLAS and cuSOLVER.

    All matrices lie column by column; what lies row by row is the transpose of such a one.

    Attributes:
        function: its name without the letter of the dtype: "potrf", "trsm", ...
        dtype: float32 or float64.
        settings: what the function is told besides, see `compiler/kernels/library.py`.
        rows, columns: of each matrix of the result, row by row.
        operands: tables of addresses, one for each matrix: of what is only read, and last of what the
            function works on in place.
        tables: where the same tables lie on the device, for functions of many matrices.
        info: address of 32 bits for each matrix, for what it found: 0 if all is well.
        workspace: as for `ProductNode`, but of `Engine.workspace` bytes where that is more.
        after: as for `KernelNode`.
        height, width: of each matrix of the first operand, row by row.
        pieces: addresses of packed stacks that the function reads or writes besides: of getrf and getrs the
            exchanges as integers of 32 bits from 1 on; of syevd the matrices, which become vectors, and the
            values; of sgesv the matrices, how many steps were made, and exchanges; of gesdd the matrices
            [p, q] with p >= q, the values, U [p, p or q], V [q, q], and room for a copy (`by_polar`), behind
            it for one of V where values alone are wanted.
        matrices: how many; the length of the tables where there are some.
    """

    function: str
    dtype: str
    settings: tuple[bool, ...]
    rows: int
    columns: int
    operands: tuple[tuple[int, ...], ...]
    tables: tuple[int, ...]
    info: int
    workspace: int
    after: tuple[int, ...] = ()
    height: int = 0
    width: int = 0
    pieces: tuple[int, ...] = ()
    matrices: int = 0

    @property
    def count(self) -> int:
        """How many matrices there are."""
        return len(self.operands[-1]) if self.operands else self.matrices

    @property
    def is_captured(self) -> bool:
        """Whether the call can be part of a graph."""
        return self.function in CAPTURED

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        many = f"{self.count} of " if self.count > 1 else ""
        rows, columns = self.rows, self.columns
        if self.function not in ("potrf", "trsm"):
            rows, columns = self.height, self.width
        return f"library {self.function} {many}{rows} x {columns} in {self.dtype}"

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given; 0 for none."""
        tables = (a for table in self.operands for a in table)
        return (*tables, *self.tables, *self.pieces, self.info)
