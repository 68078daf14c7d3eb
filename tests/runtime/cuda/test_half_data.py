"""Data in half precision: it lies on a device as it is, and is what float32 data of the same values is."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.test_foreign import Foreign, counted

HALVES: list[Any] = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("float32", HALVES[1]),
        ("mixed_fp16", HALVES[0]),
        pytest.param("float32", HALVES[0], marks=pytest.mark.long),
        pytest.param("mixed_fp16", HALVES[1], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_arrays_of_the_host(device: str, dtype: Any, precision: str) -> None:
    x, y = samples(203, 61, 5)
    half = x.astype(dtype)
    with on(device):
        here, there = (
            network((61, 7, 5), md.optim.SGD(0.3), device="cuda", precision=precision)
            for _ in range(2)
        )
        settings = {"batch_size": 8, "epochs": 2, "verbose": 0}
        wanted = here.fit(half.astype(np.float32), y, **settings).rows
        found = there.fit(half, y, **settings).rows
        assert [r["loss"] for r in found] == [r["loss"] for r in wanted]
        assert distance(here, there) == 0


@needs_compiler
def test_arrays_on_the_device_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(203, 61, 5)
    half = x.astype(np.float16)
    with on("emulated"):
        here, there = (network((61, 7, 5), md.optim.SGD(0.3), device="cuda") for _ in range(2))
        here.fit(half.astype(np.float32), y, batch_size=8, verbose=0)
        a, b = Foreign(half), Foreign(y)
        brought = counted(monkeypatch)
        there.fit(a, b, batch_size=8, verbose=0)
        assert max(brought) < half.nbytes / 8
        assert distance(here, there) == 0
        half[17, 3] = np.inf
        with pytest.raises(DataError, match="x: row 17, column 3 is inf"):
            there.fit(Foreign(half), b, batch_size=8, verbose=0)
        assert distance(here, there) == 0
