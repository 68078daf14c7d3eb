"""Arrays from HDF5 files, read at once or when a batch needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import magmadnn as md
import magmadnn.data as data
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    FileError,
    MagmaDNNError,
    MissingExtraError,
    ShapeError,
    UnknownNameError,
)

RNG = np.random.default_rng(11)
X = RNG.normal(size=(23, 5)).astype(np.float32)
Y = np.arange(23) % 3
IMAGES = RNG.integers(0, 256, (17, 6, 7, 3), np.uint8)


def write(path: Path, packed: bool = False, **arrays: Any) -> Path:
    options: dict[str, Any] = {"chunks": True, "compression": "gzip"} if packed else {}
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_one_set_and_two(tmp_path: Path, packed: bool) -> None:
    one = data.read_hdf5(write(tmp_path / "a.h5", packed, x=X, y=Y, other=np.zeros(2)))
    assert np.array_equal(one.x, X) and np.array_equal(one.y, Y)
    assert one.x_test is None and one.y_test is None
    sets = {"x_train": X, "y_train": Y, "x_test": X[1:4], "y_test": Y[1:4]}
    two = data.read_hdf5(write(tmp_path / "b.hdf5", packed, **sets))
    for name, found in zip(sets, (two.x, two.y, two.x_test, two.y_test), strict=True):
        assert np.array_equal(found, sets[name])
    assert data.read_hdf5(write(tmp_path / "c.h5", x=X), with_target=False).y is None


@pytest.mark.parametrize("packed", [False, True])
def test_rows_on_demand_are_those_of_the_array(tmp_path: Path, packed: bool) -> None:
    file = write(tmp_path / "a.h5", packed, x=IMAGES, y=Y[:17])
    found = data.read_hdf5(file, decode="stream").x
    assert not isinstance(found, np.ndarray) and (found.shape, found.dtype) == (
        IMAGES.shape,
        np.uint8,
    )
    for rows in (np.array([5, 0, 0, 16, 3, 4]), slice(2, 15, 3), slice(4, 4), 2, np.arange(17) > 9):
        assert np.array_equal(found[rows], IMAGES[rows])
    assert np.array_equal(np.asarray(found), IMAGES)


def test_a_stream_is_chosen_by_the_memory_that_rows_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Themselves and twice in float32."""
    file = write(tmp_path / "a.h5", x=IMAGES, y=Y[:17])
    monkeypatch.setattr("magmadnn.data.images.reading._SMALL", 0)
    needed = 9 * IMAGES.size
    for free, streamed in ((2 * needed, False), (2 * needed - 1, True)):
        monkeypatch.setattr("magmadnn.data.images.reading.available_bytes", lambda free=free: free)
        assert isinstance(data.read_hdf5(file).x, np.ndarray) != streamed
        assert isinstance(data.read_hdf5(file, decode="memory").x, np.ndarray)
        assert ("read batch by batch" in data.load(str(file)).description) == streamed


@pytest.mark.parametrize("x", [IMAGES, IMAGES[..., 0], X, X[:, 0]], ids=str)
def test_loaded_as_an_npz_file_is(tmp_path: Path, x: Any) -> None:
    y = Y[: len(x)]
    np.savez(tmp_path / "a.npz", x=x, y=y)
    write(tmp_path / "a.h5", x=x, y=y)
    expected = data.load(str(tmp_path / "a.npz"), seed=3)
    for way in ("memory", "stream"):
        found = data.load(str(tmp_path / "a.h5"), seed=3, decode=way)
        assert found.preparation == expected.preparation
        for ours, other in zip(
            found.train() + found.test(), expected.train() + expected.test(), strict=True
        ):
            assert np.array_equal(np.asarray(ours), other)
        rows = data.load_for(found.preparation, str(tmp_path / "a.h5"), decode=way)
        again = data.load_for(expected.preparation, str(tmp_path / "a.npz"))
        assert np.array_equal(np.asarray(rows.x), again.x)


def test_a_fit_has_the_same_bits_from_the_file_as_from_memory(tmp_path: Path) -> None:
    file = str(write(tmp_path / "a.h5", True, x=IMAGES, y=Y[:17]))
    weights = []
    for way in ("memory", "stream"):
        found = data.load(file, decode=way, task="classification")
        model = md.models.mlp((6, 7, 3), 3, loss="cross_entropy", optimizer="adam")
        model.fit(*found.train(), batch_size=4, epochs=2, verbose=False)
        weights.append([np.asarray(value) for value in model.values().values()])
    assert all(map(np.array_equal, *weights))


def test_missing_values(tmp_path: Path) -> None:
    x = X.copy()
    x[3, 2] = np.nan
    file = str(write(tmp_path / "a.h5", x=x, y=Y))
    for way in ("memory", "stream"):
        with pytest.raises(DataError, match="row 3, column 2 is nan"):
            data.load(file, decode=way)
        kept = data.load(file, decode=way, missing="mean").preparation
        assert np.isfinite(kept.mean).all()
    dropped = data.load(file, missing="drop")
    assert len(dropped.x_train) + len(dropped.x_test) == len(X) - 1
    with pytest.raises(
        ArgumentError, match='looks at all rows: read them at once with decode="memory"'
    ):
        data.load(file, decode="stream", missing="drop")


def linked(path: Path) -> Path:
    write(path.with_name("other.h5"), x=X)
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = h5py.ExternalLink("other.h5", "x"), Y
    return path


def virtual(path: Path) -> Path:
    layout = h5py.VirtualLayout((23, 5), np.float32)
    layout[:] = h5py.VirtualSource(write(path.with_name("other.h5"), x=X), "x", (23, 5))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = Y
    return path


def outside(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (23, 5), np.float32, external=[(str(path) + ".raw", 0, 460)])
        file["y"] = Y
    return path


def group(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_group("x")
    return path


def bomb(path: Path) -> Path:
    """Rows that nobody wrote take no place in a file."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 30, 100), np.float32, chunks=(1 << 10, 100))
        file["y"] = Y
    return path


def cut(path: Path) -> Path:
    content = write(path, x=X, y=Y).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def text(path: Path) -> Path:
    path.write_text("wind,rain\n1,2\n")
    return path


MISTAKES: dict[str, tuple[Any, type[MagmaDNNError], str]] = {
    "text": (text, DataError, "is no HDF5 file, or damaged ("),
    "cut": (cut, DataError, "is no HDF5 file, or damaged ("),
    "folder": (lambda p: p.mkdir() or p, FileError, "expected a regular file, got a folder"),
    "none": (lambda p: p, FileError, "cannot be read (No such file or directory)"),
    "names": (lambda p: write(p, a=X), DataError, "expected the keys x and y, or x_train and y_train"),
    "no target": (lambda p: write(p, x=X), DataError, "y is missing"),
    "rows": (lambda p: write(p, x=X, y=Y[1:]), ShapeError, "x has the shape (23, 5) but y (22,)"),
    "texts": (lambda p: write(p, x=["a", "b"], y=Y[:2]), DTypeError, "x: elements are of type object"),
    "number": (lambda p: write(p, x=1.0, y=Y), DataError, "x is empty: expected some rows"),
    "group": (group, DataError, "x is no data set of this file: copy the values into one"),
    "link": (linked, DataError, "x is no data set of this file: copy the values into one"),
    "virtual": (virtual, DataError, "x lies in other files: copy the values into this one"),
    "outside": (outside, DataError, "x lies in other files: copy the values into this one"),
    "bomb": (bomb, DataError, "x has 429,496,729,600 bytes packed to less than a hundredth"),
}  # fmt: skip


@pytest.mark.parametrize("decode", ["memory", "stream"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(tmp_path: Path, name: str, decode: str) -> None:
    make, error, words = MISTAKES[name]
    file = make(tmp_path / "a.h5")
    with pytest.raises(MagmaDNNError) as found:
        data.read_hdf5(file, decode=decode)
    assert type(found.value) is error
    assert str(found.value).startswith(str(file)) and words in str(found.value)
    assert "\n" not in str(found.value)


def test_a_file_that_changes_after_it_was_looked_at(tmp_path: Path) -> None:
    x = data.read_hdf5(write(tmp_path / "a.h5", x=X, y=Y), decode="stream").x
    write(tmp_path / "a.h5", x=X[:9], y=Y[:9])
    with pytest.raises(DataError, match=r"a\.h5: x has changed since it was looked at"):
        x[[3]]
    with pytest.raises(UnknownNameError, match="read_hdf5: decode 'disk' is not known"):
        data.read_hdf5(tmp_path / "a.h5", decode="disk")


def test_without_h5py_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"reading HDF5 files needs h5py.*\[data\]"):
        data.read_hdf5(tmp_path / "a.h5")
