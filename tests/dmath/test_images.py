"""Convolutions and pooling of images that are spread over workers, against the same on one."""

from __future__ import annotations

import random

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.functions.images import of_windows
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import MagmaDNNError
from tests.dmath.drawn import check_parts, parts_of

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(6))
def test_each_worker_computes_its_images(seed: int) -> None:
    rng, workers = random.Random(seed), seed % 4 + 1
    x = DRAW.integers(-3, 4, (5, 7, 6, 2)).astype(np.float32)
    w = DRAW.integers(-3, 4, (3, 2, 2, 4)).astype(np.float32)
    lies = resolve(Blocks(tuple(rng.randint(1, n) for n in x.shape)), x.shape, workers)
    filters = resolve(Blocks((2, 2, 2, 2)), w.shape, workers)
    cases = [
        ("convolution", {"strides": 2, "padding": "same"}, w),
        ("max_pooling", {"size": 2}, None),
        ("average_pooling", {"size": 3, "padding": "same"}, None),
    ]
    for name, settings, second in cases:
        more = [] if second is None else [second]
        expected = np.asarray(getattr(ops, name)(x, *more, **settings))

        def one(
            comm: SimulatedCommunicator,
            name: str = name,
            settings: dict = settings,
            second: np.ndarray | None = second,
            expected: np.ndarray = expected,
        ) -> None:
            team = Team(comm)
            more = None if second is None else parts_of(team, second, filters)
            places, dtype = list(expected.shape[1:]), expected.dtype
            made = of_windows(name, parts_of(team, x, lies), more, places, dtype, settings)
            check_parts(made, expected, 1e-6)

        simulate(workers, one)


def test_from_the_client() -> None:
    w = md.workers.Workers(0)
    x = DRAW.standard_normal((4, 8, 8, 3)).astype(np.float32)
    f = DRAW.standard_normal((3, 3, 3, 5)).astype(np.float32)
    X = w.array(x, layout=md.dmath.Blocks((2, 8, 8, 3)))
    made = md.dmath.max_pooling(md.dmath.relu(md.dmath.convolution(X, f, padding="same")), 2)
    expected = np.asarray(
        ops.max_pooling(np.maximum(ops.convolution(x, f, padding="same"), 0), size=2)
    )
    np.testing.assert_allclose(np.asarray(made), expected, rtol=1e-5, atol=1e-5)
    assert made.shape == (4, 4, 4, 5) and made.layout.grid == (2, 1, 1, 1)
    assert w.explain(lambda: md.dmath.average_pooling(X, 2)).endswith("on workers 0 of 1")
    with pytest.raises(MagmaDNNError, match="convolution"):
        md.dmath.convolution(X, f[:, :, :2])
    w.close()
