from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, CheckpointError, FileError
from magmadnn.storage import leftovers
from magmadnn.storage.formats.plain_json import seal
from magmadnn.storage.run_folder import create_run, read_run

ARGUMENTS: dict[str, Any] = {
    "model": "mlp",
    "hidden": [528, 528],
    "lr": 0.05,
    "data": None,
    "quiet": True,
}
DEAD = f"{leftovers._host()}-{999_999_999}-0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_run_appears_with_its_arguments(tmp_path: Path) -> None:
    create_run(tmp_path / "runs" / "a", ARGUMENTS)
    assert read_run(tmp_path / "runs" / "a") == ARGUMENTS
    assert names(tmp_path / "runs") == ["a"] and names(tmp_path / "runs" / "a") == ["run.json"]


def test_nan_is_an_argument_too(tmp_path: Path) -> None:
    create_run(tmp_path / "a", {"lr": math.nan, "rates": [math.inf]})
    assert str(read_run(tmp_path / "a")) == "{'lr': nan, 'rates': [inf]}"


def test_empty_folder_is_used_and_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    before = folder.stat().st_ino
    (folder / f".run.json.tmp-{DEAD}").write_text("a writer died here")
    monkeypatch.chdir(folder)
    create_run(".", ARGUMENTS)
    assert folder.stat().st_ino == before
    assert read_run(".") == ARGUMENTS and names(folder) == ["run.json"]


@pytest.mark.parametrize("content", ["thesis.txt", ".hidden"])
def test_folder_that_holds_something_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("x")
    message = rf"holds '{content}'; give another --out, or go on with the run there by --resume"
    with pytest.raises(FileError, match=message):
        create_run(tmp_path, ARGUMENTS)
    assert names(tmp_path) == [content]


def test_second_run_of_the_same_name_is_refused(tmp_path: Path) -> None:
    create_run(tmp_path / "a", ARGUMENTS)
    with pytest.raises(FileError, match=r"holds 'run.json'; give another --out"):
        create_run(tmp_path / "a", {})
    assert read_run(tmp_path / "a") == ARGUMENTS


def test_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(FileError, match="it is a file, expected a folder"):
        create_run(tmp_path / "a", ARGUMENTS)
    assert (tmp_path / "a").read_text() == "x"


def test_leftovers_of_other_runs_are_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / f".b.tmp-{DEAD}").mkdir()
    (tmp_path / f".b.tmp-{DEAD}" / "run.json").write_text("a writer died here")
    create_run(tmp_path / "a", ARGUMENTS)
    assert names(tmp_path) == ["a"]


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"arguments\['out'\]: expected .* got PosixPath|WindowsPath"
    ):
        create_run(tmp_path / "a", {"out": tmp_path})
    assert names(tmp_path) == []


def test_every_byte_is_guarded(tmp_path: Path) -> None:
    create_run(tmp_path / "a", ARGUMENTS)
    path = tmp_path / "a" / "run.json"
    whole, rng = path.read_bytes(), random.Random(2)
    for i in range(len(whole)):
        flipped = bytearray(whole)
        flipped[i] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"run\.json"):
            read_run(tmp_path / "a")
        path.write_bytes(whole[:i])
        with pytest.raises(CheckpointError, match=r"run\.json"):
            read_run(tmp_path / "a")
    path.write_bytes(whole)
    assert read_run(tmp_path / "a") == ARGUMENTS


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(
            CheckpointError, match=r"expected a run's folder, got none with a run.json"
        ):
            read_run(path)
    documents: list[tuple[dict[str, Any], str]] = [
        ({"format": "magmadnn-checkpoint", "version": 1}, "expected format 'magmadnn-run'"),
        ({"format": "magmadnn-run", "version": 2}, "written by a newer magmadnn"),
        ({"format": "magmadnn-run", "version": 1}, "expected a field 'arguments'"),
        ({"format": "magmadnn-run", "version": 1, "arguments": [1]}, "expected an object"),
    ]
    for document, message in documents:
        (tmp_path / "run.json").write_bytes(seal(document))
        with pytest.raises(CheckpointError, match=message):
            read_run(tmp_path)


def test_arguments_that_become_a_number_are_refused(tmp_path: Path) -> None:
    create_run(tmp_path / "run", {"lr": 0.1})
    document = {"format": "magmadnn-run", "version": 1, "arguments": {"$float": "nan"}}
    (tmp_path / "run" / "run.json").write_bytes(seal(document))
    with pytest.raises(CheckpointError, match=r"arguments: expected an object, got nan"):
        read_run(tmp_path / "run")
