"""Linear algebra of matrices and stacks of them, with gradients: `md.linalg.NAME`, as in NumPy and SciPy.

Arrays and Tensors are computed with at once; Variables and Operations give Operations. In compiled programs
these are calls of a library: LAPACK and BLAS on the CPU, cuSOLVER and cuBLAS on a GPU.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from . import out_of_core
from ._operands import EighResult, QRResult, SlogdetResult, SVDResult
from .eigenvalues import eigh, eigvalsh
from .equations import cholesky, det, inv, slogdet, solve, solve_triangular
from .exponentials import expm
from .factorisations.factors import LUFactors, LUResult, cho_solve, lu, lu_factor, lu_solve
from .functions import cond, kron, matrix_power, matrix_rank, norm
from .general_eigenvalues import EigResult, eig, eigvals
from .iterative.chaotic import jacobi
from .iterative.krylov import IterativeResult, cg, gmres
from .iterative.refinement import RefinedResult
from .iterative.sparse import SparseMatrix
from .least_squares import LstsqResult, lstsq, pinv
from .orthogonal import qr
from .singular_values import svd, svdvals

__all__ = [
    "EigResult",
    "EighResult",
    "IterativeResult",
    "LUFactors",
    "LUResult",
    "LstsqResult",
    "QRResult",
    "RefinedResult",
    "SVDResult",
    "SlogdetResult",
    "SparseMatrix",
    "cg",
    "cho_solve",
    "cholesky",
    "cond",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "gmres",
    "inv",
    "jacobi",
    "kron",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "matrix_power",
    "matrix_rank",
    "norm",
    "out_of_core",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.linalg", __all__)
