"""First and second gradients of functions of matrices by JAX, for `tests/linalg/test_gradients_of_jax.py`.

    python benchmarks/oracles/gradients_jax.py tests/linalg/gradients_of_jax.json

In an environment with JAX. Matrices are sums that need no random numbers; each function is followed by a sum
with fixed weights, so that it has one value, and the second gradient is that of the first with such weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
SIZE = 4


def matrix(seed: float, rows: int = SIZE, columns: int = SIZE) -> np.ndarray:
    """A well conditioned matrix."""
    count = np.arange(1, rows * columns + 1).reshape(rows, columns)
    return np.sin(seed + 1.7 * count * count) + 2.5 * np.eye(rows, columns)


def weighed(x: Any) -> Any:
    """The sum of all elements with fixed weights."""
    flat = jnp.ravel(x)
    return jnp.sum(flat * np.cos(np.arange(1, flat.size + 1) * 1.3))


def of_svd(a: Any) -> Any:
    """What depends on all factors and on no sign."""
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return (u * s * s) @ v


def of_eigh(a: Any) -> Any:
    """A function of a symmetric matrix."""
    w, v = jnp.linalg.eigh(a + a.T)
    return (v * jnp.exp(w / 4)) @ v.T


def of_qr(a: Any) -> Any:
    """The factor R with a positive diagonal."""
    r = jnp.linalg.qr(a)[1]
    return r * jnp.sign(jnp.diagonal(r))[:, None]


FUNCTIONS = {
    "solve": lambda a: jnp.linalg.solve(a, matrix(3, SIZE, 2)),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "slogdet": lambda a: jnp.linalg.slogdet(a)[1],
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(SIZE)),
    "svdvals": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "svd": of_svd,
    "eigh": of_eigh,
    "qr": of_qr,
    "lstsq": lambda a: jnp.linalg.lstsq(a[:, :2], matrix(5, SIZE, 2))[0],
    "fft": lambda a: jnp.abs(jnp.fft.fft(a)) ** 2,
}


def main() -> None:
    """Write the gradients."""
    found: dict[str, Any] = {"JAX": jax.__version__}
    for name, function in FUNCTIONS.items():

        def value(a: Any, function: Any = function) -> Any:
            return weighed(function(a))

        first = jax.grad(value)
        second = jax.grad(lambda a, first=first: weighed(first(a)))
        both = [np.asarray(g(matrix(1))).ravel().tolist() for g in (first, second)]
        found[name] = both
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
