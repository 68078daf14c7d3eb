"""Models with convolutions as one program: each as by its own fit, by calls of a library and by groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS, ConvolutionNode
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.graph.transforms.stacking import stacked_program
from magmadnn.memory import as_dtype
from magmadnn.ops.images import _models
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.many import stacked_group
from magmadnn.runtime.cuda.many.stacks import StackedLeg
from magmadnn.runtime.cuda.running import planned
from magmadnn.runtime.cuda.schedule import small
from tests.ops.test_convolutions import draw
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.runtime.cuda.test_grids import StopsItself, digests
from tests.runtime.cuda.test_stacked_models import ROUNDINGS

every_device = pytest.mark.parametrize("device", DEVICES)
every_way = pytest.mark.parametrize("way", _models.WAYS)
BATCH, CLASSES = 4, 3
RNG = np.random.default_rng(11)
X = RNG.standard_normal((14, 8, 8, 3)).astype(np.float32)
Y = RNG.integers(0, CLASSES, 14)
MOST_MODELS = 3
pytestmark = pytest.mark.usefixtures("stacks")


def network(seed: int, *between: Any, filters: int = 20, **given: Any) -> md.Model:
    """Few channels in the first convolution, more than kernels of our own take in the second."""
    net = [
        layers.Input((8, 8, 3)),
        layers.Conv2D(6, 3, padding=1, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(filters, 3, padding=1, activation="relu"),
        *between,
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(CLASSES),
    ]
    usual = {"optimizer": optim.SGD(0.02 + 0.01 * seed, momentum=0.9), "loss": "cross_entropy"}
    return md.Model(net, seed=seed, **({**usual, "device": "cuda"} | given))


def residual(seed: int) -> md.Model:
    """A block of a residual network, whose shortcut has strides."""
    x = inputs = layers.Input((8, 8, 3))
    options: dict[str, Any] = {"padding": 1, "use_bias": False}
    y = layers.Conv2D(8, 3, strides=2, **options)(x)
    y = layers.Activation("relu")(layers.BatchNorm()(y))
    y = layers.BatchNorm()(layers.Conv2D(8, 3, **options)(y))
    x = layers.BatchNorm()(layers.Conv2D(8, 1, strides=2, use_bias=False)(x))
    x = layers.Activation("relu")(x + y)
    x = layers.Dense(CLASSES)(layers.Flatten()(x))
    rate = optim.SGD(0.05, momentum=0.9)
    given = {"loss": "cross_entropy", "optimizer": rate, "seed": seed, "device": "cuda"}
    return md.Model(inputs=inputs, outputs=x, **given)


NETWORKS: dict[str, Any] = {
    "library": network,
    "few channels": lambda k: network(k, filters=16),
    "norm": lambda k: network(k, layers.BatchNorm(), layers.LocalResponseNormalization()),
    "dropout": lambda k: network(k, layers.Dropout(0.3)),
    "residual": residual,
}
USUAL = ("library", "residual")
GIVEN: dict[str, Any] = {"batch_size": BATCH, "epochs": 2}


def assert_near_alone(build: Any, count: int = 3, **given: Any) -> None:
    """Parameters, states and histories are those of single fits, up to the rounding of sums."""
    given = GIVEN | given
    together, alone = ([build(k) for k in range(count)] for _ in range(2))
    histories = md.fit_many(together, X, Y, verbose=False, **given)
    for k, (model, one, history) in enumerate(zip(together, alone, histories, strict=True)):
        epochs = given["epochs"][k] if isinstance(given["epochs"], list) else given["epochs"]
        expected = one.fit(X, Y, verbose=0, **(given | {"epochs": epochs}))
        tolerance = ROUNDINGS * np.finfo(np.float32).eps * epochs * -(-len(X) // BATCH)
        for name, value in one.values().items():
            found, right = np.asarray(model.values()[name]), np.asarray(value)
            assert np.abs(found - right).max() <= tolerance * max(np.abs(right).max(), 1), name
        for name in (c for c in expected.columns if "second" not in c):
            np.testing.assert_allclose(history[name], expected[name], rtol=4 * tolerance)
    flat = [np.concatenate([np.ravel(v) for v in m.values().values()]) for m in together]
    assert all(np.abs(flat[0] - other).max() > 1e-3 for other in flat[1:])


@every_device
@pytest.mark.parametrize(
    "name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS]
)
def test_networks_are_as_by_their_own_fits(
    device: str, name: str, stacks: list[tuple[int, bool]]
) -> None:
    """With what is evaluated after each epoch, where normalisations are parts of the calls."""
    with on(device, FUSED_CONVOLUTIONS):
        assert_near_alone(NETWORKS[name], validation_data=(X[:5], Y[:5]))
    assert stacks
    assert set(stacks) == {(3, True)}


def noted_legs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, StackedLeg]]:
    """What stacks are made of from now on: a leg of one model, and that of all."""
    legs: list[tuple[Any, StackedLeg]] = []
    begin = StackedLeg.__init__

    def noted(self: StackedLeg, wanted: Any, *given: Any) -> None:
        begin(self, wanted, *given)
        legs.append((wanted, self))

    monkeypatch.setattr(StackedLeg, "__init__", noted)
    return legs


@every_device
def test_groups_are_another_way(
    device: str, stacks: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_models, "way", "groups")
    legs = noted_legs(monkeypatch)
    with on(device, FUSED_CONVOLUTIONS):
        assert_near_alone(network)
    assert set(stacks) == {(3, True)}
    names = [n.op.name for w in legs[0][1]._runner.plan.work for n in w.region.nodes]
    assert "_convolution_filters_whole" in names
    assert not any("_convolutions" in name for name in names)


@needs_compiler
def test_a_stack_copies_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves are filters, as in a step of one model; calls of the library are one for each model."""
    legs = noted_legs(monkeypatch)
    monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)
    monkeypatch.setattr(planned, "OF_FEW_POOLED", frozenset())
    with emulated_device(functions=FUSED_CONVOLUTIONS) as engine:
        assert engine is not None
        md.fit_many([network(k) for k in range(3)], X, Y, verbose=False, **GIVEN)
        calls = Counter(
            (n.function, n.shapes) for g in engine.graphs for n in g.nodes
            if isinstance(n, ConvolutionNode) and n.shapes[0][0] == BATCH
        )  # fmt: skip
    wanted, leg = legs[0]
    for plan, axes in ((wanted.runner.plan, 4), (leg._runner.plan, 5)):
        moves = [w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE]
        assert len(moves) == 4  # of both filters, and their gradients
        assert all(node.ndim == axes for node in moves)
    names = [n.op.name for w in leg._runner.plan.work for n in w.region.nodes]
    assert names.count("_convolutions_biased") == 2  # with bias and ReLU
    assert "_max_pooling_positive_inputs_whole" in names  # which cuts at ReLU as it goes
    assert calls
    assert all(not count % 3 for count in calls.values())


# --- single steps -----------------------------------------------------------------------------------


def of(shape: tuple[Any, ...], dtype: str, name: str) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


def with_gradients(
    seed: int, dtype: str
) -> tuple[Program, dict[Node, np.ndarray], list[list[np.ndarray]]]:
    """A random convolution of small integers and its gradients for models, and what each gives alone."""
    x, w, settings = draw(seed)
    rng = np.random.default_rng(seed)
    image, filters = of(x.shape, dtype, "x"), of(w.shape, dtype, "w")
    y = md.ops.convolution(image, filters, **settings)
    assert isinstance(y, Node)
    outputs = of(tuple(int(n) for n in y.shape), dtype, "g")
    bias = of((w.shape[-1],), dtype, "b")
    made = md.ops.relu(y + bias)
    program = Program((made, *gradient(md.ops.sum(made * outputs), [image, filters, bias])))
    sizes = {image: x.shape, filters: w.shape, outputs: outputs.shape, bias: bias.shape}
    feeds = {
        n: rng.integers(-3, 4, (MOST_MODELS, *shape)).astype(as_dtype(dtype))
        for n, shape in sizes.items()
    }
    alone = [
        Executable(program.outputs, executor="reference").run({n: a[k] for n, a in feeds.items()})
        for k in range(MOST_MODELS)
    ]
    fed: dict[Node, np.ndarray] = {}

    def leaf(nodes: tuple[Node, ...]) -> Node:
        node = nodes[0]
        there = of((MOST_MODELS, *node.shape), dtype, node.name)
        fed[there] = feeds[node]
        return there

    return stacked_program([program] * MOST_MODELS, leaf), fed, alone


@every_device
@every_way
@pytest.mark.parametrize("few", [True, False])
def test_random_convolutions_are_exact(
    device: str, way: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one to three axes, with any padding, strides, dilation and groups: no bit of a sum may differ."""
    monkeypatch.setattr(_models, "way", way)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    if not few:
        monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)
    with on(device, FUSED_CONVOLUTIONS):
        for seed in range(4 if device == "emulated" else 24):
            program, fed, alone = with_gradients(seed, "float32")
            run = Executable(program.outputs, executor="native", device="cuda", check=True)
            for found, each in zip(run.run(fed), zip(*alone, strict=True), strict=True):
                assert np.array_equal(found, np.stack(each)), (seed, run.text({}))
            assert ("_convolutions_filters_whole" in run.text({})) == (way == "calls")


@every_device
def test_a_constant_that_models_share_is_part_of_their_calls(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)
    image, filters = of((4, 6, 5, 3), "float32", "x"), of((3, 3, 3, 8), "float32", "w")
    shift = np.arange(8, dtype=np.float32) * 9 - 30
    y = md.ops.relu(md.ops.convolution(image, filters) + shift)
    rng, fed = np.random.default_rng(4), dict[Node, np.ndarray]()

    def leaf(nodes: tuple[Node, ...]) -> Node:
        there = of((MOST_MODELS, *nodes[0].shape), "float32", nodes[0].name)
        fed[there] = rng.integers(-3, 4, there.shape).astype(np.float32)
        return there

    with on(device, FUSED_CONVOLUTIONS):
        program = stacked_program([Program((y,))] * MOST_MODELS, leaf)
        run = Executable(program.outputs, executor="native", device="cuda", check=True)
        (found,) = run.run(fed)
        assert "_convolutions_biased" in run.text({})
    x, w = fed.values()
    alone = Executable([y], executor="reference")
    for k in range(MOST_MODELS):
        (right,) = alone.run({image: x[k], filters: w[k]})
        assert (right == 0).any()
        assert (right > 0).any()
        assert np.array_equal(found[k], right)


@every_device
@pytest.mark.parametrize("precision", ["mixed_bf16", "mixed_fp16"])
def test_halves(device: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers have the digits of halves, and so have sums of few of them."""
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    with on(device, FUSED_CONVOLUTIONS):
        for seed in range(3):
            program, fed, alone = with_gradients(seed, "float32")
            run = Executable(
                program.outputs, executor="native", device="cuda", precision=precision
            ).run(fed)
            digits = 2.0 ** -(7 if precision == "mixed_bf16" else 10)
            for found, each in zip(run, zip(*alone, strict=True), strict=True):
                right = np.stack(each)
                scale = np.abs(right).max(initial=1)
                assert np.abs(found - right).max(initial=0) <= 2 * digits * scale, seed


# --- what happens on the way --------------------------------------------------------------------------


@needs_compiler
def test_models_end_at_different_times(stacks: list[tuple[int, bool]]) -> None:
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        assert_near_alone(network, 4, epochs=[2, 1, 3, 3])
    assert {count for count, _ in stacks} == {4, 2}


@needs_compiler
def test_callbacks_stop_one_model(stacks: list[tuple[int, bool]]) -> None:
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        models = [network(k) for k in range(3)]
        histories = md.fit_many(
            models, X, Y, callbacks=[StopsItself(1)], verbose=False, **(GIVEN | {"epochs": 3})
        )
    assert [len(h) for h in histories] == [3, 1, 3]
    assert [count for count, _ in stacks] == [3, 2, 2]


@needs_compiler
def test_a_model_that_fails_is_dropped_as_it_was(stacks: list[tuple[int, bool]]) -> None:
    y = np.eye(CLASSES, dtype=np.float32)[Y]

    def build(k: int) -> md.Model:
        return network(k, optimizer=optim.SGD(1e4 if k == 1 else 0.01), loss="mse", metrics=[])

    given: dict[str, Any] = {"batch_size": BATCH, "epochs": 6}
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        together, alone = [build(k) for k in range(3)], build(1)
        histories = md.fit_many(together, X, y, verbose=False, **given)
        assert [h.failed for h in histories] == [False, True, False]
        with pytest.raises(md.errors.NumericError) as caught:
            alone.fit(X, y, verbose=0, **given)
        assert histories[1].stopped == str(caught.value)
        assert digests([alone]) == digests(together[1:2])
        assert [len(h) for h in histories][::2] == [6, 6]
    assert (3, False) in stacks


@needs_compiler
def test_checkpoints_go_on(tmp_path: Path, stacks: list[tuple[int, bool]]) -> None:
    def keeping(k: int) -> list[Any]:
        return [md.callbacks.Checkpoint(tmp_path / str(k))]

    with emulated_device(functions=FUSED_CONVOLUTIONS):
        for epochs in (1, 3):
            again = [network(k, layers.BatchNorm()) for k in range(3)]
            given = GIVEN | {"epochs": epochs}
            md.fit_many(again, X, Y, callbacks=keeping, verbose=False, **given)
        whole = [network(k, layers.BatchNorm()) for k in range(3)]
        md.fit_many(whole, X, Y, verbose=False, **(GIVEN | {"epochs": 3}))
        assert digests(again) == digests(whole)
    assert {count for count, _ in stacks} == {3}


@needs_compiler
def test_programs_have_as_many_models_as_memory_has_room_for(
    stacks: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the share of a device's memory, and by what `memory_limit` leaves beside parameters."""
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        one = network(0).memory(X, Y, batch_size=BATCH)
        own = one.parameters + one.optimizer + one.copies
        rest = network(0).memory(X, Y, batch_size=len(X) % BATCH)
        values = sum(m.activations + m.gradients + m.batch for m in (one, rest))
        taken = 2 * (one.parameters + one.optimizer) + values
        limit = 5 * own + int(2.5 * taken)
        assert limit > 5 * own + values + one.workspace  # all five are under way
        assert_near_alone(network, 5, memory_limit=limit, epochs=1)
        assert set(stacks) == {(2, True)}
        stacks.clear()
        monkeypatch.setattr(stacked_group, "_SHARE", 0)
        md.fit_many([network(k) for k in range(3)], X, Y, verbose=False, **GIVEN)
        assert not stacks


@needs_compiler
def test_each_device_has_its_own_room(stacks: list[tuple[int, bool]]) -> None:
    with emulated_device(functions=FUSED_CONVOLUTIONS, devices=2):
        models, alone = ([network(k, device=f"cuda:{k % 2}") for k in range(4)] for _ in range(2))
        md.fit_many(models, X, Y, memory_limit=1 << 28, verbose=False, **GIVEN)
        assert set(stacks) == {(2, True)}
        for model in alone:
            model.fit(X, Y, verbose=0, **GIVEN)
        for one, other in zip(models, alone, strict=True):
            for found, right in zip(one.values().values(), other.values().values(), strict=True):
                np.testing.assert_allclose(np.asarray(found), np.asarray(right), atol=1e-5)


@every_device
def test_biases_at_odd_addresses_are_added_before_halves_are_rounded(device: str) -> None:
    """Six halves are 12 bytes: the library wants multiples of 16, and gets a copy of each model's."""
    x, w = np.ones((2, 1, 3, 3, 8), "float16"), np.full((2, 6, 3, 3, 8), 28, "float16")
    w[..., 0] = 32
    x[:, :, 0, 0, 0] = 1 - 1 / 32  # 9 x (32 + 7 x 28) - 1 = 2051, where halves are multiples of 2
    bias = np.full((2, 6), -2050, "float16")
    given = {
        placeholder(name, Spec(a.shape, a.dtype)): a
        for name, a in {"x": x, "w": w, "bias": bias}.items()
    }
    sizes = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    made = _models.convolutions_biased(*given, **sizes, positive=False)
    with on(device, FUSED_CONVOLUTIONS):
        run = Executable([made], executor="native", device="cuda", check=True)
        (found,) = run.run(given)
    assert np.array_equal(found, np.ones((2, 1, 1, 1, 6), "float16"))
