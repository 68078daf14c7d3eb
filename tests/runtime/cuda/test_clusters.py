"""Models of two dense layers, each of which has a cluster of blocks: each ends as by its own fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.backends import cuda
from magmadnn.compiler.cuda.clusters.dense_chain import Chain
from magmadnn.compiler.cuda.clusters.kernel import ChainKernel
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.runtime.cuda.many import course
from magmadnn.runtime.cuda.many.cluster_leg import ClusterLeg
from magmadnn.runtime.cuda.many.stacks import StackedLeg
from tests.compiler.cuda.nvrtc import compiled, library_of
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler
from tests.runtime.cuda.test_grids import StopsItself, digests

every_device = pytest.mark.parametrize("device", DEVICES)
BATCH = 20
# Of how far training moved a variable. Four factors of a step, of which the features are one, are rounded to
# TF32, by 2^-11 at most; single fits round them on a GPU, not on the emulated device.
TOLERANCE = 4 * 2.0**-11


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Chain, int, int]]]:
    """What each launch of clusters ran, of how many models, and how many steps; no block has room for one."""
    found: list[tuple[Chain, int, int]] = []
    launch = ClusterLeg._launch

    def noted(self: ClusterLeg, *given: int) -> Any:
        found.append((self._chain, self._count, given[-1]))
        return launch(self, *given)

    monkeypatch.setattr(ClusterLeg, "_launch", noted)
    monkeypatch.setattr(course, "is_small", lambda wanted: False)
    if cuda.available()[0] and cuda.device_engine(0).capability != 90:
        pytest.skip("clusters are for GPUs of compute capability 9.0")
    monkeypatch.setattr(Emulator, "capability", 90)
    monkeypatch.setattr(Emulator, "shared_bytes", 227 << 10)
    course._groups.clear()
    yield found
    course._groups.clear()


def network(seed: int, sizes: tuple[int, ...] = (44, 21, 5), **given: Any) -> md.Model:
    width, *hidden, outputs = sizes
    activation = given.pop("activation", "tanh")
    between = [layers.Dense(units, activation=activation) for units in hidden]
    rate = (0.05, 0.2, 0.1)[seed % 3]
    return md.Model(
        [layers.Input((width,)), *between, layers.Dense(outputs)],
        loss=given.pop("loss", "cross_entropy"),
        optimizer=given.pop("optimizer", None) or optim.SGD(rate),
        seed=seed,
        device="cuda",
        precision=given.pop("precision", "tf32"),
        **given,
    )


def samples(sizes: tuple[int, ...], rows: int, loss: str = "cross_entropy") -> tuple[Any, Any]:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((rows, sizes[0]), np.float32)
    if loss == "cross_entropy":
        return x, rng.integers(0, sizes[-1], rows)
    return x, (rng.random((rows, sizes[-1])) > 0.5).astype(np.float32)


def values_of(model: md.Model) -> dict[Any, np.ndarray]:
    return {name: np.array(value) for name, value in model.values().items()}


def assert_near_alone(
    sizes: tuple[int, ...], rows: int, batch: int, epochs: int = 1, **given: Any
) -> None:
    """Trains three models together, and each alone."""
    fitted = {"batch_size": batch, "epochs": epochs}
    for name in ("validation_data", "shuffle"):
        if name in given:
            fitted[name] = given.pop(name)
    x, y = samples(sizes, rows, given.get("loss", "cross_entropy"))
    optimizer = given.pop("optimizer", lambda: None)
    together, alone = (
        [network(k, sizes, optimizer=optimizer(), **given) for k in range(3)] for _ in range(2)
    )
    began = [values_of(model) for model in alone]
    histories = md.fit_many(together, x, y, verbose=False, **fitted)
    for model, one, initial, history in zip(together, alone, began, histories, strict=True):
        own = one.fit(x, y, verbose=0, **fitted)
        for name, value in values_of(one).items():
            moved = np.abs(value - initial[name]).max()
            far = np.abs(model.values()[name] - value).max()
            assert far <= TOLERANCE * moved, (name, far, moved)
        for column in (c for c in own.columns if "second" not in c):
            np.testing.assert_allclose(history[column], own[column], rtol=TOLERANCE)


@every_device
@pytest.mark.parametrize(
    ("sizes", "batch", "given"),
    [
        pytest.param((44, 21, 5), BATCH, {}, id="a part of all tiles"),
        pytest.param((100, 70, 3), 33, {"metrics": ["accuracy"]}, id="metrics"),
        pytest.param((96, 128, 16), 32, {"activation": "gelu"}, id="whole tiles"),
        pytest.param((44, 64, 7), 24, {"loss": "mse", "activation": "sigmoid"}, id="squares"),
        pytest.param(
            (36, 24, 5), 24, {"loss": "binary_cross_entropy", "activation": "swish"}, id="bits"
        ),
    ],
)
def test_networks(
    device: str, sizes: Any, batch: int, given: Any, launched: list[tuple[Chain, int, int]]
) -> None:
    """Two batches, and one with fewer rows."""
    with on(device):
        assert_near_alone(sizes, 2 * batch + 18, batch, **given)
    assert [(chain.batch, count, steps) for chain, count, steps in launched] == [
        (batch, 3, 2),
        (18, 3, 1),
    ]


@every_device
@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": lambda: optim.SGD(optim.cosine(0.2, 7), weight_decay=0.1)},
        {"validation_data": samples((44, 21, 5), 30), "metrics": ["accuracy"]},
        {"shuffle": False},
    ],
    ids=["schedule and decay", "validation", "order"],
)
def test_fits(device: str, given: Any, launched: list[tuple[Chain, int, int]]) -> None:
    """What a fit may be told; all epochs of batches of one size are one launch."""
    with on(device):
        assert_near_alone((44, 21, 5), 2 * BATCH, BATCH, 2, **given)
    assert sum(steps for _, _, steps in launched) == 4


def rounded(values: Any) -> np.ndarray:
    """To TF32, to nearest, in float64."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def rounded_step(initial: dict[Any, np.ndarray], x: Any, y: Any) -> tuple[Any, ...]:
    """Forward and backward in float64 from weights on, with factors of products that are rounded.

    Returns the mean loss, values of the hidden layer, and the loss' gradients by the logits and by what the
    first product gives.
    """
    w1, b1, w2, b2 = (value.astype(np.float64) for value in initial.values())
    h = np.tanh(rounded(x) @ rounded(w1) + b1)
    e = np.exp(rounded(h) @ rounded(w2) + b2)
    p = e / e.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return loss, h, p, rounded(p) @ rounded(w2).T * (1 - h * h)


@every_device
def test_what_is_rounded(device: str, launched: list[tuple[Chain, int, int]]) -> None:
    """Beside float64 with factors of the first layer that are rounded, and nothing else: steps of one batch.

    What is left is float32's: of weights eps, of sums of 20 or 44 products some eps of what they move by, and
    of factors that are close to the middle of two of TF32's.
    """
    sizes, rate = (44, 21, 5), 0.2
    x, y = samples(sizes, BATCH)
    with on(device):
        models = [network(k, sizes, optimizer=optim.SGD(rate)) for k in range(2)]
        began = [values_of(m) for m in models]
        histories = md.fit_many(models, x, y, batch_size=BATCH, shuffle=False, verbose=False)
    for model, initial, history in zip(models, began, histories, strict=True):
        loss, h, p, slope = rounded_step(initial, x, y)
        moves = (rounded(x).T @ rounded(slope), slope.sum(0), rounded(h).T @ rounded(p), p.sum(0))
        eps = np.finfo(np.float32).eps
        assert abs(history["loss"][0] - loss) <= 16 * eps * loss
        for value, first, move in zip(
            values_of(model).values(), initial.values(), moves, strict=True
        ):
            expected = first.astype(np.float64) - rate * move
            spread = eps * np.abs(first) + 64 * eps * rate * np.abs(move).max()
            near = np.abs(value - expected) <= spread
            # one factor of a sum of 20 on the other side of such a middle
            slack = rate * 2.0**-10 * np.abs(slope).max() * np.abs(x).max()
            assert near.mean() > 0.95
            assert np.abs(value - expected).max() <= spread.max() + slack
    assert len(launched) == 1


@every_device
def test_models_that_end_or_fail_leave_the_others(
    device: str, launched: list[tuple[Chain, int, int]]
) -> None:
    """Their bits do not depend on how many there are; one that overflows is run by itself, and named."""
    sizes = (44, 21, 5)
    x, y = samples(sizes, 2 * BATCH, "mse")

    def build(k: int) -> md.Model:
        return network(k, sizes, loss="mse", optimizer=optim.SGD(1e30 if k == 4 else 0.1))

    given: dict[str, Any] = {"batch_size": BATCH, "verbose": False}
    with on(device):
        models = [build(k) for k in range(4)]
        histories = md.fit_many(
            models, x, y, epochs=[1, 3, 2, 3], callbacks=[StopsItself(2)], **given
        )
        assert [len(h) for h in histories] == [1, 3, 1, 3]
        again = [build(k) for k in (1, 3)]
        md.fit_many(again, x, y, epochs=3, **given)
        assert digests(again) == digests([models[1], models[3]])
        assert {count for _, count, _ in launched} == {4, 2}
        launched.clear()
        models = [build(k) for k in (0, 4, 1)]
        histories = md.fit_many(models, x, y, epochs=2, **given)
    assert [h.failed for h in histories] == [False, True, False]
    assert "infin" in str(histories[1].stopped) or "NaN" in str(histories[1].stopped)
    assert [len(h) for h in histories] == [2, 0, 2]
    assert launched[0][1] == 3


class EndedError(Exception):
    """A launch that is not to run."""


def ended(*given: Any) -> Any:
    raise EndedError


@needs_compiler
@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ((44, 21, 5), {"optimizer": optim.SGD(0.1, momentum=0.9)}),
        ((44, 21, 19, 5), {}),
        ((44, 129, 5), {}),
        ((44, 21, 17), {}),
        ((42, 21, 5), {}),
        ((44, 21, 5), {"precision": "float32"}),
        ((44, 21, 5), {"sample_weight": np.linspace(0.5, 2, BATCH, dtype=np.float32)}),
    ],
    ids=[
        "momentum",
        "three layers",
        "wide",
        "outputs",
        "features",
        "float32",
        "weights of samples",
    ],
)
def test_others_are_stacks_as_before(
    sizes: tuple[int, ...],
    given: Any,
    launched: list[tuple[Chain, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs is a leg for stacks, which its own tests run; models of weighted samples run one by one."""
    monkeypatch.setattr(StackedLeg, "run", ended)
    is_stacked = "sample_weight" not in given
    x, y = samples(sizes, BATCH)
    fitted = {name: given[name] for name in ("sample_weight",) if name in given}
    own = {name: value for name, value in given.items() if name not in fitted}
    with emulated_device(), pytest.raises(EndedError) if is_stacked else nullcontext():
        models = [network(k, sizes, **own) for k in range(2)]
        md.fit_many(models, x, y, batch_size=BATCH, verbose=False, **fitted)
    assert not launched


@needs_compiler
def test_rows_that_are_not_aligned_are_a_stacks(
    launched: list[tuple[Chain, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterLeg, "can_take", lambda self, seats: False)
    with emulated_device():
        assert_near_alone((44, 21, 5), 2 * BATCH, BATCH)
    assert not launched


@needs_compiler
def test_a_plan_tells_of_it(
    launched: list[tuple[Chain, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block has no room for the network, and the batch has enough rows."""
    x, y = samples((784, 128, 10), 130)
    with emulated_device():
        model = network(0, (784, 128, 10))
        line = "# of several models in one call each has a cluster: 4 blocks of 384 threads"
        assert line in model.plan(x, y, batch_size=128)
        assert line not in model.plan(x, y, batch_size=16)
        assert line not in network(0, (20, 9, 3)).plan(*samples((20, 9, 3), 32), batch_size=32)
        for capability in (80, 100):
            monkeypatch.setattr(Emulator, "capability", capability)
            assert line not in network(0, (784, 128, 10)).plan(x, y, batch_size=128)


def chain_of(sizes: tuple[int, ...], activation: str, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """What a launch of two networks with batches of 128 rows would run; nothing runs."""
    found: list[Chain] = []

    def noted(self: ClusterLeg, *given: int) -> Any:
        found.append(self._chain)
        raise EndedError

    monkeypatch.setattr(ClusterLeg, "_launch", noted)
    with emulated_device(), pytest.raises(EndedError):
        models = [network(k, sizes, activation=activation) for k in range(2)]
        md.fit_many(models, *samples(sizes, 128), batch_size=128, verbose=False)
    return found[0]


@needs_compiler
@pytest.mark.skipif(library_of(13) is None, reason="NVRTC of CUDA 13 is not installed")
@pytest.mark.parametrize(
    ("sizes", "resident"),
    [((96, 64, 10), 2), pytest.param((784, 128, 10), 1, marks=pytest.mark.long)],
)
def test_weights_stay_in_registers(
    sizes: tuple[int, ...],
    resident: int,
    launched: list[tuple[Chain, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text compiles, and nothing of it lies in memory beside what it says."""
    chain = chain_of(sizes, "relu", monkeypatch)
    assert chain.shared_bytes <= 227 << 10
    options = (*OPTIONS, "-arch=sm_90a", "--ptxas-options=-v")
    _, log = compiled(module_text([ChainKernel(chain)]), 13, options)
    assert "0 bytes spill stores, 0 bytes spill loads" in log
