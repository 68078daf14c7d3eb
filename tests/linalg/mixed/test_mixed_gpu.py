"""Factors in mixed precision on a GPU with clusters of blocks."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import array_library, available

FOUND, REASON = available()


def has_clusters() -> bool:
    cupy = array_library()
    return cupy is not None and int(cupy.cuda.Device(0).compute_capability) >= 90


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}"),
]


@pytest.mark.parametrize(("n", "count"), [(4096, 1), (4099, 3)])
def test_solutions_have_the_digits_of_float64(n: int, count: int) -> None:
    if not has_clusters():
        pytest.skip("the GPU has no clusters of sixteen blocks")
    draw = np.random.default_rng(n)
    a, b = draw.normal(size=(n, n)), draw.normal(size=(n, count))
    found = md.linalg.solve(
        md.Tensor.holding(a, "DEVICE"), md.Tensor.holding(b, "DEVICE"), "refine", info=True
    )
    assert found.way == "refinement" and 0 < found.iterations <= 10
    assert found.x.kind is md.DEVICE and found.residual <= n**0.5 * np.finfo(float).eps
    x = found.x.numpy()
    size = np.abs(a).sum(1).max() * np.abs(x).max(0) + np.abs(b).max(0)
    assert (np.abs(a @ x - b).max(0) <= n**0.5 * np.finfo(float).eps * size).all()
