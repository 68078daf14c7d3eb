"""How the elements of Tensors lie in a device's memory, found out once for each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from magmadnn.backends.cuda.nodes.stand_ins import ALIGNMENT
from magmadnn.memory import Kind, MemoryManager


class DeviceLayout(NamedTuple):
    """How the elements of a Tensor lie in DEVICE memory.

    Attributes:
        layout: the same object for equal shapes, strides, dtypes and devices.
        place: the address of the first element, a multiple of `ALIGNMENT`, which stays as it is.
    """

    layout: object
    place: int


class HasDeviceLayout:
    """What Tensors know of their layout, once for each frame that lays out their elements in a memory."""

    __slots__ = ("_layout_there",)
    _memory: MemoryManager
    _frame: NDArray[Any]

    @property
    def offset(self) -> int:
        """Elements from the beginning of the memory to the first."""
        raise NotImplementedError

    def _device_layout(self) -> DeviceLayout | None:
        """How the elements lie in DEVICE memory; None for other kinds, and for what is not aligned."""
        frame = self._frame
        try:
            if self._layout_there[0] is frame:
                return self._layout_there[1]
        except AttributeError:
            self._layout_there: tuple[Any, DeviceLayout | None]
        memory, found = self._memory, None
        if memory.kind is Kind.DEVICE:
            behind = 0 if frame.size == memory.size else self.offset * memory.dtype.itemsize
            place = memory.device_pointer() + behind
            if place % ALIGNMENT == 0:
                layout = _layout(frame.shape, frame.strides, memory.dtype, memory.device)
                found = DeviceLayout(layout, place)
        self._layout_there = frame, found
        return found


@lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int) -> object:
    """An object that stands for a layout in keys: to compare shapes and dtypes takes longer."""
    return object()
