"""Kinds of plain data, and what is said of a value that is of another."""

from __future__ import annotations

import math
from typing import Any

import pytest

from magmadnn.errors import CheckpointError, DataError
from magmadnn.storage.formats.plain_schema import (
    Anything,
    Either,
    Fields,
    Flag,
    Kind,
    Many,
    Number,
    Table,
    Text,
    Whole,
    check,
    maybe,
)

ROW = Fields({"epoch": Whole(1), "loss": Number()}, {"best": Flag()})
GOOD: list[tuple[Kind, Any]] = [
    (Whole(), 0),
    (Whole(), 2**53),
    (Whole(-3, 5), -3),
    (Number(), 3),
    (Number(), math.nan),
    (Number(0, 1), 0.5),
    (Number(finite=True), -1e308),
    (Flag(), False),
    (Text(3), "abc"),
    (Text(among=("a", "b")), "b"),
    (Many(Whole(), most=2), [1, 2]),
    (Many(Number()), []),
    (Table(Whole()), {"any name": 1}),
    (maybe(Whole()), None),
    (Either((Whole(), Text())), "x"),
    (ROW, {"epoch": 1, "loss": 0.5}),
    (ROW, {"loss": math.inf, "epoch": 2, "best": True}),
    (Fields({}, others=Anything()), {"more": [1]}),
]
BAD: list[tuple[Kind, Any, str]] = [
    (Whole(), True, "f: expected an integer from 0 to 9007199254740992, got True"),
    (Whole(), 1.0, "f: expected an integer from 0 to 9007199254740992, got 1.0"),
    (Whole(1, 3), 4, "f: expected an integer from 1 to 3, got 4"),
    (Whole(), 10**5000, "f: expected an integer from 0 to 9007199254740992, got <16610 bits>"),
    (Number(), "1", "f: expected a number, got '1'"),
    (Number(0, 1), 1.5, "f: expected a number from 0 to 1, got 1.5"),
    (Number(0, finite=True), math.nan, "f: expected a finite number from 0 to inf, got nan"),
    (Number(), False, "f: expected a number, got False"),
    (Flag(), 1, "f: expected true or false, got 1"),
    (Text(3), "abcd", "f: expected a text of at most 3 letters, got 'abcd'"),
    (Text(among=("b", "a")), "c", "f: expected one of a, b, got 'c'"),
    (Many(Whole()), (1,), "f: expected a list, got (1,)"),
    (Many(Whole(), 2, 2), [1], "f: expected a list of 2, got [1]"),
    (Many(Whole(), most=1), [1, 2], "f: expected a list of 0 to 1, got [1, 2]"),
    (Many(Whole()), [0, 1, "x"], "f: [2]: expected an integer from 0 to 9007199254740992, got 'x'"),
    (Table(Flag(), most=0), {"b": 2}, "f: expected an object of at most 0 fields, got {'b': 2}"),
    (Table(Flag()), {"a\n": 1}, "f: ['a\\n']: expected true or false, got 1"),
    (Table(Flag()), {"a" * 10_001: True}, f"f: expected plain names, got '{'a' * 39}...{'a' * 25}'"),
    (ROW, {"epoch": 1}, "f: expected a field 'loss', got ['epoch']"),
    (ROW, {"epoch": 0, "loss": 1}, "f: epoch: expected an integer from 1 to 9007199254740992, got 0"),
    (ROW, {"epoch": 1, "loss": 1, "x": 1}, "f: expected only the fields epoch, loss, best, got 'x'"),
    (ROW, [], "f: expected an object, got []"),
    (Many(ROW), [{"epoch": 1, "loss": {}}], "f: [0].loss: expected a number, got {}"),
    (maybe(Whole(0, 9)), "x", "f: expected an integer from 0 to 9 or null, got 'x'"),
    (maybe(Many(Flag())), [1], "f: [0]: expected true or false, got 1"),
    (Flag(), [[1]] * 10_000, "f: expected true or false, got [[1], [1], [1], [1], [1], [1], ...]"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), GOOD)
def test_what_is_expected_passes(kind: Kind, value: Any) -> None:
    check(kind, value, "f")


@pytest.mark.parametrize(("kind", "value", "message"), BAD, ids=range(len(BAD)))
def test_what_is_not_is_one_line(kind: Kind, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check(kind, value, "f")
    assert str(caught.value) == message + "; the file is damaged, use a copy"


def test_the_error_can_be_another() -> None:
    with pytest.raises(DataError, match="expected true or false"):
        check(Flag(), 1, "f", DataError)
