"""Mistakes with tables: each with its class of error and its text.

In the messages `{p}` stands for the folder of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import magmadnn.data as data
from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    UnknownNameError,
)
from tests.data.mistakes import Mistake

MEND = ": correct it, or write ? where the value is missing"


def table(content: str | bytes, name: str = "t.csv", **arguments: Any) -> Callable[[Path], Any]:
    """Reads a table with this content."""

    def read(p: Path) -> Any:
        (p / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return data.read_table(p / name, **arguments)

    return read


def second_table(first: str, second: str, **arguments: Any) -> Callable[[Path], Any]:
    """Reads a table like an earlier one."""

    def read(p: Path) -> Any:
        (p / "t.csv").write_text(first)
        (p / "u.csv").write_text(second)
        earlier = data.read_table(p / "t.csv", arguments.pop("target", -1))
        return data.read_table_like(p / "u.csv", earlier.schema, **arguments)

    return read


NAMED = "age,height,score\n1,2,3\n4,5,6\n7,8,9\n"
HEART = "63,1,0\n67,?,2\n37,,1\n41,0,1\n56,1,?\n62,0,1\n57,?,1\n63,?,1\n53,?,1\n"
IDS = "".join(f"{'abcdefghijklm'[i % 13]}{i},{i}\n" for i in range(299))

TABLE: dict[str, Mistake] = {
    "no file": Mistake(
        lambda p: data.read_table(p / "none.csv"),
        FileError,
        "{p}/none.csv: cannot be read (No such file or directory): "
        "check the path and its permissions",
    ),
    "a folder": Mistake(
        lambda p: data.read_table(p),
        FileError,
        "{p}: expected a regular file, got a folder: give the name of a file",
    ),
    "empty": Mistake(table("\n \n"), DataError, "{p}/t.csv: is empty: expected rows of numbers"),
    "header only": Mistake(
        table("a,b,c\n"),
        DataError,
        "{p}/t.csv: holds a header and no rows: expected rows below line 1",
    ),
    "zero bytes": Mistake(
        table(b"1,2\0\n3,4\n"),
        DataError,
        "{p}/t.csv: holds zero bytes: it is no text file",
    ),
    "not UTF-8": Mistake(
        table("größe,y\n1,2\n".encode("latin-1")),
        DataError,
        "{p}/t.csv: byte 2 is not UTF-8 text: save the table as UTF-8 text",
    ),
    "a row too short": Mistake(
        table("a,b,c\n1,2,3\n4,5\n6,7,8\n"),
        DataError,
        "{p}/t.csv: line 3 has 2 fields, expected 3 as in line 1: repair or leave out the line",
    ),
    "a row too short, blanks in every row": Mistake(
        table("x 1,2,3\nx 2,3,4\nx 3,4\nx 5,6,7\n"),
        DataError,
        "{p}/t.csv: line 3 has 2 fields, expected 3 as in line 1: repair or leave out the line",
    ),
    "a row too long, commas in others": Mistake(
        table("1;2;3\n4;5,5;6\n7;8,5;9\n10;11;12;13\n"),
        DataError,
        "{p}/t.csv: line 4 has 4 fields, expected 3 as in line 1: repair or leave out the line",
    ),
    "a row too long": Mistake(
        table("1;2;3\n\n4;5;6\n7;8;9;10\n"),
        DataError,
        "{p}/t.csv: line 4 has 4 fields, expected 3 as in line 1: repair or leave out the line",
    ),
    "an open quote": Mistake(
        table('a,b\n1,2\n3,"4\n5,6\n'),
        DataError,
        "{p}/t.csv: line 5: cannot be split into fields (unexpected end of data): check the quotes",
    ),
    "an open quote between tabulators": Mistake(
        table('a\tb\n1\t"2" 3\n4\t"5"\n'),
        DataError,
        "{p}/t.csv: line 2: cannot be split into fields ('\\t' expected after '\"'): check the quotes",
    ),
    "a name twice": Mistake(
        table("a,b,a\n1,2,3\n"),
        DataError,
        "{p}/t.csv: the name 'a' stands twice in the header, in columns 0 and 2 (counted from 0): "
        "every column needs a name of its own",
    ),
    "unknown column": Mistake(
        table(NAMED, target="hight"),
        UnknownNameError,
        "{p}/t.csv: target column 'hight' is not known: did you mean 'height'? "
        "known are age, height, score",
    ),
    "unknown column to ignore": Mistake(
        table(NAMED, ignore=["hight"]),
        UnknownNameError,
        "{p}/t.csv: ignored column 'hight' is not known: did you mean 'height'? "
        "known are age, height, score",
    ),
    "name without header": Mistake(
        table("1,2\n3,4\n", target="age"),
        ArgumentError,
        "{p}/t.csv: target column 'age' is not known: the table has no header, so columns are "
        "known by number, 0..1",
    ),
    "number too large": Mistake(
        table(NAMED, target="3"),
        ArgumentError,
        "{p}/t.csv: target column 3 does not exist: there are 3 columns, 0..2 or from the end "
        "-1..-3",
    ),
    "number too small": Mistake(
        table(NAMED, target=-4),
        ArgumentError,
        "{p}/t.csv: target column -4 does not exist: there are 3 columns, 0..2 or from the end "
        "-1..-3",
    ),
    "neither name nor number": Mistake(
        table(NAMED, target=1.5),
        UnknownNameError,
        "{p}/t.csv: target column 1.5 is not known: known are age, height, score",
    ),
    "one column": Mistake(
        table("1\n2\n"),
        DataError,
        "{p}/t.csv: has 1 column and no inputs beside the target: expected fields separated by "
        "tabs, semicolons, bars, commas or blanks",
    ),
    "missing values": Mistake(
        table(HEART),
        DataError,
        "{p}/t.csv: values are missing in 6 rows (lines 2, 3, 5, 7, 8, ...) (columns 'column 1', "
        '\'column 2\'): use missing="mean" to fill them or missing="drop" to leave the rows out',
    ),
    "one missing value": Mistake(
        table("a,b\n1,2\n?,3\n"),
        DataError,
        "{p}/t.csv: values are missing in 1 row (line 3) (columns 'a'): "
        'use missing="mean" to fill them or missing="drop" to leave the rows out',
    ),
    "missing target": Mistake(
        table(HEART, missing="mean"),
        DataError,
        "{p}/t.csv: the target 'column 2' is missing in 1 row (line 5): only inputs can be "
        'filled, so leave these rows out with missing="drop"',
    ),
    "nothing but missing values": Mistake(
        table("1,?\n?,2\n", missing="drop"),
        DataError,
        "{p}/t.csv: every row has a missing value, so none is left: "
        'use missing="mean" or leave out the columns without values',
    ),
    "what to do with missing values": Mistake(
        table(HEART, missing="median"),
        UnknownNameError,
        "missing 'median' is not known: did you mean 'mean'? known are drop, mean",
    ),
    "text among numbers": Mistake(
        table("a,b\n1,2\n3,4\nx5,6\n"),
        DataError,
        "{p}/t.csv: line 4, column 'a': the cell is 'x5', expected a number" + MEND,
    ),
    "text among the numbers of the target": Mistake(
        table("1,2\n3,4\n5,high\n"),
        DataError,
        "{p}/t.csv: line 3, column 'column 1': the cell is 'high', expected a number" + MEND,
    ),
    "digits with underscores": Mistake(
        table("a,b\n1,2\n3,4\n1_000,6\n"),
        DataError,
        "{p}/t.csv: line 4, column 'a': the cell is '1_000', expected a number" + MEND,
    ),
    "NaN": Mistake(
        table("a,b\n1,2\nnan,4\n"),
        DataError,
        "{p}/t.csv: values are missing in 1 row (line 3) (columns 'a'): "
        'use missing="mean" to fill them or missing="drop" to leave the rows out',
    ),
    "infinity": Mistake(
        table("a,b\n1,2\n3,-inf\n"),
        DataError,
        "{p}/t.csv: line 3, column 'b': the cell is -inf, expected a finite number" + MEND,
    ),
    "too large for float64": Mistake(
        table("a,b\n1,2\n3,1e999\n"),
        DataError,
        "{p}/t.csv: line 3, column 'b': the cell is 1e999, expected a finite number" + MEND,
    ),
    "decimal commas beside whole numbers": Mistake(
        table("a;b;y\n1,5;2;3\n7;5;6\n", target="y"),
        DataError,
        "{p}/t.csv: column 'a' holds numbers with decimal commas, 1,5 for instance: "
        'give decimal="," or write decimal points',
    ),
    "decimal commas in the target": Mistake(
        table("a;b;y\n1;2;3,25\n7;5;6\n", target="y"),
        DataError,
        "{p}/t.csv: column 'y' holds numbers with decimal commas, 3,25 for instance: "
        'give decimal="," or write decimal points',
    ),
    "decimal commas": Mistake(
        table("a;b\n1,5;2\n2,5;3\n"),
        DataError,
        "{p}/t.csv: column 'a' holds numbers with decimal commas, 1,5 for instance: "
        'give decimal="," or write decimal points',
    ),
    "names of rows": Mistake(
        table(IDS),
        DataError,
        "{p}/t.csv: column 'column 0' holds 299 different texts in 299 rows, too many for categories "
        "(at most 149): leave the column out with ignore=['column 0']",
    ),
    "second table lacks a column": Mistake(
        second_table(NAMED, "age,hight,score\n1,2,3\n"),
        UnknownNameError,
        "{p}/u.csv: input column 'height' is not known: did you mean 'hight'? "
        "known are age, hight, score",
    ),
    "second table lacks the target": Mistake(
        second_table(NAMED, "age,height\n1,2\n"),
        UnknownNameError,
        "{p}/u.csv: target column 'score' is not known: known are age, height",
    ),
    "second table of another width": Mistake(
        second_table(NAMED, "1,2\n", with_target=True),
        DataError,
        "{p}/u.csv: has 2 columns, expected 3 as in the training table",
    ),
    "second table of another width, without target": Mistake(
        second_table(NAMED, "1,2,3,4\n", with_target=False),
        DataError,
        "{p}/u.csv: has 4 columns, expected 3 as in the training table, or 2 without the target",
    ),
    "second table of new texts": Mistake(
        second_table("a,b\nred,1\nblue,2\nred,3\n", "a,b\nred,1\ngreen,2\n"),
        DataError,
        "{p}/u.csv: line 3, column 'a': 'green' is none of the categories of the training table: "
        "known are blue, red",
    ),
    "a target where there was none": Mistake(
        second_table(NAMED, NAMED, target=None),
        ArgumentError,
        "{p}/u.csv: the earlier table had no target column to be read",
    ),
}


ALL = {
    f"{place}: {mistake}": row
    for place, rows in {
        "table": TABLE,
    }.items()
    for mistake, row in rows.items()
}


@pytest.mark.parametrize("mistake", ALL.values(), ids=ALL)
def test_a_mistake_is_one_clear_line(mistake: Mistake, expect_mistake: Callable[..., None]) -> None:
    expect_mistake(*mistake)
