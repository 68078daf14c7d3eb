"""Eager least squares on a device: by QR where all matrices have full rank, else by singular vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.errors import NumericError, ShapeError
from magmadnn.linalg import least_squares
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler
from tests.runtime.cuda.test_eager_calls import there

pytestmark = needs_compiler
RNG = np.random.default_rng(5)
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((6, 4), (6, 2)), ((6, 4), (6,)), ((5, 5), (5, 3)), ((2, 3, 6, 4), (2, 3, 6, 1)), ((40, 34), (40, 1)),
]  # fmt: skip


@pytest.fixture
def device() -> Iterator[Emulator]:
    with emulated_device() as made:
        yield made


@pytest.fixture
def by_values(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each call that singular vectors answered on the device."""
    calls: list[int] = []
    original = least_squares._by_values

    def counted(a: Any, *rest: Any) -> Any:
        calls.extend([1] * (isinstance(a, md.Tensor) and a.kind is md.DEVICE))
        return original(a, *rest)

    monkeypatch.setattr(least_squares, "_by_values", counted)
    return calls


def check(a: np.ndarray, b: np.ndarray, rcond: float | None = None) -> None:
    """The four results are those of the host, and lie on the device."""
    found = md.linalg.lstsq(there(a), there(b), rcond)
    assert all(x.kind is md.DEVICE for x in found)
    x, residuals, rank, s = (np.asarray(one.read()) for one in found)
    wanted = [np.asarray(one) for one in md.linalg.lstsq(a, b, rcond)]
    limit = 1e-3 if a.dtype == np.float32 else 1e-11
    assert (rank == wanted[2]).all() and rank.dtype == wanted[2].dtype
    for one, other in zip((x, residuals, s), (wanted[0], wanted[1], wanted[3]), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, atol=limit * max(1, np.abs(other).max()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_full_rank_is_by_qr_and_less_by_singular_vectors(
    of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: str, device: Emulator, by_values: list[int]
) -> None:
    a, b = RNG.normal(size=of_a).astype(dtype), RNG.normal(size=of_b).astype(dtype)
    check(a, b)
    assert not by_values
    one = (0,) * (a.ndim - 2)  # a single one of a stack
    low = a.copy()
    low[(*one, slice(None), 1)] = low[(*one, slice(None), 0)]
    check(low, b)
    assert len(by_values) == 1
    low[(*one, slice(None), 1)] = 0  # R then has a 0 on its diagonal
    check(low, b)
    assert len(by_values) == 2
    check(np.zeros_like(a), b)
    s = np.linalg.svd(a, compute_uv=False)
    check(a, b, float((s[..., -1] / s[..., 0]).min()) * 1.5)  # the limit decides
    assert len(by_values) == 4
    check(a, b, float((s[..., -1] / s[..., 0]).min()) * 0.5)
    assert len(by_values) == 4


def test_wide_and_complex_matrices_are_by_singular_vectors(
    device: Emulator, by_values: list[int]
) -> None:
    check(RNG.normal(size=(3, 6)), RNG.normal(size=(3, 2)))
    a = RNG.normal(size=(5, 3)) + 1j
    check(a, a[:, :1])
    assert len(by_values) == 2


def test_what_is_wrong_is_said_of_lstsq(device: Emulator) -> None:
    a = RNG.normal(size=(6, 4))
    a[2, 1] = np.nan
    with pytest.raises(NumericError, match=r"lstsq: a holds nan at \[2, 1\]"):
        md.linalg.lstsq(there(a), there(a[:, :1]))
    with pytest.raises(ShapeError, match="lstsq"):
        md.linalg.lstsq(there(RNG.normal(size=(6, 4))), there(RNG.normal(size=(5, 1))))


def test_one_decomposition_gives_x_and_singular_values(device: Emulator) -> None:
    a = RNG.normal(size=(40, 40))
    a[:, 1] = a[:, 0]
    md.linalg.lstsq(there(a), there(a[:, :1]))
    functions = [
        [node.function for node in replay.nodes if isinstance(node, MatrixNode)]
        for replay in device.replays
    ]
    assert functions == [["geqrf", "orgqr", "gesdd"], ["gesdd"]]
