"""Tensors on a real device, and exchange with CuPy there."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import magmadnn.ops  # noqa: F401  # the ops behind operators
from magmadnn.backends import cuda
from magmadnn.memory import CUDA_MANAGED, DEVICE, HOST, Kind
from magmadnn.tensor.conversion import asarray, from_dlpack

HAS_DEVICE, REASON = cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=REASON)]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 100, shape).astype(np.float32)


@pytest.mark.parametrize("kind", list(Kind))
def test_values_views_and_arithmetic(kind: Kind) -> None:
    a = numbers(5, 7)
    t = asarray(a.copy(), kind=kind)
    t[1:3, ::-2] = 0.5
    a[1:3, ::-2] = 0.5
    t.T[2] += 1
    a.T[2] += 1
    assert np.array_equal(t * 2 + 1, a * 2 + 1)
    assert np.array_equal(t[[3, 0], 2:], a[[3, 0], 2:])
    assert float(t[4, 6]) == a[4, 6]
    twin = pickle.loads(pickle.dumps(t))
    assert (twin.kind, twin.tolist()) == (kind, a.tolist())
    for to in Kind:
        assert np.array_equal(t[1:, ::2].to(to), a[1:, ::2])


@pytest.mark.parametrize("kind", [DEVICE, CUDA_MANAGED])
def test_cupy_sees_the_same_memory(kind: Kind) -> None:
    import cupy

    t = asarray(numbers(5, 7), kind=kind)
    seen = cupy.asarray(t[1:, ::3])
    assert seen.shape == (4, 3)
    assert np.array_equal(seen.get(), numbers(5, 7)[1:, ::3])
    seen[2, 1] = -1
    assert t[3, 3].item() == -1
    assert isinstance(t[3, 3] == -1, type(t))


def test_from_dlpack_of_cupy() -> None:
    import cupy

    array = cupy.arange(12, dtype=np.float64).reshape(3, 4)
    t = from_dlpack(array)
    assert (t.kind, t.device, t.shape) == (DEVICE, 0, (3, 4))
    array[1, 2] = 50
    assert t[1, 2].item() == 50
    t[0, 0] = -1
    assert float(array[0, 0]) == -1
    del array
    assert t.to(HOST)[2, 3] == 11


class DlpackOnly:
    """An array that offers nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)


def test_an_array_with_dlpack_only() -> None:
    import cupy

    array = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    t = from_dlpack(DlpackOnly(array))
    array[1, 2] = 50
    assert (t.kind, t[1, 2].item()) == (DEVICE, 50)


def test_dlpack_gives_the_memory_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    import cupy

    t = asarray(numbers(5, 7), kind=DEVICE)
    for library in (cupy, torch):
        seen = library.from_dlpack(t)
        assert seen.shape == (5, 7)
        seen[1, 2] = -7
        assert t[1, 2].item() == -7
        seen[1, 2] = 3
    kept = cupy.from_dlpack(t)
    del t
    asarray(np.zeros((5, 7), np.float32), kind=DEVICE)
    assert float(kept[1, 2]) == 3
