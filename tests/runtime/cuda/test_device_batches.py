"""Batches of an iterable that lie on the device: copied there, and not over the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import DataError, OutOfMemoryError
from magmadnn.memory.foreign import OnDevice, on_device
from magmadnn.runtime.cuda.data import arrays
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.test_foreign import Foreign, counted

pytestmark = needs_compiler

SIZES = (61, 7, 5)
ROWS, BATCH = 203, 8  # so that the last batch is another


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


def there(value: np.ndarray) -> Any:
    return Foreign(np.ascontiguousarray(value))


def batches(x: np.ndarray, y: np.ndarray, place_x: Any, place_y: Any) -> list[tuple[Any, Any]]:
    return [(place_x(x[k : k + BATCH]), place_y(y[k : k + BATCH])) for k in range(0, len(x), BATCH)]


def as_it_is(value: np.ndarray) -> np.ndarray:
    return value


def refuse(*_: Any) -> Any:
    raise OutOfMemoryError("full")


@pytest.mark.parametrize(
    ("places", "is_full"),
    [
        ((there, there), False),
        ((there, as_it_is), True),
        ((as_it_is, there), False),
        pytest.param((there, there), True, marks=pytest.mark.long),
        pytest.param((there, as_it_is), False, marks=pytest.mark.long),
        pytest.param((as_it_is, there), True, marks=pytest.mark.long),
    ],
)
def test_bits_are_those_of_batches_on_the_host(
    places: tuple[Any, Any], is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        one, other = (network(SIZES, md.optim.Adam(0.01), device="cuda") for _ in range(2))
        wanted = one.fit(batches(x, y, as_it_is, as_it_is), epochs=3, verbose=0).rows
        given = batches(x, y, *places)
        if is_full:
            monkeypatch.setattr(arrays, "empty", refuse)
        brought = counted(monkeypatch)
        found = other.fit(given, epochs=3, verbose=0).rows
        assert [r["loss"] for r in found] == [r["loss"] for r in wanted]
        assert distance(one, other) == 0
        if places == (there, there) and not is_full:
            assert x[:BATCH].nbytes not in brought


@pytest.mark.parametrize("first", [0, 1])
def test_places_change_from_batch_to_batch(first: int) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        host = batches(x, y, as_it_is, as_it_is)
        mixed = [
            (there(a), there(b)) if k % 3 == first else (a, b) for k, (a, b) in enumerate(host)
        ]
        one, other = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        one.fit(host, epochs=2, verbose=0)
        other.fit(mixed, epochs=2, verbose=0)
        assert distance(one, other) == 0


def test_memory_that_is_used_again_is_held_until_it_was_copied() -> None:
    """As where a generator gives back each batch before the next one is made."""
    x, y = samples(ROWS, *SIZES[::2])

    class Pooled(Foreign):
        def __del__(self) -> None:
            device_memory(0).copy_to_device(
                self.address, np.full(self.values.nbytes, 255, np.uint8)
            )

    def made() -> Iterator[tuple[Any, Any]]:
        for k in range(0, ROWS, BATCH):
            yield Pooled(x[k : k + BATCH].copy()), there(y[k : k + BATCH])

    with on("emulated"):
        one, other = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        one.fit(batches(x, y, as_it_is, as_it_is), epochs=2, verbose=0)
        other.fit(made, epochs=2, verbose=0)
        assert distance(one, other) == 0


def test_what_is_not_finite_is_told_as_on_the_host() -> None:
    x, y = samples(ROWS, *SIZES[::2])
    x[61, 3] = np.nan
    messages = []
    with on("emulated"):
        for place in (as_it_is, there):
            model = network(SIZES, md.optim.SGD(0.3), device="cuda")
            with pytest.raises(md.errors.MagmaDNNError) as caught:
                model.fit(batches(x, y, place, as_it_is), verbose=0)
            messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(("stream", "waits"), [(None, False), (1, False), (7, True)])
def test_a_stream_of_its_own_is_waited_for(
    stream: int | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on("emulated"):
        memory, waited = device_memory(0), []
        array = Foreign(np.arange(5.0))
        if stream is not None:
            array.__cuda_array_interface__["stream"] = stream
        monkeypatch.setattr(memory, "wait", lambda: waited.append(1), raising=False)
        assert isinstance(on_device(array, 0, in_order=True), OnDevice)
        assert bool(waited) is waits
        on_device(array, 0)
        assert len(waited) == 1 + waits


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "cross_entropy", "hinge"])
def test_numbers_that_a_loss_does_not_take_are_refused_on_a_device_too(loss: str) -> None:
    """From the host, also where they are others in a further fit; lying on the device; as batches there."""
    rng = np.random.default_rng(3)
    x = rng.random((31, 4)).astype(np.float32)
    good = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 31)]
    bad = good.copy()
    bad[17] = 0.25, 0.5, 2
    with on("emulated"):
        layers = [md.layers.Input((4,)), md.layers.Dense(3)]
        sgd = md.optim.SGD(0.1)
        model = md.Model(layers, loss=loss, optimizer=sgd, device="cuda", seed=1)
        y = good.copy()
        history = model.fit(x, y, batch_size=8, verbose=False)
        assert np.isfinite(history.rows[-1]["loss"])
        model.fit(there(x), there(good), batch_size=8, verbose=False)
        before = {name: value.copy() for name, value in model.values().items()}
        y[:] = bad
        for given in ((x, y), (x, there(bad)), (there(x), there(bad))):
            with pytest.raises(DataError, match=rf"y: row 17.* for {loss} expected"):
                model.fit(*given, batch_size=8, verbose=False)
        with pytest.raises(DataError, match=rf"y: row 1.* for {loss} expected"):
            model.fit(batches(x, bad, there, there)[2:3], verbose=False)
        for name, value in model.values().items():
            np.testing.assert_array_equal(value, before[name])
