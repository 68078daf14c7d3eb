from __future__ import annotations

import errno
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn import errors
from magmadnn.memory import DTYPES, HOST, is_floating
from magmadnn.tensor import Tensor
from magmadnn.tensor.conversion import asarray
from magmadnn.tensor.files import load_csv, load_npz, save_csv, save_npz

PATTERNS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def random_bit_patterns(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Any number that the dtype can hold, subnormals and infinities included; NaN as one pattern."""
    dtype, rng = DTYPES[name], np.random.default_rng(seed)
    if name == "bool":
        return rng.integers(0, 2, count).astype(bool)
    bits = rng.integers(0, 256, (count, dtype.itemsize), dtype=np.uint8)
    values = bits.reshape(-1).view(dtype)
    if not is_floating(dtype):
        return values
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        return np.where(np.isnan(values), dtype.type("nan"), values)


def edges(name: str) -> np.ndarray:
    dtype = DTYPES[name]
    if is_floating(dtype):
        texts = ["0", "-0", "inf", "-inf", "nan", "1e-45", "5e-324", "0.1", "1.0000001", "16777217"]
        with np.errstate(all="ignore"):
            return np.array([float(t) for t in texts]).astype(dtype)
    if name == "bool":
        return np.array([True, False])
    return np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1], dtype)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    pattern = PATTERNS[a.dtype.itemsize]
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and bool((a.view(pattern) == b.view(pattern)).all())
    )


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_csv_loses_no_digit(tmp_path: Path, name: str) -> None:
    values = np.concatenate([edges(name), random_bit_patterns(name, 3000)])
    values = values[: len(values) // 7 * 7].reshape(-1, 7)
    save_csv(asarray(values), tmp_path / "t.csv")
    assert same_bits(load_csv(tmp_path / "t.csv", name).read(), values)


def test_csv_of_float32_numbers_that_would_be_rounded_twice(tmp_path: Path) -> None:
    """The shortest text of these, read as float64, lies on a tie and would round to the next number."""
    values = np.array([0x15AE43FD, 0x95AE43FD], np.uint32).view(np.float32)
    assert str(values[0]) == "7.038531e-26"
    assert np.float32(7.038531e-26) != values[0]
    save_csv(values, tmp_path / "t.csv")
    assert same_bits(load_csv(tmp_path / "t.csv").read(), values)


def test_csv_is_short_and_plain(tmp_path: Path) -> None:
    save_csv(asarray(np.array([[0.1, 2], [-3.5, 1e-30]], np.float32)), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "0.1,2.0\n-3.5,1e-30\n"
    save_csv([True, False], tmp_path / "t.csv", delimiter=";")
    assert (tmp_path / "t.csv").read_text() == "1\n0\n"


def test_csv_shapes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for shape in [(5,), (1,), (1, 5), (3, 2)]:
        save_csv(asarray(np.arange(np.prod(shape), dtype=np.int64).reshape(shape)), path)
        assert load_csv(path, "int64").shape == shape
    save_csv(Tensor((4, 1)), path)
    assert load_csv(path).shape == (4,), "one column has one axis"
    save_csv(asarray(np.arange(12.0).reshape(3, 4)).T[1:], path, delimiter="\t")
    assert load_csv(path, "float64", "\t").tolist() == np.arange(12.0).reshape(3, 4).T[1:].tolist()


def test_csv_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf 1.5 ,"2"\r\n\r\n3,4e0\r\n')
    assert load_csv(path).tolist() == [[1.5, 2], [3, 4]]
    path.write_text("TRUE,0\nfalse,1")
    assert load_csv(path, "bool").tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("1,2\n3\n", "float32", "line 2 has 1 values, expected 2 as in the first"),
        ("1,2\n\n3,4,5\n", "float32", "line 3 has 3 values, expected 2"),
        ("1,2\n3,12a\n", "float32", "line 2, column 2: '12a' is no float32"),
        ("1,\n", "float32", "line 1, column 2: '' is no float32"),
        ("a,b\n1,2\n", "float64", "line 1, column 1: 'a' is no float64"),
        ("1_000\n", "int64", "'1_000' is no int64"),
        ("1.5\n", "int32", "'1.5' is no int32"),
        ("1\n300\n", "int8", "line 2, column 1: '300' is no int8"),
        ("-1\n", "uint8", "'-1' is no uint8"),
        ("2\n", "bool", "'2' is no bool"),
        ("1,1\n1,1e39\n", "float32", "row 2, column 2: 1e+39 is too large for float32"),
        ("70000\n", "float16", "row 1, column 1: 70000.0 is too large for float16"),
        ("", "float32", "the file is empty"),
        ("\n\n", "float32", "the file is empty"),
        ('"1\n', "float32", "no text of separated values"),
        (b"\xff\xfe1,2", "float32", "no text of separated values"),
        ("1" * 200_000, "float32", "no text of separated values"),
    ],
)
def test_csv_mistakes(tmp_path: Path, text: str | bytes, dtype: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(errors.DataError, match=re.escape(message)) as caught:
        load_csv(path, dtype)
    assert str(caught.value).startswith(f"load_csv: {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (2, 3, 4), (0,), (0, 3)])
def test_csv_of_shapes_that_have_no_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.ShapeError, match="reshape it, or use save_npz"):
        save_csv(Tensor(shape), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


# --- npz -------------------------------------------------------------------------------------


def test_npz_keeps_every_dtype_and_shape(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    shapes = [(), (0, 3), (7,), (3, 1, 2, 2), (2, 3)]
    sent = {
        f"{name} {i}": random_bit_patterns(name, int(np.prod(shape)), i).reshape(shape)
        for name in DTYPES
        for i, shape in enumerate(shapes)
    }
    save_npz({name: asarray(values, kind=HOST) for name, values in sent.items()}, path)
    back = load_npz(path)
    assert list(back) == list(sent)
    assert all(same_bits(back[name].read(), values) for name, values in sent.items())
    back["int8 2"][0] = 1  # what was loaded can be written


def test_npz_of_one_tensor_and_of_views(tmp_path: Path) -> None:
    t = asarray(np.arange(24.0).reshape(2, 3, 4))
    save_npz(t.T[::-1], tmp_path / "t.npz")
    assert np.array_equal(load_npz(tmp_path / "t.npz")["tensor"], t.T[::-1])


def test_npz_is_numpys(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    save_npz({"x": [1, 2], "b": asarray([1.5], "bfloat16")}, path)
    with np.load(path) as archive:
        assert {k: v.tolist() for k, v in archive.items()} == {"x": [1, 2], "b.bfloat16": [0x3FC0]}
    np.savez_compressed(path, x=np.arange(5), y=np.ones((2, 2), np.float16))
    assert {k: v.tolist() for k, v in load_npz(path).items()} == {
        "x": [0, 1, 2, 3, 4], "y": [[1, 1], [1, 1]],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "a/b", "x.bfloat16", 3])
def test_npz_names(tmp_path: Path, name: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=re.escape(repr(name))):
        save_npz({name: Tensor(3)}, tmp_path / "t.npz")


def test_npz_never_unpickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "t.npz", x=np.array([Trap()], object))
    (tmp_path / "p.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("t.npz", "p.npz"):
        with pytest.raises(errors.DataError, match=r"never loaded|not a zip file"):
            load_npz(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("savez", [np.savez, np.savez_compressed])
def test_npz_damage_is_one_clear_error(tmp_path: Path, savez: Any) -> None:
    """Every byte flipped, and many lengths cut: an error of ours, or the values; never wrong ones."""
    path, values = tmp_path / "t.npz", np.arange(5.0)
    savez(path, x=values)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in range(0, len(whole), 7)]
    damaged += [whole[:i] + bytes([b ^ 0x41]) + whole[i + 1 :] for i, b in enumerate(whole)]
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            loaded = load_npz(path)
        except (errors.DataError, errors.DTypeError, errors.FileError) as error:
            refused += 1
            assert "\n" not in str(error)
            continue
        assert all(np.array_equal(t, values) for t in loaded.values())
    assert refused > 0.6 * len(damaged)


def test_npy_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "single.npy", np.arange(5.0))
    with pytest.raises(errors.DataError, match=r"holds a single array, expected an \.npz file"):
        load_npz(tmp_path / "single.npy")


def test_npz_of_dtypes_that_are_not_ours(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros(3, np.uint16))
    with pytest.raises(errors.DTypeError, match="uint16"):
        load_npz(tmp_path / "t.npz")


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [save_csv, save_npz])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any
) -> None:
    path = tmp_path / "t"
    save(asarray([1, 2, 3]), path)
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.FileError, match=r"cannot write .*No space left on device"):
        save(asarray([4, 5, 6]), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t"], "no temporary file stays"


@pytest.mark.parametrize(("save", "load"), [(save_csv, load_csv), (save_npz, load_npz)])
def test_files_and_folders_that_are_not_there(tmp_path: Path, save: Any, load: Any) -> None:
    missing = tmp_path / "nowhere" / "t"
    with pytest.raises(
        errors.FileError, match=f"cannot write {re.escape(str(missing))}: No such file"
    ):
        save(Tensor(3), missing)
    with pytest.raises(
        errors.FileError, match=rf": {re.escape(str(missing))}: cannot be read \(No such file"
    ):
        load(missing)
    with pytest.raises(errors.FileError, match="cannot write"):
        save(Tensor(3), tmp_path)
    with pytest.raises(errors.FileError, match="expected a regular file, got a folder"):
        load(tmp_path)


def test_npz_has_one_member_for_each_tensor(tmp_path: Path) -> None:
    save_npz({"x": Tensor(3), "y": Tensor(())}, tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "t.npz") as archive:
        assert archive.namelist() == ["x.npy", "y.npy"]
        assert archive.testzip() is None
