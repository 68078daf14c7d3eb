"""`Tensor`: concrete values in memory of any kind, with NumPy's indexing.

A Tensor is a MemoryManager and a frame: an ndarray that says, by its shape, strides and address, which
elements of the memory belong to the Tensor. So every view (an index, a transpose, a reshape) is made by
NumPy's own rules, for all kinds of memory; the frame of DEVICE memory is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from magmadnn.backends.cuda import array_library
from magmadnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from magmadnn.graph.op import Op, OpKind, as_arrays
from magmadnn.graph.signature import shape_text
from magmadnn.memory import BFLOAT16, Kind, MemoryManager, as_dtype
from magmadnn.ops.philox import stream_of

from . import init as initialisers
from ._layout import as_shape, assigning, fetched, filled, flat, indexing, offset_of, settled_index
from ._value_operators import ValueOperators
from .eager.device_layout import HasDeviceLayout
from .eager.known import known_call, with_types
from .eager.operands import lies_on_gpu
from .eager.programs import PROGRAMS, Results, Traced

Array = NDArray[Any]


class Tensor(ValueOperators, HasDeviceLayout):
    """Values of one dtype in an array of any number of axes; computes at once.

    Args:
        shape: sizes of the axes, a tuple; () for a single value. For values there is `md.asarray`.
        init: an initialiser of `md.init`, or its name; zeros where it is left out.
        dtype: float16, bfloat16, float32, float64, int8 to int64, uint8 or bool.
        kind: kind of memory (see `md.memory.Kind`).
        device: number of the device, for kinds that have one.
        seed: of the initialiser. Equal seeds give equal values, for Tensors of one name.
        name: tells the random values of one seed apart, as those of variables; it is not kept.

    Raises:
        ShapeError: if shape is no shape.
        ArgumentError: for a list or an array, which could be values.
        DTypeError: if there is no such dtype, or the initialiser cannot make it.
        DeviceError, OutOfMemoryError: if there is no such memory, or not enough.
    """

    __slots__ = ("__weakref__", "_frame", "_memory")

    __magmadnn_priority__: ClassVar[int] = 10

    def __init__(
        self,
        shape: int | tuple[int, ...],
        init: initialisers.Initializer | str | None = None,
        dtype: DTypeLike = "float32",
        kind: Kind | str = Kind.MANAGED,
        device: int = 0,
        seed: int = 0,
        name: str = "Tensor",
    ) -> None:
        if isinstance(shape, list) or np.ndim(shape if hasattr(shape, "shape") else 0):
            raise ArgumentError(
                f"Tensor: a {type(shape).__name__} could be a shape or values: write a tuple for a shape, "
                "md.asarray([...]) for values"
            )
        sizes, dtype = as_shape("Tensor", shape), as_dtype(dtype)
        if init is None:
            memory = MemoryManager(int(np.prod(sizes, dtype=object)), dtype, kind, device)
        else:
            values = initialisers.of(init)(sizes, dtype, seed, stream_of(name))
            memory = filled(values, Kind.of(kind), device)
        self._memory, self._frame = memory, memory.frame().reshape(sizes)

    @classmethod
    def over(cls, memory: MemoryManager, frame: Array) -> Tensor:
        """A Tensor over the part of a memory that `frame`, a view of `memory.frame()`, lays out."""
        self = cls.__new__(cls)
        self._memory, self._frame = memory, frame
        return self

    @classmethod
    def holding(cls, values: Array, kind: Kind | str = Kind.MANAGED, device: int = 0) -> Tensor:
        """A Tensor in new memory, with the values of an array.

        Unlike `wrap`'s, large ones lie where kernels read them fastest (see `magmadnn.backends.cpu`).
        """
        values = np.asarray(values, as_dtype(np.asarray(values).dtype))
        memory = filled(values, Kind.of(kind), device)
        return cls.over(memory, memory.frame().reshape(values.shape))

    @classmethod
    def wrap(cls, array: Array, kind: Kind | str = Kind.MANAGED, device: int = 0) -> Tensor:
        """A Tensor on the memory of an ndarray: both see each other's changes.

        It is a copy for DEVICE and CUDA_MANAGED, and for arrays that no Tensor can describe (not
        aligned, of the other byte order, strides that are no multiple of the element).

        Raises:
            DTypeError: if magmadnn has no such dtype.
        """
        array, kind, dtype = np.asarray(array), Kind.of(kind), as_dtype(array.dtype)
        if kind in (Kind.DEVICE, Kind.CUDA_MANAGED):
            return cls.holding(array, kind, device)
        flags = array.flags
        whole = flags.forc or all(s % dtype.itemsize == 0 for s in array.strides)
        if not (whole and flags.aligned and array.dtype == dtype):
            array = array.astype(dtype, order="C")
        return cls.over(MemoryManager.adopt(flat(array), kind, device), array.view())

    # --- what it is --------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._frame.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._frame.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._frame.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._memory.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._frame.nbytes

    @property
    def is_packed(self) -> bool:
        """Whether the elements lie one after the other, row by row, at an address that fits them."""
        flags = self._frame.flags
        return flags.c_contiguous and flags.aligned

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._frame.strides

    @property
    def offset(self) -> int:
        """Elements from the beginning of the memory to the first element."""
        return offset_of(self._frame, self._memory)

    @property
    def memory(self) -> MemoryManager:
        """The memory that the elements are in, with all views of it."""
        return self._memory

    @property
    def kind(self) -> Kind:
        """Kind of memory."""
        return self._memory.kind

    @property
    def device(self) -> int:
        """Number of the device."""
        return self._memory.device

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len: a Tensor without axes has no length; use item()")
        return self.shape[0]

    def __repr__(self) -> str:
        values = np.array2string(self.read(), separator=", ", prefix="Tensor(")
        shape = f", shape={self.shape}" if not self.size else ""
        return f"Tensor({values}{shape}, dtype={self.dtype.name}, kind={self.kind.name})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    # --- values ------------------------------------------------------------------------------

    def read(self) -> Array:
        """The values on the host, not to be written: a view, or a copy for DEVICE."""
        if self.kind is Kind.DEVICE:
            values = fetched(self._memory, self._frame)[0]
        else:
            self._memory.update_host()
            values = self._frame.view()
        values.flags.writeable = False
        return values

    def write(self, values: Array) -> None:
        """Set all values.

        Raises:
            ShapeError, DTypeError: if shape or dtype differ; nothing is converted.
        """
        if values.shape != self.shape:
            raise ShapeError(
                f"Tensor.write: expected shape {shape_text(self.shape)}, "
                f"got {shape_text(values.shape)}"
            )
        if values.dtype != self.dtype:
            raise DTypeError(
                f"Tensor.write: expected {self.dtype.name}, got {values.dtype.name}; use astype"
            )
        if self._frame.flags.c_contiguous:  # overwrites a stale side without a look at it
            self._memory.copy_from(values, to=self.offset)
        else:
            self[...] = values

    def numpy(self) -> Array:
        """The values as an ndarray on the same memory (for DEVICE: a copy).

        The array can be written, so a copy on a device is stale from now on. Once the device has been
        used again, take a new array before writing more. `read` leaves the device's copy valid.
        """
        if self.kind is Kind.DEVICE:
            return fetched(self._memory, self._frame)[0]
        self._memory.update_host(self._memory.writable)
        return self._frame.view()

    def set_aside(self) -> bool:
        """Give the memory back, as the values lie in parts on several workers.

        Until `bring_back` whoever reads or writes the values, or a view of them, gets a DeviceError.

        Returns:
            Whether it was done: not for views, whose memory has other users.
        """
        if not self.is_packed or self._memory.size != self.size or self.kind is not Kind.MANAGED:
            return False
        nothing = np.zeros(1, self.dtype)
        self._memory.set_aside()
        self._frame = as_strided(nothing, self.shape, (0,) * self.ndim, writeable=False)
        return True

    def bring_back(self) -> None:
        """Have memory again after `set_aside`; values are zeros until they are written."""
        if self._memory.is_aside:
            shape = self.shape
            self._memory.bring_back()
            self._frame = self._memory.frame().reshape(shape)

    def item(self) -> Any:
        """The only element, as a Python number.

        Raises:
            ShapeError: if there is not exactly one.
        """
        if self.size != 1:
            raise ShapeError(
                f"item: expected one element, got {self.size} of shape {shape_text(self.shape)}"
            )
        return self.read().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.read().tolist()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ArgumentError(
                f"bool: a Tensor of {self.size} elements is neither true nor false; "
                "compare its sum, min or max"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise DTypeError(
                f"index: expected an integer without axes, got {self.dtype.name} "
                f"of shape {shape_text(self.shape)}"
            )
        return int(self.item())

    # --- indexing and views ------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        basic, index = settled_index(index)
        with indexing(self.shape):
            if basic:
                return self.over(self._memory, self._frame[index])
            return self._like(np.array(self.read()[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        basic, index = settled_index(index)
        values = value.read() if isinstance(value, Tensor) else value
        with assigning(self.shape, self.dtype, value):
            if self.kind is Kind.DEVICE:
                frame, index = (self._frame[index], ...) if basic else (self._frame, index)
                array, span, begin = fetched(self._memory, frame)
                array[index] = values
                self._memory.copy_from(span, to=begin)
            else:
                self._memory.host(write=True)
                self._frame[index] = values

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def _view(self, name: str, make: Callable[[Array], Array]) -> Tensor:
        try:
            return self.over(self._memory, make(self._frame))
        except (ValueError, TypeError) as error:
            raise ShapeError(f"{name} of shape {shape_text(self.shape)}: {error}") from error

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in another shape; a view where strides allow it, a copy otherwise.

        Args:
            *shape: one tuple or several integers; one of them may be -1.

        Raises:
            ShapeError: if the elements do not fit.
        """
        sizes = as_shape("reshape", shape[0] if len(shape) == 1 else shape, free=True)
        known = int(np.prod([s for s in sizes if s != -1], dtype=object))
        fits = known == self.size if -1 not in sizes else known and self.size % known == 0
        if not fits or sizes.count(-1) > 1:
            raise ShapeError(
                f"reshape: {shape_text(self.shape)} has {self.size} elements, "
                f"which do not fit into {shape_text(sizes)}"
            )
        try:
            return self.over(self._memory, np.reshape(self._frame, sizes, copy=False))
        except ValueError:  # no strides describe it
            return self._like(self.read().reshape(sizes))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Tensor:
        """A view without axes of size 1, all or those named."""
        return self._view("squeeze", lambda frame: frame.squeeze(axis))

    def unsqueeze(self, axis: int = 0) -> Tensor:
        """A view with a new axis of size 1 at `axis`."""
        return self._view("unsqueeze", lambda frame: np.expand_dims(frame, axis))

    def transpose(self, *axes: Any) -> Tensor:
        """A view with the axes in another order; reversed where none is given."""
        return self._view("transpose", lambda frame: frame.transpose(*axes))

    @property
    def T(self) -> Tensor:
        """A view with the axes in reverse order."""
        return self.transpose()

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """A view with two axes exchanged."""
        return self._view("swapaxes", lambda frame: frame.swapaxes(axis1, axis2))

    # --- copies ------------------------------------------------------------------------------

    def _like(self, array: Array) -> Tensor:
        return self.wrap(array, self.kind, self.device)

    def copy(self, kind: Kind | str | None = None, device: int | None = None) -> Tensor:
        """The values in new memory, in C order; of another kind or on another device if given."""
        memory = MemoryManager(
            self.size,
            self.dtype,
            self.kind if kind is None else kind,
            self.device if device is None else device,
        )
        if self._frame.flags.c_contiguous:
            memory.copy_from(self._memory, self.offset if self.size else 0, self.size)
        else:
            memory.copy_from(self.read())
        return self.over(memory, memory.frame().reshape(self.shape))

    def to(self, kind: Kind | str, device: int | None = None) -> Tensor:
        """The values in memory of a kind on a device: a copy, or this Tensor if it is there."""
        if Kind.of(kind) is self.kind and device in (None, self.device):
            return self
        return self.copy(kind, device)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """A copy in another dtype. Values that it cannot hold become what NumPy makes of them."""
        with np.errstate(all="ignore"):
            return self._like(self.read().astype(as_dtype(dtype)))

    def __copy__(self) -> Tensor:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.read().tobytes()
        return _restored, (data, self.shape, self.dtype.name, self.kind.name, self.device)

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Tensor:
        first = operands[0]
        if type(first) is not Tensor:
            first = next(x for x in operands if isinstance(x, Tensor))
        if op.on_gpu and (first._device_layout() is not None or lies_on_gpu(first.memory)):
            if (found := _computed_there(op, operands, attributes, first)) is not None:
                return found
        arrays = as_arrays(op.words, [x.read() if isinstance(x, Tensor) else x for x in operands])
        result = op.compute(arrays, attributes)
        if any(np.may_share_memory(result, a) for a in arrays):
            result = result.copy()  # a result never changes with its operands
        return first._like(result)

    # --- exchange with other libraries -------------------------------------------------------

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Other functions of NumPy, such as `np.mean`, get the values and give arrays."""
        return function(
            *(_as_arrays(a) for a in args), **{k: _as_arrays(v) for k, v in options.items()}
        )

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        converts = dtype is not None and np.dtype(dtype) != self.dtype
        if copy is False and (converts or self.kind is Kind.DEVICE):
            why = "another dtype" if converts else "DEVICE memory"
            raise ArgumentError(f"asarray: {why} needs a copy, which copy=False forbids")
        if converts:
            return self.read().astype(dtype)
        return np.array(self.read()) if copy else self.numpy()

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule on this memory without a copy: of DEVICE memory there, else of the host's side."""
        if self.kind is Kind.DEVICE:
            library = array_library()
            if library is None or self.dtype == BFLOAT16:
                raise DeviceError(
                    f"DLPack: nothing here can export {self.dtype.name} of a DEVICE Tensor; use "
                    "__cuda_array_interface__, or t.to(md.HOST)"
                )
            return library.asarray(self).__dlpack__(**options)
        if self.dtype == BFLOAT16:
            raise DTypeError("DLPack: NumPy cannot export bfloat16; use t.astype('float32')")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        cpu, cuda = (1, 0), (2, self.device)  # kDLCPU, kDLCUDA of dlpack.h
        return cuda if self.kind is Kind.DEVICE else cpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The address on the device; DEVICE and CUDA_MANAGED Tensors only have it."""
        if self.kind not in (Kind.DEVICE, Kind.CUDA_MANAGED):
            raise AttributeError(f"__cuda_array_interface__: {self.kind.name} is host memory")
        address = self._memory.device_pointer(write=True) + self.offset * self.dtype.itemsize
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (address if self.size else 0, False),
            "strides": self.strides, "version": 3,
        }  # fmt: skip


def holding_results(results: Results) -> list[Tensor]:
    """Tensors over the memory of results."""
    return [Tensor.over(memory, frame) for memory, frame, _ in results.parts]


def _computed_there(op: Op, operands: Sequence[Any], attributes: Any, at: Tensor) -> Tensor | None:
    """What an op gives of operands on a GPU, computed where `at` lies; None where the host has to."""
    known = known_call(op, operands, attributes, Tensor)
    results = None if known is None else PROGRAMS.again(known)
    if results is None:
        if not all(isinstance(x, Tensor | np.ndarray) for x in operands):
            return None
        place = at.kind, at.device
        settled = tuple((name, with_types(value)) for name, value in attributes.items())
        trace = lambda nodes: Traced([op(*nodes, **attributes)], None)  # noqa: E731
        finite = op.kind is OpKind.LIBRARY  # which may pass NaN on; the host refuses it
        results = PROGRAMS.call((op, settled), operands, place, trace, finite=finite, known=known)
    return None if results is None else holding_results(results)[0]


def _restored(data: bytes, shape: tuple[int, ...], dtype: str, kind: str, device: int) -> Tensor:
    """A Tensor from its pickle."""
    values = np.frombuffer(bytearray(data), as_dtype(dtype)).reshape(shape)
    return Tensor.wrap(values, kind, device)


def _as_arrays(argument: Any) -> Any:
    """An argument of a NumPy function with arrays in place of Tensors, in lists and tuples too."""
    if isinstance(argument, Tensor):
        return np.asarray(argument)
    if type(argument) in (list, tuple):
        return type(argument)(_as_arrays(part) for part in argument)
    return argument
