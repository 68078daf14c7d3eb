"""Files that are made to take all memory or time, and what is no file at all: one line, at once."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.data.images.idx import IDX_FILES
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    FileError,
    MagmaDNNError,
    OutOfMemoryError,
)
from magmadnn.storage import input_files, machine_memory
from magmadnn.tensor.files import load_csv, load_npz
from tests.data.mistakes import bytes_of, idx_bytes
from tests.fuzz.harness import bounded_memory

pytestmark = pytest.mark.timeout(60)

TWO_HUNDRED_GB = 200 << 30


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed data may always become 1 MiB: bombs are quicker made than one for 256 MiB."""
    monkeypatch.setattr(input_files, "_SMALL", 1 << 20)


def refusal(read: Callable[..., Any], *arguments: Any) -> MagmaDNNError:
    """The error of a reader, which gets little memory."""
    with bounded_memory(), pytest.raises(MagmaDNNError) as caught:
        read(*arguments)
    text = str(caught.value)
    assert text.isprintable() and len(text) < 6000
    return caught.value


def sparse(path: Path, start: bytes, size: int = TWO_HUNDRED_GB) -> Path:
    """A file that says it is large and takes no room."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


# --- npz -------------------------------------------------------------------------------------


def npy(shape: str, descr: str = "'<f8'", values: bytes = b"") -> bytes:
    """A .npy member with this text as shape."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + values


def archive(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


SAVE = "write it with numpy.savez(file, x=..., y=...)"
AGAIN = ": write or fetch it again"
NUMBERS = "expected numbers: convert text to numbers or class numbers first"
ATTACK = (
    "which is taken for an attack on the memory: write it with numpy.savez, which does not pack"
)
MEMBERS: dict[str, tuple[bytes, type[MagmaDNNError], str]] = {
    "a header that claims 4 TB": (
        npy("(1000000, 500000)"),
        DataError,
        "is damaged (x of the shape (1000000, 500000) needs 4000000000080 bytes, got 80)" + AGAIN,
    ),
    "more than a machine can address": (
        npy("(4294967296, 4294967296)"),
        DataError,
        "x is no array of numbers (its shape is (4294967296, 4294967296)): " + SAVE,
    ),
    "nothing, of a huge shape": (
        npy("(0, 4611686018427387904, 4)"),
        DataError,
        "x is no array of numbers (its shape is (0, 4611686018427387904, 4)): " + SAVE,
    ),
    "a shape that is a formula": (
        npy("(2**62,)"),
        DataError,
        "x is no array of numbers (its header describes something else): " + SAVE,
    ),
    "a text that Python warns about": (
        npy("(1if 0 else 1,)"),
        DataError,
        "x is no array of numbers (its header describes something else): " + SAVE,
    ),
    "a text that Python cannot split": (
        npy("('''"),
        DataError,
        "x is no array of numbers (its header describes something else): " + SAVE,
    ),
    "a deep header": (
        npy("(" * 4000 + ")" * 4000),
        DataError,
        "x is no array of numbers (its header describes something else): " + SAVE,
    ),
    "objects": (
        npy("(1,)", "'|O'", b"pickled!"),
        DataError,
        "x is no array of numbers (it holds Python objects, which are never loaded): " + SAVE,
    ),
    "dates": (
        npy("(1,)", "'<M8[s]'", bytes(8)),
        DTypeError,
        "x: elements are of type <M8[s], " + NUMBERS,
    ),
    "a bool that is 7": (
        npy("(1,)", "'|b1'", b"\7"),
        DataError,
        "is damaged (x holds what is no bool)" + AGAIN,
    ),
    "a letter beyond Unicode": (
        npy("(1,)", "'<U1'", b"\xff\xff\xff\x7f"),
        DataError,
        "is damaged (x holds what is no <U1)" + AGAIN,
    ),
    "a bomb": (
        npy("(1000000,)", values=bytes(8_000_000)),
        DataError,
        "is packed to less than a hundredth of its 8,000,073 bytes, " + ATTACK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.usefixtures("little_room")
def test_hostile_members_of_an_npz_file(tmp_path: Path, member: str) -> None:
    data, error, message = MEMBERS[member]
    path = archive(tmp_path / "a.npz", x=data)
    del data
    for read, start in ((md.data.read_npz, f"{path}"), (load_npz, f"load_npz: {path}")):
        found = refusal(read, path)
        assert (type(found), str(found)) == (error, f"{start}: {message}")


def test_members_that_share_their_bytes(tmp_path: Path) -> None:
    """A thousand names in the directory of one member would be a thousand arrays."""
    whole = archive(tmp_path / "a.npz", zipfile.ZIP_STORED, x=npy("(1000,)", values=bytes(8000)))
    data = whole.read_bytes()
    start = data.index(b"PK\1\2")
    entry, end = data[start : data.index(b"PK\5\6")], bytearray(data[data.index(b"PK\5\6") :])
    entries = b"".join(entry.replace(b"x.npy", b"%05d" % k) for k in range(1000))
    end[8:16] = struct.pack("<HHI", 1000, 1000, len(entries))
    whole.write_bytes(data[:start] + entries + end)
    assert "is damaged (its members overlap)" in str(refusal(load_npz, whole))


def test_a_directory_that_fills_the_memory(tmp_path: Path) -> None:
    names = io.BytesIO()
    with zipfile.ZipFile(names, "w") as file:
        file.writestr("x.npy", npy("()", values=bytes(8)))
    data = names.getvalue()
    start = data.index(b"PK\1\2")
    entry, end = data[start : data.index(b"PK\5\6")], bytearray(data[data.index(b"PK\5\6") :])
    end[8:16] = struct.pack("<HHI", 0xFFFF, 0xFFFF, 200_000 * len(entry))
    (tmp_path / "a.npz").write_bytes(data[:start] + entry * 200_000 + end)
    found = refusal(md.data.read_npz, tmp_path / "a.npz")
    assert "is damaged (a directory of more than 4194304 bytes)" in str(found)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_packers_than_numpys(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "a.npz", method, x=npy("(1,)", values=bytes(8)))
    assert str(refusal(md.data.read_npz, path)) == (
        f"{path}: x is encrypted or packed in another way than NumPy's: write it with numpy.savez"
    )


def test_a_name_that_stands_twice_in_an_npz_file(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "a.npz", "w") as file,
    ):
        for value in (1.0, 2.0):
            file.writestr("x.npy", bytes_of(np.save, np.full(3, value)))
    assert "is damaged (x stands there twice)" in str(refusal(load_npz, tmp_path / "a.npz"))


def test_patterns_of_bfloat16_are_of_16_bits(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"x.bfloat16": np.arange(4.0)})
    assert "expected 16-bit patterns of one array under 'x.bfloat16', got float64" in str(
        refusal(load_npz, tmp_path / "a.npz")
    )
    np.savez(tmp_path / "a.npz", **{"x.bfloat16": np.arange(4, dtype="u2"), "x": np.zeros(2)})
    assert "or another array of that name" in str(refusal(load_npz, tmp_path / "a.npz"))


def test_what_shrinks_to_a_hundredth_is_read_up_to_256_mib(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000))
    assert md.data.read_npz(tmp_path / "a.npz").x.shape == (1000, 1000)


# --- IDX and CIFAR-10 ------------------------------------------------------------------------


def idx_folder(place: Path, images: bytes, ending: str = "") -> Path:
    """A folder of IDX files, of which the first is this one."""
    for name in IDX_FILES:
        small = np.zeros(3 if "labels" in name else (3, 2, 2), np.uint8)
        (place / name).write_bytes(idx_bytes(small))
    (place / IDX_FILES[0]).unlink()
    (place / (IDX_FILES[0] + ending)).write_bytes(images)
    return place


def header(*shape: int) -> bytes:
    return struct.pack(">4I", 2051, *shape)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("ending", PACK)
def test_idx_sizes_of_2_to_the_31(tmp_path: Path, ending: str) -> None:
    data = PACK[ending](header(2**31, 2**31, 2**31) + bytes(100))
    text = str(refusal(md.data.idx_folder, idx_folder(tmp_path, data, ending)))
    assert ("is cut short: 2147483648 images need 9903520314283042199192993808 bytes, got 116" in text) or (
        "packed bytes become 9,903,520,314,283,042,199,192,993,808, over 268,435,456" in text
    )  # fmt: skip


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
@pytest.mark.usefixtures("little_room")
def test_bombs_in_packed_files(tmp_path: Path, ending: str) -> None:
    zeros = bytes(500_000)
    pack = PACK[ending]
    images = pack(header(10_000, 28, 28)) + pack(zeros) * 16
    found = refusal(md.data.idx_folder, idx_folder(tmp_path, images, ending))
    assert str(found).endswith(
        f"{len(images):,} packed bytes become 7,840,016, over 1,048,576, which is taken for damage "
        "or an attack on the memory: if they are right, unpack the file first"
    )
    batch = tmp_path / f"data_batch_1.bin{ending}"
    batch.write_bytes(pack(zeros) * 16)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    found = refusal(md.data.cifar10, tmp_path)
    assert f"{batch}: " in str(found) and "packed bytes become more than 1,048,576" in str(found)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_a_file_that_holds_less_than_its_header_says(tmp_path: Path, ending: str) -> None:
    pack = PACK[ending]
    images = pack(header(300_000, 28, 28) + bytes(1000))
    found = refusal(md.data.idx_folder, idx_folder(tmp_path, images, ending))
    assert "is cut short: 300000 images need 235200016 bytes, got 1016" in str(found)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_two_hundred_thousand_empty_members(tmp_path: Path, ending: str) -> None:
    """Each of them would be copied with all that follow: that took minutes."""
    pack = PACK[ending]
    count = {".gz": 200_000, ".xz": 20_000, ".bz2": 20_000}[ending]
    images = pack(header(3, 2, 2)) + pack(b"") * count + pack(bytes(12))
    (x, _), _ = md.data.idx_folder(idx_folder(tmp_path, images, ending))
    assert x.shape == (3, 2, 2, 1)


def test_an_xz_file_that_needs_much_memory(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    images = lzma.compress(header(3, 2, 2) + bytes(12), filters=filters)
    found = refusal(md.data.idx_folder, idx_folder(tmp_path, images, ".xz"))
    assert str(found).endswith("needs more than 256 MiB of memory to be unpacked: unpack it first")


def test_more_than_the_header_says_in_a_packed_file(tmp_path: Path) -> None:
    images = gzip.compress(header(3, 2, 2) + bytes(13))
    found = refusal(md.data.idx_folder, idx_folder(tmp_path, images, ".gz"))
    assert str(found).endswith(
        "is too long: 3 images need 28 bytes, got more: fetch the file again"
    )


# --- files of 200 GB without content ---------------------------------------------------------


def sparse_files(place: Path) -> dict[str, Callable[[], Any]]:
    """Readers, each with its sparse file."""
    small = archive(place / "small.npz", zipfile.ZIP_STORED, x=npy("(1,)", values=bytes(8)))
    folders = {name: place / name for name in ("idx", "packed", "labels", "cifar")}
    for folder in folders.values():
        folder.mkdir()
    idx_folder(folders["idx"], b"")
    sparse(
        folders["idx"] / IDX_FILES[0], header(TWO_HUNDRED_GB // 1024, 32, 32), TWO_HUNDRED_GB + 16
    )
    idx_folder(folders["packed"], b"")
    (folders["packed"] / IDX_FILES[0]).unlink()
    sparse(folders["packed"] / (IDX_FILES[0] + ".gz"), gzip.compress(header(3, 2, 2) + bytes(11)))
    sparse(folders["cifar"] / "data_batch_1.bin", bytes(3073), 3073 * (TWO_HUNDRED_GB // 3073))
    (folders["cifar"] / "test_batch.bin").write_bytes(bytes(3073))
    return {
        "npz": lambda: md.data.read_npz(sparse(place / "a.npz", b"PK\3\4")),
        "npz behind an archive": lambda: load_npz(sparse(place / "b.npz", small.read_bytes())),
        "idx": lambda: md.data.idx_folder(folders["idx"]),
        "cifar": lambda: md.data.cifar10(folders["cifar"]),
        "table": lambda: md.data.read_table(sparse(place / "t.csv", b"1,2\n3,4\n")),
        "numbers": lambda: load_csv(sparse(place / "u.csv", b"1,2\n3,4\n")),
        "any": lambda: md.data.load(sparse(place / "v.csv", b"1,2\n3,4\n")),
    }


@pytest.mark.parametrize(
    "name", ["npz", "npz behind an archive", "idx", "cifar", "table", "numbers", "any"]
)
def test_sparse_files_of_200_gb(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 16 << 30)
    found = refusal(sparse_files(tmp_path)[name])
    assert isinstance(found, DataError if "npz" in name else OutOfMemoryError), found
    if "npz" not in name:
        assert "bytes of memory, and" in str(found)


# --- text ------------------------------------------------------------------------------------


TEXTS: dict[str, tuple[str, str]] = {
    "a comment of 200,000 letters": (f"# {'a' * 200_000}\n1,2\n3,4\n", ""),
    "a cell of 200,000 letters": (f"1,{'a' * 200_000}\n", "line 1: cannot be split into fields"),
    "a cell of 130,000 letters": (f"1,2\n3,4\n{'a' * 130_000},5\n", "'aaaa"),
    "a million commas": ("," * 1_000_000 + "\n", "has 1000001 columns, at most 200000"),
    "a name of 130,000 letters twice": ("a" * 130_000 + "," + "a" * 130_000 + "\n1,2\n", "twice"),
    "an open quote": ('1,2\n3,"' + "4,5\n" * 100_000, "cannot be split into fields"),
    "a target of one long text": ("1,a\n" * 20_000 + f"1,{'b' * 130_000}\n", "of 130000 letters"),
    "a file of line feeds": ("\n" * 1_000_000, "is empty"),
    "many short rows": ("1\n" * 100_000, "no inputs beside the target"),
    "letters of every kind": ("\x1b[2J,\x07\n1,x\n2,\x1b\n", ""),
}


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_tables(tmp_path: Path, name: str) -> None:
    text, message = TEXTS[name]
    path = tmp_path / "t.csv"
    path.write_text(text)
    if message:
        assert message in str(refusal(md.data.read_table, path))
        return
    with bounded_memory():
        try:
            md.data.read_table(path, missing="drop")
        except MagmaDNNError as error:
            assert len(str(error)) < 6000 and str(error).isprintable()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe1\x00,\x002\x00", "byte 0 is not UTF-8 text"),
        ("1,2\n".encode("utf-16"), "byte 0 is not UTF-8 text"),
        ("a,ü\n1,2\n".encode("latin-1"), "byte 2 is not UTF-8 text"),
        (b"1,2\n3,\0\n", "holds zero bytes"),
        (b"\x1f\x8b\x08\0", "byte 1 is not UTF-8 text"),
    ],
)
def test_text_in_other_encodings(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    assert message in str(refusal(md.data.read_table, tmp_path / "t.csv"))
    refusal(load_csv, tmp_path / "t.csv")


def test_numbers_of_100_000_digits(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,0\n1," + "9" * 100_000 + "\n")
    for dtype in ("float32", "int64", "bool"):
        assert "line 2, column 2: '9999" in str(refusal(load_csv, tmp_path / "t.csv", dtype))
    assert "line 2, column 'column 1': the cell is 9999" in str(
        refusal(md.data.read_table, tmp_path / "t.csv")
    )


# --- what is no file -------------------------------------------------------------------------

READERS: dict[str, Callable[[Any], Any]] = {
    "mnist": md.data.mnist,
    "idx_folder": md.data.idx_folder,
    "cifar10": md.data.cifar10,
    "cifar10_classes": md.data.cifar10_classes,
    "read_npz": md.data.read_npz,
    "read_table": md.data.read_table,
    "load": md.data.load,
    "load_csv": load_csv,
    "load_npz": load_npz,
}  # fmt: skip
NAMES: dict[str, Callable[[Path], Any]] = {
    "5,000 letters": lambda p: p / ("a" * 5000),
    "300 folders": lambda p: p / "/".join(["long" * 20] * 300),
    "a line feed": lambda p: p / "two\nlines.csv",
    "an escape": lambda p: str(p / "\x1b[2J.npz"),
    "a byte that is no UTF-8": lambda p: os.fsdecode(os.fsencode(p) + b"/\xff.csv"),
    "a zero byte": lambda p: f"{p}/a\0b.csv",
    "nothing": lambda p: "",
    "bytes": lambda p: os.fsencode(p / "a.csv"),
    "a number": lambda p: 3,
    "None": lambda p: [],
    "an unknown home": lambda p: "~nobody-of-that-name/a.csv",
    "a file as folder": lambda p: p / "file" / "a.csv",
}


@pytest.mark.parametrize("reader", READERS)
def test_names_that_are_no_files(tmp_path: Path, reader: str) -> None:
    (tmp_path / "file").write_text("x")
    for what, name in NAMES.items():
        if reader == "cifar10_classes" and what in (
            "a line feed",
            "an escape",
            "a byte that is no UTF-8",
            "a file as folder",
        ):
            continue  # without the file there are no names
        found = refusal(READERS[reader], name(tmp_path))
        assert isinstance(found, FileError | ArgumentError | DataError), what


def others(place: Path) -> dict[str, Path]:
    """What is no regular file: each with the words for it."""
    os.mkfifo(place / "fifo.csv")
    (place / "folder.csv").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(place)  # such names are short
        listener.bind("socket.csv")
        os.chdir(before)
    (place / "zero.csv").symlink_to("/dev/zero")
    return {
        "a pipe": place / "fifo.csv",
        "a socket": place / "socket.csv",
        "a device": place / "zero.csv",
    }


@pytest.mark.parametrize("reader", ["read_npz", "read_table", "load", "load_csv", "load_npz"])
def test_pipes_sockets_and_devices(tmp_path: Path, reader: str) -> None:
    for kind, path in others(tmp_path).items():
        text = str(refusal(READERS[reader], path))
        assert f"{path}: expected a regular file, got {kind}: give the name of a file" in text


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
def test_pipes_sockets_and_devices_among_the_files_of_a_folder(tmp_path: Path, kind: str) -> None:
    path = others(tmp_path)[kind]
    for name, reader in (
        (IDX_FILES[0], md.data.idx_folder),
        ("test_batch.bin", md.data.cifar10),
        ("batches.meta.txt", md.data.cifar10_classes),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).symlink_to(path)
        (folder / "data_batch_1.bin").write_bytes(bytes(3073))
        assert f"expected a regular file, got {kind}" in str(refusal(reader, folder))


def test_a_name_with_a_line_feed_is_read(tmp_path: Path) -> None:
    (tmp_path / "two\nlines.csv").write_text("1,2\n3,4\n5,6\n")
    assert len(md.data.read_table(tmp_path / "two\nlines.csv").x) == 3
    (tmp_path / "two\nlines.csv").write_text("1,2\n3\n")
    assert str(refusal(md.data.read_table, tmp_path / "two\nlines.csv")) == (
        f"{tmp_path}/two\\nlines.csv: line 2 has 1 fields, expected 2 as in line 1: repair or leave "
        "out the line"
    )


@pytest.mark.parametrize(
    ("shape", "version", "reason"),
    [
        ("(3,)", b"\1\x7f", "its header is none of NumPy's"),
        ("(03,)", b"\1\0", "its header describes something else"),
    ],
)
def test_headers_that_numpy_refuses(
    tmp_path: Path, shape: str, version: bytes, reason: str
) -> None:
    good, bad = npy("(3,)", values=bytes(24)), npy(shape, values=bytes(24))
    bad = bad[:6] + version + bad[8:]
    assert load_npz(archive(tmp_path / "good.npz", x=good))["x"].shape == (3,)
    assert reason in str(refusal(load_npz, archive(tmp_path / "bad.npz", x=bad)))
