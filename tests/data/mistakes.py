"""What tests of mistakes with data share: a mistake with its error, and files as bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import MagmaDNNError


class Mistake(NamedTuple):
    act: Callable[[Path], Any]
    error: type[MagmaDNNError]
    message: str


def bytes_of(save: Callable[..., Any], *arrays: Any, **named: Any) -> bytes:
    """The file that NumPy's `save` writes."""
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """An IDX file of images [rows, height, width] or of labels [rows]."""
    magic = {3: 2051, 1: 2049}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()
