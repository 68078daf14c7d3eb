"""Linear algebra of matrices and stacks of them, with gradients: `md.linalg.NAME`, as in NumPy and SciPy.

Arrays and Tensors are computed with at once; Variables and Operations give Operations. In compiled programs
these are calls of a library: LAPACK and BLAS on the CPU, cuSOLVER and cuBLAS on a GPU.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from .eigenvalues import eigh, eigvalsh
from .equations import det, inv, slogdet, solve
from .factorisation import cholesky
from .singular_values import svd, svdvals
from .triangular import solve_triangular

__all__ = [
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.linalg", __all__)
