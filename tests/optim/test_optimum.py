"""Every optimiser where the answer is known, and with every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops, optim
from magmadnn.optim import Optimizer, cosine
from magmadnn.tensor import variable

# Rosenbrock's valley: AdaGrad's rate dies on the way, so it comes only near (for good: see its formula).
STEPS = 400
VALLEY: list[tuple[Optimizer, float]] = [
    (optim.SGD(0.002, momentum=0.95), 0.001),
    (optim.SGD(0.001, momentum=0.97, nesterov=True), 0.005),
    (optim.AdaGrad(0.3), 0.4),
    (optim.RMSProp(cosine(0.003, STEPS), momentum=0.9), 0.005),
    (optim.Adam(cosine(0.03, STEPS), beta2=0.9), 0.002),
    (optim.AdamW(cosine(0.03, STEPS), beta2=0.9, weight_decay=1e-6), 0.002),
    (optim.LARS(cosine(3.0, STEPS), weight_decay=0.0), 0.001),
    (optim.LAMB(cosine(0.01, STEPS), weight_decay=0.0), 0.01),
]


@pytest.mark.parametrize(
    ("optimizer", "distance"), VALLEY, ids=[type(o).__name__ for o, _ in VALLEY]
)
def test_rosenbrock(optimizer: Optimizer, distance: float) -> None:
    w = variable("w", np.array([0.4, 0.6]))
    value = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    last = float(optimizer.minimize(value, [w], steps=STEPS))
    assert np.abs(w.numpy() - 1).max() < distance
    assert last == float(value.eval())


BOWL: list[Optimizer] = [
    optim.SGD(0.3),
    optim.SGD(0.1, momentum=0.6),
    optim.SGD(0.1, momentum=0.6, nesterov=True),
    optim.AdaGrad(1.0),
    optim.RMSProp(cosine(0.1, 120)),
    optim.Adam(cosine(0.2, 120), beta1=0.5),
    optim.AdamW(cosine(0.2, 120), beta1=0.5, weight_decay=0.0),
    optim.LARS(cosine(100.0, 120), momentum=0.5, weight_decay=0.0),
    optim.LAMB(cosine(0.2, 120), beta1=0.5, weight_decay=0.0),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", BOWL, ids=lambda v: type(v).__name__)
def test_parabola(optimizer: Optimizer, dtype: str) -> None:
    centre = np.array([0.7, -1.3, 2.1], dtype)
    w = variable("w", np.array([0.2, 0.9, -0.6], dtype))
    value = ops.sum(np.array([1.0, 1.7, 0.6], dtype) * (w - centre) ** 2)
    optimizer.minimize(value, [w], steps=120)
    assert w.dtype == dtype
    assert np.abs(w.numpy() - centre).max() < 2e-3


def test_minimising_a_number() -> None:
    v = variable("v", np.float64(-2.0))
    last = optim.SGD(learning_rate=0.05).minimize(v**2 + 3, [v], steps=100)
    assert float(v) == pytest.approx(-2.0 * 0.9**100, rel=1e-4)  # w -= 0.05 * 2 w, a hundred times
    assert float(last) == pytest.approx(3.0, rel=1e-6)


# --- every optimiser with every schedule -------------------------------------------------------


def own_schedule(step: int) -> float:
    """A schedule that is a plain function."""
    return 0.03 / (1 + step)


SCHEDULES: list[Any] = [
    0.02,
    optim.constant(0.02),
    optim.step_decay(0.05, every=3, factor=0.5),
    optim.exponential(0.05, factor=0.8),
    optim.cosine(0.05, steps=7, final=0.001),
    optim.warm_up(0.03, steps=4),
    optim.warm_up(optim.cosine(0.03, steps=5), steps=3),
    optim.piecewise((2, 6), (0.01, 0.04, 0.005)),
    optim.per_epoch(optim.step_decay(0.05, every=1, factor=0.5), steps_per_epoch=4),
    own_schedule,
]
OPTIMISERS: list[type[Any]] = [
    optim.SGD, optim.AdaGrad, optim.RMSProp, optim.Adam, optim.AdamW, optim.LARS, optim.LAMB,
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: getattr(s, "__name__", str(s)))
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_schedule_does_what_setting_each_value_does(optimiser: type[Any], schedule: Any) -> None:
    def start() -> tuple[Any, Any]:
        w = variable("w", np.array([0.4, -0.6, 1.1]))
        return w, ops.sum((w - 2) ** 2)

    w, loss = start()
    scheduled = optimiser(schedule).step(loss, [w], executor="reference")
    again, same_loss = start()
    by_hand = optimiser(123.0).step(same_loss, [again], executor="reference")
    for t in range(9):
        rate = schedule(t) if callable(schedule) else schedule
        assert scheduled.settings["learning_rate"] == rate
        by_hand.set(learning_rate=rate)
        scheduled.run()
        by_hand.run()
        np.testing.assert_array_equal(w.numpy(), again.numpy())
    assert np.abs(w.numpy() - [0.4, -0.6, 1.1]).max() > 1e-6
