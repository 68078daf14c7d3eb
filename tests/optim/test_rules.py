"""Every rule against its paper's formula in float64, and against PyTorch's stored curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn import ops, optim
from magmadnn.tensor import placeholder, variable
from tests.optim.paper_rules import RULES, Weights

DATA = Path(__file__).parent / "data"
STEPS = 100
# Rounding: each step loses at most some 32 eps of values of size 1, and these problems do not amplify it.
CLOSE = STEPS * 32 * np.finfo(np.float64).eps

RNG = np.random.default_rng(7)
X, T = RNG.normal(size=(5, 11, 7)), RNG.normal(size=(5, 11, 3))  # five batches in turn
START: Weights = [0.4 * RNG.normal(size=(7, 3)), np.zeros(3), np.array(0.7)]
NAMES = ("weight", "bias", "scale")


def gradients(ws: Weights, t: int) -> Weights:
    """Of the mean of sqrt(1 + r**2), r = scale * (x @ weight) + bias - t; by hand."""
    weight, bias, scale = ws
    x, target = X[t % 5], T[t % 5]
    product = x @ weight
    r = scale * product + bias - target
    slope = r / np.sqrt(1 + r * r) / r.size
    return [scale * (x.T @ slope), slope.sum(0), (slope * product).sum()]


def problem() -> tuple[Any, Any, Any, list[Any]]:
    x, target = placeholder("x", (None, 7), "float64"), placeholder("t", (None, 3), "float64")
    ws = [variable(n, v.copy()) for n, v in zip(NAMES, START, strict=True)]
    r = ws[2] * (x @ ws[0]) + ws[1] - target
    return x, target, ops.mean(ops.sqrt(1 + r * r)), ws


def constant(rate: float) -> Any:
    return lambda step: rate


def decaying(step: int) -> float:
    return 0.3 / (1 + 0.05 * step)


CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("SGD", 0.1, {}),
    ("SGD", 0.1, {"weight_decay": 0.03}),
    ("SGD", 0.1, {"momentum": 0.9}),
    ("SGD", decaying, {"momentum": 0.7, "weight_decay": 0.01}),
    ("SGD", 0.1, {"momentum": 0.9, "nesterov": True}),
    ("SGD", 0.1, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    ("AdaGrad", 0.1, {}),
    ("AdaGrad", decaying, {"eps": 1e-3, "weight_decay": 0.02}),
    ("RMSProp", 0.01, {}),
    ("RMSProp", decaying, {"decay": 0.7, "momentum": 0.5, "eps": 1e-2, "weight_decay": 0.02}),
    ("Adam", 0.02, {}),
    ("Adam", decaying, {"beta1": 0.5, "beta2": 0.8, "eps": 1e-2, "weight_decay": 0.02}),
    ("AdamW", 0.02, {}),
    ("AdamW", decaying, {"beta1": 0.5, "beta2": 0.8, "eps": 1e-2, "weight_decay": 0.4}),
    ("LARS", 1.0, {}),
    ("LARS", decaying, {"momentum": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.05}),
    ("LAMB", 0.01, {}),
    ("LAMB", decaying, {"beta1": 0.5, "beta2": 0.8, "eps": 1e-2, "weight_decay": 0.2}),
]


RUNS = [
    *((*case, "reference") for case in CASES),
    *((*case, "native") for case in CASES if callable(case[1])),
]


@pytest.mark.parametrize(("name", "rate", "settings", "executor"), RUNS)
def test_rule_is_that_of_the_paper(
    name: str, rate: Any, settings: dict[str, Any], executor: str
) -> None:
    x, target, loss, ws = problem()
    optimizer = optim.by_name(name, learning_rate=rate, **settings)
    step = optimizer.step(loss, ws, executor=executor)
    rule = RULES[name](
        START, gradients, STEPS, rate=rate if callable(rate) else constant(rate), **settings
    )
    for t, expected in enumerate(rule):
        step.run({x: X[t % 5], target: T[t % 5]})
        for w, value in zip(ws, expected, strict=True):
            size = max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(w.numpy(), value, rtol=0, atol=CLOSE * size)
    moved = np.abs(ws[0].numpy() - START[0]).max()
    assert moved > 0.01  # or there was nothing to compare


def test_defaults_of_the_rules_are_those_of_the_formulas() -> None:
    # The cases without settings compare them only if the formulas are asked with none.
    assert {name for name, _, settings in CASES if not settings} == set(RULES)
    assert {name for name, _, _, executor in RUNS if executor == "native"} == set(RULES)


STORED = json.loads((DATA / "optim_torch.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def curves() -> dict[str, np.ndarray]:
    with np.load(DATA / "optim_torch.npz") as file:
        return dict(file)


@pytest.mark.parametrize("case", STORED["cases"])
def test_rule_agrees_with_pytorch(case: str, curves: dict[str, np.ndarray]) -> None:
    names = ("w1", "b1", "w2", "b2")
    ws = w1, b1, w2, b2 = [variable(n, curves[n].copy()) for n in names]
    x = placeholder("x", (11, 5), "float64")
    target = placeholder("target", (11, 3), "float64")
    loss = ops.mean((ops.tanh(x @ w1 + b1) @ w2 + b2 - target) ** 2)
    step = optim.from_config(STORED["cases"][case]["magmadnn"]).step(loss, ws)
    losses = []
    for t in range(STORED["steps"]):
        k = t % len(curves["x"])
        losses.append(float(step({x: curves["x"][k], target: curves["target"][k]})))
    # PyTorch's clipping adds 1e-6 to the norm, ours does not; all else is equal but for rounding.
    tolerance = 1e-6 if case == "sgd clip norm" else CLOSE
    np.testing.assert_allclose(losses, curves[f"{case}/losses"], rtol=0, atol=tolerance)
    for name, w in zip(names, ws, strict=True):
        np.testing.assert_allclose(w.numpy(), curves[f"{case}/{name}"], rtol=0, atol=tolerance)


def test_every_rule_that_pytorch_has_is_compared() -> None:
    compared = {case["magmadnn"]["name"] for case in STORED["cases"].values()}
    assert compared == {"SGD", "AdaGrad", "RMSProp", "Adam", "AdamW"}
