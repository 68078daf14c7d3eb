"""Singular values and vectors of small matrices by the kernel that turns pairs of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.library.small import singular
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.errors import NumericError
from magmadnn.runtime import Executable
from tests.compiler.cuda.nvrtc import compiled, library_of
from tests.linalg.test_matrix_functions import node
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

RNG = np.random.default_rng(31)
SHAPES = [
    (1, 1),
    (2, 2),
    (3, 3),
    (7, 3),
    (3, 7),
    (5, 1),
    (1, 6),
    (16, 16),
    (9, 4, 4),
    (3, 12, 20),
    (2, 33, 20),
]
LARGE = [(40, 40), (3, 64, 1), (64, 64), (5, 32, 32), (33, 3, 2)]


def decomposed(device: str, cases: list[tuple[np.ndarray, bool]]) -> list[list[np.ndarray]]:
    """U, S and V^T of each, and S without vectors."""
    nodes = [node(a) for a, _ in cases]
    outputs: list[Any] = []
    for x, (_, full) in zip(nodes, cases, strict=True):
        outputs += [*md.linalg.svd(x, full_matrices=full), md.linalg.svdvals(x)]
    with on(device):
        run = Executable(outputs, executor="native", device="cuda")
        found = run.run({x: a for x, (a, _) in zip(nodes, cases, strict=True)})
        assert "library gesdd" not in run.text({})[run.text({}).index("# launches of a run") :]
    return [list(found[k : k + 4]) for k in range(0, len(found), 4)]


def check(a: np.ndarray, found: list[np.ndarray], what: object) -> None:
    """To n eps, times a small number: by LAPACK in float64."""
    eps, n = np.finfo(a.dtype).eps, max(a.shape[-2:])
    u, s, v, alone = (x.astype(np.float64) for x in found)
    q, wide = s.shape[-1], a.astype(np.float64)
    expected = np.linalg.svd(wide, compute_uv=False)
    size = np.maximum(expected.max(-1), np.finfo(a.dtype).tiny)[..., None]
    # eps for each of a hundred or so turns of a column, which add up at random
    bound = eps * (3 * n + 5)
    assert (np.abs(s - expected) <= bound * size).all(), what
    assert (np.abs(alone - expected) <= bound * size).all(), what
    assert (np.diff(s) <= 0).all() and (s >= 0).all(), what
    again = (u[..., :q] * s[..., None, :]) @ v[..., :q, :]
    assert (np.abs(again - wide) <= bound * size[..., None]).all(), what
    for columns in (u, np.swapaxes(v, -1, -2)):
        unit = np.swapaxes(columns, -1, -2) @ columns - np.eye(columns.shape[-1])
        assert np.abs(unit).max() <= bound, what


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.long)])
def test_drawn_matrices(device: str, dtype: str, large: bool) -> None:
    """Square, high and wide, stacks that fill no block, and bases completed."""
    shapes = LARGE if large else SHAPES
    cases = [
        (RNG.normal(size=shape).astype(dtype), full)
        for shape in shapes
        for full in {False, shape[-1] != shape[-2]}
    ]
    for (a, full), found in zip(cases, decomposed(device, cases), strict=True):
        check(a, found, (a.shape, full))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_matrices(device: str, dtype: str) -> None:
    """Zeros, low ranks, equal values, columns of all sizes, numbers at the ends of the range."""
    limits = np.finfo(dtype)
    low = RNG.normal(size=(12, 3)) @ RNG.normal(size=(3, 9))
    some = RNG.normal(size=(4, 10, 10))
    some[1] = some[1][:, :2] @ some[1][:2]
    some[2] = np.diag([1.0] * 4 + [0.0] * 6)
    some[3, :, 4] = some[3, :, 7]
    q = np.linalg.qr(RNG.normal(size=(10, 10)))[0]
    matrices = [
        np.zeros((6, 5)),
        np.ones((7, 7)),
        low,
        low.T,
        some,
        np.eye(8),
        q * np.array([1.0] * 5 + [1e-3] * 5) @ q[::-1].T,
        RNG.normal(size=(9, 9)) * np.logspace(0, -30, 9),
        np.logspace(-30, 0, 9)[:, None] * RNG.normal(size=(9, 9)),
        1 / (1.0 + np.arange(11)[:, None] + np.arange(11)),
        RNG.normal(size=(24, 7)) @ RNG.normal(size=(7, 19)),
        np.logspace(-30, 0, 18)[:, None] * RNG.normal(size=(18, 18)),
        np.logspace(-320, 0, 17) * np.eye(17),
        np.zeros((18, 18)),
        RNG.normal(size=(5, 5)) * (float(limits.max) * 1e-3),
        RNG.normal(size=(5, 5)) * (float(limits.tiny) * 1e3),
    ]
    cases = [(a.astype(dtype), True) for a in matrices]
    for number, ((a, _), found) in enumerate(zip(cases, decomposed(device, cases), strict=True)):
        check(a, found, number)


@needs_compiler
@pytest.mark.parametrize(("count", "side"), [(37, 6), (5, 20)])
def test_bits_of_a_matrix_do_not_depend_on_those_beside_it_in_a_stack(
    count: int, side: int
) -> None:
    """Though a warp turns until all of its matrices are done. One alone may have more warps."""
    rows = [*range(count)][::-1]
    for seed in range(7):  # a few let a warp turn once more beside the columns of equal length
        a = np.random.default_rng(seed).normal(size=(count, side, side))
        a[3] = np.eye(side)
        stacks = [(a, False), (a[rows], False), (a[2:4], False)]
        whole, turned, few = decomposed("emulated", stacks)
        for one, other, part in zip(whole, turned, few, strict=True):
            assert np.array_equal(one[rows], other)
            assert np.array_equal(one[2:4], part)


def test_only_a_matrix_alone_may_have_more_warps() -> None:
    """Of stacks of several matrices never; of one where `svd` says that its last digits may be others."""

    def warps(rows: int, columns: int, count: int) -> int:
        values = dict.fromkeys(singular.SmallSingular.slots, 8) | {"matrices": count}
        variant = singular.small_singular("float64", rows, columns, (True, False), values).variant
        assert isinstance(variant, singular.SmallSingular)
        return variant.warps

    for p in range(1, 65):
        for q in range(1, p + 1):
            alone, several = ({warps(*s, n) for s in ((p, q), (q, p))} for n in (1, 2))
            assert several == {warps(p, q, 10_000)}
            assert alone == several or (p >= 17 and 5 <= q <= 32), (p, q)
    assert warps(20, 20, 1) > warps(20, 20, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_wrong_is_said(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = RNG.normal(size=(3, 5, 5))
    a[1, 2, 3] = np.nan
    x = node(a)
    with on(device), pytest.raises(NumericError, match=r"svd: a\[1\] holds nan at \[2, 3\]"):
        Executable([md.linalg.svdvals(x)], executor="native", device="cuda").run({x: a})


@needs_compiler
def test_too_few_sweeps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host computes again, whose LAPACK finds them."""
    monkeypatch.setattr(singular, "_MOST_SWEEPS", 1)
    a = RNG.normal(size=(9, 9))
    with emulated_device() as engine:
        x = md.Tensor.holding(a, "DEVICE")
        found = md.linalg.svdvals(x)
        np.testing.assert_allclose(found.read(), np.linalg.svd(a)[1], rtol=1e-12)
        nodes = [n for graph in engine.graphs for n in graph.nodes]
        assert not any(isinstance(n, MatrixNode) for n in nodes)


@pytest.mark.skipif(library_of(13) is None, reason="there is no compiler of CUDA")
def test_kernels_compile() -> None:
    sizes = [
        ("float32", 5, 3, True, True, 1),
        ("float64", 20, 40, True, False, 2),
        ("float64", 33, 33, False, False, 4),
    ]
    variants = [singular.SmallSingular(*each) for each in sizes]
    assert compiled(module_text(variants), 13, (*OPTIONS, "-arch=sm_90a"))[0]
