"""Chains whose first layer warpgroups multiply: each model of a stack ends as by its own fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import optim
from magmadnn.compiler.cuda.clusters.kernel import ChainKernel
from magmadnn.compiler.cuda.clusters.warpgroup_kernel import WarpgroupKernel, kernel_of
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.runtime.cuda.many import cluster_leg
from tests.compiler.cuda.nvrtc import compiled, library_of
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.test_clusters import (
    Chain,
    assert_near_alone,
    chain_of,
    every_device,
    launched,
    network,
    rounded,
    rounded_step,
    samples,
    values_of,
)
from tests.runtime.cuda.test_grids import digests

__all__ = ["launched"]
Launched = list[tuple[Chain, int, int]]
BATCH = 128


def kernels_of(launched: Launched) -> list[type]:
    return [type(kernel_of(chain, 90, 227 << 10)) for chain, _, _ in launched]


@every_device
@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        pytest.param((100, 70, 3), {"metrics": ["accuracy"]}, id="a part of all tiles"),
        pytest.param((132, 128, 12), {"activation": "gelu"}, id="whole units"),
        pytest.param((128, 96, 7), {"loss": "mse", "activation": "sigmoid"}, id="squares"),
        pytest.param(
            (64, 66, 9), {"loss": "binary_cross_entropy", "activation": "swish"}, id="bits"
        ),
        pytest.param((784, 128, 10), {}, id="all memory", marks=pytest.mark.long),
    ],
)
def test_networks(device: str, sizes: Any, given: Any, launched: Launched) -> None:
    """Two batches, and one of fewer rows, which is another kernel's."""
    with on(device):
        assert_near_alone(sizes, 2 * BATCH + 18, BATCH, **given)
    assert kernels_of(launched) == [WarpgroupKernel, ChainKernel]
    assert [(count, steps) for _, count, steps in launched] == [(3, 2), (3, 1)]


@every_device
def test_bits_do_not_depend_on_other_models(device: str, launched: Launched) -> None:
    x, y = samples((68, 80, 5), 3 * BATCH)
    sizes: dict[str, Any] = {"sizes": (68, 80, 5)}
    fitted: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": False}
    with on(device):
        models = [network(k, **sizes) for k in range(3)]
        md.fit_many(models, x, y, **fitted)
        again = [network(k, **sizes) for k in (2, 0)]
        md.fit_many(again, x, y, **fitted)
        assert digests(again) == digests([models[2], models[0]])
    assert set(kernels_of(launched)) == {WarpgroupKernel}


@every_device
def test_a_model_that_fails(device: str, launched: Launched) -> None:
    """It is named, and the others go on."""
    sizes = (68, 80, 5)
    x, y = samples(sizes, BATCH, "mse")

    def build(k: int) -> md.Model:
        return network(k, sizes, loss="mse", optimizer=optim.SGD(1e30 if k == 4 else 0.1))

    given: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": False}
    with on(device):
        models = [build(k) for k in (0, 4, 1)]
        histories = md.fit_many(models, x, y, **given)
        assert launched[0][1] == 3
        assert set(kernels_of(launched)) == {WarpgroupKernel}
    assert [h.failed for h in histories] == [False, True, False]
    assert "infin" in str(histories[1].stopped) or "NaN" in str(histories[1].stopped)
    # after its first step, an epoch, weights are large, but finite
    assert [len(h) for h in histories] == [2, 1, 2]
    assert all(np.isfinite(v).all() for k in (0, 2) for v in values_of(models[k]).values())


@needs_compiler
def test_which_kernel(launched: Launched) -> None:
    with on("emulated"):
        assert_near_alone((68, 80, 5), BATCH, BATCH)
    chain = launched[0][0]
    assert isinstance(kernel_of(chain, 90, 227 << 10), WarpgroupKernel)
    assert isinstance(kernel_of(chain, 100, 227 << 10), ChainKernel)  # tiles are another's there
    assert isinstance(kernel_of(chain, 90, 100 << 10), ChainKernel)


@needs_compiler
@pytest.mark.skipif(library_of(13) is None, reason="NVRTC of CUDA 13 is not installed")
@pytest.mark.parametrize(
    ("sizes", "activation"),
    [((68, 80, 5), "tanh"), ((784, 128, 10), "relu"), ((784, 128, 10), "gelu")],
)
def test_products_are_not_waited_for(
    sizes: Any, activation: str, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text compiles; the compiler says where it waits for a product before the next is given."""
    options = (*OPTIONS, "-arch=sm_90a", "--ptxas-options=-v")
    kernel = kernel_of(chain_of(sizes, activation, monkeypatch), 90, 227 << 10)
    assert isinstance(kernel, WarpgroupKernel)
    _, log = compiled(module_text([kernel]), 13, options)
    assert "Used 168 registers" in log
    assert "serialized" not in log
    # addresses, and what the warps that copy hold beside 24 registers; no weights, which are 400 bytes
    (frame,) = {int(size) for size in re.findall(r"(\d+) bytes stack frame", log)}
    assert frame <= 320


@every_device
@pytest.mark.parametrize("kernel", [WarpgroupKernel, ChainKernel])
def test_what_is_rounded(
    device: str, kernel: Any, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kernels beside float64 with the same factors rounded: a step of one batch.

    64 eps of a sum of 128 products' sizes is about one factor on the other side of a middle of two of TF32's
    numbers. Were all there, it would be 2^-10.
    """
    sizes, rate, eps = (68, 80, 5), 0.2, np.finfo(np.float32).eps
    x, y = samples(sizes, BATCH)
    if kernel is ChainKernel:
        monkeypatch.setattr(
            cluster_leg, "kernel_of", lambda chain, *_: ChainKernel(chain, chain.resident)
        )
    with on(device):
        models = [network(k, sizes, optimizer=optim.SGD(rate)) for k in range(2)]
        began = [values_of(m) for m in models]
        histories = md.fit_many(models, x, y, batch_size=BATCH, shuffle=False, verbose=False)
    for model, initial, history in zip(models, began, histories, strict=True):
        loss, h, p, slope = rounded_step(initial, x, y)
        ones = np.ones((BATCH, 1))
        factors = ((x, slope), (ones, slope), (h, p), (ones, p))
        assert abs(history["loss"][0] - loss) <= 2.0**-11 * loss
        for (left, right), (name, first) in zip(factors, initial.items(), strict=True):
            is_weight = first.ndim == 2
            r, s = (rounded(left), rounded(right)) if is_weight else (left, right)
            expected = first - rate * (r.T @ s).reshape(first.shape)
            size = rate * (np.abs(r).T @ np.abs(s)).reshape(first.shape)
            far = np.abs(values_of(model)[name] - expected) - eps * np.abs(first)
            assert (far <= 64 * eps * size).mean() > 0.9, name
            assert (far <= 2.0**-10 * size).all(), name
    assert len(launched) == 1


@every_device
def test_models_of_different_lengths(device: str, launched: Launched) -> None:
    """Those that go on do so with the bits that they have without the one that ends."""
    x, y = samples((68, 80, 5), BATCH)
    given: dict[str, Any] = {"batch_size": BATCH, "verbose": False}
    with on(device):
        models = [network(k, (68, 80, 5)) for k in range(3)]
        histories = md.fit_many(models, x, y, epochs=[1, 2, 2], **given)
        again = [network(k, (68, 80, 5)) for k in (1, 2)]
        md.fit_many(again, x, y, epochs=2, **given)
    assert [len(h) for h in histories] == [1, 2, 2]
    assert digests(again) == digests(models[1:])
    assert set(kernels_of(launched)) == {WarpgroupKernel}


@every_device
def test_features_that_are_rounded_batch_by_batch(
    device: str, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for a rounded copy of all, results have the same bits."""
    x, y = samples((68, 80, 5), 3 * BATCH)
    given: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": False}
    found = []
    with on(device):
        for share in (cluster_leg._ROUNDED_SHARE, 0.0):
            monkeypatch.setattr(cluster_leg, "_ROUNDED_SHARE", share)
            models = [network(k, (68, 80, 5)) for k in range(2)]
            md.fit_many(models, x, y, **given)
            found.append(digests(models))
    assert found[0] == found[1]
    assert set(kernels_of(launched)) == {WarpgroupKernel}


@every_device
@pytest.mark.parametrize("kernel", [WarpgroupKernel, ChainKernel])
def test_pieces_of_models(
    device: str, kernel: Any, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are cut, so that all clusters have as much to do, give the same bits."""
    x, y = samples((68, 80, 5), 5 * BATCH)
    given: dict[str, Any] = {"batch_size": BATCH, "verbose": False}
    if kernel is ChainKernel:
        monkeypatch.setattr(
            cluster_leg, "kernel_of", lambda chain, *_: ChainKernel(chain, chain.resident)
        )
    cuts: list[tuple[int, int]] = []
    cut = cluster_leg.pieces_of

    def noted(models: int, steps: int, at_once: int) -> tuple[int, int]:
        cuts.append(cut(models, steps, 2) if cuts else (steps, models))
        return cuts[-1]

    monkeypatch.setattr(cluster_leg, "pieces_of", noted)
    monkeypatch.setattr(cluster_leg, "_STEPS_OF_ROUND", 0)
    monkeypatch.setattr(cluster_leg, "_STEPS_OF_LAUNCH", 0)
    found = []
    with on(device):
        for _ in range(2):
            models = [network(k, (68, 80, 5)) for k in range(3)]
            histories = md.fit_many(models, x, y, **given)
            found.append((digests(models), [h["loss"] for h in histories]))
    assert cuts == [(5, 3), (1, 2)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("models", "steps", "expected"),
    [(30, 512, (512, 30)), (256, 4096, (373, 240)), (32, 512, (57, 30)), (256, 16, (16, 256))],
)
def test_how_steps_are_cut(models: int, steps: int, expected: tuple[int, int]) -> None:
    """All steps of a device that runs 30 models at once are done in little more than their share."""
    each, together = cluster_leg.pieces_of(models, steps, 30)
    assert (each, together) == expected
    assert together <= models
    pieces = models * -(-steps // each)
    rounds = sum(-(-min(together, pieces - k) // 30) for k in range(0, pieces, together))
    assert rounds * each <= -(-models // 30) * steps
