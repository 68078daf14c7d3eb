"""asarray, wrap and DLPack."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

import magmadnn as md
from magmadnn import errors
from magmadnn.backends.cuda.simulated import simulated_devices
from magmadnn.memory import DEVICE, HOST, MANAGED, MemoryManager
from magmadnn.tensor import Tensor
from magmadnn.tensor.conversion import asarray, from_dlpack


class Door:
    """Offers an array by one protocol only."""

    def __init__(self, array: np.ndarray, *names: str) -> None:
        self.names, self.array = names, array

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return getattr(self.array, name)
        raise AttributeError(name)


def test_lists_and_numbers_get_numpys_dtypes() -> None:
    for obj in (
        [[1, 2], [3, 4]],
        [1.5, 2],
        7,
        2.5,
        True,
        [],
        [np.float32(1), np.float32(2)],
        range(3),
    ):
        t, expected = asarray(obj), np.asarray(obj)
        assert (t.dtype, t.shape, t.kind) == (expected.dtype, expected.shape, MANAGED)
        assert np.array_equal(t, expected)
    assert asarray([1, 2], "bfloat16").dtype == ml_dtypes.bfloat16
    assert asarray([Tensor(3), Tensor(3)]).shape == (2, 3)


@pytest.mark.parametrize(
    "take",
    [
        lambda a: a, lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: a[1:4, 2:0:-1],
        lambda a: a[3], lambda a: a[:, 2], lambda a: a[0, 0], lambda a: a[::-2, ::-2],
        lambda a: np.broadcast_to(a[0], (4, 5)), lambda a: a[:0], lambda a: np.asfortranarray(a),
    ],
)  # fmt: skip
def test_arrays_of_all_layouts_share_memory(take: Any) -> None:
    array = np.arange(35.0).reshape(7, 5)
    given = np.asarray(take(array))
    t = asarray(given)
    assert np.array_equal(t, given)
    assert (t.shape, t.strides) == (given.shape, given.strides)
    if given.size:
        assert np.shares_memory(t.read(), given)
        assert t.memory.host()[t.offset] == given.flat[0]
        assert byte_bounds(t.memory.host()) == byte_bounds(given), "all of it and nothing beside"
    if given.size and given.flags.writeable:
        t[...] = -1
        assert np.all(given == -1)
        given[...] = 3
        assert np.all(t.read() == 3)


def test_what_cannot_be_shared_is_copied() -> None:
    swapped = np.arange(6, dtype=">f4").reshape(2, 3)
    fields = np.zeros(5, [("a", "i1"), ("b", "<f4")])["b"]  # strides of 5 bytes
    fields[...] = np.arange(5)
    for array in (swapped, fields):
        t = asarray(array)
        assert t.dtype == np.float32
        assert t.dtype.isnative
        assert np.array_equal(t, array)
        assert not np.shares_memory(t.read(), array)
    assert isinstance(asarray(np.ma.masked_array([1, 2])).numpy(), np.ndarray)
    hidden = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [0, 0]])
    known = md.variable("known", np.ones((2, 2)))
    for call in (
        asarray, md.linalg.inv, md.fft.fft, md.ops.sum, lambda x: md.variable("x", x), known.__add__,
        known.assign,
    ):  # fmt: skip
        with pytest.raises(errors.DataError, match="elements are masked: fill them"):
            call(hidden)


def test_read_only_arrays_are_shared_and_not_written() -> None:
    array = np.arange(6.0)
    array.flags.writeable = False
    t = asarray(array)
    assert np.shares_memory(np.asarray(t), array)
    assert not np.asarray(t).flags.writeable
    with pytest.raises(errors.ArgumentError, match="read-only array and cannot be written"):
        t[0] = 1
    t.copy()[0] = 1


def test_memory_mapped_files_are_shared(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(3, 4))
    t = asarray(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    t[1, 2] = -5
    assert np.load(tmp_path / "x.npy", mmap_mode="r")[1, 2] == -5


def test_tensors_pass_through_or_are_converted() -> None:
    t = asarray([1.0, 2.0], kind=HOST)
    assert asarray(t) is t
    assert asarray(t, "float64") is t
    assert asarray(t, "float32").dtype == np.float32
    assert (asarray(t).kind, asarray(t, kind=MANAGED).kind) == (HOST, MANAGED)


@pytest.mark.parametrize(
    ("obj", "dtype", "error", "text"),
    [
        ([[1], [2, 3]], None, errors.ShapeError, "rows of a list differ in length"),
        (["a"], None, errors.DTypeError, "'str32' is not known"),
        (["a"], "float32", errors.DTypeError, "no numbers: could not convert string to float"),
        ([None], None, errors.DTypeError, "'object' is not known"),
        (np.zeros(3, np.uint16), None, errors.DTypeError, "did you mean 'int16'"),
        ([300], "int8", errors.ArgumentError, "asarray"),
        ([1], "float33", errors.DTypeError, "did you mean 'float32'"),
    ],
)
def test_mistakes(obj: Any, dtype: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        asarray(obj, dtype)
    assert "\n" not in str(caught.value)


# --- DLPack ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
)
def test_dlpack_both_ways_shares_memory(dtype: str) -> None:
    t = Tensor((4, 6), dtype=dtype)[1:, ::2]
    seen = np.from_dlpack(t)
    assert (seen.dtype, seen.shape, seen.strides) == (t.dtype, t.shape, t.strides)
    back = from_dlpack(seen)
    t[0, 1] = 1
    assert seen[0, 1] == 1
    back[2, 2] = 1
    assert t[2, 2].item() == 1
    assert t.__dlpack_device__() == (1, 0)
    assert not np.shares_memory(np.from_dlpack(t, copy=True), seen)


def test_dlpack_of_a_tensor_and_from_an_object_that_has_nothing_else() -> None:
    array = np.arange(6.0)
    door = Door(array, "__dlpack__", "__dlpack_device__")
    for t in (from_dlpack(door), asarray(door)):
        assert np.shares_memory(t.read(), array)
    assert np.shares_memory(from_dlpack(t).read(), array)


def test_dlpack_keeps_the_memory() -> None:
    seen = np.from_dlpack(Tensor((101, 7)))
    for _ in range(30):
        Tensor((101, 7))[...] = -1
    assert np.all(seen == 0)


def test_dlpack_from_a_device() -> None:
    with simulated_devices(2) as (_, device):
        block = MemoryManager(12, "int32", DEVICE, 1)
        block.copy_from(np.arange(12, dtype=np.int32))

        class Foreign:
            def __init__(self, strides: Any = None) -> None:
                self.__cuda_array_interface__ = {
                    "shape": (3, 4), "typestr": "<i4", "version": 3, "strides": strides,
                    "data": (block.device_pointer(), False),
                }  # fmt: skip

            def __dlpack_device__(self) -> tuple[int, int]:
                return 2, 1

        waits = device.counts.waits
        t = from_dlpack(Foreign())
        assert device.counts.waits > waits, "what the other library writes is waited for"
        assert (t.kind, t.device, t.shape) == (DEVICE, 1, (3, 4))
        assert t.__dlpack_device__() == (2, 1)
        t[1, 1] = -1
        assert block.get(5) == -1
        assert from_dlpack(Foreign((16, 4)))[2, 3].item() == 11
        with pytest.raises(errors.ArgumentError, match="not contiguous"):
            from_dlpack(Foreign((4, 12)))
        with pytest.raises(errors.DeviceError, match="__cuda_array_interface__"):
            np.from_dlpack(t)
        del t
        assert block.get(4) == 4, "the block still belongs to its owner"


def test_dlpack_mistakes() -> None:
    with pytest.raises(errors.ArgumentError, match="a list does not offer DLPack; use asarray"):
        from_dlpack([1, 2])

    class Strange:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0  # kDLMetal

    with pytest.raises(errors.DeviceError, match="device type 8 of a Strange"):
        from_dlpack(Strange())
