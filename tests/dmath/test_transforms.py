"""Fourier transforms of spread arrays against NumPy's, in slabs and pencils, and the bytes that they send."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Layout
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.functions import transforms
from magmadnn.dmath.layouts.layout import even_cuts
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from tests.dmath.drawn import parts_of

SIZES = (1, 2, 3, 5, 7, 8, 12)


def drawn(rng: random.Random, shape: tuple[int, ...], workers: int) -> Layout:
    return resolve(Blocks(tuple(rng.randint(1, n) for n in shape)), shape, workers)


def close(block: Any, expected: Any, dtype: Any, terms: int) -> None:
    """Each sum of n terms by at most log2(n) roundings of a butterfly, of values below sum |x| <= n."""
    assert block.dtype == dtype
    real = np.dtype(dtype).type(0).real.dtype
    bound = 8 * np.finfo(real).eps * max(1, np.log2(terms)) * terms
    assert np.abs(np.asarray(block) - expected).max(initial=0) <= bound


@pytest.mark.parametrize("seed", range(40))
def test_transforms_are_numpys(seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    ndim, workers = rng.randint(1, 4), rng.randint(1, 7)
    shape = tuple(rng.choice(SIZES) for _ in range(ndim))
    axes = rng.sample(range(ndim), rng.randint(1, ndim))
    kind = rng.choice(["fft", "ifft", "rfft", "irfft"])
    norm, pencils = rng.choice(["backward", "ortho", "forward"]), rng.choice([None, False, True])
    wide = rng.random() < 0.5
    x = draw.uniform(-1, 1, shape)
    if kind in ("ifft", "irfft") or (rng.random() < 0.3 and kind == "fft"):
        x = x + 1j * draw.uniform(-1, 1, shape)
    x = x.astype(
        {"f": (np.float32, np.float64), "c": (np.complex64, np.complex128)}[x.dtype.kind][wide]
    )
    size = rng.randint(1, 9) if kind == "irfft" else 0
    if kind == "irfft":
        sizes = [shape[a] for a in axes[:-1]] + [size]
        expected = np.fft.irfftn(x.astype(complex), s=sizes, axes=axes, norm=norm)  # type: ignore[arg-type]
    else:
        expected = getattr(np.fft, f"{kind}n")(
            x.astype(complex if kind != "rfft" else float), axes=axes, norm=norm
        )
    dtype = np.dtype(
        [np.float32, np.float64][wide] if kind == "irfft" else [np.complex64, np.complex128][wide]
    )
    lies = drawn(rng, shape, workers)

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm)
        made = transforms.transform(parts_of(team, x, lies), kind, axes, dtype, size, norm, pencils)
        assert made.layout == transforms.ended(lies, kind, axes, size, pencils)[0]
        assert made.shape == expected.shape
        assert sorted(made.blocks) == sorted(made.layout.held[comm.rank])
        for number, block in made.blocks.items():
            box = tuple(slice(*span) for span in made.layout.boxes[number])
            close(block, expected[box], dtype, x.size * max(size, 1))

    simulate(workers, one)


def test_pencils_send_within_rows_of_the_grid_and_slabs_once() -> None:
    n, workers = 12, 6
    shape = (n, n, n)
    pencils = transforms.stages(
        Layout(
            shape,
            (even_cuts(n, 2), even_cuts(n, 3), (0, n)),
            tuple((w,) for w in range(6)),
            workers,
        ),
        (0, 1, 2),
        True,
    )
    assert [one.axes for one in pencils] == [(2,), (1,), (0,)]
    for before, after, partners in zip(pencils, pencils[1:], (2, 1), strict=False):
        table = traffic(before.layout, after.layout)
        assert (table > 0).sum(axis=1).max() == partners
    slabs = transforms.stages(resolve(md.dmath.Rows(), shape, workers), (0, 1, 2), False)
    assert [one.axes for one in slabs] == [(1, 2), (0,)]
    assert traffic(slabs[0].layout, slabs[1].layout).sum() == n**3 * (workers - 1) // workers
    many = transforms.stages(resolve(md.dmath.Rows(), (4, 8, 8), 16), (0, 1, 2), None)
    assert [len(one.layout.active) for one in many] == [16, 16, 16]  # of slabs 8 would have nothing


def test_a_transform_there_and_back_from_the_client() -> None:
    w = md.workers.Workers(0)
    x = np.random.default_rng(0).standard_normal((6, 5, 4)).astype(np.float32)
    X = w.array(x, layout=md.dmath.Rows())
    there = md.dmath.fft.fftn(X)
    assert there.dtype == np.complex64
    np.testing.assert_allclose(np.asarray(there), np.fft.fftn(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(md.dmath.fft.ifftn(there)), x, atol=1e-5)
    half = md.dmath.fft.rfft2(X)
    assert half.shape == (6, 5, 3)
    back = md.dmath.fft.irfft2(half, layout=md.dmath.Columns())
    np.testing.assert_allclose(np.asarray(back), x, atol=1e-5)
    whole = md.dmath.fft.fft(w.array(np.arange(5)))
    np.testing.assert_allclose(np.asarray(whole), np.fft.fft(np.arange(5.0)), atol=1e-12)
    np.testing.assert_allclose(
        np.asarray(md.dmath.fft.irfft(md.dmath.fft.rfft(w.array(np.arange(5.0))), n=5)),
        np.arange(5.0), atol=1e-12,
    )  # fmt: skip
    text = w.explain(lambda: md.dmath.fft.fftn(X, decomposition="pencils"))
    assert text.startswith("fft: sends at most 0.00 MB; result: 1 x 1 x 1 blocks")
    w.close()


def test_wrong_arguments_are_refused() -> None:
    w = md.workers.Workers(0)
    x = w.ones((3, 4))
    with pytest.raises(
        ArgumentError, match="norm must be one of backward, ortho, forward, got 'other'"
    ):
        md.dmath.fft.fft(x, norm="other")
    with pytest.raises(ArgumentError, match="'slabs', 'pencils' or None, got 'cubes'"):
        md.dmath.fft.fft2(x, decomposition="cubes")
    with pytest.raises(ShapeError, match="sizes are whole numbers from 1, got 0"):
        md.dmath.fft.fft(x, n=0)
    with pytest.raises(ShapeError, match="must be different ones"):
        md.dmath.fft.fftn(x, axes=(1, 1))
    with pytest.raises(ShapeError, match="axis 0 is empty"):
        md.dmath.fft.fft2(w.ones((0, 4)))
    with pytest.raises(ShapeError, match="would have 0 elements"):
        md.dmath.fft.irfft(w.ones((3, 1)))
    with pytest.raises(DTypeError, match="takes real numbers, got complex128: take fftn"):
        md.dmath.fft.rfftn(md.dmath.fft.fftn(x))
    w.close()
