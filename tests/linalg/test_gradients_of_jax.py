"""Gradients of functions of matrices, first and second, against those of JAX (`oracles/gradients_jax.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md

pytest.importorskip("scipy")
SIZE = 4
JAX = json.loads(Path(__file__).with_name("gradients_of_jax.json").read_text(encoding="utf-8"))
L, ops = md.linalg, md.ops


def matrix(seed: float, rows: int = SIZE, columns: int = SIZE) -> np.ndarray:
    count = np.arange(1, rows * columns + 1).reshape(rows, columns)
    return np.sin(seed + 1.7 * count * count) + 2.5 * np.eye(rows, columns)


def weighed(x: Any) -> Any:
    size = int(np.prod(x.shape))
    return (ops.reshape(x, (size,)) * np.cos(np.arange(1, size + 1) * 1.3)).sum()


def of_svd(a: Any) -> Any:
    u, s, v = L.svd(a, full_matrices=False)
    return (u * s * s) @ v


def of_eigh(a: Any) -> Any:
    w, v = L.eigh(a + ops.swapaxes(a, 0, 1))
    return (v * ops.exp(w / 4)) @ ops.swapaxes(v, 0, 1)


def of_qr(a: Any) -> Any:
    r = L.qr(a)[1]
    signs = np.sign(np.diag(np.linalg.qr(matrix(1))[1]))
    return r * signs[:, None]


def of_fft(a: Any) -> Any:
    found = md.fft.fft(a)
    return ops.real(found) ** 2 + ops.imag(found) ** 2


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "solve": lambda a: L.solve(a, matrix(3, SIZE, 2)),
    "inv": L.inv,
    "det": L.det,
    "slogdet": lambda a: L.slogdet(a)[1],
    "cholesky": lambda a: L.cholesky(a @ ops.swapaxes(a, 0, 1) + np.eye(SIZE)),
    "svdvals": L.svdvals,
    "svd": of_svd,
    "eigh": of_eigh,
    "qr": of_qr,
    "lstsq": lambda a: L.lstsq(a[:, :2], matrix(5, SIZE, 2))[0],
    "fft": of_fft,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_gradients_are_those_of_jax(name: str) -> None:
    """To 1e-10 of the largest, in float64: condition numbers are below 100."""
    a = md.variable("a", matrix(1))
    (first,) = md.grad(weighed(FUNCTIONS[name](a)), [a])
    (second,) = md.grad(weighed(first), [a])
    for found, expected in zip((first, second), JAX[name], strict=True):
        wanted = np.reshape(expected, (SIZE, SIZE))
        away = np.abs(np.asarray(found.eval().numpy()) - wanted).max()
        assert away <= 1e-10 * np.abs(wanted).max(), name


def test_every_function_has_its_gradients() -> None:
    assert FUNCTIONS.keys() | {"JAX"} == JAX.keys()
