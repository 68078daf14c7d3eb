"""Random graphs on a device: against the reference, forward, gradients and updates."""

from __future__ import annotations

import functools

import pytest

from magmadnn.executor import Executable
from tests.compiler import native_graphs
from tests.compiler.native_draw import draw
from tests.compiler.native_graphs import fault, shrunk
from tests.executor.cuda.devices import DEVICES, FOUND, REASON, on


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = draw(seed)
    there = functools.partial(Executable, device="cuda")
    monkeypatch.setattr(native_graphs, "Executable", there)
    if (why := fault(case)) is not None:
        small = shrunk(case)
        pytest.fail(f"seed {seed}: {why}\nshrunk: {fault(small)}\n{small.text()}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(8))
def test_device_computes_what_the_reference_does(
    device: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on(device):
        check(seed, monkeypatch)


@pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}")
@pytest.mark.parametrize("block", range(50))
def test_a_gpu_computes_what_the_reference_does_on_many(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(10 * block, 10 * (block + 1)):
        check(seed, monkeypatch)
