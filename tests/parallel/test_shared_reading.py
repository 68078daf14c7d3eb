"""Ranks read a checkpoint together: each its part, the whole file once, and all of it checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import CheckpointError, FileError
from magmadnn.storage import pieces
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.storage.durable import write_folder
from magmadnn.storage.formats.tensor_file import tensors_from_bytes
from magmadnn.training.loop import shared_reading

DRAW = np.random.default_rng(11)
X = DRAW.normal(size=(64, 30)).astype(np.float32)
Y = DRAW.integers(0, 3, 64)
VALUES = "tensors.safetensors"


class Counts(md.callbacks.Callback):
    """What its rank has read."""

    is_everywhere = True

    def on_epoch_begin(self, fit: Any) -> None:
        self.read = fit.bytes_read


def run(comm: Communicator | None, folder: Path, epochs: int, shard: Any = None) -> Any:
    """Parameters after training, and bytes of checkpoints that this rank has read."""
    layers = [md.layers.Input((30,)), md.layers.Dense(61, activation="tanh"), md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=3)
    counts = Counts()
    kept = md.callbacks.Checkpoint(folder, every_steps=2, signals=False)
    way = False if comm is None else md.parallel.DataParallel(comm, shard=shard)
    model.fit(
        X, Y, batch_size=16, epochs=epochs, verbose=False, callbacks=[kept, counts], parallel=way
    )
    return parameters_sha256(model.values().items()), counts.read


def saved(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that three ranks have begun."""
    folder = tmp_path_factory.mktemp("begun")
    simulate(3, run, folder, 1)
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    sha, _ = simulate(1, run, tmp_path_factory.mktemp("whole"), 2)[0]
    return str(sha)


@pytest.fixture
def copy(begun: Path, tmp_path: Path) -> Path:
    shutil.copytree(begun, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("shard", [None, "optimiser", "parameters"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_rank_reads_its_part_and_all_together_the_file_once(
    copy: Path, expected: str, ranks: int, shard: Any
) -> None:
    size = (saved(copy)[-1] / VALUES).stat().st_size
    assert size > 5 * pieces.LEAST
    found = simulate(ranks, run, copy, 2, shard)
    assert {sha for sha, _ in found} == {expected}
    assert sum(read for _, read in found) == size
    assert max(read for _, read in found) <= size / ranks + pieces.LEAST
    assert min(read for _, read in found) > 0


@pytest.mark.long
def test_processes_read_their_parts(copy: Path, expected: str) -> None:
    """By MPI, from other folders: rank 0's is the one that counts."""
    pytest.importorskip("mpi4py")
    (copy.parent / "train.py").write_text(
        "import os, sys\nfrom pathlib import Path\nimport magmadnn as md\n"
        "from tests.parallel.test_shared_reading import run\ncomm = md.comm.world()\n"
        "folder = Path('copy' if comm.rank == 0 else f'none-{comm.rank}')\n"
        "os.write(1, ('%s %d\\n' % run(comm, folder, 2)).encode())\n"
    )
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "3", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    size = (saved(copy)[-1] / VALUES).stat().st_size
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, cwd=copy.parent, env=environment, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines() if line.startswith(expected)]
    assert len(found) == 3, done.stdout
    assert sum(int(read) for _, read in found) == size
    assert all(0 < int(read) <= size / 3 + pieces.LEAST for _, read in found)


def test_slabs(copy: Path, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that goes to all in several turns: of large pieces, one of each reader."""
    monkeypatch.setattr(shared_reading, "_SLAB", pieces.LEAST)
    size = (saved(copy)[-1] / VALUES).stat().st_size
    found = simulate(4, run, copy, 2)
    assert {sha for sha, _ in found} == {expected}
    assert sum(read for _, read in found) == size
    assert all(read >= (size // (4 * pieces.LEAST)) * pieces.LEAST for _, read in found)


def blind(monkeypatch: pytest.MonkeyPatch, *ranks: int) -> None:
    """Some ranks do not see the folder."""
    entries = pieces.folder_entries

    def look(folder: Path) -> Any:
        if threading.current_thread().name in [f"rank {rank}" for rank in ranks]:
            raise FileError(f"cannot read {folder}: there is no such folder")
        return entries(folder)

    monkeypatch.setattr(pieces, "folder_entries", look)


@pytest.mark.parametrize("ranks", [(2,), (1, 2, 3)])
def test_ranks_that_do_not_see_the_file_get_it_from_the_others(
    copy: Path, expected: str, monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, ...]
) -> None:
    size = (saved(copy)[-1] / VALUES).stat().st_size
    blind(monkeypatch, *ranks)
    found = simulate(4, run, copy, 2)
    assert {sha for sha, _ in found} == {expected}
    assert sum(read for _, read in found) == size
    assert [read == 0 for _, read in found] == [rank in ranks for rank in range(4)]


def test_a_rank_that_sees_another_file_by_that_name_does_not_read_it(
    copy: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = pieces.folder_entries

    def look(folder: Path) -> Any:
        found = entries(folder)
        if threading.current_thread().name == "rank 1":
            found[VALUES]["sha256"] = "0" * 64
        return found

    monkeypatch.setattr(pieces, "folder_entries", look)
    found = simulate(3, run, copy, 2)
    assert {sha for sha, _ in found} == {expected}
    assert found[1][1] == 0


def test_a_rank_that_cannot_read_leaves_it_to_the_first(
    copy: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (saved(copy)[-1] / VALUES).stat().st_size
    read = pieces.SharedFile.read

    def fails(self: Any, first: int, last: int, out: Any) -> int:
        if threading.current_thread().name == "rank 2":
            raise FileError("cannot read: the connection is gone")
        return read(self, first, last, out)

    monkeypatch.setattr(pieces.SharedFile, "read", fails)
    found = simulate(3, run, copy, 2)
    assert {sha for sha, _ in found} == {expected}
    assert found[0][1] > size and found[2][1] == 0


def test_a_damaged_piece_is_found_by_whoever_reads_it(
    copy: Path, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is passed over for the one before, as when one process reads it."""
    values = saved(copy)[-1] / VALUES
    data = bytearray(values.read_bytes())
    data[-5] ^= 1  # in the part of the last rank
    values.write_bytes(data)
    found = simulate(3, run, copy, 2)
    assert {sha for sha, _ in found} == {expected}
    told = capsys.readouterr().err
    assert "is passed over" in told and "damaged" in told
    assert "using the checkpoint of step 2" in told


def test_nothing_whole_is_an_error(copy: Path) -> None:
    for folder in saved(copy):
        (folder / VALUES).write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        simulate(3, run, copy, 2)


def test_checkpoints_without_digests_of_pieces_are_read_by_the_first(
    copy: Path, expected: str
) -> None:
    """As earlier versions wrote them; also where the pieces do not make up the file."""
    folder = saved(copy)[-1]
    size = (folder / VALUES).stat().st_size
    for change in (
        lambda found: found.pop("pieces"),
        lambda found: found["pieces"]["sha256"].pop(),
    ):
        target = copy.parent / "old" / "checkpoints" / folder.name
        shutil.rmtree(copy.parent / "old", ignore_errors=True)
        record = json.loads((folder / "record.json").read_bytes())
        change(record)
        files = {"record.json": json.dumps(record).encode(), VALUES: (folder / VALUES).read_bytes()}
        write_folder(target, files)
        found = simulate(3, run, copy.parent / "old", 2)
        assert {sha for sha, _ in found} == {expected}
        assert [read for _, read in found] == [0, 0, 0]
        assert size


def test_pieces_hold_each_byte_of_the_file(begun: Path) -> None:
    folder = saved(begun)[-1]
    data = (folder / VALUES).read_bytes()
    told = json.loads((folder / "record.json").read_bytes())["pieces"]
    assert told == pieces.pieces_of(data) and pieces.are_whole(told)
    file = pieces.SharedFile(folder, VALUES, told)
    out = file.room()
    half = file.count // 2
    assert file.read(0, half, out) + file.read(half, file.count, out) == len(data)
    assert out.tobytes() == data
    within, apart = file.tensors(out), tensors_from_bytes(data, "f")
    assert within.keys() == apart.keys()
    assert all(np.array_equal(within[k], apart[k]) for k in apart)
    assert all(within[k].dtype == apart[k].dtype and within[k].flags.writeable for k in apart)
    large = pieces.pieces_of(bytes(5_000_000))
    assert large["each"] == 8192 and len(large["sha256"]) == 611


def test_a_piece_of_another_file(begun: Path, tmp_path: Path) -> None:
    folder = saved(begun)[-1]
    told = json.loads((folder / "record.json").read_bytes())["pieces"]
    for name, data in {"short": b"abc", "other": bytes(told["size"])}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / VALUES).write_bytes(data)
        file = pieces.SharedFile(tmp_path / name, VALUES, told)
        with pytest.raises(CheckpointError, match=r"expected a regular|damaged: piece 1 of 4096"):
            file.read(1, 2, file.room())
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / VALUES).symlink_to(folder / VALUES)
    linked = pieces.SharedFile(tmp_path / "link", VALUES, told)
    with pytest.raises(FileError):
        linked.read(1, 2, linked.room())
