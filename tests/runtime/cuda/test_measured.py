"""The file of what was measured with a device's library, and whether anything is measured."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from magmadnn.errors import ArgumentError
from magmadnn.runtime.cuda.measured import LIMIT, Record, RecordsOf, may_measure

LIBRARY = "A device/1, library 9.1"


def written(folder: Path) -> tuple[RecordsOf, Path]:
    """The records in a folder, and where they lie."""
    records = RecordsOf(LIBRARY, folder)
    assert records.path is not None
    return records, records.path


def test_the_file_is_readable_json(tmp_path: Path) -> None:
    records, path = written(tmp_path)
    record = Record("x", {"0": 1.5, "1": 2.0})
    assert records.settle("a", record) == record
    records.settle("b", Record("y", {}))
    found = json.loads(path.read_text())
    assert found["products"]["a"] == {"choice": "x", "microseconds": {"0": 1.5, "1": 2.0}}
    assert found["machine"] == LIBRARY
    assert len(path.read_text().splitlines()) == 8
    assert path.name.startswith("A-device-1-")
    assert records.clear() == 2
    assert records.read() == {}
    assert records.clear() == 0


def test_versions_of_a_library_have_files_of_their_own(tmp_path: Path) -> None:
    assert written(tmp_path)[1] != RecordsOf("A device/1, library 9.2", tmp_path).path


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    records, _ = written(tmp_path)
    first = Record("x", {"0": 2.0, "1": 1.0})
    records.settle("a", first)
    assert records.settle("a", Record("y", {"0": 1.0, "1": 2.0})) == first
    assert records.read() == {"a": first}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99, "products": {"a": {"choice": "x", "microseconds": {}}}}',
        '{"format": 1, "products": [1]}',
        '{"format": 1}',
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, text: str) -> None:
    records, path = written(tmp_path)
    path.write_bytes(text.encode("latin-1"))
    assert records.read() == {}
    records.settle("b", Record("x", {"0": 1.0}))
    assert set(records.read()) == {"b"}


def test_damaged_entries_are_skipped(tmp_path: Path) -> None:
    records, path = written(tmp_path)
    bad: list[object] = [3, {}, {"choice": 1, "microseconds": {}}, {"choice": "x"}]
    bad += [{"choice": "x", "microseconds": {"0": time}} for time in ("1", float("nan"), -1, True)]
    good = {"choice": "x", "microseconds": {"0": 1}}
    products = {**{f"k{i}": entry for i, entry in enumerate(bad)}, "good": good}
    path.write_text(json.dumps({"format": 1, "products": products}))
    assert set(records.read()) == {"good"}


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for i in range(12):
            RecordsOf(LIBRARY, tmp_path).settle(f"{number}-{i}", Record("x", {"0": 1.0}))

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(RecordsOf(LIBRARY, tmp_path).read()) == 72
    assert not list(tmp_path.glob("*.part"))


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    records, path = written(tmp_path)
    entries = {f"{i}": {"choice": "x", "microseconds": {}} for i in range(LIMIT)}
    path.write_text(json.dumps({"format": 1, "products": entries}))
    records.settle("new", Record("x", {}))
    found = records.read()
    assert len(found) == LIMIT
    assert "new" in found
    assert "0" not in found


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records, _ = written(tmp_path / "file" / "folder")
    assert records.settle("a", Record("x", {})) is None
    assert records.read() == {}


@pytest.mark.parametrize(
    ("text", "expected"), [(None, True), ("", True), ("2.5", True), ("0", False)]
)
def test_the_environment_turns_measuring_off(
    monkeypatch: pytest.MonkeyPatch, text: str | None, expected: bool
) -> None:
    monkeypatch.delenv("MAGMADNN_TUNE_SECONDS", raising=False)
    if text is not None:
        monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", text)
    assert may_measure() is expected


@pytest.mark.parametrize("wrong", ["-1", "much", "nan", "inf"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", wrong)
    with pytest.raises(ArgumentError, match=f"MAGMADNN_TUNE_SECONDS .* got '{wrong}'"):
        may_measure()
