"""What a log of events refuses: lines with the right hash that are no record, each by its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magmadnn.errors import CheckpointError
from magmadnn.storage import event_log
from magmadnn.storage.event_log import EventLog, read_log

RECORDS: list[dict[str, Any]] = [
    {"number": k, "text": "a,\n}]{", "more": [k / 7]} for k in range(5)
]


def written(path: Path, texts: list[str]) -> Path:
    """A log whose lines have the right hashes, whatever they hold."""
    last, lines = "begin", []
    for text in texts:
        last = event_log._hash(last, text.encode())
        lines.append(f"{last} {text}\n")
    path.write_text("".join(lines))
    return path


def test_records_come_back_and_more_are_added(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for first, last in ((0, 3), (3, 5)):
        log = EventLog(path, "begin")
        assert log.records == RECORDS[:first]
        log.add(RECORDS[first:last])
        log.close()
    assert read_log(path, "begin") == RECORDS


@pytest.mark.parametrize(
    ("texts", "line", "reason"),
    [
        (['{"a":1}', '{"b":1},{"c":2}'], 2, "is no JSON"),
        (
            ['{"a":1', '"b":2}', '{"c":3},{"d":4}'],
            1,
            "is no JSON",
        ),  # as many as lines, if read as one
        (['{"a":1}', "[1]"], 2, "is no record"),
        (['{"a":1}', "", '{"b":1}'], 2, "is no JSON"),
        (["[" * 5000], 1, "is no JSON"),
    ],
    ids=["two in a line", "two lines for one", "a list", "nothing", "deep"],
)
def test_a_line_that_is_no_record(tmp_path: Path, texts: list[str], line: int, reason: str) -> None:
    path = written(tmp_path / "log", texts)
    with pytest.raises(CheckpointError, match=f"line {line} {reason}"):
        read_log(path, "begin")
