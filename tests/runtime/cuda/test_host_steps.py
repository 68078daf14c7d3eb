"""Steps that NumPy computes among those of a device: many batches in one go, errors, streams of rows."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.errors import DataError
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from tests.runtime.by_numpy import X, Y, failing_at, network, trained
from tests.runtime.cuda.devices import DEVICES, distance, on

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("device", DEVICES)
def test_many_batches_run_in_one_go(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit asks for; NumPy sees each batch once, the last of 3 rows too."""
    batches, seen = list[int](), list[int]()
    launch = CudaSlices.launch

    def counted(self: CudaSlices, order: np.ndarray, *rest: object) -> object:
        batches.append(len(order) // 16)
        return launch(self, order, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CudaSlices, "launch", counted)
    with on(device):
        there = trained(network(lambda x: seen.append(len(x)), device="cuda"))
        assert sum(batches) == 3 * (len(X) // 16) and max(batches) > 1
        assert seen == 3 * [*[16] * (len(X) // 16), len(X) % 16]
        assert "by NumPy, on copies" in there.plan()
        values = there.values()
    here = trained(network(lambda x: None))
    steps = 3 * (len(X) // 16 + 1)
    for name, value in here.values().items():
        assert np.abs(values[name] - value).max() < steps * 64 * EPS


@pytest.mark.parametrize("device", DEVICES)
def test_what_numpy_raises_comes_out_after_whole_batches(device: str) -> None:
    def look(x: np.ndarray) -> None:
        if (x == X[100, 0]).any():
            raise DataError("double: row 100 is not welcome")

    with on(device):
        model = network(look, device="cuda")
        with pytest.raises(DataError, match="row 100 is not welcome"):
            trained(model, shuffle=False)
        stepped = network(lambda x: None, device="cuda")  # batches 0 to 5 were whole
        stepped.fit(X[:96], Y[:96], batch_size=16, shuffle=False, verbose=False)
        assert distance(model, stepped) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_an_interruption_leaves_the_variables_of_whole_slices(device: str) -> None:
    with on(device):
        model = network(failing_at(5, KeyboardInterrupt()), device="cuda")
        untouched = network(lambda x: None, device="cuda")
        with pytest.raises(KeyboardInterrupt):
            trained(model, shuffle=False)
        assert distance(model, untouched) == 0
        curve = model.fit(X, Y, batch_size=16, epochs=3, verbose=False).rows
        assert curve[-1]["loss"] < curve[0]["loss"]
