"""Shared by the tests of this folder: the device that they run on, and networks to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends import cuda
from magmadnn.runtime.cuda import code
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

FOUND, REASON = cuda.available()

GPU = [pytest.mark.gpu, pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}")]
# Each test runs on the emulated device, and on a GPU where there is one.
DEVICES = [
    pytest.param("emulated", marks=needs_compiler),
    pytest.param("gpu", marks=GPU),
]


@contextmanager
def on(device: str, functions: frozenset[str] = frozenset()) -> Iterator[None]:
    """With this device in place; on a GPU the test is skipped where its libraries lack one of `functions`."""
    if device == "gpu":
        if not functions <= cuda.device_engine(0).functions:
            pytest.skip("cuDNN is not installed")
        steps, code.ANY_SIZE_STEPS = code.ANY_SIZE_STEPS, 0  # the kernels of a long fit
        try:
            yield
        finally:
            code.ANY_SIZE_STEPS = steps
    else:
        with emulated_device(functions=functions):
            yield


def network(
    sizes: tuple[int, ...], optimizer: Any, *, activation: str = "sigmoid", **more: Any
) -> Any:
    """A perceptron for class numbers."""
    layers: list[Any] = [md.layers.Input((sizes[0],))]
    layers += [md.layers.Dense(s, activation=activation) for s in sizes[1:-1]]
    layers += [md.layers.Dense(sizes[-1])]
    return md.Model(
        layers, loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=5, **more
    )


def samples(rows: int, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and class numbers."""
    rng = np.random.default_rng(7)
    return rng.standard_normal((rows, features)).astype(np.float32), rng.integers(0, classes, rows)


def distance(a: Any, b: Any) -> float:
    """The largest difference between the parameters of two models."""
    left, right = a.values(), b.values()
    return max(float(np.abs(left[k] - right[k]).max()) for k in left)
