"""Which columns of a text file are what: chosen, told from the data, packed, with decimal commas."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import ArgumentError, DataError, MagmaDNNError, UnknownNameError

ROWS = [(k, (k * 7) % 5 + 0.5, "abc"[k % 3], k % 4, k * 0.75) for k in range(12)]


def written(header: str, rows: list[tuple[object, ...]] = ROWS, sign: str = ",") -> str:
    return "\n".join([header, *(sign.join(map(str, row)) for row in rows)]) + "\n"


@pytest.fixture
def named(text_file: Callable[..., Path]) -> Path:
    return text_file(written("n,dose,kind,grade,y"))


# --- chosen -----------------------------------------------------------------------------------


def test_columns_are_ignored_chosen_and_taken_for_categories(named):
    table = data.read_table(named, ignore="n", categories=["grade"])
    assert table.names == (
        "dose", "kind=a", "kind=b", "kind=c", "grade=0", "grade=1", "grade=2", "grade=3",
    )  # fmt: skip
    assert table.schema.ignored == ("n",)
    table = data.read_table(named, features=["grade", "dose"])
    assert table.names == ("grade", "dose")
    assert table.x[5].tolist() == [1.0, 0.5]
    assert table.schema.ignored == ("n", "kind")


def test_several_targets(named):
    table = data.read_table(named, ["y", "dose"], ignore=["kind"])
    assert table.names == ("n", "grade")
    assert table.target.tolist() == [[k * 0.75, (k * 7) % 5 + 0.5] for k in range(12)]
    assert table.schema.target_names == ("y", "dose")
    assert table.target_name is None
    again = data.Schema.from_json(table.schema.to_json())
    assert again == table.schema
    assert np.array_equal(data.read_table_like(named, again).target, table.target)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"features": ["dsoe"]}, UnknownNameError, "feature column 'dsoe' is not known: did you mean 'dose'"),
        ({"ignore": ["knd"]}, UnknownNameError, "ignored column 'knd' is not known: did you mean 'kind'"),
        ({"categories": ["grad"]}, UnknownNameError, "category column 'grad' is not known: did you mean"),
        ({"target": ["y", "kind"]}, DataError, "the target 'kind' holds texts: of several targets each must"),
        ({"ignore": ["y"]}, ArgumentError, "column 'y' cannot be a target and ignored at once"),
        ({"features": ["y"]}, ArgumentError, "column 'y' cannot be an input and a target at once"),
        ({"features": ["n"], "ignore": ["n"]}, ArgumentError, "'n' cannot be an input and ignored at once"),
        ({"ignore": ["n", 0]}, ArgumentError, "ignored column 'n' is named twice"),
        ({"features": ["n"], "categories": ["grade"]}, ArgumentError, "column 'grade' is no input"),
        ({"ignore": ["n", "dose", "kind", "grade"]}, DataError, "has 5 columns and no inputs"),
    ],
)  # fmt: skip
def test_mistakes_in_choosing(named, options, error, text):
    with pytest.raises(MagmaDNNError) as raised:
        data.read_table(named, **options)
    assert type(raised.value) is error
    assert text in str(raised.value)


def test_texts_of_which_each_row_has_its_own_are_no_categories(text_file):
    rows = [(f"n{k}", k % 9, k) for k in range(21)]
    with pytest.raises(DataError, match=r"21 different texts in 21 rows, .*\(at most 10\): leave"):
        data.read_table(text_file(written("name,v,y", rows)))
    assert data.read_table(text_file(written("name,v,y", rows[:20]))).x.shape == (20, 21)
    asked = data.read_table(text_file(written("name,v,y", rows)), categories="name")
    assert asked.x.shape == (21, 22)


# --- columns that number the rows -------------------------------------------------------------


def numbered(first: str, numbers: list[object]) -> str:
    return written(f"{first},v,y", [(n, k * 1.5, -k) for k, n in enumerate(numbers)])


@pytest.mark.parametrize(
    ("first", "numbers"),
    [
        ("", [0, 1, 2, 3]),
        ("", [17, 3, 29, 4]),  # what is left of a table that was shuffled
        ("", ["ann", "bob", "cy", "dee"]),
        ("Unnamed: 0", [0, 1, 2, 3]),
        ("id", [1, 2, 3, 4]),
        ("Id", [0, 1, 2, 3]),
        ("patient_id", [1, 2, 3, 4]),
        ("sampleID", [1, 2, 3, 4]),
        ("index", [0, 1, 2, 3]),
        ("row", [1, 2, 3, 4]),
    ],
)
def test_a_column_that_only_numbers_the_rows_is_left_out_and_told(text_file, first, numbers):
    path = text_file(numbered(first, numbers))
    table = data.read_table(path)
    assert table.names == ("v",)
    name = first or "column 0"
    assert table.notes == (f"column {name!r} only numbers the rows and is left out",)
    assert data.read_table(path, features=[0, 1]).x.shape[1] >= 2 or first == ""


@pytest.mark.parametrize(
    ("first", "numbers"),
    [
        ("id", [10, 20, 30, 45]),
        ("acid", [1, 2, 3, 4]),
        ("fluid", [0, 1, 2, 3]),
        ("time", [0, 1, 2, 3]),
        ("", [1, 2, 2, 3]),
        ("", [0.5, 1.0, 2.0, 4.0]),
        ("id", [2, 1, 3, 4]),
        ("id", [1, 2, "?", 4]),
    ],
)
def test_other_columns_stay(text_file, first, numbers):
    table = data.read_table(text_file(numbered(first, numbers)), missing="mean")
    assert table.names == (first or "column 0", "v")


def test_what_may_be_names_of_rows_or_categories_is_told(text_file):
    rows = [(100 - 3 * k, k % 4, k % 2, k * 0.5, k) for k in range(20)]
    table = data.read_table(text_file(written("id,grade,flag,v,y", rows)))
    assert table.notes == (
        (
            "column 'id' has another value in each row: if it only names the rows, leave it out with "
            "ignore=['id']"
        ),
        (
            "few whole numbers are taken for quantities in 'grade': where they name categories, say so with "
            "categories=['grade']"
        ),
    )
    assert data.read_table(text_file(written("id,grade,flag,v,y", rows)), ignore="id",
                           categories="grade").notes == ()  # fmt: skip


# --- cells ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing", ["", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "<NA>", "#N/A"]
)
def test_what_stands_for_a_missing_value(text_file, missing):
    path = text_file(f"a,b,y\n1,x,3\n{missing},{missing},4\n5,z,6\n")
    table = data.read_table(path, missing="mean")
    assert math.isnan(table.x[1, 0])
    assert table.names == ("a", "b=x", "b=z")
    with pytest.raises(
        DataError, match=r"values are missing in 1 row \(line 3\) \(columns 'a', 'b'\)"
    ):
        data.read_table(path)


@pytest.mark.parametrize("text", ["None", "na", "Na", "none", "-"])
def test_texts_that_may_be_categories_are_no_missing_values(text_file, text):
    table = data.read_table(text_file(f"b,y\n{text},3\nz,6\n"))
    assert f"b={text}" in table.names


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".bz2", bz2.compress),
        (".GZ", gzip.compress),
    ],
)
def test_packed_tables(tmp_path, ending, pack):
    path = tmp_path / f"t.csv{ending}"
    path.write_bytes(pack(written("n,dose,kind,grade,y").encode()))
    assert data.read_table(path).x.shape == (12, 6)
    assert data.load(path, ignore="n").preparation.input_shape == (5,)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cut short|damaged"):
        data.read_table(path)


def test_decimal_commas(text_file):
    rows = [(k, f"{k},5", f"-{k},25e1", "a,b") for k in range(4)]
    path = text_file(written("n;u;v;t", rows, ";"))
    table = data.read_table(path, "v", decimal=",", ignore="n")
    assert table.x[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert table.target.tolist() == [-2.5, -12.5, -22.5, -32.5]
    assert table.names == ("u", "t=a,b")
    assert np.array_equal(data.read_table_like(path, table.schema).x, table.x)
    points = text_file(written("u;v;t", [("1.5", "2,0", "a,b")], ";"), "points.csv")
    with pytest.raises(
        DataError, match=r"the cell is '1\.5', expected a number with a decimal comma"
    ):
        data.read_table_like(points, table.schema)
    with pytest.raises(DataError, match="holds numbers with decimal commas"):
        data.read_table_like(path, table.schema, decimal=".")
    with pytest.raises(UnknownNameError, match=r"decimal ';' is not known: known are ,, \."):
        data.read_table(path, decimal=";")
    with pytest.raises(
        ArgumentError, match="',' cannot be the decimal sign and separate fields too"
    ):
        data.read_table(path, decimal=",", delimiter=",")


def test_a_schema_of_the_first_version_still_loads():
    first = {
        "columns": [
            {"name": "size", "index": 0, "categories": None},
            {"name": "colour", "index": 1, "categories": ["blue", "red"]},
        ],
        "target": "kind", "target_index": 2, "target_is_text": True, "header": True, "width": 3,
    }  # fmt: skip
    schema = data.Schema.from_json(first)
    assert schema.inputs == ("size", "colour=blue", "colour=red")
    assert schema.targets == (data.Target("kind", 2, True),)
    assert [column.kind for column in schema.columns] == ["number", "category"]
    with pytest.raises(DataError, match=r"saved by a newer magmadnn \(version 3"):
        data.Schema.from_json({**schema.to_json(), "version": 3})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("header", 1), ("width", True), ("width", 2), ("columns", []), ("columns", {}), ("decimal", 5),
        ("ignored", "a"), ("targets", [{"name": "y", "index": 0, "is_text": False}]), ("version", "2"),
        ("targets", [{"name": "size", "index": 2, "is_text": False}]),
        ("columns", [{"name": "a", "index": 0, "kind": "category", "categories": None}]),
        ("columns", [{"name": "a", "index": 0, "kind": "colour", "categories": None}]),
        ("columns", [{"name": "a", "index": -1, "kind": "number", "categories": None}]),
    ],
)  # fmt: skip
def test_every_field_of_a_saved_schema_is_checked(text_file, field, value):
    schema = data.read_table(text_file("size,colour,kind\n1,red,no\n2,blue,yes\n")).schema
    with pytest.raises(DataError):
        data.Schema.from_json({**schema.to_json(), field: value})
