"""A GPU with hardly any memory left: what is told, and that the process goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from magmadnn import memory, optim
from magmadnn.backends import cuda
from magmadnn.errors import OutOfMemoryError
from tests.runtime.cuda.devices import distance, network, samples

HAS_DEVICE, REASON = cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=REASON)]

LEFT = 192 << 20
ROWS = 1 << 19


@contextmanager
def filled() -> Iterator[None]:
    """With all but some of the device's memory taken."""
    memory.trim()
    device = cuda.device_memory(0)
    free = device.free_and_total()[0]
    assert free is not None
    block = device.allocate(free - LEFT)
    yield
    device.free(block)


def test_a_plan_that_does_not_fit_is_told_and_the_process_goes_on() -> None:
    x, _ = samples(ROWS, 13, 5)
    model = network((13, 170, 5), None, device="cuda")
    few = model.predict(x[:8])
    with filled():
        with pytest.raises(OutOfMemoryError) as caught:
            model.predict(x, batch_size=ROWS)
        for words in (f"for batch {ROWS}", "sigmoid 340.0 MiB in dense_1", "lower the batch size"):
            assert words in str(caught.value)
        assert (model.predict(x[:8]) == few).all()
    np.testing.assert_allclose(model.predict(x, batch_size=ROWS)[:8], few, rtol=1e-5, atol=1e-6)


def test_data_that_does_not_fit_streams() -> None:
    x, y = samples(ROWS, 127, 5)
    one, other = (network((127, 17, 5), optim.SGD(0.3), device="cuda") for _ in range(2))
    other.fit(x[:4096], y[:4096], batch_size=1024, epochs=0, verbose=0)
    with filled():
        other.fit(x, y, batch_size=1024, verbose=0)
    one.fit(x, y, batch_size=1024, verbose=0)
    assert distance(one, other) == 0
