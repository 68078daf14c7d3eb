"""Loss scaling: the same steps as without where all is finite, and none where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops, optim
from magmadnn.optim.building import loss_scaling
from magmadnn.tensor import placeholder, variable

DRAW = np.random.default_rng(11)
START = DRAW.normal(size=(7, 3)).astype(np.float32)
BATCH = DRAW.normal(size=(5, 7)).astype(np.float32)
EXECUTORS = ["reference", "native"]


def made(executor: str, precision: str, optimizer: Any = None) -> tuple[Any, Any, Any]:
    x, w = placeholder("x", (None, 7)), variable("w", START.copy())
    loss = ops.mean(ops.square(x @ w))
    optimizer = optimizer or optim.Adam(0.01)
    return x, w, optimizer.step(loss, [w], executor=executor, precision=precision)


def read(w: Any) -> Any:
    return np.array(w.value.read())


@pytest.mark.parametrize("executor", EXECUTORS)
def test_scaling_by_powers_of_two_changes_next_to_nothing(executor: str) -> None:
    found = []
    for mode in ("float32", "mixed_fp16"):
        x, w, step = made(executor, mode, optim.SGD(0.1))
        rounded = BATCH.astype(np.float16).astype(np.float32)
        for _ in range(3):
            step.run({x: rounded})
        found.append(read(w))
        assert step.skipped == 0
    # operands of products have 11 bits in float16
    np.testing.assert_allclose(*found, atol=3 * 0.1 * 2.0**-11 * np.abs(START).max())
    assert not np.array_equal(found[0], START)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_overflows_changes_nothing_but_the_scale(executor: str) -> None:
    x, w, step = made(executor, "mixed_fp16")
    step.run({x: BATCH})
    before, state = read(w), step.state()
    step.run({x: BATCH * 2000})  # 2^16 times the gradient of the loss is too large for float16
    after = step.state()
    assert step.skipped == 1
    assert step.count == 2
    np.testing.assert_array_equal(read(w), before)
    moments = [name for name in state if "/" in name]
    assert len(moments) == 2
    for name in moments:
        np.testing.assert_array_equal(after[name], state[name])
    assert after["loss_scale"].item() == loss_scaling.INITIAL / 2
    assert after["good_steps"].item() == 0


@pytest.mark.parametrize("executor", EXECUTORS)
def test_skipped_steps_do_not_count_in_adams_corrections(executor: str) -> None:
    results = []
    for batches in ([BATCH, BATCH], [BATCH * 2000, BATCH, BATCH]):
        x, w, step = made(executor, "mixed_fp16")
        step.load_state({**step.state(), "loss_scale": np.float32(2.0**8)})
        if len(batches) == 3:  # so large that the first step overflows, and half of it is 2^8
            step.load_state({**step.state(), "loss_scale": np.float32(2.0**9)})
            batches[0] = np.full_like(BATCH, 6e4)
        for batch in batches:
            step.run({x: batch})
        results.append(read(w))
    assert step.skipped == 1
    np.testing.assert_array_equal(*results)


def test_good_steps_raise_the_scale(monkeypatch: Any) -> None:
    monkeypatch.setattr(loss_scaling, "INTERVAL", 3)
    x, _, step = made("reference", "mixed_fp16")
    step.load_state({**step.state(), "loss_scale": np.float32(64)})
    scales = []
    for _ in range(7):
        step.run({x: BATCH})
        scales.append(step.state()["loss_scale"].item())
    assert scales == [64, 64, 128, 128, 128, 256, 256]


def test_the_state_is_resumed() -> None:
    x, w, step = made("native", "mixed_fp16")
    x2, w2, other = made("native", "mixed_fp16")
    step.run({x: BATCH * 2000})
    step.run({x: BATCH})
    w2.value.write(read(w))
    other.load_state(step.state())
    step.run({x: BATCH})
    other.run({x2: BATCH})
    assert other.skipped == 1
    np.testing.assert_array_equal(read(w), read(w2))


def test_histories_of_models_have_a_column_of_skipped_steps() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(24, 3)).astype(np.float32), np.ones((24, 1), np.float32)
    x[0] = 6e4  # 2^16 times the gradient of the loss is too large for float16
    net = md.Model(
        [md.layers.Input((3,)), md.layers.Dense(1)], loss="mse", optimizer="adam",
        precision="mixed_fp16",
    )  # fmt: skip
    history = net.fit(x, y, batch_size=8, epochs=2, verbose=False)
    assert history["skipped_steps"] == [1, 2]  # of the epoch and those before
    assert all(np.isfinite(v).all() for v in net.values().values())
    plain = md.Model([md.layers.Input((3,)), md.layers.Dense(1)], loss="mse", optimizer="adam")
    assert "skipped_steps" not in plain.fit(x, y, batch_size=8, verbose=False).columns
