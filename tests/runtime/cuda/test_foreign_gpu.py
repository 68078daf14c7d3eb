"""Arrays of CuPy, PyTorch and JAX on a GPU as data of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends import cuda
from magmadnn.errors import DataError
from magmadnn.memory import DEVICE
from magmadnn.memory.foreign import as_array
from tests.runtime.cuda.devices import distance, network, samples

HAS_DEVICE, REASON = cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=REASON)]

SIZES = (13, 17, 5)
Maker = Callable[[np.ndarray], Any]


def of_cupy() -> Maker:
    made: Maker = pytest.importorskip("cupy").asarray
    return made


def of_torch() -> Maker:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return lambda values: torch.from_numpy(np.ascontiguousarray(values)).cuda()


def of_jax() -> Maker:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX finds no GPU")
    return lambda values: jax.device_put(values)


@pytest.fixture(params=[of_cupy, of_torch, of_jax], ids=lambda made: made.__name__[3:])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Puts an array on the GPU by one of the libraries."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    made: Maker = request.param()
    return made


def classed(values: np.ndarray) -> np.ndarray:
    """Class numbers in a dtype that each of the libraries keeps as it is."""
    return values.astype(np.int32)


def test_values_come_to_the_host(there: Maker) -> None:
    values = np.arange(35, dtype=np.int32).reshape(5, 7)
    np.testing.assert_array_equal(as_array(there(values)), values)
    np.testing.assert_array_equal(as_array(there(values).T), values.T)


def test_a_tensor_lies_where_the_array_does(there: Maker) -> None:
    x, _ = samples(20, 13, 5)
    a = there(x)
    t = md.asarray(a)
    assert t.kind is DEVICE
    assert t.__cuda_array_interface__["data"][0] == a.__cuda_array_interface__["data"][0]
    np.testing.assert_array_equal(t, x)


def test_models_take_them(there: Maker) -> None:
    x, y = samples(43, 13, 5)
    y = classed(y)
    one, other = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
    one.fit(x, y, batch_size=8, epochs=2, verbose=0)
    other.fit(there(x), there(y), batch_size=8, epochs=2, verbose=0)
    assert distance(one, other) == 0
    assert other.evaluate(there(x), there(y)) == one.evaluate(x, y)
    for size in (100, 9):
        np.testing.assert_array_equal(
            other.predict(there(x), batch_size=size), one.predict(x, batch_size=size)
        )
    batches = [(x[k : k + 8], y[k : k + 8]) for k in range(0, 40, 8)]
    one.fit(batches, verbose=0)
    other.fit([(there(p), there(q)) for p, q in batches], verbose=0)
    assert distance(one, other) == 0


def test_numbers_that_a_loss_does_not_take_are_refused(there: Maker) -> None:
    """As arrays of all rows and as batches; good ones are trained on."""
    rng = np.random.default_rng(3)
    x = rng.random((31, 4), np.float32)
    good = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 31)]
    bad = good.copy()
    bad[17] = 0.25, 0.5, 2
    layers = [md.layers.Input((4,)), md.layers.Dense(3)]
    sgd = md.optim.SGD(0.1)
    model = md.Model(layers, loss="cross_entropy", optimizer=sgd, device="cuda", seed=1)
    model.fit(there(x), there(good), batch_size=8, verbose=False)
    before = model.values()
    with pytest.raises(DataError, match=r"y: row 17 .* for cross_entropy expected"):
        model.fit(there(x), there(bad), batch_size=8, verbose=False)
    with pytest.raises(DataError, match=r"y: row 1 .* for cross_entropy expected"):
        model.fit([(there(x[16:24]), there(bad[16:24]))], verbose=False)
    assert all(np.array_equal(value, before[name]) for name, value in model.values().items())
