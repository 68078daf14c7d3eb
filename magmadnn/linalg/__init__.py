"""Linear algebra of matrices and stacks of them, with gradients: `md.linalg.NAME`, with SciPy's names.

Each function takes Tensors, Operations, arrays or numbers, as those of `md.ops` do. In compiled programs they
are calls of a library: LAPACK and BLAS on the CPU, cuSOLVER and cuBLAS on a GPU.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from .factorisation import cholesky
from .triangular import solve_triangular

__all__ = ["cholesky", "solve_triangular"]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.linalg", __all__)
