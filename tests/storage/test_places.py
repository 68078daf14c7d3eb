"""Home and cache folders, where they are not there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from magmadnn.data._find import places_of
from magmadnn.errors import FileError
from magmadnn.storage.places import cache_places, expanded, home, user_cache


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user number without a name, which containers and batch jobs have."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_caches_are_temporary_files(tmp_path: Path) -> None:
    assert home() is None
    assert user_cache() is None
    (place,) = cache_places()
    assert place.parent == Path(tempfile.gettempdir())
    assert places_of("mnist", None) == [Path("data"), Path("data/mnist")]


@pytest.mark.usefixtures("homeless")
def test_without_temporary_files_either_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    assert not list(cache_places())


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("path", ["~", "~/data", "~no-such-user-of-this-machine/data"])
def test_a_home_that_is_not_known_is_one_line(path: str) -> None:
    with pytest.raises(FileError, match=f"{path}: the home folder ~.* is not known.*HOME"):
        expanded(path)
    assert expanded("data/~") == Path("data/~")


def test_the_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "magmadnn"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # as its specification asks
    assert user_cache() == tmp_path / "home" / ".cache" / "magmadnn"
    monkeypatch.setenv("HOME", "relative")
    assert user_cache() is None


_TRAINING = """
import os, pwd, sys
os.environ.pop("HOME", None), os.environ.pop("XDG_CACHE_HOME", None)
def unknown(number):
    raise KeyError(number)
pwd.getpwuid = unknown
import numpy as np
import magmadnn as md
from magmadnn.cli import main

model = md.Model([md.layers.Input((3,)), md.layers.Dense(2)], loss="mse", optimizer="sgd", seed=0)
history = model.fit(np.ones((8, 3), "f4"), np.ones((8, 2), "f4"), epochs=2, verbose=False)
try:
    md.data.mnist()
except md.errors.DataError as error:
    print(error)
assert main(["doctor"]) == 0 and main(["tune", "show"]) == 0
"""


def test_a_program_without_a_home_trains_and_looks_for_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _TRAINING],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout.splitlines()[0]
    (place,) = tmp_path.glob("magmadnn-*")
    assert list((place / "kernels").glob("*.object"))
    assert f"{place}: can be written" in done.stdout
