"""Matrices of which most elements are 0: products with vectors and matrices, in graphs too."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import array_library
from magmadnn.errors import ArgumentError, DTypeError, MissingExtraError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.memory import Kind
from magmadnn.memory.dtypes import is_floating, refuse_masked
from magmadnn.ops import expand_dims, scatter_add, squeeze, swapaxes, take
from magmadnn.tensor import Operation, Tensor, asarray, from_dlpack

from .device_refinement import lies_on_device


class SparseMatrix:
    """A [m, n] with few elements that are not 0, by rows: a copy of what is given.

    `A @ x` and `x @ A` of arrays and Tensors are SciPy's products, or CuPy's where x lies on a GPU, and
    Tensors; of Variables and Operations an Operation: rows of x that columns name, times the values, added
    where rows say. It has gradients for x, and for `values` where these are a Variable or an Operation.

    Args:
        matrix: a SciPy sparse matrix or array of any format, or a dense array. Elements of one place are
            added.
        values: in place of the matrix's own values, one for each element as `rows` and `columns` order them.

    Attributes:
        shape: (m, n).
        rows, columns: of each element, int64, in the order of rows, then of columns.
        values: the elements.

    Raises:
        ShapeError: if it is no matrix, or there are more or fewer values than elements.
        DTypeError: for elements that are no numbers.
        MissingExtraError: if SciPy is not installed.
    """

    __array_ufunc__ = None  # `array @ A` is asked of this class

    def __init__(self, matrix: Any, values: Any = None) -> None:
        sparse = scipy_sparse("linalg.SparseMatrix")
        if not sparse.issparse(matrix):
            refuse_masked("SparseMatrix: matrix", matrix)
            matrix = np.asarray(matrix)
            if matrix.ndim != 2:
                raise ShapeError(f"SparseMatrix: expected a matrix, got shape {matrix.shape}")
        if matrix.dtype.kind not in "fciub" and not is_floating(matrix.dtype):
            raise DTypeError(f"SparseMatrix: expected numbers, got {matrix.dtype}")
        if matrix.dtype.kind in "iu":  # whose sums overflow
            matrix = matrix.astype(np.float64)
        elif matrix.dtype.itemsize == 2:  # halves, which SciPy lacks
            matrix = matrix.astype(np.float32)
        kept = sparse.csr_array(matrix, copy=True)  # elements are added up and sorted in place
        kept.sum_duplicates()
        if kept.dtype.kind == "b":
            kept = kept.astype(np.float64)
        self._matrix: Any = kept
        self.shape: tuple[int, int] = (int(kept.shape[0]), int(kept.shape[1]))
        self.rows: NDArray[np.int64] = np.repeat(np.arange(self.shape[0]), np.diff(kept.indptr))
        self.columns: NDArray[np.int64] = kept.indices.astype(np.int64)
        self.values: Any = kept.data if values is None else values
        if values is not None:
            self._check_values()

    def _check_values(self) -> None:
        if not isinstance(self.values, (Node, Operation, Tensor)):
            self.values = np.asarray(self.values)
        count = len(self.columns)
        if tuple(self.values.shape) != (count,):
            raise ShapeError(
                f"SparseMatrix: the matrix has {count} elements, and values has shape "
                f"{tuple(self.values.shape)}: give one value for each, in the order of rows and columns"
            )
        if not isinstance(self.values, (Node, Operation)):
            self._matrix = self._matrix.copy()
            self._matrix.data = np.asarray(self.values)

    def __repr__(self) -> str:
        return f"<SparseMatrix {self.shape[0]} x {self.shape[1]} with {len(self.columns)} elements>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def T(self) -> SparseMatrix:
        """The transpose."""
        turned = SparseMatrix(self._matrix.T)
        if isinstance(self.values, (Node, Operation)):
            order = np.lexsort((self.rows, self.columns))
            turned.values = take(self.values, order)
        return turned

    def to_scipy(self) -> Any:
        """This matrix as SciPy's, by rows, which shares its memory.

        Raises:
            ArgumentError: where values are an Operation.
        """
        if isinstance(self.values, (Node, Operation)):
            raise ArgumentError(
                "SparseMatrix: values are an Operation, which has none before it is run"
            )
        return self._matrix

    def __matmul__(self, x: Any) -> Any:
        lazy = isinstance(x, (Node, Operation)) or isinstance(self.values, (Node, Operation))
        if not lazy:
            return self._at_once(asarray(x))
        if not isinstance(x, (Node, Operation)):
            refuse_masked("SparseMatrix: x", x)
            x = np.asarray(x)
        self._check_fits(x)
        vector = x.ndim == 1
        given = take(expand_dims(x, -1) if vector else x, self.columns, axis=0)
        parts = expand_dims(self.values, -1) * given
        found = scatter_add(parts, self.rows, axis=0, count=self.shape[0])
        return squeeze(found, axis=-1) if vector else found

    def __rmatmul__(self, x: Any) -> Any:
        """`x @ A`, of a vector [m] or rows [k, m]."""
        if not isinstance(x, (Node, Operation, Tensor)):
            refuse_masked("SparseMatrix: x", x)
            x = np.asarray(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.shape[0]:
            raise ShapeError(
                f"SparseMatrix: x @ {self.shape[0]} x {self.shape[1]} needs x [{self.shape[0]}] or "
                f"[k, {self.shape[0]}], got shape {tuple(x.shape)}"
            )
        if x.ndim == 1:
            return self.T @ x
        return swapaxes(self.T @ swapaxes(x, 0, 1), 0, 1)

    def _check_fits(self, x: Any) -> None:
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise ShapeError(
                f"SparseMatrix: {self.shape[0]} x {self.shape[1]} @ x needs x [{self.shape[1]}] or "
                f"[{self.shape[1]}, k], got shape {tuple(x.shape)}"
            )

    def _at_once(self, x: Tensor) -> Tensor:
        self._check_fits(x)
        if not lies_on_device(x):
            values = x.numpy()
            is_half = is_floating(x.dtype) and x.dtype.itemsize == 2
            return asarray(np.asarray(self._matrix @ (values.astype("f4") if is_half else values)))
        library = array_library()
        assert library is not None
        found = on_device(self._matrix, x.device) @ array_on_device(x)
        return from_dlpack(library.ascontiguousarray(found))


def scipy_sparse(what: str) -> Any:
    """SciPy's module of sparse matrices.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        raise MissingExtraError.of("SciPy", what, "linalg") from error


def array_on_device(x: Tensor) -> Any:
    """CuPy's array on a Tensor's memory, which is a GPU's."""
    library = array_library()
    assert library is not None and x.kind is not Kind.HOST
    return library.asarray(x)


def on_device(matrix: Any, device: int) -> Any:
    """A SciPy matrix by rows as CuPy's, on a GPU."""
    library = array_library()
    assert library is not None
    with library.cuda.Device(device):
        return import_module("cupyx.scipy.sparse").csr_matrix(matrix)
