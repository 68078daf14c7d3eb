"""Mathematical functions as vector code, inline and of any width, for float32 and float64.

`FUNCTIONS[name](code, x)` writes the function. The results differ from the true values by at most the
`MAX_ULP` below, in units in the last place of the result (measured against mpmath, see the tests; random
arguments of all magnitudes, subnormals included). Special values are IEEE 754's and C's: NaN, infinities,
signed zeros, overflow and underflow.
"""

from __future__ import annotations

from collections.abc import Callable

from ..builder import Code, Value
from .exponential import exp, expm1
from .logarithm import log, log1p
from .sigmoidal import erf, tanh

FUNCTIONS: dict[str, Callable[[Code, Value], Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
}
