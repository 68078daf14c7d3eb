"""Folders for files whose content is run: nobody else wrote to them, or they are not used."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from magmadnn.errors import FileError
from magmadnn.storage import private
from magmadnn.storage.private import (
    cache_folder,
    private_folder,
    private_trouble,
    read_private,
)

SOMEBODY = 54321
GiveAway = Callable[[Path], None]
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users have no numbers")


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Lets a file or folder belong to somebody else: really where we are root, else in our eyes."""
    given = set[int]()

    def give(path: Path) -> None:
        given.add(path.lstat().st_ino)
        if not os.geteuid():
            os.chown(path, SOMEBODY, -1, follow_symlinks=False)

    monkeypatch.setattr(
        private, "_owner", lambda state: SOMEBODY if state.st_ino in given else state.st_uid
    )
    return give


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(folder: Path) -> str:
    """The message; whoever only asks gets the same."""
    with pytest.raises(FileError) as caught:
        private_folder(folder)
    assert private_trouble(folder) == str(caught.value)
    return str(caught.value)


def test_a_folder_is_made_with_those_above_it_and_all_of_them_are_closed(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(umask)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700


def test_asking_makes_nothing(tmp_path: Path) -> None:
    assert private_trouble(tmp_path / "a" / "b") is None
    assert not (tmp_path / "a").exists()
    private_folder(tmp_path / "a")
    (tmp_path / "a").chmod(0o777)
    assert private_trouble(tmp_path / "a") is None
    assert mode(tmp_path / "a") == 0o777


@pytest.mark.parametrize("others", [0o702, 0o772, 0o777, 0o1777])
def test_a_folder_that_others_could_write_to_is_closed_and_emptied(
    tmp_path: Path, others: int
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "one.object").write_bytes(b"")
    (folder / "a folder.object" / "inside").mkdir(parents=True)
    (folder / "link.object").symlink_to(tmp_path / "elsewhere")
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").write_text("mine too")
    folder.chmod(others)
    with pytest.warns(RuntimeWarning, match=f"others could write to {folder}.*3 entries"):
        private_folder(folder, (".object",))
    assert mode(folder) == 0o700
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert (tmp_path / "elsewhere").read_text() == "mine too"
    private_folder(folder, (".object",))  # without another warning


def test_a_group_of_the_users_own_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o775)
    monkeypatch.setattr(private, "_own_group", lambda user: tmp_path.stat().st_gid)
    private_folder(tmp_path / "kept")
    monkeypatch.setattr(private, "_own_group", lambda user: None)
    assert "others may write to it" in refused(tmp_path / "kept")


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, give_away: GiveAway) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o777)
    give_away(folder)
    message = refused(folder)
    assert f"{folder}: it belongs to user {SOMEBODY}, expected {os.geteuid()}" in message
    assert "set XDG_CACHE_HOME to a folder of your own" in message


@pytest.mark.parametrize("how", ["open", "theirs"])
@pytest.mark.parametrize("deep", [1, 2])
def test_folders_that_others_may_replace_are_not_used(
    tmp_path: Path, give_away: GiveAway, how: str, deep: int
) -> None:
    above = tmp_path / "above"
    folder = above / "between" / "kept" if deep == 2 else above / "kept"
    folder.mkdir(parents=True, mode=0o700)
    if how == "open":
        above.chmod(0o757)
    else:
        give_away(above)
    message = refused(folder)
    assert f"cannot use folders in {above}: " in message
    assert (f"chmod go-w {above}" in message) == (how == "open")


def test_a_folder_like_tmp_may_hold_it(tmp_path: Path, give_away: GiveAway) -> None:
    tmp_path.chmod(0o1777)
    private_folder(tmp_path / "kept")
    (tmp_path / "theirs").mkdir()
    give_away(tmp_path / "theirs")
    assert "it belongs to user" in refused(tmp_path / "theirs")
    assert "it belongs to user" in refused(tmp_path / "theirs" / "kept")


def test_links_on_the_way_are_followed_step_by_step(tmp_path: Path, give_away: GiveAway) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real/../real")
    private_folder(tmp_path / "link" / "kept")
    assert mode(real / "kept") == 0o700
    ways = tmp_path / "ways"
    ways.mkdir()
    ways.chmod(0o777)  # others may put another link there
    (ways / "link").symlink_to(real)
    (tmp_path / "over").symlink_to(ways / "link")
    assert f"cannot use folders in {ways}: " in refused(tmp_path / "over" / "kept")
    (tmp_path / "theirs").symlink_to(real)
    give_away(tmp_path / "theirs")
    assert f"it belongs to user {SOMEBODY}" in refused(tmp_path / "theirs" / "kept")
    (tmp_path / "round").symlink_to("round")
    refused(tmp_path / "round" / "kept")


def test_a_file_in_the_way_or_no_room_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file, not a folder" in refused(tmp_path / "file")
    assert "is a file, not a folder" in refused(tmp_path / "file" / "kept")


def test_a_file_of_somebody_else_is_not_read(tmp_path: Path, give_away: GiveAway) -> None:
    path = tmp_path / "entry"
    assert read_private(path) is None
    path.write_bytes(b"code")
    path.chmod(0o600)
    assert read_private(path) == b"code"
    path.chmod(0o606)
    with pytest.raises(FileError, match="others may write to it"):
        read_private(path)
    path.chmod(0o600)
    give_away(path)
    with pytest.raises(FileError, match=f"it belongs to user {SOMEBODY}"):
        read_private(path)


def test_links_folders_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(b"code")
    (tmp_path / "link").symlink_to(tmp_path / "code")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(FileError, match="cannot trust"):
            read_private(tmp_path / name)


def test_the_next_place_is_taken_where_the_first_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "open"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    found = cache_folder("kernels", (".object",))
    expected = tmp_path / "temporary" / f"magmadnn-{os.geteuid()}" / "kernels"
    assert found.path == expected
    assert mode(expected) == mode(expected.parent) == 0o700
    (trouble,) = found.troubles
    assert f"cannot use folders in {tmp_path / 'open'}" in trouble
    assert cache_folder("kernels", (".object",)) is found
