"""Arrays of other libraries on a GPU as data of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.errors import DataError, ShapeError
from magmadnn.memory import DEVICE
from magmadnn.memory.foreign import as_array, on_device
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.training.model.plain.identity import identity_of
from tests.runtime.cuda.devices import distance, network, on, samples
from tests.runtime.cuda.emulator import HostMemory, needs_compiler

pytestmark = needs_compiler
SIZES = (13, 17, 5)


class Foreign:
    """An array on the emulated device, as CuPy offers it."""

    def __init__(self, values: np.ndarray, view: Any = (), address: int | None = None) -> None:
        memory = device_memory(0)
        self.address = address or memory.allocate(values.nbytes)
        if address is None:
            memory.copy_to_device(self.address, np.ascontiguousarray(values).view(np.uint8))
        seen = values[view]
        start = self.address + seen.ctypes.data - values.ctypes.data
        self.values, self.shape, self.ndim = values, seen.shape, seen.ndim
        self.dtype = seen.dtype
        packed = seen.flags.c_contiguous
        self.__cuda_array_interface__ = {
            "shape": seen.shape, "typestr": seen.dtype.str, "version": 3,
            "strides": None if packed else seen.strides, "data": (start, False),
        }  # fmt: skip

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Foreign:
        return Foreign(self.values, index, self.address)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self) -> Any:
        raise AssertionError("the address is enough")


@pytest.mark.parametrize("view", [(), np.s_[1:4], np.s_[::-2, 1::3], np.s_[:0], np.s_[2]])
def test_one_copy_to_the_host(view: Any) -> None:
    values = np.arange(35, dtype=np.int32).reshape(5, 7)
    with on("emulated"):
        found = as_array(Foreign(values, view))
        np.testing.assert_array_equal(found, values[view])
        assert found.dtype == np.int32 and found.shape == values[view].shape
    with pytest.raises(TypeError):
        as_array(Door())


class Door:
    """Refuses to be an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("no")


def test_only_what_fits_stays_where_it_is() -> None:
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    single = np.dtype(np.float32)
    with on("emulated"):
        found = on_device(Foreign(values, np.s_[1:3]), 0, single)
        assert found is not None and (found.shape, found.nbytes) == ((2, 7), 56)
        assert on_device(Foreign(values, np.s_[:, ::2]), 0, single) is None
        assert on_device(Foreign(values), 1, single) is None
        assert on_device(Foreign(values), 0, np.dtype(np.float64)) is None
        assert on_device(values, 0, single) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_take_them(device: str) -> None:
    x, y = samples(43, 13, 5)
    with on("emulated"):
        here, there = (network(SIZES, md.optim.SGD(0.3), device=device) for _ in range(2))
        a, b = Foreign(x), Foreign(y)
        here.fit(x, y, batch_size=8, epochs=2, verbose=0)
        there.fit(a, b, batch_size=8, epochs=2, verbose=0)
        assert distance(here, there) == 0
        assert there.evaluate(a, b) == here.evaluate(x, y)
        labels = [identity_of(there, {"x": p, "y": q}, {}) for p, q in ((a, b), (x, y))]
        assert labels[0] == labels[1]  # what trainings are known by, in checkpoints and among ranks
        for size in (100, 9):
            np.testing.assert_array_equal(
                there.predict(a, batch_size=size), here.predict(x, batch_size=size)
            )
        batches = [(x[k : k + 8], y[k : k + 8]) for k in range(0, 40, 8)]
        here.fit(batches, verbose=0)
        there.fit([(Foreign(p), Foreign(q)) for p, q in batches], verbose=0)
        assert distance(here, there) == 0


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy between host and device from now on."""
    found: list[int] = []
    for name in ("copy_to_device", "copy_beside", "copy_to_host"):
        kept = getattr(HostMemory, name)

        def copy(self: HostMemory, to: Any, source: Any, *more: Any, kept: Any = kept) -> None:
            found.append(to.nbytes if hasattr(to, "nbytes") else source.nbytes)
            kept(self, to, source, *more)

        monkeypatch.setattr(HostMemory, name, copy)
    return found


@pytest.mark.parametrize("label", [np.int32, np.int64])
def test_training_does_not_take_them_over_the_host(
    monkeypatch: pytest.MonkeyPatch, label: Any
) -> None:
    x, y = samples(203, 61, 5)
    with on("emulated"):
        here, there = (network((61, 7, 5), md.optim.SGD(0.3), device="cuda") for _ in range(2))
        settings = {"batch_size": 8, "epochs": 2, "verbose": 0, "validation_split": 0.2}
        wanted = here.fit(x, y, **settings).rows
        a, b = Foreign(x), Foreign(y.astype(label))
        brought = counted(monkeypatch)
        found = there.fit(a, b, **settings).rows
        assert distance(here, there) == 0
        assert [r["val_loss"] for r in found] == [r["val_loss"] for r in wanted]
        assert max(brought) < x.nbytes / 8
        made = []
        for sign in (1, -1):
            c, d = Foreign(sign * x[::-1]), Foreign(y[::-1].astype(label))  # lie elsewhere
            before = len(device_engine(0).graphs)
            there.fit(c, d, batch_size=8, verbose=0)
            made.append(len(device_engine(0).graphs) - before)
            here.fit(sign * x[::-1], y[::-1], batch_size=8, verbose=0)
            assert distance(here, there) == 0
        assert made[0] > 0 == made[1]  # graphs of the first ones serve again


def test_what_is_wrong_with_them_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(43, 13, 5)
    bad, high, low = x.copy(), y.copy(), y.astype(np.int32)
    bad[17, 3], high[29], low[5] = np.nan, 5, -1
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        before = model.values()
        with pytest.raises(DataError, match="x: row 17, column 3 is nan"):
            model.fit(Foreign(bad), Foreign(y), verbose=0)
        with pytest.raises(
            DataError, match=r"y: row 29 has the label 5, outside the classes 0\.\.4"
        ):
            model.fit(Foreign(x), Foreign(high), verbose=0)
        with pytest.raises(DataError, match="y: row 5 has the label -1"):
            model.fit(Foreign(x), Foreign(low), verbose=0)
        with pytest.raises(ShapeError, match="x has 43 rows but y has 42"):
            model.fit(Foreign(x), Foreign(y[:42]), verbose=0)
        assert all((model.values()[name] == value).all() for name, value in before.items())


def test_weights_of_classes_and_callbacks_for_each_batch() -> None:
    x, y = samples(43, 13, 5)
    weights = {k: 1.0 + k for k in range(5)}

    class Each(md.callbacks.Callback):
        def batches(self, fit: Any) -> int | None:
            return 1

    with on("emulated"):
        here, there = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        for model, a, b in ((here, x, y), (there, Foreign(x), Foreign(y))):
            model.fit(a, b, batch_size=8, class_weight=weights, verbose=0)
            model.fit(a, b, batch_size=8, callbacks=[Each()], verbose=0)
        assert distance(here, there) == 0


def test_predictions_do_not_take_them_over_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = samples(20, 13, 5)
    with on("emulated"):
        model = network(SIZES, None, device="cuda")
        right = model.predict(x)
        brought: list[int] = []
        kept = Layout.copy_in

        def copy_in(self: Layout, address: int, values: np.ndarray) -> None:
            brought.append(values.nbytes)
            kept(self, address, values)

        monkeypatch.setattr(Layout, "copy_in", copy_in)
        np.testing.assert_array_equal(model.predict(Foreign(x)), right)
        np.testing.assert_array_equal(model.predict(md.asarray(x, kind=DEVICE)), right)
        assert x.nbytes not in brought
        model.predict(x)
        assert x.nbytes in brought


def test_a_tensor_lies_where_the_array_does() -> None:
    x, _ = samples(20, 13, 5)
    with on("emulated"):
        a = Foreign(x)
        t = md.asarray(a)
        assert t.kind is DEVICE
        assert t.__cuda_array_interface__["data"][0] == a.address
        np.testing.assert_array_equal(t, x)
