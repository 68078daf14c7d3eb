"""Spread arrays in .npy files: read and written by workers, in any layout and by another number of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.dmath import Blocks, Columns, Replicated, Rows, cyclic
from magmadnn.dmath.arrays import files
from magmadnn.dmath.arrays.team import Team
from magmadnn.errors import ArgumentError, DataError, DTypeError, FileError
from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.storage.formats.npy_header import npy_header_bytes
from tests.dmath import gpu
from tests.dmath.drawn import check_parts, drawn_layout, parts_of

LAYOUTS = [Rows(), Columns(), Blocks((3, 2), owners=cyclic(1, 2)), Replicated(), Rows(on=(1,))]


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with md.workers(2) as w:
        yield w


@pytest.mark.parametrize("seed", range(30))
def test_any_layout_is_written_and_read_in_any_other(seed: int, tmp_path: Path) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    workers, shape = rng.randint(1, 5), (rng.randint(0, 9), rng.randint(1, 9))
    dtype = rng.choice([np.float64, np.float32, np.int8, np.bool_, np.uint16])
    x = draw.integers(0, 2 if dtype == np.bool_ else 90, shape).astype(dtype)
    path = str(tmp_path / "x.npy")
    header = npy_header_bytes(x.dtype.str, shape)
    Path(path).write_bytes(header + b"\xff" * x.nbytes)
    source, target = (drawn_layout(rng, shape, workers) for _ in range(2))

    def one(comm: Communicator) -> None:
        team = Team(comm)
        files.save(parts_of(team, x, source), path, len(header))
        stored = x.dtype.str, len(header), False
        check_parts(files.load(team, target, x.dtype, path, *stored), x)

    simulate(workers, one)
    found = np.load(path)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_saved_is_numpys_and_is_loaded_again(two: Any, tmp_path: Path, layout: Any) -> None:
    x = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    before = two.counters()["client_bytes"]
    A = two.array(x, layout=layout)
    sent = two.counters()["client_bytes"] - before
    md.dmath.save(tmp_path / "a.npy", A)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), x)
    B = two.load(tmp_path / "a.npy", layout=layout)
    C = two.load(tmp_path / "a.npy", "float64", md.dmath.Columns())
    assert two.counters()["client_bytes"] - before == sent  # nothing passed it
    assert B.layout == A.layout and C.dtype == np.float64
    np.testing.assert_array_equal(np.asarray(B), x)
    np.testing.assert_array_equal(np.asarray(C), x)
    with md.workers(0) as one:
        np.testing.assert_array_equal(np.asarray(one.load(tmp_path / "a.npy")), x)
    assert [one.name for one in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.parametrize(
    "x",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.array(2.5),
        np.empty((0, 4)),
        np.arange(24).reshape(2, 3, 4),
        np.array([True, False, True]),
        np.arange(6.0).reshape(2, 3) * 1j,
    ],
)
def test_files_of_numpy(two: Any, tmp_path: Path, x: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", x)
    found = two.load(tmp_path / "x.npy")
    assert found.dtype == x.dtype.newbyteorder("=") and found.shape == x.shape
    np.testing.assert_array_equal(np.asarray(found), x)
    md.dmath.save(tmp_path / "y.npy", found)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x)


def test_bfloat16_has_to_be_named(two: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(BFLOAT16)
    md.dmath.save(tmp_path / "x.npy", two.array(x))
    assert (np.load(tmp_path / "x.npy").view(BFLOAT16) == x).all()
    assert (np.asarray(two.load(tmp_path / "x.npy", "bfloat16")) == x).all()
    with pytest.raises(DTypeError, match='give dtype="bfloat16"'):
        two.load(tmp_path / "x.npy")


def test_on_a_stand_in_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cupy = gpu.on_stand_ins(monkeypatch)
    x = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    header = len(npy_header_bytes("<f8", (3, 4)))
    team = Team(simulate(1, lambda comm: comm)[0], xp=cupy)
    layout = md.dmath.Rows().layout((3, 4), 1)
    made = files.load(team, layout, x.dtype, str(tmp_path / "x.npy"), "<f8", header, False)
    assert team.count.host_to_device_bytes == x.nbytes
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:header] + bytes(x.nbytes))
    files.save(made, str(tmp_path / "x.npy"), header)
    assert team.count.device_to_host_bytes == x.nbytes
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_files_that_hold_no_array_are_refused(two: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    with pytest.raises(FileError, match=r"x\.npy"):
        two.load(file)
    with pytest.raises(ArgumentError, match="load: the file must be a path, got 3"):
        two.load(3)
    file.write_bytes(b"hello, what is this?")
    with pytest.raises(DataError, match=r"no array of numbers \(its header is none of NumPy's\)"):
        two.load(file)
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects, which are never loaded"):
        two.load(file)
    np.save(file, np.array(["a"]))
    with pytest.raises(DTypeError, match="expected numbers"):
        two.load(file)
    np.save(file, np.ones(2) * 1j)
    with pytest.raises(DTypeError, match="elements are complex, got dtype='float32'"):
        two.load(file, "float32")
    np.save(file, np.arange(10))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        DataError, match=r"is damaged \(the shape \(10,\) needs 208 bytes, got 207\)"
    ):
        two.load(file)


def test_a_file_that_cannot_be_written_leaves_what_was_there(two: Any, tmp_path: Path) -> None:
    A = two.array(np.arange(6.0))
    with pytest.raises(FileError, match="save: cannot write"):
        md.dmath.save(tmp_path / "none" / "x.npy", A)
    md.dmath.save(tmp_path / "x.npy", A)
    with pytest.raises(ArgumentError, match="a file is written inside it"):
        two.explain(lambda: md.dmath.save(tmp_path / "x.npy", A + 1))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.arange(6.0))
    assert [one.name for one in tmp_path.iterdir()] == ["x.npy"]


def test_a_worker_that_cannot_read_is_named(tmp_path: Path) -> None:
    """A disk that one worker does not reach."""
    x = np.arange(8.0).reshape(4, 2)
    np.save(tmp_path / "50%d x.npy", x)

    def one(comm: Communicator) -> None:
        layout = md.dmath.Rows().layout((4, 2), 3)
        where = tmp_path / ("50%d x.npy" if comm.rank != 1 else "other.npy")
        files.load(Team(comm), layout, x.dtype, str(where), "<f8", 128, False)

    with pytest.raises(FileError, match=r"load: worker 1 cannot read .*50%d x.npy: No such file"):
        simulate(3, one)
