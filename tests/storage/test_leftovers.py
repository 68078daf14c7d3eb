"""What writers that died leave behind, and what other processes do at the same time."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from magmadnn.errors import FileError
from magmadnn.storage import durable, leftovers
from magmadnn.storage.disk import calls
from magmadnn.storage.durable import clean_leftovers, folder_names, read_folder, write_folder

FILES = {"a.bin": bytes(range(251)), "b.txt": b"", "c": b"\x00" * 7}
DEAD = f"{leftovers._host()}-{999_999_999}-0123456789abcdef"  # above any process number
ALIVE = f"{leftovers._host()}-{os.getppid()}-0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def leave(folder: Path, name: str, kind: str, mark: str, age_days: float = 0.0) -> Path:
    path = folder / f".{name}.{kind}-{mark}"
    write_folder(path, FILES)
    then = time.time() - age_days * 24 * 3600
    os.utime(path, (then, then))
    return path


def test_leftovers_of_dead_writers_are_removed(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", {"x": b"1"})
    own = DEAD.replace("999999999", str(os.getpid()))
    other_host = DEAD.replace(leftovers._host(), "00000000")
    for mark in (DEAD, own):
        leave(tmp_path, "box", "tmp", mark)
        leave(tmp_path, "box", "old", mark)
    leave(tmp_path, "box", "tmp", other_host, age_days=2)
    kept = [leave(tmp_path, "box", "tmp", ALIVE), leave(tmp_path, "file", "tmp", other_host)]
    kept.append(tmp_path / ".box.tmp-mine")
    kept[-1].mkdir()
    clean_leftovers(tmp_path)
    assert names(tmp_path) == sorted(["box", *(path.name for path in kept)])
    assert read_folder(tmp_path / "box") == {"x": b"1"}
    assert folder_names(tmp_path) == [".box.tmp-mine", "box"]


def test_leftovers_with_something_foreign_inside_stay(tmp_path: Path) -> None:
    path = leave(tmp_path, "box", "tmp", DEAD)
    (path / "zz").mkdir()
    (path / "zz" / "thesis").write_text("x")
    clean_leftovers(tmp_path)
    assert (path / "zz" / "thesis").read_text() == "x"


@pytest.mark.parametrize("use", ["read", "names", "clean", "write"])
def test_folder_that_was_being_replaced_is_put_back(tmp_path: Path, use: str) -> None:
    leave(tmp_path, "box", "old", DEAD)
    if use == "names":
        assert folder_names(tmp_path) == ["box"]
        return
    if use == "write":
        with pytest.raises(FileError, match="exists already"):
            write_folder(tmp_path / "box", {"x": b"1"})
    if use == "clean":
        clean_leftovers(tmp_path)
    assert read_folder(tmp_path / "box") == FILES
    assert names(tmp_path) == ["box"]


def test_folder_that_is_being_replaced_is_read_where_it_is(tmp_path: Path) -> None:
    path = leave(tmp_path, "box", "old", ALIVE)
    assert read_folder(tmp_path / "box") == FILES
    assert names(tmp_path) == [path.name]


def test_folder_is_read_where_it_is_on_a_read_only_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    leave(tmp_path, "box", "old", DEAD)
    monkeypatch.setattr(calls, "rename", fail)
    assert read_folder(tmp_path / "box") == FILES


def test_reader_takes_the_new_folder_if_it_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def box(number: int) -> dict[str, bytes]:
        return {"a": b"%d" % number, "b": b"%d" % number}

    def slow(path: Path, limit: int | None = None) -> bytes:
        nonlocal written
        if path.name == "b" and written < 3:  # in the midst of reading, three times
            written += 1
            write_folder(tmp_path / "box", box(written), replace=True)
        return real(path, limit)

    written, real = 0, durable.read_file
    write_folder(tmp_path / "box", box(0))
    monkeypatch.setattr(durable, "read_file", slow)
    assert read_folder(tmp_path / "box") == box(3)


def test_readers_beside_a_writer_never_see_anything_half_done(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", {"a": b"0", "b": b"0"})
    done = threading.Event()
    seen: set[bytes] = set()
    errors: list[Exception] = []

    def read() -> None:
        while not done.is_set():
            try:
                files = read_folder(tmp_path / "box")
                assert files["a"] == files["b"]
                seen.add(files["a"])
            except (AssertionError, FileError) as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(60):
        write_folder(tmp_path / "box", {"a": b"%d" % i, "b": b"%d" % i}, replace=True)
    done.set()
    reader.join()
    assert not errors and len(seen) > 3


def test_processes_are_told_alive_from_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leftovers._is_alive(os.getpid())
    assert not leftovers._is_alive(999_999_999)

    def kill(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert leftovers._is_alive(999_999_999)  # somebody else's
