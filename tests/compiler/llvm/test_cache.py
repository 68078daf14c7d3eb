"""The cache of object code: hits, damage, privacy, bounded size, many writers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import magmadnn.compiler
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import pointwise
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.object import parallel as pieces
from magmadnn.compiler.llvm.object.cache import (
    FOLDER,
    Cache,
    cache_trouble,
    kernel_cache,
    key_of,
)
from magmadnn.errors import FileError
from magmadnn.storage import private


def refuse() -> bytes:
    raise AssertionError("made again")


def entry(cache: Cache) -> Path:
    (path,) = cache.folder.iterdir()
    return path


def test_made_once(tmp_path):
    cache = Cache(tmp_path / "a" / "b")
    assert cache.code("k", lambda: b"code") == b"code"
    assert Cache(tmp_path / "a" / "b").code("k", refuse) == b"code"
    assert cache.size() > 4
    cache.clear()
    assert cache.code("k", lambda: b"other") == b"other"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_damaged_entries_are_made_again(tmp_path, damage):
    cache = Cache(tmp_path / "c")
    cache.code("k", lambda: b"the code of a kernel")
    raw = entry(cache).read_bytes()
    broken = {
        "cut": raw[:-3],
        "flip": raw[:-1] + bytes([raw[-1] ^ 1]),
        "empty": b"",
        "foreign": b"x" * 200,
    }[damage]
    entry(cache).write_bytes(broken)
    assert cache.code("k", lambda: b"fresh") == b"fresh"
    assert cache.code("k", refuse) == b"fresh"


def test_a_folder_that_was_open_is_emptied(tmp_path):
    folder = tmp_path / "mine"
    Cache(folder).code("k", lambda: b"code")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others could write to .*mine.* 1 entries .*removed"):
        assert Cache(folder).find("k") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users have no numbers")
def test_what_others_left_while_a_folder_was_open_never_runs(tmp_path, monkeypatch):
    """The folder was closed by hand since, and looks as if it had always been."""
    cache = Cache(tmp_path / "mine")
    for key in ("mine", "theirs"):
        cache.code(key, lambda: b"code")
    planted = cache.folder / "theirs.object"
    number, owner = planted.stat().st_ino, private._owner
    monkeypatch.setattr(
        private, "_owner", lambda state: 54321 if state.st_ino == number else owner(state)
    )
    if not os.geteuid():
        os.chown(planted, 54321, -1)
    again = Cache(cache.folder)
    warns = pytest.warns(RuntimeWarning, match="theirs.object: it belongs to user 54321")
    with planted.open("rb"), warns:  # which keeps its number from the file that takes its place
        assert again.code("theirs", lambda: b"fresh") == b"fresh"
    assert again.find("mine") is None  # may be theirs as well
    assert again.code("theirs", refuse) == b"fresh"


def test_an_entry_under_the_name_of_another_is_none(tmp_path):
    """Whoever may rename entries does not choose what runs."""
    cache = Cache(tmp_path / "mine")
    cache.code("one", lambda: b"code of one")
    (cache.folder / "one.object").rename(cache.folder / "two.object")
    assert cache.code("two", lambda: b"code of two") == b"code of two"


def test_a_link_is_no_entry(tmp_path):
    cache = Cache(tmp_path / "mine")
    cache.code("k", lambda: b"code")
    (cache.folder / "k.object").rename(tmp_path / "k.object")
    (cache.folder / "k.object").symlink_to(tmp_path / "k.object")
    with pytest.warns(RuntimeWarning, match=r"cannot trust .*k\.object"):
        assert cache.find("k") is None


def test_a_cache_that_cannot_be_kept_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr("magmadnn.storage.private.cache_places", lambda: iter([tmp_path]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # looked for once for each
    assert cache_trouble(tmp_path) is None  # it is made when it is needed
    (tmp_path / FOLDER).write_text("in the way")
    with pytest.warns(RuntimeWarning, match="anew in each process: .*is a file"):
        assert kernel_cache() is None
    assert kernel_cache() is None  # without another warning
    assert "is a file" in (cache_trouble(tmp_path) or "")


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot use the folder"):
        Cache(tmp_path / "file" / "kernels")


def test_least_recently_used_goes_first(tmp_path):
    cache = Cache(tmp_path / "c", limit_bytes=500)
    for age, name in enumerate("abc"):
        cache.code(name, lambda: b"x" * 100)
        os.utime(cache.folder / f"{name}.object", ns=(age * 10**9, age * 10**9))
    cache.code("a", refuse)  # now the one used last
    cache.code("d", lambda: b"x" * 100)
    cache.code("a", refuse)
    assert cache.code("b", lambda: b"again") == b"again"
    assert cache.size() <= 500


def test_a_folder_is_not_looked_through_at_each_entry(tmp_path, monkeypatch):
    looks = list[int]()
    entries = Cache._entries
    monkeypatch.setattr(Cache, "_entries", lambda self: looks.append(1) or entries(self))
    cache = Cache(tmp_path / "c", limit_bytes=100_000)
    for number in range(400):
        cache.code(str(number), lambda: b"x" * 1_000)
    assert 50 <= len(looks) <= 75  # every sixteenth of the limit: 7 entries
    assert 80_000 < cache.size() <= 100_000


def test_processes_that_write_little_look_as_often_together(tmp_path, monkeypatch):
    looks = list[int]()
    monkeypatch.setattr(Cache, "_shrink", lambda self: looks.append(1))
    for number in range(400):
        Cache(tmp_path / "c", limit_bytes=64_000).code(str(number), lambda: b"x" * 1_000)
    assert 60 <= len(looks) <= 140  # one of four


def test_a_folder_without_room_does_no_harm(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "c")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert cache.code("k", lambda: b"code") == b"code"
    assert not list(cache.folder.iterdir())


def test_many_writers(tmp_path):
    """Threads that make and read the same entries, small enough a folder that they remove them too."""
    wrong = []

    def use(seed: int) -> None:
        cache = Cache(tmp_path / "c", limit_bytes=600)
        for i in np.random.default_rng(seed).integers(0, 8, 200):
            code = bytes([i]) * 100
            if cache.code(str(i), lambda code=code: code) != code:
                wrong.append(i)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not list((tmp_path / "c").glob("*.part"))


def test_key_says_everything():
    keys = {
        key_of("a", host()),
        key_of("b", host()),
        key_of("a", replace(host(), features="+avx2")),
        key_of("a", replace(host(), vector_bytes=8)),
    }
    assert len(keys) == 4
    assert key_of("a", host()) in keys


def test_keys_follow_every_file_that_writes_code():
    """Else code that an earlier version of magmadnn left on disk would run in the place of this one's."""
    from magmadnn.compiler.cuda.module import generators as of_cuda
    from magmadnn.compiler.llvm.object.cache import generators as of_llvm

    folder = Path(magmadnn.compiler.__file__).parent
    for found, name in ((of_llvm(), "llvm"), (of_cuda(), "cuda")):
        wanted = {*(folder / name).rglob("*.py"), *(folder / "kernels").rglob("*.py")}
        assert len(wanted) > 30 and wanted == {*found}


def test_kernels_come_from_the_cache(tmp_path, monkeypatch):
    """A kernel compiled once is loaded, without LLVM's compiler, and computes the same."""
    made = pointwise((Operand("x", "float32"),), Result("y", "float32", ("exp", ("argument", 0))))
    cache = Cache(tmp_path / "c")
    results = []
    for _ in range(2):
        monkeypatch.setattr(kernel, "_loaded", {})
        x, y = np.linspace(-1, 1, 13, dtype="f4")[None], np.empty((1, 13), "f4")
        arguments = kernel.block(
            made, row0=0, row1=1, column0=0, column1=13, x=x, x_row=13, y=y, y_row=13
        )
        kernel.load([made], cache=cache)[0](arguments, kernel.scratch(64))
        results.append(y)
        monkeypatch.setattr(pieces, "object_code", lambda *_: refuse())
    np.testing.assert_array_equal(*results)


def test_keys_agree_between_processes():
    """The name of an entry does not depend on the process that asks."""
    program = (
        "from magmadnn.compiler.llvm.object.cache import key_of\n"
        "from magmadnn.compiler.kernels.gemm import Gemm\n"
        "from magmadnn.compiler.llvm.ir.target import host\n"
        "print(key_of(repr(Gemm('float32')), host()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
