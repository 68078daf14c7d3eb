"""Indices that variables on a device hold: looked at there, so that old values need not be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops, variable
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import DataError
from magmadnn.memory import DEVICE
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.running.instance import Instance
from tests.runtime.cuda.devices import DEVICES, on

ROWS, CLASSES = 11, 7
X = np.random.default_rng(2).standard_normal((ROWS, CLASSES)).astype(np.float32)
T = np.random.default_rng(3).integers(0, CLASSES, (2, ROWS))


def stored(labels: list[Any]) -> tuple[Executable, list[Any]]:
    """A run that stores into variables, with classes from others."""
    kept = [variable(f"v{k}", X) for k in range(len(labels))]
    updates = []
    for v, t in zip(kept, labels, strict=True):
        picked = ops.take_class(ops.log_softmax(v), t[::-1])
        updates.append((v.node, (v - ops.expand_dims(picked, -1)).node))
    return Executable([], updates, training=True, executor="native", device="cuda"), kept


@pytest.mark.parametrize("device", DEVICES)
def test_right_ones_cost_no_copies_and_wrong_ones_change_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Instance] = []
    remember = Instance._remember
    monkeypatch.setattr(Instance, "_remember", lambda self: (kept.append(self), remember(self)))
    with on(device):
        labels = [variable(f"t{k}", t, kind=DEVICE) for k, t in enumerate(T)]
        step, targets = stored(labels)
        step.run({})
        step.run({})
        assert not kept
        before = [v.value.read().copy() for v in targets]
        assert not np.array_equal(before[0], X)
        for wrong in (-1, CLASSES):
            classes = T[1].copy()
            classes[4] = wrong
            labels[1].value.write(classes)
            with pytest.raises(DataError, match=f"index {wrong} at"):
                step.run({})
            for v, values in zip(targets, before, strict=True):
                np.testing.assert_array_equal(v.value.read(), values)
        labels[1].value.write(T[1])
        step.run({})
        assert not np.array_equal(targets[1].value.read(), before[1])


@pytest.mark.parametrize("device", DEVICES)
def test_constants_among_them_count(device: str) -> None:
    with on(device):
        t = variable("t", T[0], kind=DEVICE)
        step, _ = stored([ops.pad(t[1:], ((0, 1),), -1)])
        with pytest.raises(DataError, match="index -1 at"):
            step.run({})


def by_value(labels: Any, classes: np.ndarray) -> None:
    labels.value.write(classes)


def by_element(labels: Any, classes: np.ndarray) -> None:
    labels.value.memory.set(4, classes[4])


_ADDRESSES: dict[Any, int] = {}


def by_address(labels: Any, classes: np.ndarray) -> None:
    """Somebody who was given the address once, and writes there whenever he likes."""
    if labels.node not in _ADDRESSES:
        _ADDRESSES[labels.node] = labels.value.__cuda_array_interface__["data"][0]
    device_memory(0).copy_to_device(_ADDRESSES[labels.node], classes.view(np.uint8))


def by_another_program(labels: Any, classes: np.ndarray) -> None:
    given = variable("given", classes, kind=DEVICE)
    update = [(labels.node, (given + 0).node)]
    Executable([], update, training=True, executor="native", device="cuda").run({})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("write", [by_value, by_element, by_address, by_another_program])
def test_what_nobody_wrote_is_looked_at_once(
    device: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Layout] = []
    take = Layout.take_faults
    monkeypatch.setattr(Layout, "take_faults", lambda self: (looks.append(self), take(self))[1])
    with on(device):
        labels = variable("t", T[0], kind=DEVICE)
        step, _ = stored([labels])
        for _ in range(3):
            step.run({})
        assert len(looks) == 1
        classes = T[0].copy()
        classes[4] = CLASSES
        for _ in range(2):
            write(labels, classes)
            with pytest.raises(DataError, match=f"index {CLASSES} at"):
                step.run({})
        write(labels, T[0])
        step.run({})
        write(labels, T[0] * 0)
        step.run({})
