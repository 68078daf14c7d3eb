"""Small files in the formats of the real data sets."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn.errors import MagmaDNNError
from magmadnn.ops import philox
from tests.data.mistakes import idx_bytes

PACK = {"": bytes, ".gz": lambda data: gzip.compress(data, 6, mtime=0), ".xz": lzma.compress}


def random_bytes(count: int, stream: str) -> NDArray[np.uint8]:
    bits = philox.random_bits(11, philox.stream_of(stream), count)
    return (bits & np.uint32(0xFF)).astype(np.uint8)


@pytest.fixture
def idx_files(tmp_path: Path) -> Callable[..., dict[str, NDArray[np.uint8]]]:
    """Writes a folder with the four IDX files; returns their arrays by file name."""

    def write(
        folder: Path = tmp_path, train: int = 53, test: int = 17, ending: str = ".gz"
    ) -> dict[str, NDArray[np.uint8]]:
        folder.mkdir(exist_ok=True)
        arrays = {}
        for part, rows in (("train", train), ("t10k", test)):
            arrays[f"{part}-images-idx3-ubyte"] = random_bytes(rows * 5 * 7, part).reshape(
                rows, 5, 7
            )
            labels = np.arange(rows, dtype=np.uint8) * 3 % 4
            arrays[f"{part}-labels-idx1-ubyte"] = labels
        for name, array in arrays.items():
            (folder / (name + ending)).write_bytes(PACK[ending](idx_bytes(array)))
        return arrays

    return write


@pytest.fixture
def cifar_files(tmp_path: Path) -> Callable[..., dict[str, NDArray[np.uint8]]]:
    """Writes CIFAR-10 batches; returns their records [rows, 3073] by file name."""

    def write(folder: Path = tmp_path, rows: int = 13) -> dict[str, NDArray[np.uint8]]:
        folder.mkdir(exist_ok=True)
        records = {}
        endings = {"data_batch_1.bin": "", "data_batch_10.bin": ".gz", "data_batch_2.bin": ".xz"}
        for name, ending in {**endings, "test_batch.bin": ".gz"}.items():
            batch = random_bytes(rows * 3073, name).reshape(rows, 3073)
            batch[:, 0] = np.arange(rows) * 7 % 10
            records[name] = batch
            (folder / (name + ending)).write_bytes(PACK[ending](batch.tobytes()))
        return records

    return write


@pytest.fixture
def text_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a text file in the test's folder."""

    def write(text: str, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


WINE = (
    '"fixed acidity";"volatile acidity";"pH";"quality"\n'
    "7.4;0.7;3.51;5\n7.8;0.88;3.2;5\n11.2;0.28;3.16;6\n7.9;0.6;3.3;5\n"
)
CLEVELAND = (
    "63.0,1.0,145.0,233.0,0.0,6.0,0\n67.0,1.0,160.0,286.0,3.0,3.0,2\n"
    "53.0,0.0,128.0,216.0,?,3.0,0\n52.0,1.0,138.0,223.0,?,?,1\n37.0,1.0,130.0,250.0,0.0,3.0,0\n"
)


@pytest.fixture
def wine(text_file: Callable[..., Path]) -> Path:
    """In the format of winequality-red.csv: `;`, a quoted header with blanks."""
    return text_file(WINE, "wine.csv")


@pytest.fixture
def cleveland(text_file: Callable[..., Path]) -> Path:
    """In the format of processed.cleveland.data: `,`, no header, `?` where missing."""
    return text_file(CLEVELAND, "processed.data")


@pytest.fixture
def expect_mistake(tmp_path: Path) -> Callable[..., None]:
    """Makes a mistake and compares what is raised: exact class, exact text, one line."""

    def check(act: Callable[[Path], object], error: type[MagmaDNNError], message: str) -> None:
        with pytest.raises(MagmaDNNError) as raised:
            act(tmp_path)
        assert str(raised.value) == message.replace("{p}", str(tmp_path))
        assert type(raised.value) is error
        assert "\n" not in str(raised.value)

    return check
