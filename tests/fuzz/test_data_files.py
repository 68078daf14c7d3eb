"""Readers of data: IDX, CIFAR-10, .npz and text, over files that are damaged in every way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.data.images.idx import IDX_FILES
from magmadnn.tensor.files import load_csv, load_npz
from tests.data.mistakes import bytes_of, idx_bytes
from tests.fuzz.harness import Fuzz
from tests.fuzz.mutations import damaged

pytestmark = pytest.mark.timeout(3600)

RNG = np.random.default_rng(5)
IMAGES, LABELS = RNG.integers(0, 256, (7, 3, 5)).astype(np.uint8), (np.arange(7) % 3).astype("u1")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Writes one file of the test's folder."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 6, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".bz2": lambda data: bz2.compress(data, 1),
}
MEMBERS = {ending: [pack(b""), pack(b"\0" * 100_000), b"\0" * 512] for ending, pack in PACK.items()}


def packed(data: bytes, ending: str, rng: random.Random) -> bytes:
    """Damaged before it is packed, after, or both."""
    which = rng.randrange(3)
    outer = PACK[ending](damaged(data, rng) if which else data)
    return outer if which == 1 else damaged(outer, rng, MEMBERS[ending])


def unpacked(data: bytes, ending: str) -> bytes:
    """By the standard library's files; lzma's minds how many zeros stand behind, which ours does not."""
    if ending == ".xz":
        return lzma.decompress(data.rstrip(b"\0"))
    return {"": bytes, ".gz": gzip.decompress, ".bz2": bz2.decompress}[ending](data)


@pytest.mark.parametrize("ending", PACK)
def test_idx_files(
    fuzz: Fuzz, tmp_path: Path, file: Callable[[str, bytes], Path], ending: str
) -> None:
    fuzz.files //= 3
    good = {name: idx_bytes(LABELS if "labels" in name else IMAGES) for name in IDX_FILES}
    for name, data in good.items():
        file(name, data)

    def read(made: tuple[str, bytes]) -> Any:
        name, data = made
        (tmp_path / name).unlink()
        try:
            file(name + ending, data)
            return md.data.idx_folder(tmp_path)
        finally:
            (tmp_path / (name + ending)).unlink()
            file(name, good[name])

    def check(made: tuple[str, bytes], result: Any) -> None:
        name, data = made
        raw = unpacked(data, ending)
        values = result["t10k" in name]["labels" in name]
        header = 8 if "labels" in name else 16
        sizes = struct.unpack(f">{header // 4 - 1}I", raw[4:header])
        assert values.shape == (*sizes, *([] if "labels" in name else [1]))
        assert np.prod(sizes) == len(raw) - header
        expected = np.frombuffer(raw[header:], np.uint8)
        if "labels" not in name:
            expected = expected / np.float32(255)
        assert np.array_equal(values.reshape(-1), expected)

    def make(rng: random.Random) -> tuple[str, bytes]:
        name = rng.choice(IDX_FILES)
        return name, packed(good[name], ending, rng)

    fuzz.run(make, read, check)
    assert fuzz.found["read"] and fuzz.found["refused"] > fuzz.files / 2


@pytest.mark.parametrize("ending", PACK)
def test_cifar_files(
    fuzz: Fuzz, tmp_path: Path, file: Callable[[str, bytes], Path], ending: str
) -> None:
    fuzz.files //= 3
    record = bytes([3]) + bytes(range(256)) * 12
    good = record + b"\7" + record[:0:-1]
    file("test_batch.bin", record)
    names = b"\n".join(b"class%d" % k for k in range(10))

    def read(made: tuple[bytes, bytes]) -> Any:
        file("data_batch_1.bin" + ending, made[0])
        file("batches.meta.txt", made[1])
        return md.data.load(tmp_path)

    def check(made: tuple[bytes, bytes], result: md.data.Dataset) -> None:
        raw = unpacked(made[0], ending)
        assert len(result.x_train) * 3073 == len(raw)
        labels = np.frombuffer(raw, np.uint8).reshape(-1, 3073)[:, 0]
        assert (labels < 10).all() and len(result.preparation.classes) == 10

    fuzz.run(
        lambda rng: (
            packed(good, ending, rng),
            damaged(names, rng) if rng.random() < 0.1 else names,
        ),
        read,
        check,
    )
    assert fuzz.found["read"] and fuzz.found["refused"]


def image_bytes() -> list[tuple[str, bytes]]:
    """Files in several of the ways that pixels are stored in."""
    from PIL import Image

    pixels = np.random.default_rng(7).integers(0, 256, (9, 8, 3)).astype(np.uint8)
    colour = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[274] = 5
    found = []
    for name, image, options in (
        ("a.jpg", colour, {"exif": exif}),
        ("b.jpg", colour, {"progressive": True}),
        ("c.jpg", colour.convert("CMYK"), {}),
        ("d.png", colour, {"exif": exif}),
        ("e.png", colour.convert("P"), {"transparency": 3}),
        ("f.png", colour.convert("LA"), {}),
        ("g.png", colour.convert("1"), {}),
    ):
        file = io.BytesIO()
        image.save(file, "jpeg" if name.endswith("jpg") else "png", **options)
        found.append((name, file.getvalue()))
    return found


def test_image_files(fuzz: Fuzz, tmp_path: Path) -> None:
    from PIL import Image

    from magmadnn.data.images.folders import ImageOptions, read_image_files

    fuzz.files //= 4  # Pillow's parsers are slow on what is no image
    good = image_bytes()
    sizes = {(9, 8), (8, 9)}

    def read(made: tuple[str, bytes]) -> Any:
        path = tmp_path / made[0]
        path.write_bytes(made[1])
        return read_image_files([path], ImageOptions(workers=1)).x

    def check(made: tuple[str, bytes], result: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(made[1])) as image:  # the bytes do hold such an image
                assert result.shape[1] * result.shape[2] == image.width * image.height
        assert result.dtype == np.float32
        assert 0 <= result.min() <= result.max() <= 1

    def make(rng: random.Random) -> tuple[str, bytes]:
        name, data = rng.choice(good)
        return name, damaged(data, rng, [b"Exif", b"\xff\xd9", b"IDAT", b"tRNS", b"\xff\xda"])

    fuzz.run(make, read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]
    for name, data in good:
        assert read((name, data)).shape[1:3] in sizes


# --- npz -------------------------------------------------------------------------------------

ARRAYS: dict[str, Any] = {
    "x": RNG.normal(size=(5, 3)), "y": np.arange(5), "x_train": RNG.normal(size=(4, 2)).astype(">f4"),
    "y_train": np.array(["a", "bc", "a", ""]), "x_test": np.asfortranarray(RNG.normal(size=(3, 2))),
    "y_test": np.array([True, False, True]),
}  # fmt: skip
TEXTS = [
    b"(", b")", b"{", b"}", b"'", b",", b"999999999999", b"-1", b"O", b"U", b"|O", b"<f8", b">i2", b"<U9",
    b"True", b"fortran_order", b"descr", b"shape", b"0", b" ", b"\n", b"x", b"1L", b"[('a', '<f8')]", b"\\d",
    b"1if 0 else", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY\x02\x00", b"\x93NUMPY",
]  # fmt: skip


def npz_bytes(rng: random.Random) -> bytes:
    """An archive that is damaged itself, or whose members are, with checksums that are right."""
    names = rng.choice(
        [["x", "y"], ["x_train", "y_train", "x_test", "y_test"], ["x"], list(ARRAYS)]
    )
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    members = {f"{name}.npy": bytes_of(np.save, ARRAYS[name]) for name in names}
    inside = rng.random() < 0.5
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            if inside and rng.random() < 0.7:
                head, values = data[:128], data[128:]
                data = damaged(head, rng, TEXTS) + (
                    damaged(values, rng) if rng.random() < 0.3 else values
                )
            archive.writestr(name, data)
    data = buffer.getvalue()
    return data if inside else damaged(data, rng, TEXTS)


def same_as_numpys(data: bytes, found: dict[str, Any]) -> None:
    """What was read is what NumPy reads."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        for name, values in found.items():
            assert values.dtype == stored[name].dtype and values.shape == stored[name].shape
            assert values.tobytes() == stored[name].tobytes()


def test_npz_files(fuzz: Fuzz, file: Callable[[str, bytes], Path]) -> None:
    def check(data: bytes, found: md.data.NamedArrays) -> None:
        one = "x_train" if found.x_test is not None else "x"
        both = {one: found.x, one.replace("x", "y"): found.y}
        if found.x_test is None and "x" not in zipfile_names(data):
            both = {"x_train": found.x, "y_train": found.y}
        same_as_numpys(data, both)

    fuzz.run(npz_bytes, lambda data: md.data.read_npz(file("a.npz", data)), check)
    assert fuzz.found["read"] and fuzz.found["refused"]


def zipfile_names(data: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def test_npz_files_of_tensors(fuzz: Fuzz, file: Callable[[str, bytes], Path]) -> None:
    def check(data: bytes, found: dict[str, md.Tensor]) -> None:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            assert set(found) == {name.removesuffix(".bfloat16") for name in stored.files}
            for name, values in found.items():
                read = values.read()
                assert np.array_equal(read, stored[name].astype(read.dtype), equal_nan=True)

    fuzz.run(npz_bytes, lambda data: load_npz(file("a.npz", data)), check)
    assert fuzz.found["refused"]


# --- text ------------------------------------------------------------------------------------

TABLE = b'# a comment\nage,name,score\n3,"a, b",1.5\n4,cd,?\n5,"a, b",2\n6,cd,-3e2\n'
SIGNS = [
    b",", b";", b"\t", b"|", b" ", b'"', b'""', b"\n", b"\r", b"\r\n", b"\0", b"?", b"nan", b"inf",
    b"1e999", b"1_0", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x0b", b"#", b"1,5", b"a" * 200,
    b"9" * 400, "é".encode(), b"\x1b[2J", b"," * 300, b"\n" * 50, "٣".encode(), b"\xed\xa0\x80",
]  # fmt: skip


@pytest.mark.parametrize("target", [-1, 1, None])
def test_tables(fuzz: Fuzz, file: Callable[[str, bytes], Path], target: int | None) -> None:
    fuzz.files //= 3

    def read(data: bytes) -> md.data.Table:
        return md.data.read_table(file("t.csv", data), target, "mean" if len(data) % 2 else "drop")

    def check(data: bytes, table: md.data.Table) -> None:
        assert table.x.shape == (len(table.lines), len(table.names))
        assert not np.isinf(table.x).any()
        assert len(table.lines) <= data.count(b"\n") + data.count(b"\r") + 1
        if target is not None:
            assert table.target is not None and len(table.target) == len(table.x)
        again = md.data.Schema.from_json(table.schema.to_json())
        assert again == table.schema

    fuzz.run(lambda rng: damaged(TABLE, rng, SIGNS), read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_any_data(fuzz: Fuzz, file: Callable[[str, bytes], Path]) -> None:
    """All the way to prepared rows, and back through what the model keeps of them."""
    fuzz.files //= 3
    wide = b"age;name;score\n" + b"".join(
        b"%d;%s;%d\n" % (k, b"ab"[k % 2 :], k % 3) for k in range(12)
    )

    def read(data: bytes) -> Any:
        loaded = md.data.load(file("t.csv", data), missing="mean")
        kept = md.data.Preparation.from_json(loaded.preparation.to_json())
        return loaded.train(), loaded.test(), md.data.load_for(kept, file("t.csv", data))

    def check(data: bytes, result: Any) -> None:
        (x, _), (x_test, _), rows = result
        assert np.isfinite(x).all() and np.isfinite(x_test).all() and len(rows.x) == len(rows.y)

    fuzz.run(lambda rng: damaged(wide, rng, SIGNS), read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16"])
def test_numbers_as_text(fuzz: Fuzz, file: Callable[[str, bytes], Path], dtype: str) -> None:
    fuzz.files //= 4
    text = b"1,0,1\n0,1,1\n1,1,0\n"

    def check(data: bytes, found: md.Tensor) -> None:
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert found.shape[0] <= sum(map(bool, lines))

    fuzz.run(
        lambda rng: damaged(text, rng, SIGNS),
        lambda data: load_csv(file("t.csv", data), dtype),
        check,
    )
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_the_checksum_of_zlib_is_what_a_member_carries() -> None:
    """What `npz_bytes` relies on."""
    with zipfile.ZipFile(io.BytesIO(npz_bytes(random.Random(1)))) as archive:
        for one in archive.infolist():
            assert zlib.crc32(archive.read(one)) == one.CRC
