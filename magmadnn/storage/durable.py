"""Durable files and folders: after a crash at any moment the old or the new content is there, whole.

Writing: a temporary name in the same folder, write, sync, rename in one step, sync the folder. A folder
of files also gets `manifest.json`, written last, with the size and the SHA-256 of every file. Replacing
a folder: the old one is renamed aside, the new one takes its name, the old one is removed.

Recovery rule: a folder that is missing while `.<name>.old-...` is there was being replaced, and that
is its content. Readers and writers put it back. Everything else under a temporary name is waste.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, CheckpointError, FileError, quoted, shown

from .disk import as_path, calls, is_there, worded
from .formats.plain_json import JSON_BYTES, seal, unseal
from .formats.plain_schema import Fields, Table, Text, Whole, check
from .input_files import check_room, kind_of
from .leftovers import discard, leftovers, temporary_name, writer_mark

Content = bytes | Callable[[], Iterable[bytes]]
"""A file's bytes, or a function that gives them piece by piece."""

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "magmadnn-manifest", 1
_FILES = Fields(
    {
        "files": Table(
            Fields({"bytes": Whole(), "sha256": Text(64)}),
            most=1000,
            named=lambda name: is_plain_name(name) and name != MANIFEST,
        )
    }
)
_ATTEMPTS = 20  # to read what another process keeps replacing, or to replace it
_MET = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)  # where it is there again, or not any more
_PIECE = 64 * 2**20  # bytes a call: some systems refuse 2**31, and signals are seen in between


def write_file(path: str | os.PathLike[str], data: Content) -> None:
    """Makes or replaces one file: afterwards, and after any crash, it is the old or the new one.

    Args:
        path: the file. Missing folders above it are made; a link is followed.
        data: bytes, or a function that gives pieces of bytes.

    Raises:
        FileError: full disk, no permission, read-only, a folder of that name.
    """
    target = _real(path)
    with worded("cannot write", target):
        make_folders(target.parent)
        _settle(target)
        with writer_mark() as mark:
            temporary = temporary_name(target, "tmp", mark)
            try:
                _write_new(temporary, data)
                calls.rename(temporary, target)
            except BaseException:
                discard(temporary)
                raise
            calls.sync_folder(target.parent)


def append_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Adds to the end of a file all of `data`, or nothing where that fails.

    Raises:
        FileError: full disk, no permission, read-only, a folder of that name.
    """
    target = Path(path)
    with worded("cannot write", target), target.open("ab", buffering=0) as file:
        before, rest = file.seek(0, os.SEEK_END), memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            with suppress(OSError):
                file.truncate(before)
            raise


def write_folder(
    path: str | os.PathLike[str],
    files: Mapping[str, Content],
    *,
    replace: bool = False,
    manifest: bool = True,
) -> None:
    """Makes a folder with `files` appear in one step.

    Args:
        path: the folder. Missing folders above it are made; an empty one of that name is taken.
        files: file name -> bytes, or a function that gives pieces of bytes.
        replace: whether a folder that this function wrote before may be replaced.
        manifest: whether `manifest.json`, which `read_folder` needs, is added.

    Raises:
        ArgumentError: a file name that is not plain.
        FileError: it exists (or, with `replace`, holds files that are not ours); full disk, no
            permission, read-only. What was there before is still there.
    """
    for name in files:
        if not is_plain_name(name) or name == MANIFEST:
            raise ArgumentError(f"write_folder: expected a plain file name, got {quoted(name)}")
    target = _real(path)
    with worded("cannot write", target):
        make_folders(target.parent)
        _settle(target)
        _check_free(target, files, replace)
        with writer_mark() as mark:
            temporary = temporary_name(target, "tmp", mark)
            try:
                _fill(temporary, files, manifest)
                for left in reversed(range(_ATTEMPTS)):
                    try:
                        _check_free(target, files, replace)
                        with writer_mark() as own:
                            _put_in_place(temporary, target, own, replace)
                        break
                    except OSError as error:  # another process replaces it at the same time
                        if not (replace and left and error.errno in _MET):
                            raise
            except BaseException:
                discard(temporary)
                raise


def read_folder(
    path: str | os.PathLike[str], only: Collection[str] | None = None
) -> dict[str, bytes]:
    """The files of a folder that `write_folder` wrote, each checked against the manifest.

    Args:
        path: the folder.
        only: names of the files to read; None reads all. Files outside the manifest are not read.

    Raises:
        CheckpointError: a missing, changed, truncated or foreign file; names expected and got checksum.
        FileError: it is not there or cannot be read.
    """
    target = _real(path)
    with worded("cannot read", target):
        for _ in range(_ATTEMPTS):
            folder = _find(target)
            before = _identity(folder)
            try:
                return _read(folder, only)
            except FileError:
                # Another process may have replaced the folder meanwhile: then the new one is read.
                if _identity(_find(target)) == before:
                    raise
        return _read(_find(target), only)


def folder_entries(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the manifest of a folder says of its files: name -> `bytes` and `sha256`; no file is read.

    Raises:
        CheckpointError: no manifest, or a damaged one.
        FileError: it is not there or cannot be read.
    """
    target = _real(path)
    with worded("cannot read", target):
        return _read_manifest(target)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder of files: in one step for readers, then file by file.

    Raises:
        FileError: no permission, read-only, it is not there.
    """
    target = _real(Path(path).parent) / Path(path).name  # a link goes, not what it points to
    with worded("cannot remove", target), writer_mark() as mark:
        doomed = temporary_name(target, "tmp", mark)
        calls.rename(target, doomed)
        calls.sync_folder(target.parent)
        discard(doomed)


def make_folders(path: Path) -> None:
    """Makes a folder and those above it that are missing, durably."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process may be as quick
            calls.make_folder(folder)
        calls.sync_folder(folder.parent)


def clean_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes what writers that died left in `folder`, after putting back what was being replaced."""
    place = _real(folder)
    with worded("cannot clean up", place):
        for name in sorted({leftover.name for leftover in leftovers(place)}):
            _settle(place / name)


def folder_names(folder: str | os.PathLike[str]) -> list[str]:
    """The names in `folder`, sorted: temporary ones left out, folders that were being replaced in."""
    target = _real(folder)
    with worded("cannot read", target):
        for _ in range(_ATTEMPTS):
            place = _find(target)  # where another process is replacing it, what is there instead
            with suppress(FileNotFoundError):
                return _names(place)
        return _names(_find(target))


def _names(place: Path) -> list[str]:
    unfinished = leftovers(place)
    hidden = {leftover.path.name for leftover in unfinished}
    aside = {leftover.name for leftover in unfinished if leftover.kind == "old"}
    return sorted(aside | {entry.name for entry in place.iterdir() if entry.name not in hidden})


def read_file(path: Path, limit: int | None = None) -> bytes:
    """The bytes of a regular file; links, pipes, folders and devices are refused.

    Raises:
        CheckpointError: not there, not a regular file, or more than `limit` bytes.
        FileError: it cannot be read.
        OutOfMemoryError: it is larger than the memory that is free.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would block
    with worded("cannot read", path):
        try:
            _check_regular(path, path.lstat())  # first, since opening some devices does something
            descriptor = os.open(path, flags)
        except FileNotFoundError as error:
            raise CheckpointError(f"{shown(path)}: is missing; restore it from a copy") from error
        try:
            status = os.fstat(descriptor)
            _check_regular(path, status)
            if limit is not None and status.st_size > limit:
                raise CheckpointError(
                    f"{shown(path)}: expected at most {limit} bytes, got {status.st_size}"
                )
            # Whoever reads bytes makes values of them.
            check_room(path, 2 * status.st_size, "use a machine with more")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if (kind := kind_of(status)) is not None:
        raise CheckpointError(
            f"{shown(path)}: expected a regular file, got {kind}; copy the file there"
        )


def is_plain_name(name: object) -> bool:
    """Whether `name` is a file's own name on every system: no path, no control or drive characters."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "replace")) <= 200
        and name.isprintable()
        and not name.startswith(".")
        and not name.endswith((".", " "))
        and not set(name) & set('/\\:*?"<>|')
    )


def _real(path: str | os.PathLike[str]) -> Path:
    # A link is followed, so that it goes on pointing to what is written and is not replaced by it.
    return Path(os.path.realpath(as_path("a file or folder", path)))


def _write_new(path: Path, content: Content) -> dict[str, Any]:
    """Writes and syncs a new file; returns what the manifest says of it."""
    digest, size = hashlib.sha256(), 0
    descriptor = calls.create(path)
    try:
        for piece in (content,) if isinstance(content, bytes) else content():
            digest.update(piece)
            size += len(piece)
            rest = memoryview(piece)
            while rest:
                written = calls.write(descriptor, rest[:_PIECE])
                if not written:
                    raise OSError(errno.EIO, "nothing was written")
                rest = rest[written:]
        calls.sync(descriptor)
    finally:
        calls.close(descriptor)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _fill(folder: Path, files: Mapping[str, Content], manifest: bool) -> None:
    calls.make_folder(folder)
    entries = {name: _write_new(folder / name, content) for name, content in files.items()}
    if manifest:
        document = {"format": _FORMAT, "version": _VERSION, "files": entries}
        _write_new(folder / MANIFEST, seal(document))
    calls.sync_folder(folder)


def _put_in_place(temporary: Path, target: Path, mark: str, replace: bool) -> None:
    full = replace and target.exists() and any(target.iterdir())
    aside = temporary_name(target, "old", mark) if full else None
    try:
        if aside:
            calls.rename(target, aside)
        calls.rename(temporary, target)
    except BaseException:
        if aside:
            with suppress(OSError):  # else the recovery rule does it
                calls.rename(aside, target)
        if aside and aside.exists() and target.exists():  # of another process: ours is not needed
            _remove_aside(aside, target, mark)
        raise
    calls.sync_folder(target.parent)
    if aside:
        with suppress(OSError):  # the new one is there; the next writer cleans up
            _remove_aside(aside, target, mark)


def _remove_aside(aside: Path, target: Path, mark: str) -> None:
    # Readers take what is under an `.old-` name for whole, so it is not emptied under that name.
    doomed = temporary_name(target, "tmp", mark)
    calls.rename(aside, doomed)
    discard(doomed)


def _check_free(target: Path, files: Collection[str], replace: bool) -> None:
    """Raises `FileError` unless `target` is free, an empty folder, or ours and to be replaced."""
    try:  # asked once: another process may replace it
        is_folder = stat.S_ISDIR(target.stat().st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        raise FileError(
            f"cannot write {shown(target)}: it is a file, expected a folder; choose another name"
        )
    try:
        present = {entry.name for entry in target.iterdir()}
    except FileNotFoundError:  # another process moved it aside just now, to replace it
        return
    if present and not replace:
        raise FileError(
            f"cannot write {shown(target)}: it exists already and is not empty; choose another name or "
            "remove it first"
        )
    if foreign := sorted(present - {MANIFEST, *files, *_listed(target)}):
        raise FileError(
            f"cannot replace {shown(target)}: it holds {quoted(foreign[0])}, which is not part of what "
            "magmadnn wrote there; choose another folder or move that file away"
        )


def _listed(folder: Path) -> set[str]:
    try:
        return set(_read_manifest(folder))
    except CheckpointError:  # a damaged folder may be replaced too
        return set()


def _settle(target: Path) -> None:
    """Puts `target` back if a writer died while replacing it, then removes what dead writers left."""
    dead = [one for one in leftovers(target.parent, target.name) if one.dead]
    for leftover in dead:
        if leftover.kind == "old" and not target.exists():
            calls.rename(leftover.path, target)
    if dead:
        # The dead writer's renames may not be on the medium yet; nothing is emptied before they are.
        calls.sync_folder(target.parent)
    for leftover in dead:
        if leftover.kind == "tmp":
            discard(leftover.path)
        elif leftover.path.exists():
            with writer_mark() as mark:
                _remove_aside(leftover.path, target, mark)


def _find(target: Path) -> Path:
    """The folder to read for `target`: itself, or what a writer moved aside and did not replace."""
    with worded("cannot read", target):
        for _ in range(_ATTEMPTS):
            if target.is_dir():
                return target
            aside = []
            if target.parent.is_dir():
                aside = [one for one in leftovers(target.parent, target.name) if one.kind == "old"]
            if aside and not aside[0].dead:
                return aside[0].path
            if aside:
                with suppress(OSError):  # a read-only disk: then it is read where it lies
                    calls.rename(aside[0].path, target)
                    calls.sync_folder(target.parent)
                return target if target.is_dir() else aside[0].path
            # Nothing aside: it is missing, or another process has just put the new one in place.
    there = "it is a file, expected a folder" if target.is_file() else "there is no such folder"
    raise FileError(f"cannot read {shown(target)}: {there}; check the path")


def _identity(folder: Path) -> tuple[Path, int, int]:
    """What differs once another process has moved or replaced the folder."""
    with suppress(OSError):
        status = folder.stat()
        return folder, status.st_ino, status.st_mtime_ns  # a removed folder's number is used again
    return folder, 0, 0


def _read(folder: Path, only: Collection[str] | None) -> dict[str, bytes]:
    entries = _read_manifest(folder)
    names = list(entries) if only is None else list(only)
    return {name: _read_checked(folder / name, entries.get(name)) for name in names}


def _read_checked(path: Path, entry: Any) -> bytes:
    if entry is None:
        raise CheckpointError(
            f"{shown(path.parent)}: has no {quoted(path.name)}; expected a checkpoint of magmadnn's"
        )
    data = read_file(path, entry["bytes"])
    actual = hashlib.sha256(data).hexdigest()
    if len(data) != entry["bytes"] or actual != entry["sha256"]:
        raise CheckpointError(
            f"{shown(path)}: damaged: expected {entry['bytes']} bytes with SHA-256 {entry['sha256']}, got "
            f"{len(data)} bytes with {actual}; use another checkpoint or a copy"
        )
    return data


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not is_there(path):
        raise CheckpointError(
            f"{shown(folder)}: has no {MANIFEST}; expected a folder that magmadnn wrote, this one is foreign "
            "or only partly copied"
        )
    document = unseal(read_file(path, JSON_BYTES), shown(path), _FORMAT, _VERSION)
    check(_FILES, document, shown(path))
    entries: dict[str, Any] = document["files"]
    return entries
