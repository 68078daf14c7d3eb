"""One JPEG or PNG file to bytes of RGB or grey, by Pillow; what cannot be decoded says why."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, MissingExtraError, shown
from magmadnn.storage.input_files import opened, reading

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
MOST_PIXELS = 1 << 26  # of an image: 8192 x 8192, 192 MiB once decoded
_MOST_BYTES = 1 << 28  # of a file
_MAGIC = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}
_OTHERS = {"GIF": b"GIF8", "BMP": b"BM", "TIFF": b"II*\0", "WebP": b"RIFF"}
_WHITE = 255
# What Pillow raises for content that it cannot decode; its parsers do not agree on one class.
_REFUSALS = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, OverflowError, EOFError,
    ZeroDivisionError, struct.error, AttributeError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """What is made of an image.

    Attributes:
        size: pixels on each side that it is scaled to; None: it stays.
        grey: whether it becomes grey, with one channel, in place of RGB.
    """

    size: int | None = None
    grey: bool = False


def is_image_name(path: Path) -> bool:
    """Whether a file is named like an image that can be read."""
    return path.suffix.lower() in ENDINGS


def need_pillow(what: str) -> None:
    """Look whether Pillow is installed.

    Raises:
        MissingExtraError: if it is not.
    """
    try:
        import PIL  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise MissingExtraError.of("Pillow", what, "data") from error


def decoded(path: Path, made: Made) -> NDArray[np.uint8]:
    """The image in a file as [height, width, 3], in the orientation that its EXIF data says.

    Grey values become equal R, G and B; palettes are looked up; transparent pixels are blended with white;
    16-bit values keep their upper 8 bits. With a size the image is scaled, by the mean over the area of a
    triangle filter, until its shorter side is `size`, and the middle `size` x `size` pixels are kept. Grey
    ones are [height, width, 1], with the brightness of ITU-R BT.601.

    Raises:
        DataError: it is damaged, cut short, not what its name says, or too large; the text has no path.
        FileError: it cannot be read.
    """
    with opened(path) as file:
        # No more room than is needed: each of many threads would take 256 MiB.
        most = min(os.fstat(file.fileno()).st_size, _MOST_BYTES) + 1
        data = file.read(most) or b""
    if len(data) > _MOST_BYTES:
        raise DataError(f"is larger than {_MOST_BYTES:,} bytes")
    said = ENDINGS[path.suffix.lower()]
    _check_kind(data, said)
    with reading(path):  # which words a MemoryError
        try:
            return _pixels(_opened(data, said), made)
        except DataError:
            raise
        except _REFUSALS as error:
            reason = shown(str(error) or type(error).__name__, 80)
            words = "is cut short" if "truncated" in reason.lower() else "is damaged"
            raise DataError(f"{words} ({reason})") from error


def _check_kind(data: bytes, said: str) -> None:
    """Refuse content of another kind than the name says."""
    if data.startswith(_MAGIC[said]):
        return
    if not data:
        raise DataError("is empty")
    kinds = {**_MAGIC, **_OTHERS}
    found = next((kind for kind, magic in kinds.items() if data.startswith(magic)), "no image")
    raise DataError(f"holds {found}, not {said} as its name says")


def _opened(data: bytes, kind: str) -> Image.Image:
    """The image, of which only the header is read; its size is looked at before any pixel is decoded.

    The plugins are called by themselves: `Image.open` would try others, and look at a limit that the whole
    process shares.
    """
    from PIL import JpegImagePlugin, PngImagePlugin

    plugin: Any = JpegImagePlugin.JpegImageFile if kind == "JPEG" else PngImagePlugin.PngImageFile
    image: Image.Image = plugin(io.BytesIO(data))
    if image.width * image.height > MOST_PIXELS:
        raise DataError(
            f"has {image.width} x {image.height} pixels, over {MOST_PIXELS:,}, taken for an attack on the "
            "memory"
        )
    return image


def _pixels(image: Image.Image, made: Made) -> NDArray[np.uint8]:
    """Bytes of an opened image."""
    from PIL import ImageOps

    image.load()  # before orientation and palettes, so that a cut file is told as such
    image = _rgb(ImageOps.exif_transpose(image))
    if made.size is not None:
        image = _resized(image, made.size)
    if made.grey:
        return np.asarray(image.convert("L"), np.uint8)[..., np.newaxis]
    return np.asarray(image, np.uint8)


def _rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":  # 16-bit grey
        values = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (_WHITE, _WHITE, _WHITE, _WHITE))
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")


def _resized(image: Image.Image, size: int) -> Image.Image:
    """Scaled to `size` on the shorter side, then the middle square."""
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)
