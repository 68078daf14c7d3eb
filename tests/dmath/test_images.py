"""Convolutions and pooling of images that are spread over workers, against the same on one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.comm import Communicator, simulate
from magmadnn.dmath import Blocks
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.team import Shared, Team
from magmadnn.dmath.devices import on_devices
from magmadnn.dmath.functions import images
from magmadnn.dmath.functions.images import of_windows
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.libraries import in_this_process
from magmadnn.errors import MagmaDNNError
from tests.dmath import gpu
from tests.dmath.drawn import check_parts, parts_of
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

DRAW = np.random.default_rng(0)


CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("convolution", {"strides": 2, "padding": "same"}, True),
    ("max_pooling", {"size": 2}, False),
    ("average_pooling", {"size": 3, "padding": "same"}, False),
]


def each_computes_its_images(seed: int, team_of: Callable[[Communicator], Team]) -> list[Team]:
    """Of random layouts, against the same function of all images; the teams of the last workers."""
    rng, workers = random.Random(seed), seed % 4 + 1
    x = DRAW.integers(-3, 4, (5, 7, 6, 2)).astype(np.float32)
    w = DRAW.integers(-3, 4, (3, 2, 2, 4)).astype(np.float32)
    lies = resolve(Blocks(tuple(rng.randint(1, n) for n in x.shape)), x.shape, workers)
    filters = resolve(Blocks((2, 2, 2, 2)), w.shape, workers)
    teams: list[Team] = []
    for name, settings, has_filters in CASES:
        more = [w] if has_filters else []
        expected = np.asarray(getattr(ops, name)(x, *more, **settings))

        def one(
            comm: Communicator,
            name: str = name,
            settings: dict[str, Any] = settings,
            has_filters: bool = has_filters,
            expected: np.ndarray = expected,
        ) -> Team:
            team = team_of(comm)
            of_them = there(parts_of(team, w, filters)) if has_filters else None
            places, dtype = list(expected.shape[1:]), expected.dtype
            given = there(parts_of(team, x, lies))
            for _ in range(2):  # the second time it is compiled
                made = of_windows(name, given, of_them, places, dtype, settings)
                check_parts(here(made), expected, 1e-6)
            return team

        teams += simulate(workers, one)
    return teams


def there(x: Parts) -> Parts:
    """The array where its worker computes."""
    return replace(x, blocks={n: x.team.on_device(b) for n, b in x.blocks.items()})


def here(x: Parts) -> Parts:
    """The array on the worker's host."""
    return replace(x, blocks={n: x.team.on_host(b) for n, b in x.blocks.items()})


@pytest.mark.parametrize("seed", range(6))
def test_each_worker_computes_its_images(seed: int) -> None:
    each_computes_its_images(seed, Team)


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_each_worker_computes_its_images_on_its_gpu(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays are those of a stand-in for CuPy; programs run on emulated devices, one at a time."""
    gpu.on_stand_ins(monkeypatch)
    computes, lock = images._on_a_gpu, threading.Lock()

    def alone(team: Team, *given: Any) -> Any:
        with lock:
            before = gpu.POOL.to_device, gpu.POOL.to_host
            found = computes(team, *given)
            assert (gpu.POOL.to_device, gpu.POOL.to_host) == before
            return found

    monkeypatch.setattr(images, "_on_a_gpu", alone)
    with emulated_device(devices=4):
        teams = each_computes_its_images(seed, lambda comm: on_devices(Team(comm)))
        made = [(team.rank, program) for team in teams for program in team.programs.values()]
        assert len(made) == len(set(made)) >= len(CASES)  # of a worker's images all of one shape
        assert all(program._result.device == rank for rank, program in made)
        teams.clear()


@needs_compiler
def test_programs_that_are_not_used_any_more_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.on_stand_ins(monkeypatch)
    monkeypatch.setattr(images, "_KEPT", 2)
    x = DRAW.standard_normal((3, 6, 5, 2)).astype(np.float32)
    with emulated_device():
        w = in_this_process.__wrapped__("cuda")
        X = w.array(x)
        for size in (2, 1, 2, 3):
            found = np.asarray(md.dmath.max_pooling(X, size))
            np.testing.assert_array_equal(found, np.asarray(ops.max_pooling(x, size=size)))
        team = w._engine.worker.team
        assert len(team.programs) == 2
        team.buffers["a change of layout"] = Shared([], [], 0)
        w.close()
        assert not team.programs
        assert not team.buffers


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
