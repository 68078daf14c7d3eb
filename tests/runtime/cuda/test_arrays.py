"""What is done to arrays on a device outside of plans, against NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda import device_engine
from magmadnn.data import order
from magmadnn.ops import philox
from magmadnn.runtime.cuda import code
from magmadnn.runtime.cuda.data import arrays
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

SIZES = {"emulated": (1, 2, 5, 1000, 1001), "gpu": (1, 2, 5, 60_001, 1_000_003)}
SEEDS = (0, 7, 2**63 + 11)


@pytest.mark.parametrize("device", DEVICES)
def test_permutations_are_those_of_the_processor(device: str) -> None:
    with on(device):
        for count in SIZES[device]:
            for seed in SEEDS:
                stream = philox.stream_of("shuffle", 3)
                found = arrays.permutation(count, seed, stream, 0)
                np.testing.assert_array_equal(found, philox.permutation(count, seed, stream))
        np.testing.assert_array_equal(order(1000, 5, 2, 0), order(1000, 5, 2))


@needs_compiler
def test_orders_are_drawn_beside_what_is_launched() -> None:
    """Steps that are on their way neither wait for that nor hold it up."""
    done: list[int] = []
    with emulated_device():
        engine: Any = device_engine(0)
        engine.later(lambda: done.append(1))
        found = arrays.permutation(1000, 5, 2, 0)
        assert not done
        engine.wait()
    assert done
    np.testing.assert_array_equal(found, philox.permutation(1000, 5, 2))


@pytest.mark.parametrize("device", DEVICES)
def test_an_order_is_drawn_while_another_thread_compiles(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who compiles wants the device; who draws waits for who compiles, and must not have it."""
    draws, made, found = threading.Event(), arrays.node_of, []

    def node_of(*given: Any) -> Any:
        draws.set()
        return made(*given)

    with on(device):
        engine: Any = device_engine(0)
        arrays.permutation(1000, 5, 2, 0)  # all is compiled
        monkeypatch.setattr(arrays, "node_of", node_of)
        sorts = threading.Thread(
            target=lambda: found.append(arrays.permutation(1000, 5, 2, 0)), daemon=True
        )
        with code._lock:  # as who compiles has it
            sorts.start()
            assert draws.wait(10)
            loads = threading.Thread(target=engine.wait, daemon=True)
            loads.start()
            loads.join(10)
            assert not loads.is_alive()
        sorts.join(10)
    np.testing.assert_array_equal(found[0], philox.permutation(1000, 5, 2))


def test_where_a_device_has_no_room_to_sort_the_processor_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(arrays, "permutation", full)
    np.testing.assert_array_equal(order(1000, 5, 2, 0), order(1000, 5, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_rows_and_conversions(device: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 2 if dtype == "bool" else 100, (37, 3, 5)).astype(dtype)
    rows = rng.integers(0, 37, 51)
    with on(device):
        there = arrays.copied(values, 0)
        np.testing.assert_array_equal(arrays.take_rows(there, rows), values[rows])
        np.testing.assert_array_equal(
            arrays.take_rows(there[3:30], rows % 27), values[3:30][rows % 27]
        )
        np.testing.assert_array_equal(
            arrays.converted(there, np.dtype("float64")), values.astype("float64")
        )
        assert np.asarray(arrays.take_rows(there, rows[:0])).shape == (0, 3, 5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at", [0, 17, 99_999, None])
def test_looking_at_values(device: str, at: int | None) -> None:
    size = 100_000 if device == "gpu" else 1000
    where = None if at is None else at % size
    with on(device):
        for dtype in (np.float32, np.float64):
            for bad in (np.nan, np.inf, -np.inf):
                values: Any = np.full(size, 1.5, dtype)
                if where is not None:
                    values[where] = bad
                assert arrays.is_finite(arrays.copied(values, 0)) == (where is None)
        for dtype in (np.uint8, np.int32, np.int64):
            for bad in (9, 200) if dtype is np.uint8 else (9, -1, 2**31 - 1):
                values = np.full(size, 8, dtype)
                if where is not None:
                    values[where] = bad
                assert arrays.is_within(arrays.copied(values, 0), 9) == (where is None)
