"""New arrays on workers: what a session makes of values, shapes and seeds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from magmadnn.dmath.arrays import making
from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.client.checking import fitting, real, refuse_complex, several, whole
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import LayoutLike
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, quoted
from magmadnn.memory.dtypes import as_dtype, refuse_masked


class Creating:
    """The part of a session that makes new arrays."""

    size: int
    device: str
    _client_bytes: int
    _new: Callable[..., Matrix]

    def _on(self, name: str, device: str | None) -> None:
        """Refuse a device that is not that of these workers."""
        if device is not None and device != self.device:
            raise ArgumentError(
                f"{name}: these workers compute on {self.device!r}, got device={quoted(device)}: "
                f"md.dmath.distributed(w, device=...) makes a session on another"
            )

    def array(
        self,
        values: Any,
        dtype: Any = None,
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """Send an array to the workers, each its blocks.

        Args:
            values: an array, or what NumPy makes one of.
            dtype: None for that of the values.
            layout: a layout, such as `md.dmath.Rows()`; "auto" or None for rows over all workers.
            device: None, or where the workers compute.

        Raises:
            ShapeError: rows of a list differ in length.
            DataError: elements are masked.
            DTypeError: elements that are no numbers, or complex ones for a real dtype.
            ArgumentError: numbers of a list that are beyond `dtype`; elements of arrays are cast as by
                `astype`.
        """
        self._on("array", device)
        layout = "auto" if layout is None else layout
        if isinstance(values, Matrix) and id(values._session) == id(self):
            return values.to(None if layout == "auto" else layout, dtype)
        try:
            array = np.asarray(values)
        except ValueError:
            raise ShapeError(
                "array: rows of values differ in length: an array has as many in each"
            ) from None
        refuse_masked("array", values)
        if dtype is not None:
            refuse_complex("array", array.dtype, as_dtype(dtype))
            array = _cast(values, array, as_dtype(dtype))
        known = as_dtype(array.dtype)

        def flats(resolved: Layout) -> list[Array]:
            parts = [making.packed(array, resolved, w) for w in range(self.size)]
            self._client_bytes += sum(part.nbytes for part in parts)
            return parts

        return self._new("array", [], array.shape, known, layout, flats, dtype=known.name)

    def _made(self, op: str, shape: Any, dtype: Any, layout: LayoutLike, **settings: Any) -> Matrix:
        try:
            sizes = several(op, "sizes", shape)
        except ArgumentError:
            sizes = (-1,)
        if min(sizes, default=0) < 0:
            raise ShapeError(
                f"{op}: sizes of a shape are whole numbers from 0, got {quoted(shape)}"
            )
        known = as_dtype(dtype)
        return self._new(op, [], sizes, known, layout or "auto", dtype=known.name, **settings)

    def load(
        self, file: str | os.PathLike[str], dtype: Any = None, layout: LayoutLike = "auto"
    ) -> Matrix:
        """The array in an .npy file, of which each worker reads its own blocks; nothing passes the client.

        Args:
            file: as `numpy.save` and `md.dmath.save` write it, on a disk that all workers reach.
            dtype: of the result; None for that of the file. bfloat16 has to be named.
            layout: a layout; "auto" for rows over all workers.

        Raises:
            FileError: it cannot be read; by a worker: when the result is used.
            DataError: it holds no array of numbers, or is damaged.
            DTypeError: elements that are no numbers.
        """
        from magmadnn.dmath.client.files import stored_array, stored_dtype

        path, header = stored_array(file)
        stored, known = stored_dtype(header, dtype)
        return self._made(
            "load",
            header.shape,
            known,
            layout,
            path=str(path),
            stored=stored,
            begin=header.begin,
            is_fortran=header.is_fortran,
        )

    def full(
        self,
        shape: Any,
        value: complex,
        dtype: Any = "float64",
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """An array of one value; `device`: None, or where the workers compute.

        Raises:
            ArgumentError: for a value that is no number, or beyond the dtype.
        """
        self._on("full", device)
        number = fitting("full", value, as_dtype(dtype))
        if isinstance(number, complex):
            parts = [number.real, number.imag]
            return self._made("full_complex", shape, dtype, layout, parts=parts)
        return self._made("full", shape, dtype, layout, value=number)

    def zeros(
        self,
        shape: Any,
        dtype: Any = "float64",
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """An array of zeros."""
        return self.full(shape, 0, dtype, layout, device)

    def ones(
        self,
        shape: Any,
        dtype: Any = "float64",
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """An array of ones."""
        return self.full(shape, 1, dtype, layout, device)

    def empty(
        self,
        shape: Any,
        dtype: Any = "float64",
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """An array whose elements are to be written: they are zeros."""
        return self.full(shape, 0, dtype, layout, device)

    def fftfreq(
        self, n: int, *, d: float = 1.0, dtype: Any = None, device: str | None = None
    ) -> Matrix:
        """Frequencies of the results of `md.dmath.fft.fft` of n samples at distances d, in cycles: [n].

        Those of `numpy.fft.fftfreq`: 0, 1, ..., then -n / 2 (rounded up) to -1, divided by n d.
        """
        self._on("fftfreq", device)
        count, session = _count_of("fftfreq", n), self._session
        places = session.arange(0, count)
        moved = session.apply("where", places < (count + 1) // 2, places, places - count)
        made: Matrix = moved * (1.0 / (count * d))
        return made if dtype is None else made.astype(dtype, copy=False)

    def rfftfreq(
        self, n: int, *, d: float = 1.0, dtype: Any = None, device: str | None = None
    ) -> Matrix:
        """Frequencies of the results of `md.dmath.fft.rfft`: 0 to n / 2 (rounded down), divided by n d."""
        self._on("rfftfreq", device)
        count = _count_of("rfftfreq", n)
        made: Matrix = self._session.arange(0, count // 2 + 1) * (1.0 / (count * d))
        return made if dtype is None else made.astype(dtype, copy=False)

    @property
    def _session(self) -> Any:
        return self

    def from_dlpack(
        self, x: Any, /, *, device: str | None = None, copy: bool | None = None
    ) -> Matrix:
        """Send an array of another library to the workers, read through `__dlpack__`."""
        if copy is False:
            raise ArgumentError(
                "from_dlpack: elements go to workers, so that a copy is made: leave copy out"
            )
        return self.array(np.from_dlpack(x), device=device)

    def linspace(
        self,
        start: float,
        stop: float,
        num: int,
        dtype: Any = None,
        endpoint: bool = True,
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """`num` numbers from `start` to `stop`, evenly, as NumPy's; computed by the client and sent."""
        if isinstance(num, bool) or not isinstance(num, (int, np.integer)) or num < 0:
            raise ArgumentError(f"linspace: num must be a whole number from 0, got {quoted(num)}")
        return self.array(np.linspace(start, stop, int(num), endpoint), dtype, layout, device)

    def eye(
        self,
        rows: int,
        columns: int | None = None,
        k: int = 0,
        dtype: Any = "float64",
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """Ones on the diagonal, `k` places to the right of the main one."""
        self._on("eye", device)
        shape = (rows, rows if columns is None else columns)
        return self._made("eye", shape, dtype, layout, k=whole("eye", "k", k))

    def arange(
        self,
        start: float,
        stop: float | None = None,
        step: float = 1,
        dtype: Any = None,
        layout: LayoutLike = "auto",
        device: str | None = None,
    ) -> Matrix:
        """Numbers from `start` to before `stop`, as NumPy's.

        Raises:
            ArgumentError: for what is no finite real number, a step of 0, or a first or last number beyond
                the dtype.
        """
        self._on("arange", device)
        if stop is None:
            start, stop = 0, start
        for what, number in (("start", start), ("stop", stop), ("step", step)):
            if not np.isfinite(real("arange", what, number)):
                raise ArgumentError(f"arange: {what} must be finite, got {number}")
        if step == 0:
            raise ArgumentError("arange: step must not be 0")
        plain = np.result_type(*(np.asarray(v) for v in (start, stop, step)))
        size = max(int(np.ceil((stop - start) / step)), 0)
        known = as_dtype(dtype or plain)
        first, by = (one.item() if isinstance(one, np.generic) else one for one in (start, step))
        for end in (first, first + (size - 1) * by) if size else ():
            fitting("arange", end, known)
        return self._made("arange", size, known, layout, start=first, step=by)

    def random(
        self, shape: Any, seed: int = 0, dtype: Any = "float64", layout: LayoutLike = "auto"
    ) -> Matrix:
        """Uniform random numbers in [0, 1): the same for a seed in every layout, on any number of workers."""
        return self._random("uniform", shape, seed, dtype, layout)

    def normal(
        self, shape: Any, seed: int = 0, dtype: Any = "float64", layout: LayoutLike = "auto"
    ) -> Matrix:
        """Normal random numbers of mean 0 and variance 1: the same for a seed in every layout."""
        return self._random("normal", shape, seed, dtype, layout)

    def _random(self, kind: str, shape: Any, seed: int, dtype: Any, layout: LayoutLike) -> Matrix:
        known = as_dtype(dtype)
        if known.kind not in "fV":
            raise DTypeError(f"random: numbers are floating-point, got {known}")
        if (
            isinstance(seed, bool)
            or not isinstance(seed, (int, np.integer))
            or not 0 <= seed < 2**64
        ):
            raise ArgumentError(
                f"random: seed must be a whole number from 0 to 2**64 - 1, got {quoted(seed)}"
            )
        return self._made("random", shape, known, layout, seed=int(seed), kind=kind)


def _cast(values: Any, array: Array, dtype: np.dtype[Any]) -> Array:
    """Values in a dtype: arrays as by `astype`, while numbers of lists have to fit."""
    if hasattr(values, "dtype") or array.dtype == dtype:
        return array.astype(dtype, copy=False)
    try:
        return np.asarray(values, dtype)
    except (OverflowError, ValueError) as error:
        raise ArgumentError(f"array: values do not go into elements of {dtype}: {error}") from None


def _count_of(name: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ArgumentError(f"{name}: n must be a whole number from 1, got {quoted(n)}")
    return int(n)
