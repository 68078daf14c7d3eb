"""The header of an .npy file or member: matched with a pattern, never evaluated.

Source: NumPy, "A simple file format for NumPy arrays" (NEP 1), and `numpy.lib.format`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from magmadnn.errors import DataError, DTypeError, shown

MAGIC: Final = b"\x93NUMPY"
_VERSIONS: Final = (b"\1\0", b"\2\0", b"\3\0")
_HEADER_BYTES: Final = 10_000  # as NumPy's own limit
_RANK: Final = 64  # NumPy's limit

_FIELD: Final = r"""['"](?:
    descr['"]\s*:\s*['"](?P<descr{0}>[^'"]{{1,40}})['"] |
    fortran_order['"]\s*:\s*(?P<order{0}>True|False) |
    shape['"]\s*:\s*\((?P<shape{0}>\s*(?:(?:0|[1-9]\d*)L?\s*,\s*)*(?:(?:0|[1-9]\d*)L?\s*)?)\)
)\s*"""
_HEADER: Final = re.compile(
    r"\s*\{{\s*{},\s*{},\s*{},?\s*\}}\s*".format(*(_FIELD.format(k) for k in range(3))),
    re.VERBOSE | re.ASCII,
)
_DTYPE: Final = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|[US][1-9]\d{0,5})", re.ASCII)
_HALVES: Final = re.compile(r"[<|]V2", re.ASCII)  # what NumPy calls bfloat16
_SIZE: Final = re.compile(r"\d+", re.ASCII)


class _Reads(Protocol):
    def read(self, count: int, /) -> bytes | None: ...


@dataclass(frozen=True)
class NpyHeader:
    """What the values of an .npy file are.

    Attributes:
        dtype: of an element.
        shape: of the array.
        is_fortran: whether the first index runs fastest.
        begin: where the values begin, in bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    begin: int

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(file: _Reads, what: str, way_out: str, halves: bool = False) -> NpyHeader:
    """The header at the place where a file is read.

    Args:
        file: that is read.
        what: how messages call the array.
        way_out: what to do if it is none.
        halves: whether elements of two bytes that NumPy has no name for are let through, as "V2".

    Raises:
        DataError: it is no array of numbers, or of a shape that cannot be.
        DTypeError: its elements are something else than numbers or text.
    """

    def refuse(reason: str) -> DataError:
        return DataError(f"{what} is no array of numbers ({reason}): {way_out}")

    start = file.read(8) or b""
    counted = file.read(4 if start[6:7] > b"\1" else 2) or b""
    size = int.from_bytes(counted, "little")
    if start[:6] != MAGIC or start[6:] not in _VERSIONS or size > _HEADER_BYTES:
        raise refuse("its header is none of NumPy's")
    found = _HEADER.fullmatch((file.read(size) or b"").decode("latin-1"))
    fields = {k[:-1]: v for k, v in found.groupdict().items() if v is not None} if found else {}
    if fields.keys() != {"descr", "order", "shape"}:
        raise refuse("its header describes something else")
    text = fields["descr"]
    if text.lstrip("<>|=").startswith("O"):
        raise refuse("it holds Python objects, which are never loaded")
    try:
        matched = _DTYPE.fullmatch(text) or (halves and _HALVES.fullmatch(text))
        dtype = np.dtype(text) if matched else None
    except TypeError:
        dtype = None
    if dtype is None:
        raise DTypeError(
            f"{what}: elements are of type {shown(text, 40)}, expected numbers: convert text to numbers or "
            "class numbers first"
        )
    shape = tuple(int(size) for size in _SIZE.findall(fields["shape"]))
    if len(shape) > _RANK or math.prod(max(1, n) for n in shape) * dtype.itemsize >= 2**63:
        raise refuse(f"its shape is {shown(shape, 80)}")
    return NpyHeader(dtype, shape, fields["order"] == "True", len(start) + len(counted) + size)


def npy_header_bytes(descr: str, shape: tuple[int, ...]) -> bytes:
    """A header, version 1.0, of values in C order, which begin at a multiple of 64 bytes."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = -(len(MAGIC) + 4 + len(text) + 1) % 64
    body = (text + " " * room + "\n").encode("latin-1")
    return MAGIC + b"\1\0" + len(body).to_bytes(2, "little") + body
