"""Factors and solutions of matrices larger than the memory of a GPU: `md.linalg.out_of_core.NAME`.

The matrix stays in the host's memory, or in a file that is mapped there. Strips of its columns go to the
device and come back while others are computed with. Results are NumPy arrays of the host.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from .cholesky_factor import CholeskyFactor, cho_factor
from .elimination import lu_factor
from .pinned import pinned_empty
from .solving import cho_solve, lu_solve, solve

__all__ = [
    "CholeskyFactor",
    "cho_factor",
    "cho_solve",
    "lu_factor",
    "lu_solve",
    "pinned_empty",
    "solve",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.linalg.out_of_core", __all__)
