"""Many files of images at a time, by threads: all of them into memory, or each batch when it is asked for.

Both ways give the same bits: an image's values depend on its file and on what is made of it only.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.images.decoding import Made, decoded
from magmadnn.errors import DataError, MagmaDNNError, shown
from magmadnn.memory.on_demand import OnDemand
from magmadnn.runtime.threads import thread_count
from magmadnn.storage.machine_memory import available_bytes

Decode = Literal["memory", "stream"]
DECODES = ("memory", "stream")
STREAMED_SHARE = 0.5  # of the available memory; images that need more are decoded batch by batch
_NEEDED = 27  # bytes for each byte decoded: itself, in float32 as read, and so once more as scaled
_CHANNELS = 3
_SMALL = 1 << 24  # bytes that are never too many

Pixels = NDArray[np.uint8]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Looked:
    """What is known of a file that was decoded, and forgotten.

    Attributes:
        shape: of its pixels.
        digest: of its values in float32.
    """

    shape: tuple[int, ...]
    digest: bytes


def is_streamed(decode: Decode | None, images: int, height: int, width: int) -> bool:
    """Whether images are decoded batch by batch: as one says, or by what they need in memory.

    That is 27 * height * width bytes each, more than half of the memory that programs may take now.
    """
    return needs_stream(decode, _NEEDED * height * width * images)


def needs_stream(decode: Decode | None, needed: int) -> bool:
    """Whether rows that need so many bytes are read batch by batch, unless one says which way."""
    if decode is not None:
        return decode == "stream"
    return needed > _SMALL and needed > STREAMED_SHARE * available_bytes()


def decode_all(paths: Sequence[Path], made: Made, workers: int | None) -> list[Pixels | str]:
    """Pixels of each file, or why there are none."""
    return _for_each(paths, made, workers, lambda pixels: pixels)


def look_at_all(paths: Sequence[Path], made: Made, workers: int | None) -> list[Looked | str]:
    """What is known of each file, or why it cannot be decoded; no more images than threads are held."""

    def look(pixels: Pixels) -> Looked:
        return Looked(pixels.shape, row_digest(scaled(pixels)))

    return _for_each(paths, made, workers, look)


def images_on_demand(
    paths: Sequence[Path], looked: Sequence[Looked], made: Made, workers: int | None
) -> OnDemand:
    """Images in 0..1 of files that were looked at and are alike, each decoded when it is asked for."""
    shape = looked[0].shape

    def read(rows: NDArray[np.int64]) -> NDArray[Any]:
        return _read([paths[row] for row in rows.tolist()], shape, made, workers)

    digests = tuple(one.digest for one in looked)
    return OnDemand((len(paths), *shape), np.dtype(np.float32), read, digests=digests)


def row_digest(row: NDArray[Any]) -> bytes:
    """SHA-256 of the values of a row."""
    return hashlib.sha256(np.ascontiguousarray(row).view(np.uint8).data).digest()


def scaled(pixels: Pixels) -> NDArray[np.float32]:
    """Bytes as numbers from 0 to 1."""
    return np.divide(pixels, np.float32(255.0), dtype=np.float32)


def _read(
    paths: Sequence[Path], shape: tuple[int, ...], made: Made, workers: int | None
) -> NDArray[np.float32]:
    """Images of these files.

    Raises:
        DataError: a file is not as it was when it was looked at, naming it.
    """
    x = np.empty((len(paths), *shape), np.float32)

    def put(row: int) -> str | None:
        try:
            pixels = decoded(paths[row], made)
        except MagmaDNNError as error:
            return str(error)
        if pixels.shape != shape:
            return f"has {pixels.shape[1]} x {pixels.shape[0]} pixels, not {shape[1]} x {shape[0]}"
        np.divide(pixels, np.float32(255.0), out=x[row])
        return None

    for row, words in enumerate(_by_threads(put, range(len(paths)), workers)):
        if words is not None:
            raise DataError(
                f"{shown(paths[row])}: {words}: the file has changed since it was looked at; start again"
            )
    return x


def _for_each(
    paths: Sequence[Path],
    made: Made,
    workers: int | None,
    use: Callable[[Pixels], Found],
) -> list[Found | str]:
    def one(path: Path) -> Found | str:
        try:
            return use(decoded(path, made))
        except DataError as error:
            return str(error)

    return _by_threads(one, paths, workers)


def _by_threads(
    function: Callable[[Any], Found], items: Sequence[Any], workers: int | None
) -> list[Found]:
    """What a function makes of each, in order; Pillow decodes without the interpreter's lock."""
    threads = min(workers or thread_count(), len(items))
    with _quiet():
        if threads < 2:
            return [function(item) for item in items]

        from concurrent.futures import ThreadPoolExecutor  # rarely needed

        with ThreadPoolExecutor(threads, "magmadnn-decode") as pool:
            return list(pool.map(function, items))


_QUIET = threading.Lock()
_quiet_threads: list[warnings.catch_warnings[Any]] = []  # the first holds what was before
_entered = 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns of details of files, such as EXIF data, by a list that all threads share.

    Several readers may be here at once; the last to leave restores the list.
    """
    global _entered
    with _QUIET:
        _entered += 1
        if _entered == 1:
            held = warnings.catch_warnings()
            held.__enter__()
            warnings.simplefilter("ignore")
            _quiet_threads.append(held)
    try:
        yield
    finally:
        with _QUIET:
            _entered -= 1
            if not _entered:
                _quiet_threads.pop().__exit__(None, None, None)
