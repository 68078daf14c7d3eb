"""Pictures inside a page: arrays as PNG, written here since no library is needed for it."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # [height, width, 1 or 3]
Floats = NDArray[np.floating[Any]]

_GREY, _RGB = 0, 2  # colour types of the format


def png(pixels: Pixels) -> bytes:
    """A PNG file; source: W3C, "Portable Network Graphics specification", second edition, sections 5, 11."""
    height, width, channels = pixels.shape
    rows = np.zeros(
        (height, 1 + width * channels), np.uint8
    )  # each begins with its filter, 0 for none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _RGB, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(pixels: Pixels) -> str:
    """A picture as text that stands in the page itself."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def as_pixels(image: Floats) -> Pixels:
    """Bytes of an image with values in 0..1; one with others is stretched to its own range."""
    low, high = float(image.min()), float(image.max())
    if low < 0 or high > 1:
        image = (image - low) / max(high - low, 1e-12)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


def as_filter(kernel: Floats) -> Pixels:
    """Bytes of weights: 0 is the middle grey, the largest weight white or black."""
    most = max(float(np.abs(kernel).max()), 1e-12)
    found: Pixels = np.rint(127.5 + 127.5 * kernel / most).astype(np.uint8)
    return found


def as_map(values: Floats) -> Pixels:
    """Bytes of one channel [height, width]: its least value is black, its largest white."""
    low, high = float(values.min()), float(values.max())
    found: Pixels = np.rint(255 * (values - low) / max(high - low, 1e-30)).astype(np.uint8)
    return found[..., None]
