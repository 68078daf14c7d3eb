"""Folders that nobody else can write to, for files whose content is run.

Three things make such a file safe. Nobody else can replace a folder on the way to it: each belongs to the
user or to root, and only they may write to it, or it is like /tmp, where others cannot touch what is not
theirs (the sticky bit). Nobody else can write to its own folder. And the file itself belongs to the user:
the folder may have been open to others before, and what they left then is theirs.

A group with nobody in it but the user, as many systems make for each of them, may write. On Windows, where
profiles are private by their access lists, nothing is checked. What access lists of network file systems
allow beside the permissions is not seen.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from magmadnn.errors import FileError

from .disk import file_error
from .places import cache_places

_CHECKED = hasattr(os, "geteuid")
_LINKS = 40  # in a path: what Linux follows
_WAY_OUT = "set XDG_CACHE_HOME to a folder of your own"
_FOREIGN = (errno.ELOOP, errno.EACCES, errno.EPERM)  # a link, or not to be read by us


@dataclass(frozen=True)
class CacheFolder:
    """Where something is kept between processes.

    Attributes:
        path: the folder; None: there is none that can be used.
        troubles: why better places cannot be used.
    """

    path: Path | None
    troubles: tuple[str, ...] = ()


def cache_folder(name: str, endings: tuple[str, ...]) -> CacheFolder:
    """The private folder `name` in the first of `cache_places` that can be used.

    Args:
        name: of the folder.
        endings: of the names of its files, as for `private_folder`.
    """
    names = ("XDG_CACHE_HOME", "HOME", "TMPDIR")
    return _cache_folder(name, endings, _user(), *map(os.environ.get, names))


@functools.cache
def _cache_folder(name: str, endings: tuple[str, ...], *environment: object) -> CacheFolder:
    troubles = list[str]()
    for place in cache_places():
        try:
            private_folder(place)
            private_folder(place / name, endings)
        except FileError as error:
            troubles.append(str(error))
        else:
            return CacheFolder(place / name, tuple(troubles))
    return CacheFolder(None, tuple(troubles))


def private_folder(folder: Path, endings: tuple[str, ...] = ()) -> None:
    """Makes a folder with those above it; closes it, with a warning, if it is open to others.

    Args:
        folder: the folder.
        endings: of the names of files that are removed if others could write to it until now.

    Raises:
        FileError: it cannot be made or written, belongs to somebody else, or others may replace a folder on
            the way to it; says which, and the way out.
    """
    try:
        if not _CHECKED:
            folder.mkdir(parents=True, exist_ok=True)
            return
        real, was_open = _walk(folder, make=True)
        if was_open:
            empty_folder(real, endings, f"others could write to {folder}")
    except FileError:
        raise
    except OSError as error:
        raise file_error("cannot use the folder", folder, error) from error
    if not os.access(real, os.W_OK | os.X_OK):
        raise FileError(
            f"cannot write {folder}: its permissions or its file system do not allow it"
        )


def empty_folder(folder: Path, endings: tuple[str, ...], reason: str) -> None:
    """Removes files that somebody else may have written, with a warning that gives the reason.

    Args:
        folder: the folder, closed by now.
        endings: of the names of files that go.
        reason: why they cannot be trusted.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as found:
        doomed = [entry for entry in found if entry.name.endswith(endings)]
    for entry in doomed:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):  # what is left is not read: each file is looked at again
                Path(entry.path).unlink()
    removed = f", and {len(doomed)} entries that it held are removed" if doomed else ""
    text = f"cache: {reason}: it is closed to others now{removed}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def private_trouble(folder: Path) -> str | None:
    """Why `private_folder` would refuse a folder; None if it would not. Changes nothing."""
    try:
        if _CHECKED:
            _walk(folder, make=False)
    except FileError as error:
        return str(error)
    except OSError as error:
        return str(file_error("cannot use the folder", folder, error))
    return None


def read_private(path: Path) -> bytes | None:
    """The bytes of a file that nobody but the user can have written; None if there is none to be read.

    Raises:
        FileError: it belongs to somebody else, others may write to it, or it is no regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would block
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in _FOREIGN:
            raise file_error("cannot trust", path, error) from error
        return None
    try:
        state = os.fstat(descriptor)  # of what was opened, whatever bears the name by now
        if not stat.S_ISREG(state.st_mode):
            raise FileError(f"cannot trust {path}: expected a regular file")
        if _CHECKED and (_owner(state) != _user() or _is_open(state)):
            raise FileError(f"cannot trust {path}: {_whose(state)}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _walk(folder: Path, make: bool) -> tuple[Path, bool]:
    """Goes down to `folder` and checks each step: where it really lies, and whether it was open.

    With `make` what is missing is made, and a folder that was open is closed.
    """
    at = Path(folder.absolute().anchor)
    _check_step(at, at.lstat())
    left, links = [*reversed(folder.absolute().parts[1:])], 0
    while left:
        name = left.pop()
        if name == os.pardir:
            at = at.parent
            continue
        step = at / name
        if make:
            with suppress(FileExistsError):
                step.mkdir(mode=0o700)
        elif not os.path.lexists(step):
            return step, False
        state = step.lstat()
        if stat.S_ISLNK(state.st_mode):
            _check_step(step, state)
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = step.readlink()
            at = Path(target.anchor or at)
            left += reversed(target.relative_to(target.anchor).parts)
            continue
        if not stat.S_ISDIR(state.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if left:
            _check_step(step, state)
        at = step
    return at, _close(at, make)


def _close(folder: Path, make: bool) -> bool:
    """Whether a folder of the user's own is open to others; with `make` not any longer."""
    state = folder.lstat()
    if _owner(state) != _user():
        raise FileError(
            f"cannot use {folder}: it belongs to user {_owner(state)}, expected {_user()}: {_WAY_OUT}"
        )
    if make and _is_open(state):
        folder.chmod(0o700)
    return _is_open(state)


def _check_step(step: Path, state: os.stat_result) -> None:
    """Refuse a folder or a link on the way that others may replace or fill."""
    harmless = stat.S_ISLNK(state.st_mode) or bool(state.st_mode & stat.S_ISVTX)
    if _owner(state) in _system(_user()) and (harmless or not _is_open(state)):
        return
    close = f"chmod go-w {step}, or " if _owner(state) == _user() else ""
    raise FileError(
        f"cannot use folders in {step}: {_whose(state)}, and may replace them: {close}{_WAY_OUT}"
    )


def _whose(state: os.stat_result) -> str:
    """Who else may write to it."""
    if _owner(state) in _system(_user()) and _is_open(state):
        return "others may write to it"
    return f"it belongs to user {_owner(state)}"


def _is_open(state: os.stat_result) -> bool:
    """Whether others than its owner may write to it."""
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and state.st_gid != _own_group(_user())


@functools.cache
def _own_group(user: int) -> int | None:
    """The group that holds this user alone and bears the same name; None if there is none."""
    import grp
    import pwd

    try:
        account = pwd.getpwuid(user)
        group = grp.getgrgid(account.pw_gid)
    except KeyError:
        return None
    alone = group.gr_name == account.pw_name and {*group.gr_mem} <= {account.pw_name}
    return group.gr_gid if alone else None


@functools.cache
def _system(user: int) -> frozenset[int]:
    """The user, root, and what root is seen as where a container or sandbox maps other users only."""
    found = {0, user}
    with suppress(OSError, ValueError):  # elsewhere than on Linux
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        if mapped != ["0", "0", str(2**32 - 1)]:
            found.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    return frozenset(found)


def _user() -> int:
    """Whose rights the process has; 0 where users have no numbers."""
    return os.geteuid() if _CHECKED else 0


def _owner(state: os.stat_result) -> int:
    return state.st_uid
