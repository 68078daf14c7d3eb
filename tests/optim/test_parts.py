"""Parts and chains: clipping and decay exactly, the named chains from parts, and parts of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from magmadnn import ops, optim
from magmadnn.errors import ArgumentError, GraphError, MagmaDNNError, NumericError, ShapeError
from magmadnn.runtime import FiniteWatch
from magmadnn.tensor import placeholder, variable


def moved(optimizer: optim.Optimizer, *gradients: Any, start: float = 0.0) -> list[Any]:
    """Where parameters that begin at `start` are after one step with these gradients."""
    ws = [variable(f"w{i}", np.full(np.shape(g), start)) for i, g in enumerate(gradients)]
    loss = sum(ops.sum(w * np.asarray(g)) for w, g in zip(ws, gradients, strict=True))
    optimizer.step(loss, ws)()
    return [w.numpy() for w in ws]


# --- clipping ----------------------------------------------------------------------------------


def test_clip_value_is_exact() -> None:
    g = np.array([0.3, -0.25, 0.26, -7.0, np.inf, 0.0])
    (w,) = moved(optim.SGD(1.0, clip_value=0.25), g)
    np.testing.assert_array_equal(w, [-0.25, 0.25, -0.25, 0.25, -0.25, 0.0])


def test_clip_norm_is_that_of_all_parameters_together() -> None:
    a, b = np.array([3.0, 0.0]), np.array([[4.0], [12.0]])  # the norm of all is 13
    u, v = moved(optim.SGD(1.0, clip_norm=6.5), a, b)
    np.testing.assert_array_equal(u, -a / 2)
    np.testing.assert_array_equal(v, -b / 2)


@pytest.mark.parametrize("limit", [13.0, 13.5])
def test_clip_norm_leaves_shorter_gradients_bit_for_bit(limit: float) -> None:
    g = np.array([3.0, 4.0, 12.0])  # of norm 13
    (w,) = moved(optim.SGD(1.0, clip_norm=limit), g)
    np.testing.assert_array_equal(w, -g)


def test_clip_norm_of_zero_gradients_is_no_nan() -> None:
    (w,) = moved(optim.SGD(1.0, clip_norm=1.0), np.zeros(3))
    np.testing.assert_array_equal(w, np.zeros(3))


@pytest.mark.parametrize(
    "rule", [optim.SGD(1.0, clip_norm=1.0), optim.LARS(1.0), optim.chain(optim.LayerNormRatio())]
)
def test_a_norm_beyond_the_range_is_noticed(rule: optim.Optimizer) -> None:
    """Its squares are infinite in float64; divided by that the step would be 0, and training stand still."""
    (w,) = moved(rule, np.array([3e170, 4e170]), start=1.0)
    assert np.isnan(w).all()


def test_value_is_clipped_before_norm() -> None:
    (w,) = moved(optim.SGD(1.0, clip_value=3.0, clip_norm=2.5), np.array([30.0, 4.0]))
    np.testing.assert_allclose(w, np.array([-3.0, -3.0]) * 2.5 / np.sqrt(18), rtol=1e-15)


def test_gradients_are_clipped_before_decay_is_added() -> None:
    (w,) = moved(optim.SGD(1.0, weight_decay=0.5, clip_value=0.25), np.array([8.0]), start=3.0)
    np.testing.assert_array_equal(w, [3.0 - 0.25 - 1.5])


# --- weight decay ------------------------------------------------------------------------------


def test_decay_is_coupled_in_adam_and_decoupled_in_adamw() -> None:
    # At the first step Adam's direction is g / (|g| + eps): its length says nothing about the decay.
    eps, rate, decay = 1e-8, 0.1, 0.5
    (coupled,) = moved(optim.Adam(rate, weight_decay=decay), np.array([2.0]), start=3.0)
    (decoupled,) = moved(optim.AdamW(rate, weight_decay=decay), np.array([2.0]), start=3.0)
    direction = 2.0 / (2.0 + eps)
    assert coupled[0] == pytest.approx(3.0 - rate * 3.5 / (3.5 + eps), rel=1e-14)
    assert decoupled[0] == pytest.approx(3.0 - rate * (direction + decay * 3.0), rel=1e-14)


def test_adamw_without_decay_is_adam() -> None:
    assert optim.AdamW(0.1, weight_decay=0.0).parts() == optim.Adam(0.1).parts()


def test_sgd_with_decay_is_the_penalty_in_the_loss() -> None:
    w, v = variable("w", np.array([0.3, -2.0])), variable("v", np.array([0.3, -2.0]))
    target = np.array([1.0, 2.0])
    decayed = optim.SGD(0.1, weight_decay=0.25).step(ops.sum((w - target) ** 2), [w])
    loss = ops.sum((v - target) ** 2) + 0.25 / 2 * ops.sum(v * v)
    penalised = optim.SGD(0.1).step(loss, [v])
    for _ in range(20):
        decayed()
        penalised()
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-14)


# --- LARS and LAMB where a norm is 0 -----------------------------------------------------------


@pytest.mark.parametrize("rule", [optim.LARS, optim.LAMB])
def test_a_parameter_that_begins_at_zero_moves(rule: Any) -> None:
    (w,) = moved(rule(0.5, weight_decay=0.0), np.array([3.0, -4.0]))
    size = np.array([3.0, 4.0]) if rule is optim.LARS else np.ones(2)  # Adam's direction is a sign
    np.testing.assert_allclose(w, -0.5 * size * [1, -1], rtol=1e-6)


@pytest.mark.parametrize("rule", [optim.LARS, optim.LAMB])
def test_a_parameter_without_gradient_stays(rule: Any) -> None:
    (w,) = moved(rule(0.5, weight_decay=0.0), np.zeros(3), start=0.7)
    np.testing.assert_array_equal(w, np.full(3, 0.7))


@pytest.mark.parametrize("g", [0.0, 3.0])
@pytest.mark.parametrize("start", [0.0, 0.7])
@pytest.mark.parametrize(
    "optimizer",
    [optim.LARS(weight_decay=0.0), optim.LAMB(weight_decay=0.0), optim.SGD(clip_norm=1.0)],
    ids=lambda o: type(o).__name__,
)
def test_nothing_on_the_way_is_nan(optimizer: optim.Optimizer, g: float, start: float) -> None:
    # Not even where it is thrown away: whoever looks for the first NaN would find it there.
    w = variable("w", np.full(3, start))
    optimizer.step(ops.sum(w * g), [w]).run(watch=FiniteWatch())


def test_nodes_of_the_update_bear_the_name_of_the_optimiser() -> None:
    w = variable("w", np.ones(3))
    x = placeholder("x", (3,), "float64")
    step = optim.Adam().step(ops.sum(w * x), [w], executor="reference")
    with pytest.raises(NumericError, match="multiply in Adam: the result has infinity"):
        step.run({x: np.full(3, 1e200)}, watch=FiniteWatch())
    assert step.count == 0
    np.testing.assert_array_equal(w.numpy(), np.ones(3))


# --- chains ------------------------------------------------------------------------------------


def test_named_optimisers_are_chains() -> None:
    chain = optim.chain(
        optim.ClipNorm(1.0), optim.WeightDecay(0.01), optim.Momentum(0.9, nesterov=True),
        optim.LearningRate(0.1),
    )  # fmt: skip
    named = optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=1.0)
    assert named.parts() == chain.parts()


def test_parts_that_would_change_nothing_are_left_out() -> None:
    assert optim.SGD(0.1).parts() == (optim.LearningRate(0.1),)
    assert optim.SGD(0.0).parts() == (optim.LearningRate(0.0),)
    later = optim.piecewise((10,), (0.0, 0.1))
    assert optim.WeightDecay(later) in optim.SGD(0.1, weight_decay=later).parts()


@dataclass(frozen=True)
class Lion(optim.Part):
    """The sign of a mean of gradients: Chen et al., arXiv:2302.06675, program 1."""

    beta1: float = 0.9
    beta2: float = 0.99

    def slots(self, parameter: Any) -> dict[str, Any]:
        return {"m": np.zeros(parameter.shape, parameter.dtype)}

    def update(
        self, g: Any, w: Any, slots: Any, settings: Any, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        beta1, beta2, m = settings["beta1"], settings["beta2"], slots["m"]
        step = ops.sign(beta1 * m + (1 - beta1) * g)
        return step, {"m": beta2 * m + (1 - beta2) * g}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_part_of_ones_own(dtype: str) -> None:
    optimizer = optim.chain(Lion(), optim.WeightDecay(0.5), optim.LearningRate(0.01))
    assert optim.from_config(optimizer.config()) == optimizer
    w = variable("w", np.array([0.3, -0.8], dtype))
    step = optimizer.step(ops.sum(w * w), [w])
    assert step.settings == {
        "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5, "learning_rate": 0.01,
    }  # fmt: skip
    value, m = np.array([0.3, -0.8], dtype).astype(np.float64), np.zeros(2)
    for _ in range(30):
        step()
        g = 2 * value
        value = value - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.5 * value)
        m = 0.99 * m + 0.01 * g
    np.testing.assert_allclose(w.numpy(), value, rtol=0, atol=30 * 4 * np.finfo(dtype).eps)
    step.set(beta1=-3.0)  # its field does not say what it may be
    assert step.settings["beta1"] == -3.0


@dataclass(frozen=True)
class Centred(optim.Transform):
    """Gradients less the mean over the gradients of all parameters, with a counter for each."""

    def slots(self, parameter: Any) -> dict[str, Any]:
        return {"runs": np.zeros((), np.float64)}

    def transform(
        self, gradients: Sequence[Any], parameters: Any, slots: Any, settings: Any, count: Any
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        mean = sum(ops.mean(g) for g in gradients) / len(gradients)
        return [g - mean for g in gradients], [{"runs": count * 2} for _ in slots]


def test_a_part_that_sees_all_gradients() -> None:
    ws = [variable("u", np.zeros(2)), variable("v", np.zeros(3))]
    loss = ops.sum(ws[0] * 3) + ops.sum(ws[1] * 5)
    step = optim.chain(Centred(), optim.LearningRate(1.0)).step(loss, ws)
    step()
    step()
    np.testing.assert_array_equal(ws[0].numpy(), [2.0, 2.0])
    np.testing.assert_array_equal(ws[1].numpy(), [-2.0] * 3)
    assert float(step.state()["v/runs"]) == 4.0


# --- mistakes in parts -------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(optim.Part):
    """Makes the mistake that it is told to."""

    mistake: str = ""

    def slots(self, parameter: Any) -> dict[str, Any]:
        return {"s": np.zeros(parameter.shape, np.float32)}

    def update(
        self, g: Any, w: Any, slots: Any, settings: Any, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        results: dict[str, tuple[Any, dict[str, Any]]] = {
            "forgets a slot": (g, {}),
            "slot of another dtype": (g, {"s": slots["s"] + w}),
            "gradient of another shape": (ops.sum(g), slots),
            "gradient is a number": (1.0, slots),
        }
        return results[self.mistake]


@dataclass(frozen=True)
class Loses(optim.Transform):
    """Loses a gradient."""

    def transform(
        self, gradients: Sequence[Any], parameters: Any, slots: Any, settings: Any, count: Any
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        return [], [{}]


MISTAKES: list[tuple[Any, type[MagmaDNNError], str]] = [
    (
        Wrong("forgets a slot"), GraphError,
        "Chain.step: Wrong: expected new values for the slots ['s'] of w, got []",
    ),
    (
        Wrong("slot of another dtype"), ShapeError,
        "Chain.step: Wrong: the new value of slot s of w must be float32[3], got float64[3]",
    ),
    (
        Wrong("gradient of another shape"), ShapeError,
        "Chain.step: Wrong: the new gradient of w must be float64[3], got float64[]",
    ),
    (
        Wrong("gradient is a number"), GraphError,
        "Chain.step: Wrong: the new gradient of w must be an Operation, got float",
    ),
    (
        Loses(), GraphError,
        "Chain.step: Loses: expected 1 gradients and slots, got 0 and 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "error", "text"), MISTAKES)
def test_mistakes_in_parts(part: Any, error: type[MagmaDNNError], text: str) -> None:
    w = variable("w", np.ones(3))
    with pytest.raises(error) as caught:
        optim.chain(part).step(ops.sum(w), [w])
    assert str(caught.value) == text


def test_a_chain_wants_parts() -> None:
    with pytest.raises(ArgumentError) as caught:
        optim.chain()
    assert str(caught.value).startswith("chain: expected at least one part, for instance")
    with pytest.raises(ArgumentError) as caught:
        optim.chain(optim.Momentum(0.9), 0.1)  # type: ignore[arg-type]
    assert str(caught.value) == "chain: expected parts such as md.optim.Momentum(0.9), got 0.1"
