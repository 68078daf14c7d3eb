"""Tables: what is detected, what becomes of text and missing values, and reading another file."""

from __future__ import annotations

import math

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data.tables import text
from magmadnn.data.tables.cells import read_cells
from magmadnn.errors import DataError


def test_a_table_like_winequality(wine):
    table = data.read_table(wine)
    assert table.delimiter == ";"
    assert table.schema.header
    assert table.names == ("fixed acidity", "volatile acidity", "pH")
    assert table.target_name == "quality"
    assert table.classes is None
    np.testing.assert_array_equal(table.x[2], [11.2, 0.28, 3.16])
    np.testing.assert_array_equal(table.target, [5.0, 5.0, 6.0, 5.0])
    assert table.lines.tolist() == [2, 3, 4, 5]
    assert table.x.dtype == table.target.dtype == np.float64


def test_a_table_like_cleveland(cleveland):
    table = data.read_table(cleveland, missing="mean")
    assert table.delimiter == ","
    assert not table.schema.header
    assert table.names == tuple(f"column {i}" for i in range(6))
    np.testing.assert_array_equal(np.argwhere(np.isnan(table.x)), [[2, 4], [3, 4], [3, 5]])
    np.testing.assert_array_equal(table.target, [0.0, 2.0, 0.0, 1.0, 0.0])
    dropped = data.read_table(cleveland, missing="drop")
    assert dropped.lines.tolist() == [1, 2, 5]
    assert dropped.dropped == 2
    np.testing.assert_array_equal(dropped.x, table.x[[0, 1, 4]])
    np.testing.assert_array_equal(dropped.target, [0.0, 2.0, 0.0])


LAYOUTS = {
    "tabs": ("a\tb c\ty\n1\t2\t3\n4\t5\t6\n", "\t", True),
    "tabs and commas in texts": ("Smith, J\t2\t3\nMiller, K\t5\t6\n", "\t", False),
    "tabs, no header": ("31\t2\t3\n35\t5\t6\n", "\t", False),
    "bars": ("a|b|y\n1|2|3\n4|5|6\n", "|", True),
    "semicolons and decimal commas in texts": ("a;b;y\n1,5;2;3\n4,5;5;6\n", ";", True),
    "commas and blanks": ("1, 2, 3\n4, 5, 6\n", ",", False),
    "commas and dates": ('"2020-01-01 10:00",2,3\n"2020-01-02 11:00",5,6\n', ",", False),
    "white space": ("   1.0   2 3\n  4.0 \t 5    6  \n\n", " ", False),
    "white space and header": ("a b y\n1 2 3\n4 5 6", " ", True),
    "quoted delimiter": ('a,"b, c",y\n1,2,3\n4,5,6\n', ",", True),
    "quoted line end": ('"a\nx",b,y\n1,2,3\n4,5,6\n', ",", True),
    "Windows line ends": ("a,b,y\r\n1,2,3\r\n4,5,6\r\n", ",", True),
    "byte order mark": ("\ufeff1,2,3\n4,5,6\n", ",", False),
    "comments": ("# made by hand\n#\n1,2,3\n4,5,6\n", ",", False),
    "header in a comment": ("# made by hand\n# a b y\n1,2,3\n4,5,6\n", ",", True),
    "delimited comment": ("#a,b c,y\n1,2,3\n4,5,6\n", ",", True),
    "texts only, header": ("colour,size,y\nred,big,p\nred,small,e\nblue,big,e\n", ",", True),
    "texts only, no header": ("red,big,p\nred,small,e\nblue,big,e\n", ",", False),
    "texts first": ("red,2,3\nblue,5,6\n", ",", False),
    "missing in the first row": ("?,2,3\n4,5,6\n", ",", False),
    "empty in the first row": (",b,y\n1,2,3\n4,5,6\n", ",", True),
    "empty and texts, no header": (",a,b\n1,a,c\n2,d,b\n", ",", False),
    "blanks in one field of each row": ("x 1,2,3\n" * 3, ",", False),
    "a comment of one word": ("# made\n1,2,3\n4,5,6\n", ",", False),
    "an open quote in the sample of some": ('a,b,y\n1,"2 ""x""",3\n4,5,6\n', ",", True),
    "numbers with exponents": ("-1e-3,+2.5E4,.5\n1.,2,3\n", ",", False),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_delimiter_and_header_are_detected(layout, text_file):
    text, delimiter, header = layout
    cells = read_cells(text_file(text))
    assert cells.delimiter == delimiter
    assert cells.header == header
    assert len(cells.names) == 3


def test_detection_can_be_overruled(text_file):
    path = text_file("1;2 3;4\n5;6 7;8\n")
    table = data.read_table(path, delimiter=" ", header=True, target=0)
    assert table.names == ("3;4=7;8",)
    assert table.target_name == "1;2"


def test_names_come_from_the_comment_nearest_to_the_rows(text_file):
    table = data.read_table(text_file("# by hand\n# time  speed\n1.0 2.5\n2.0 3.5\n", "t.dat"))
    assert table.names == ("time",)
    assert table.target_name == "speed"
    assert table.lines.tolist() == [3, 4]


def test_line_numbers_count_blank_lines_and_line_ends_in_quotes(text_file):
    path = text_file('a,b\n\n1,"x\ny"\n\n2,z\n3,x\n')
    assert data.read_table(path).lines.tolist() == [4, 6, 7]


@pytest.mark.parametrize("target", ["b", 1, -2, "1", "-2"])
def test_the_target_by_name_or_number(target, text_file):
    table = data.read_table(text_file("a,b,c\n1,2,3\n4,5,6\n"), target)
    assert table.target_name == "b"
    assert table.names == ("a", "c")
    np.testing.assert_array_equal(table.target, [2.0, 5.0])
    np.testing.assert_array_equal(table.x, [[1.0, 3.0], [4.0, 6.0]])


def test_a_name_of_digits_comes_before_a_number(text_file):
    path = text_file('"x","0"\n1,2\n4,5\n')
    assert data.read_table(path, "0", header=True).target_name == "0"
    assert data.read_table(path, 0, header=True).target_name == "x"


def test_texts_become_categories_and_classes(text_file):
    path = text_file("size,colour,kind\n1,red,no\n2,?,yes\n3,blue,no\n4,red,maybe\n")
    table = data.read_table(path, missing="mean")
    assert table.names == ("size", "colour=blue", "colour=red")
    nan = math.nan
    expected = [[1.0, 0.0, 1.0], [2.0, nan, nan], [3.0, 1.0, 0.0], [4.0, 0.0, 1.0]]
    np.testing.assert_array_equal(table.x, expected)
    assert table.classes == ("maybe", "no", "yes")
    assert table.target.tolist() == ["no", "yes", "no", "maybe"]


def test_a_column_of_as_many_texts_as_numbers_is_text(text_file):
    table = data.read_table(text_file("x,7,1\n2,8,2\n"))
    assert table.names == ("column 0=2", "column 0=x", "column 1")


def test_without_a_target_all_columns_are_inputs(wine):
    table = data.read_table(wine, None, ignore=["pH", 0])
    assert table.names == ("volatile acidity", "quality")
    assert table.target is None
    assert table.target_name is None
    assert table.classes is None


def test_another_file_is_read_by_name(text_file):
    first = data.read_table(text_file("size,colour,kind\n1,red,no\n2,blue,yes\n"))
    other = text_file("extra,kind,colour,size\nx,no,blue,7\ny,yes,blue,8\nz,no,red,9\n", "o.csv")
    table = data.read_table_like(other, first.schema)
    np.testing.assert_array_equal(table.x, [[7.0, 1.0, 0.0], [8.0, 1.0, 0.0], [9.0, 0.0, 1.0]])
    assert table.target.tolist() == ["no", "yes", "no"]
    unlabelled = text_file("colour,size\nred,5\n", "u.csv")
    table = data.read_table_like(unlabelled, first.schema, with_target=False)
    np.testing.assert_array_equal(table.x, [[5.0, 0.0, 1.0]])
    assert table.target is None


def test_known_names_make_a_header_of_texts(text_file):
    """One row of texts alone could not be told from a header."""
    first = data.read_table(text_file("a,b,y\np,q,1\nr,s,2\np,q,3\n"))
    other = text_file("a,b\np,s\np,q\n", "other.csv")
    table = data.read_table_like(other, first.schema, with_target=False)
    np.testing.assert_array_equal(table.x, [[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]])


def test_another_file_is_read_by_place_without_a_header(text_file):
    first = data.read_table(text_file("1,2,3,4\n5,6,7,8\n"), 1)
    same = text_file("10,20,30,40\n", "same.csv")
    np.testing.assert_array_equal(data.read_table_like(same, first.schema).x, [[10.0, 30.0, 40.0]])
    without = text_file("10,30,40\n", "without.csv")
    table = data.read_table_like(without, first.schema, with_target=False)
    np.testing.assert_array_equal(table.x, [[10.0, 30.0, 40.0]])


def test_one_input_column_without_target(text_file):
    first = data.read_table(text_file("1,2\n3,4\n"))
    other = text_file("5\n6\n", "other.txt")
    table = data.read_table_like(other, first.schema, with_target=False)
    np.testing.assert_array_equal(table.x, [[5.0], [6.0]])


def test_missing_targets_do_not_matter_where_they_are_not_read(text_file):
    first = data.read_table(text_file("1,2\n3,4\n"))
    other = text_file("5,?\n6,?\n", "other.csv")
    assert data.read_table_like(other, first.schema, with_target=False).x.tolist() == [[5.0], [6.0]]
    with pytest.raises(DataError, match=r"missing in 2 rows \(lines 1, 2\)"):
        data.read_table_like(other, first.schema)


def test_a_damaged_schema_is_refused(wine):
    schema = data.read_table(wine).schema
    plain = schema.to_json()
    assert data.Schema.from_json(plain) == schema
    with pytest.raises(DataError, match="the saved description is damaged"):
        data.Schema.from_json({**plain, "columns": [{"name": "a"}]})


def test_a_byte_order_mark_is_no_part_of_the_first_cell(text_file):
    assert data.read_table(text_file("\ufeffa,b\n1,2\n")).names == ("a",)


def test_a_column_is_converted_once_and_the_target_can_be_written_to(text_file, monkeypatch):
    converted = []
    convert = text._as_floats
    monkeypatch.setattr(text, "_as_floats", lambda cells: converted.append(cells) or convert(cells))
    table = data.read_table(text_file("a,b,y\n1,2,3\n4,5,6\n7,8,9\n"), target="y")
    assert len(converted) == 3
    table.target[0] = table.x[0, 0] = 10
    np.testing.assert_array_equal(table.target, [10, 6, 9])
