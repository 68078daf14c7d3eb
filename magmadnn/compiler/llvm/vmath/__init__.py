"""Mathematical functions as vector code, inline and of any width, for float32 and float64.

`FUNCTIONS[name](code, x)` writes the function. The results differ from the true values by at most the
`MAX_ULP` below, in units in the last place of the result (measured against mpmath, see the tests; random
arguments of all magnitudes, subnormals included). Special values are IEEE 754's and C's: NaN, infinities,
signed zeros, overflow and underflow.
"""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.compiler.llvm.ir.builder import Value

from .exponential import exp, exp_below_zero, exp_scaled, expm1
from .logarithm import log, log1p
from .powers import power
from .sigmoidal import erf, tanh
from .trigonometric import cos, sin

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "power": power,
}
# Of arguments of which something is known; kernels put them in where it is.
SPECIAL: dict[str, Callable[..., Value]] = {
    "exp_below_zero": exp_below_zero,
    "exp_scaled": exp_scaled,
}

# The largest errors found, rounded up: for float32 and float64.
MAX_ULP = {
    "exp": (1.1, 1.05),
    "exp_below_zero": (1.1, 1.05),
    "exp_scaled": (1.3, 1.05),
    "expm1": (1.2, 1.5),
    "log": (0.85, 0.85),
    "log1p": (0.85, 0.85),
    "tanh": (1.3, 1.4),
    "erf": (1.2, 1.2),
    "sin": (0.51, 1.5),
    "cos": (0.51, 1.5),
    "power": (0.51, 1.0),
}
