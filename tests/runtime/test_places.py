"""Which device a name means, for which executor."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends import cuda
from magmadnn.errors import ArgumentError
from magmadnn.runtime.places import device_of
from tests.runtime.cuda.devices import network
from tests.runtime.cuda.emulator import emulated_device, needs_compiler


def test_numpy_does_not_run_on_a_gpu() -> None:
    for device in ("cuda", "cuda:1"):
        with pytest.raises(
            ArgumentError, match=f'"{device}": .* is NumPy .*; use device="cpu", or'
        ):
            network((13, 5), None, executor="reference", device=device)
    assert network((13, 5), None, executor="reference", device="auto").device == "cpu"
    x = md.variable("x", np.array([2.0]))
    with pytest.raises(ArgumentError, match="runs on the processor only"):
        md.optim.SGD().step(md.ops.sum(x * x), [x], executor="reference", device="cuda")


@needs_compiler
def test_auto_is_a_gpu_where_there_is_one_for_kernels() -> None:
    with emulated_device():
        assert network((13, 5), None, device="auto").device == "cuda:0"
        assert network((13, 5), None, executor="reference", device="auto").device == "cpu"


@needs_compiler
def test_what_is_measured_on_cores_names_the_device() -> None:
    with emulated_device():
        model = network((13, 5), None, device="cuda")
        with pytest.raises(ArgumentError, match="kernels on the CPU, got device cuda:0"):
            model.plan(batch_size=2, expected=True)


def test_ranks_take_one_gpu_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "available", lambda: (True, ""))
    monkeypatch.setattr(cuda, "device_count", lambda: 4)
    for rank, number in ((0, 0), (3, 3), (6, 2)):
        monkeypatch.setenv("PMI_RANK", str(rank))
        assert device_of("cuda") == device_of("auto") == number
        assert device_of("cuda:1") == 1
