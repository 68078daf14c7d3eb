from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, CheckpointError, FileError
from magmadnn.storage import disk
from magmadnn.storage.disk import calls, worded
from magmadnn.storage.durable import (
    MANIFEST,
    append_file,
    is_plain_name,
    read_file,
    read_folder,
    remove_folder,
    write_file,
    write_folder,
)
from magmadnn.storage.formats.plain_json import seal, unseal

FILES = {"a.bin": bytes(range(251)), "b.txt": b"", "c": b"\x00" * 7}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest and seals it again, as somebody with bad intentions would."""
    path = folder / MANIFEST
    document = unseal(path.read_bytes(), "manifest", "magmadnn-manifest", 1)
    change(document)
    path.write_bytes(seal({"format": "magmadnn-manifest", "version": 1, **document}))


# --- writing and reading ---------------------------------------------------------------------


def test_file_is_made_and_replaced_with_the_folders_above_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "file"
    write_file(path, b"one")
    write_file(path, lambda: iter([b"tw", b"", b"o"]))
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file"]


def test_a_folder_that_another_process_moves_aside_after_it_was_seen_is_not_taken_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    write_folder(target, FILES)
    seen = Path.stat

    def stat_then_move(path: Path, **how: bool) -> os.stat_result:
        found = seen(path, **how)
        if path == target and target in tmp_path.iterdir():
            target.rename(tmp_path / "aside")
        return found

    monkeypatch.setattr(Path, "stat", stat_then_move)
    write_folder(target, FILES, replace=True)
    monkeypatch.undo()
    assert read_folder(target) == FILES
    assert names(tmp_path) == ["aside", "model"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_what_is_added_to_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    import resource
    import signal

    path = tmp_path / "file"
    append_file(path, b"one\n")
    append_file(path, b"two\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(FileError, match=f"cannot write {path}: .*too large"):
            append_file(path, b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"one\ntwo\n"
    with pytest.raises(FileError, match="it is a folder"):
        append_file(tmp_path, b"x")


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_file("file", b"1")
    write_folder("box", FILES)
    assert read_folder("box") == FILES
    assert names(tmp_path) == ["box", "file"]


def test_folder_is_written_and_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    assert read_folder(tmp_path / "box") == FILES
    assert read_folder(tmp_path / "box", only=["c"]) == {"c": FILES["c"]}
    assert names(tmp_path / "box") == ["a.bin", "b.txt", "c", "manifest.json"]


def test_manifest_says_size_and_checksum(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    document = json.loads((tmp_path / "box" / MANIFEST).read_text())
    assert (document["format"], document["version"]) == ("magmadnn-manifest", 1)
    assert document["files"]["a.bin"] == {
        "bytes": 251,
        "sha256": hashlib.sha256(FILES["a.bin"]).hexdigest(),
    }


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "write", lambda fd, data: os.write(fd, data[:3]))
    write_folder(tmp_path / "box", FILES)
    assert read_folder(tmp_path / "box") == FILES


def test_write_that_writes_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "write", lambda fd, data: 0)
    with pytest.raises(FileError, match="input/output error"):
        write_file(tmp_path / "file", b"1")
    assert names(tmp_path) == []


def test_existing_folder_is_refused_and_kept(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    with pytest.raises(FileError, match="exists already and is not empty; choose another name"):
        write_folder(tmp_path / "box", {"x": b"1"})
    assert read_folder(tmp_path / "box") == FILES


def test_existing_folder_is_replaced_if_asked(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    write_folder(tmp_path / "box", {"x": b"1"}, replace=True)
    assert read_folder(tmp_path / "box") == {"x": b"1"}
    assert names(tmp_path) == ["box"]
    assert names(tmp_path / "box") == ["manifest.json", "x"]


def test_damaged_folder_of_ours_can_be_replaced(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    (tmp_path / "box" / MANIFEST).write_bytes(b"")
    write_folder(tmp_path / "box", FILES, replace=True)
    assert read_folder(tmp_path / "box") == FILES


@pytest.mark.parametrize("foreign", ["thesis.txt", "data/"])
def test_folder_with_other_peoples_files_is_never_replaced(tmp_path: Path, foreign: str) -> None:
    write_folder(tmp_path / "box", FILES)
    path = tmp_path / "box" / foreign
    path.mkdir() if foreign.endswith("/") else path.write_text("years of work")
    before = names(tmp_path / "box")
    with pytest.raises(FileError, match=f"it holds '{foreign.strip('/')}'"):
        write_folder(tmp_path / "box", FILES, replace=True)
    assert names(tmp_path / "box") == before


def test_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("x")
    for replace in (False, True):
        with pytest.raises(FileError, match="it is a file, expected a folder"):
            write_folder(tmp_path / "box", FILES, replace=replace)
    assert (tmp_path / "box").read_text() == "x"


def test_folder_that_appears_meanwhile_is_not_touched(tmp_path: Path) -> None:
    def late() -> Iterator[bytes]:
        write_folder(tmp_path / "box", FILES)
        yield b"1"

    with pytest.raises(FileError, match="exists already and is not empty"):
        write_folder(tmp_path / "box", {"x": late})
    assert read_folder(tmp_path / "box") == FILES
    assert names(tmp_path) == ["box"]


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "box").symlink_to(tmp_path / "far" / "box")
    (tmp_path / "file").symlink_to(tmp_path / "far" / "file")
    for content in (b"1", b"2"):
        write_folder(tmp_path / "box", {"x": content}, replace=True)
        write_file(tmp_path / "file", content)
    assert read_folder(tmp_path / "far" / "box") == read_folder(tmp_path / "box") == {"x": b"2"}
    assert (tmp_path / "far" / "file").read_bytes() == b"2"
    assert (tmp_path / "box").is_symlink() and (tmp_path / "file").is_symlink()
    assert names(tmp_path / "far") == ["box", "file"]


def test_removing_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    (tmp_path / "link").symlink_to(tmp_path / "box")
    remove_folder(tmp_path / "link")
    assert names(tmp_path) == ["box"]
    assert read_folder(tmp_path / "box") == FILES


PLAIN = ["a", "tensors.safetensors", "ä b", "x" * 200]
NOT_PLAIN = [
    *("", ".", "..", ".hidden", "../a", "/etc/passwd", "a/b", "a\\b", "C:a", "a\x00", "a\nb"),
    *("x" * 201, "a.", "a ", "\ud800", "\u202eexe", 7, None),
]


def test_plain_names() -> None:
    assert all(is_plain_name(name) for name in PLAIN)
    assert not any(is_plain_name(name) for name in NOT_PLAIN)


@pytest.mark.parametrize("name", ["../a", "a/b", MANIFEST, ""])
def test_only_plain_names_are_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="expected a plain file name"):
        write_folder(tmp_path / "box", {name: b"1"})
    assert names(tmp_path) == []


# --- errors of the system --------------------------------------------------------------------

ERRORS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "no permission; choose another folder",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the disk reports an input/output error",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EFBIG: "it would be too large for this file system",
    errno.ENXIO: "No such device",
}


@pytest.mark.parametrize("number", ERRORS)
def test_system_errors_are_worded_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(calls, "create", fail)
    for write in (
        lambda: write_file(tmp_path / "f", b"1"),
        lambda: write_folder(tmp_path / "f", FILES),
    ):
        with pytest.raises(FileError) as caught:
            write()
        assert str(caught.value).startswith(f"cannot write {tmp_path / 'f'}: {ERRORS[number]}")
        assert "\n" not in str(caught.value)
        assert caught.value.errno == number
    assert names(tmp_path) == []


def test_own_errors_pass_unchanged(tmp_path: Path) -> None:
    mine = CheckpointError("mine")
    with pytest.raises(CheckpointError) as caught, worded("cannot read", tmp_path):
        raise mine
    assert caught.value is mine


def test_a_file_among_the_folders_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="a part of the path is a file"):
        write_file(tmp_path / "file" / "deeper" / "f", b"1")


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(FileError, match="it is a folder, not a file"):
        write_file(tmp_path / "f", b"1")
    assert names(tmp_path) == ["f"]


def test_failing_content_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"1"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_folder(tmp_path / "box", {"x": broken})
    assert names(tmp_path) == []


def test_macos_full_sync_and_its_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fcntl(descriptor: int, command: int) -> None:
        asked.append(command)
        if fails:
            raise OSError(fails, "injected")

    monkeypatch.setattr(disk, "_FULL_SYNC", 51)
    monkeypatch.setattr(disk.fcntl, "fcntl", fcntl)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    fails = 0
    write_file(tmp_path / "f", b"1")
    assert asked == [51, 51] and not synced  # the file and its folder
    fails = errno.ENOTSUP
    write_file(tmp_path / "f", b"1")
    assert len(synced) == 2
    fails = errno.EIO
    with pytest.raises(FileError, match="input/output error"):
        write_file(tmp_path / "f", b"2")
    assert (tmp_path / "f").read_bytes() == b"1"


def test_folders_that_cannot_be_synced_are_borne_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "not offered")

    monkeypatch.setattr(disk, "_FULL_SYNC", None)
    monkeypatch.setattr(os, "fsync", fsync)
    calls.sync_folder(tmp_path)
    with pytest.raises(FileError):  # but a file that cannot be synced is not safe
        write_file(tmp_path / "f", b"1")


# --- damage ----------------------------------------------------------------------------------


def test_damage_names_file_and_checksums(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    data = b"\xff" + FILES["a.bin"][1:]
    (tmp_path / "box" / "a.bin").write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_folder(tmp_path / "box")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'box' / 'a.bin'}: damaged: expected 251 bytes")
    assert hashlib.sha256(FILES["a.bin"]).hexdigest() in message
    assert hashlib.sha256(data).hexdigest() in message
    assert read_folder(tmp_path / "box", only=["c"]) == {"c": FILES["c"]}


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_truncated_extended_and_missing_files(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / "box", FILES)
    path = tmp_path / "box" / name
    whole = path.read_bytes()
    lengths = {*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1} - {-1, len(whole)}
    for content in [whole[:length] for length in sorted(lengths)] + [whole + b"\n", whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=name):
            read_folder(tmp_path / "box")
    path.unlink()
    with pytest.raises(CheckpointError, match=name):
        read_folder(tmp_path / "box")
    path.write_bytes(whole)
    assert read_folder(tmp_path / "box") == FILES


def test_folder_that_is_not_there_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such folder"):
        read_folder(tmp_path / "box")
    with pytest.raises(FileError, match="there is no such folder"):
        read_folder(tmp_path / "no" / "box")
    with pytest.raises(FileError, match="does not exist"):
        remove_folder(tmp_path / "box")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="it is a file, expected a folder"):
        read_folder(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"has no manifest\.json.*foreign or only partly"):
        read_folder(tmp_path)


def test_file_that_is_asked_for_but_not_in_the_manifest(tmp_path: Path) -> None:
    write_folder(tmp_path / "box", FILES)
    (tmp_path / "box" / "stray").write_text("x")
    with pytest.raises(CheckpointError, match="has no 'stray'"):
        read_folder(tmp_path / "box", only=["stray"])
    assert read_folder(tmp_path / "box") == FILES  # what is not ours is not read


@pytest.mark.parametrize("name", [name for name in NOT_PLAIN if isinstance(name, str)])
def test_manifest_with_a_path_is_refused(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / "box", FILES)
    secret = tmp_path / "a"
    secret.write_bytes(FILES["a.bin"])
    edit_manifest(tmp_path / "box", lambda d: d["files"].update({name: d["files"]["a.bin"]}))
    with pytest.raises(CheckpointError, match=r"manifest\.json: files: expected plain names, got"):
        read_folder(tmp_path / "box")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"bytes": 251},
        {"bytes": True, "sha256": ""},
        {"bytes": "251", "sha256": ""},
        {"bytes": 2.5e2, "sha256": ""},
        {"bytes": 251, "sha256": 5},
        {"bytes": 251, "sha256": "", "more": 1},
    ],
)
def test_manifest_with_other_entries_is_refused(tmp_path: Path, entry: object) -> None:
    write_folder(tmp_path / "box", FILES)
    edit_manifest(tmp_path / "box", lambda d: d["files"].update({"a.bin": entry}))
    with pytest.raises(CheckpointError, match=r"manifest\.json: files\['a\.bin'\]"):
        read_folder(tmp_path / "box")


@pytest.mark.parametrize("files", [None, [], "a.bin", 5])
def test_manifest_without_files_is_refused(tmp_path: Path, files: object) -> None:
    write_folder(tmp_path / "box", FILES)
    edit_manifest(tmp_path / "box", lambda d: d.update(files=files))
    with pytest.raises(CheckpointError, match=r"manifest\.json: files: expected an object"):
        read_folder(tmp_path / "box")


@pytest.mark.parametrize("size", [-1, 250, 2**60])
def test_manifest_with_another_size_is_refused(tmp_path: Path, size: int) -> None:
    write_folder(tmp_path / "box", FILES)
    edit_manifest(tmp_path / "box", lambda d: d["files"]["a.bin"].update(bytes=size))
    with pytest.raises(CheckpointError, match=r"a\.bin"):
        read_folder(tmp_path / "box")


@pytest.mark.parametrize("name", ["a.bin", MANIFEST])
def test_links_folders_and_pipes_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "box" / name
    for kind in ("link", "broken link", "folder", "pipe"):
        write_folder(tmp_path / "box", FILES, replace=True)
        path.rename(tmp_path / "elsewhere")
        if kind.endswith("link"):
            path.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"))
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
        with pytest.raises(CheckpointError, match=r"a\.bin|manifest\.json"):
            read_folder(tmp_path / "box")
        path.rmdir() if kind == "folder" else path.unlink()
        (tmp_path / "elsewhere").rename(path)
    assert read_folder(tmp_path / "box") == FILES


def test_read_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(11))
    assert read_file(tmp_path / "f", 11) == bytes(11)
    with pytest.raises(CheckpointError, match="expected at most 10 bytes, got 11"):
        read_file(tmp_path / "f", 10)


@pytest.mark.skipif(sys.platform == "win32", reason="umask is POSIX")
def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_folder(tmp_path / "box", FILES)
    finally:
        os.umask(before)
    assert (tmp_path / "box").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "box" / "c").stat().st_mode & 0o777 == 0o640
