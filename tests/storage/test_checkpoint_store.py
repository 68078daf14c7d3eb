from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn.errors import ArgumentError, CheckpointError, FileError
from magmadnn.storage import checkpoint
from magmadnn.storage.checkpoint import CheckpointStore, State
from magmadnn.storage.disk import calls
from magmadnn.storage.durable import read_folder, write_folder
from magmadnn.storage.formats.plain_json import seal

pytestmark = pytest.mark.usefixtures("quick_sync")


def state(step: int) -> State:
    values = np.random.default_rng(step).normal(size=(3, 5)).astype(np.float32)
    return State({"weight": values, "count": np.array(step)}, {"step": step})


def same(a: State, b: State) -> bool:
    return a.record == b.record and all(
        np.array_equal(a.tensors[name], b.tensors[name]) for name in b.tensors
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kept(store: CheckpointStore) -> list[int]:
    return [int(path.name[5:]) for path in sorted(store.folder.glob("step-*"))]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", note=notes.append)


def test_store_begins_empty(store: CheckpointStore, notes: list[str]) -> None:
    assert store.latest() is None and store.best() is None
    store.folder.mkdir(parents=True)
    assert store.latest() is None and store.best() is None and not notes


def test_store_keeps_the_last_two_and_the_best(store: CheckpointStore, notes: list[str]) -> None:
    seen = []
    for step in (0, 5, 10, 100_000_000, 100_000_001, 100_000_002):
        store.save(step, state(step), best=step in (5, 100_000_000))
        seen.append(kept(store))
        latest = store.latest()
        assert latest is not None and same(latest, state(step))
    assert seen == [
        [0],
        [0, 5],
        [5, 10],
        [10, 100_000_000],
        [100_000_000, 100_000_001],
        [100_000_000, 100_000_001, 100_000_002],
    ]
    best = store.best()
    assert best is not None and same(best, state(100_000_000))
    assert sorted(p.name for p in store.folder.iterdir())[0] == "latest.json"
    pointer = json.loads((store.folder / "latest.json").read_text())
    assert (pointer["format"], pointer["version"]) == ("magmadnn-latest", 1)
    assert (pointer["step"], pointer["best"]) == (100_000_002, 100_000_000)
    assert not notes


def test_another_process_finds_the_same(store: CheckpointStore) -> None:
    store.save(3, state(3), best=True)
    store.save(4, state(4))
    again = CheckpointStore(store.folder.parent)
    latest, best = again.latest(), again.best()
    assert latest and best and same(latest, state(4)) and same(best, state(3))


@pytest.mark.parametrize("step", [-1, 10**18])
def test_steps_have_a_range(store: CheckpointStore, step: int) -> None:
    with pytest.raises(ArgumentError, match="step must be from 0 to"):
        store.save(step, state(1))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit in tensors": lambda folder: damage(folder / "tensors.safetensors"),
    "bit in record": lambda folder: damage(folder / "record.json"),
    "bit in manifest": lambda folder: damage(folder / "manifest.json"),
    "empty file": lambda folder: (folder / "tensors.safetensors").write_bytes(b""),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "gone": lambda folder: folder.rename(folder.parent.parent / "gone"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_newest_is_passed_over_with_a_note(
    store: CheckpointStore, notes: list[str], how: str
) -> None:
    for step in (10, 20, 30):
        store.save(step, state(step))
    DAMAGE[how](store.folder / "step-00000030")
    before = tree(store.folder)
    found = store.latest()
    assert found is not None and same(found, state(20))
    assert len(notes) == 2 and notes[1] == "using the checkpoint of step 20"
    assert notes[0].startswith("the checkpoint of step 30 is passed over: ")
    assert "step-00000030" in notes[0] and "\n" not in notes[0]
    assert tree(store.folder) == before  # everything is left as it was


@pytest.mark.parametrize("how", DAMAGE)
def test_all_damaged_is_an_error_not_a_new_start(
    store: CheckpointStore, notes: list[str], how: str
) -> None:
    store.save(10, state(10), best=True)
    DAMAGE[how](store.folder / "step-00000010")
    for find in (store.latest, store.best):
        notes.clear()
        with pytest.raises(CheckpointError, match=r"no checkpoint is whole: .*step-00000010"):
            find()
        assert notes


def test_damaged_pointer_is_passed_over(store: CheckpointStore, notes: list[str]) -> None:
    store.save(10, state(10))
    damage(store.folder / "latest.json")
    found = store.latest()
    assert found is not None and same(found, state(10))
    assert len(notes) == 1 and "latest.json" in notes[0]
    pointer = {"format": "magmadnn-latest", "version": 1, "step": "10", "best": None}
    (store.folder / "latest.json").write_bytes(seal(pointer))
    assert store.latest() is not None
    assert "latest.json: step: expected an integer from 0 to" in notes[1]


def test_notes_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = CheckpointStore(tmp_path)
    store.save(10, state(10))
    store.save(20, state(20))
    damage(store.folder / "step-00000020" / "record.json")
    assert store.latest() is not None
    out, err = capsys.readouterr()
    assert not out and err.startswith("magmadnn: note: the checkpoint of step 20 is passed over")


def test_checkpoint_of_another_model_is_not_passed_over(
    store: CheckpointStore, notes: list[str]
) -> None:
    store.save(10, state(10))
    store.save(20, state(20))
    expect = {"weight": ((3, 5), "float32"), "count": ((), "int64")}
    assert store.latest(expect) is not None
    with pytest.raises(CheckpointError, match="'weight': expected shape"):
        store.latest({**expect, "weight": ((5, 3), "float32")})
    assert not notes


def test_checkpoint_of_a_newer_version_is_not_passed_over(store: CheckpointStore) -> None:
    store.save(10, state(10))
    store.save(20, state(20))
    folder = store.folder / "step-00000020"
    files: dict[str, Any] = read_folder(folder)
    record = {**json.loads(files["record.json"]), "version": 2}
    write_folder(folder, {**files, "record.json": json.dumps(record).encode()}, replace=True)
    with pytest.raises(CheckpointError, match="written by a newer magmadnn"):
        store.latest()


def test_going_back_removes_what_came_after(store: CheckpointStore, notes: list[str]) -> None:
    for step in (10, 20, 30):
        store.save(step, state(step))
    damage(store.folder / "step-00000030" / "record.json")
    store.save(25, state(25))
    assert kept(store) == [20, 25]
    notes.clear()
    found = store.latest()
    assert found is not None and same(found, state(25)) and not notes


def test_damaged_checkpoint_of_the_same_step_is_replaced(store: CheckpointStore) -> None:
    for step in (10, 20):
        store.save(step, state(step))
    damage(store.folder / "step-00000020" / "manifest.json")
    store.save(20, state(20))
    found = store.latest()
    assert found is not None and same(found, state(20))


def test_nothing_is_removed_before_the_new_one_reads_back(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        store.save(step, state(step))
    real = calls.rename

    def bad_disk(source: Path, target: Path) -> None:
        if target.name == "step-00000030":
            damage(source / "tensors.safetensors")
        real(source, target)

    monkeypatch.setattr(calls, "rename", bad_disk)
    with pytest.raises(CheckpointError, match="damaged"):
        store.save(30, state(30))
    assert kept(store) == [10, 20, 30]
    found = store.latest()
    assert found is not None and same(found, state(20))


def test_what_cannot_be_removed_is_a_note(
    store: CheckpointStore, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        store.save(step, state(step))
    real = calls.rename

    def no_removal(source: Path, target: Path) -> None:
        if source.name == "step-00000010":
            raise PermissionError(13, "Permission denied")
        real(source, target)

    monkeypatch.setattr(calls, "rename", no_removal)
    store.save(30, state(30))
    assert kept(store) == [10, 20, 30]
    assert len(notes) == 1 and "cannot remove" in notes[0] and "no permission" in notes[0]


@pytest.mark.parametrize("name", ["latest.json", "step-00000002"])
def test_links_among_the_checkpoints_are_not_written_through(
    store: CheckpointStore, tmp_path: Path, name: str
) -> None:
    store.save(1, state(1))
    mine = tmp_path / "mine"
    mine.mkdir() if name.startswith("step") else mine.write_text("precious")
    entry = store.folder / name
    entry.unlink(missing_ok=True)
    entry.symlink_to(mine)
    with pytest.raises(FileError, match=f"cannot write {entry}: it is a link"):
        store.save(2, state(2))
    assert (mine.is_dir() and not list(mine.iterdir())) or mine.read_text() == "precious"


def test_other_files_among_the_checkpoints_are_left_alone(store: CheckpointStore) -> None:
    store.folder.mkdir(parents=True)
    for name in ("step-1", "step-0000000x", "notes.txt", ".hidden"):
        (store.folder / name).write_text("mine")
    for step in (1, 2, 3, 4):
        store.save(step, state(step))
    assert store.latest() is not None
    assert {p.name for p in store.folder.iterdir()} >= {
        "step-1",
        "step-0000000x",
        "notes.txt",
        ".hidden",
    }


def test_reader_beside_a_training_that_goes_on(
    store: CheckpointStore, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the reader had listed is removed before it gets to it."""
    for step in (10, 20):
        store.save(step, state(step))
    writer = CheckpointStore(store.folder.parent)
    real, saved = checkpoint.read_folder, False

    def slow(path: Path, only: Any = None) -> dict[str, bytes]:
        nonlocal saved
        if not saved:
            saved = True
            for step in (30, 40, 50):
                writer.save(step, state(step))
        return real(path, only)

    monkeypatch.setattr(checkpoint, "read_folder", slow)
    found = store.latest()
    assert found is not None and same(found, state(50))


# --- kill -9 -----------------------------------------------------------------------------------

KILLED = """
import os, random, signal, sys, time
import numpy as np
from magmadnn.storage.checkpoint import CheckpointStore, State

def make(step):
    return State({"w": np.full(5003, step, np.float32), "n": np.array(step)}, {"step": step})

def refuse(note):
    raise AssertionError(note)

def check(store):
    state = store.latest()
    if state is None:
        return 0
    step = state.record["step"]
    assert (state.tensors["w"] == step).all() and state.tensors["n"] == step
    best = store.best()
    assert best is None or best.record["step"] % 3 == 0
    return step

def train(store, acknowledge):
    step = check(store)
    while True:
        step += 1
        store.save(step, make(step), best=step % 3 == 0)
        os.write(acknowledge, b"%12d" % step)

store = CheckpointStore(sys.argv[1], note=refuse)
rng = random.Random(17)
check(store)  # loads the libraries
reached = []
for trial in range(20):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        train(store, writer)
    os.close(writer)
    first = os.read(reader, 12)  # it is at work
    time.sleep(rng.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = int((first + os.read(reader, 10**6))[-12:])
    os.close(reader)
    found = check(store)
    assert found in (said, said + 1), (found, said)
    reached.append(found)
store.save(reached[-1] + 1, make(reached[-1] + 1))
print([name for name in os.listdir(store.folder) if name.startswith(".")], len(reached), reached[-1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """What was acknowledged is there; at most the save that was under way is there as well."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    waste, trials, last = result.stdout.rsplit(" ", 2)
    assert (waste, trials) == ("[]", "20") and int(last) >= 20
