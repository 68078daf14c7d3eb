"""The inverse of the normal distribution function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Coefficients of numerator and denominator, constant term first; for |p - 1/2| <= 0.425, and for
# r = sqrt(-log(min(p, 1 - p))) up to 5.
_CENTRE = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
        1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)  # fmt: skip
_TAIL = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)  # fmt: skip


def normal_quantile(p: Array) -> Array:
    """Z with P(Z <= z) = p for a standard normal Z, to about 1e-16 relative.

    p must lie between 1e-10 and 1 - 1e-10, which is where the two rational functions here hold.

    Source: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
    Statistics 37 (1988), routine PPND16.
    """
    q = p - 0.5
    centre = q * _ratio(0.180625 - q * q, _CENTRE)
    tail = _ratio(np.sqrt(-np.log(np.minimum(p, 1 - p))) - 1.6, _TAIL)
    return np.where(np.abs(q) <= 0.425, centre, np.copysign(tail, q))


def _ratio(x: Array, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    above, below = (np.polynomial.polynomial.polyval(x, c) for c in coefficients)
    result: Array = above / below
    return result
