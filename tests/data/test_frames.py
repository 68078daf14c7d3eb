"""Tables of pandas, polars, pyarrow and NumPy: columns by name, and what they may hold."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import DataError, DTypeError, MagmaDNNError, ShapeError, UnknownNameError
from tests.data.frames import LIBRARIES, of_pandas, of_polars

NUMBERS = {"age": [31.0, 45.0, 52.0, 28.0, 60.0], "dose": [7, 3, 9, 4, 1]}
HOUR = datetime.timedelta(hours=1)
MIXED = {
    **NUMBERS,
    "sex": ["m", "f", "f", "m", "f"],
    "smokes": [True, False, False, True, True],
}
TARGET = np.array([2.5, 3.25, 7.0, 1.0, 4.5])


@pytest.fixture(params=LIBRARIES)
def table_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return LIBRARIES[request.param]


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas")


@pytest.fixture
def polars() -> Any:
    return pytest.importorskip("polars")


def expected(columns: dict[str, Any]) -> np.ndarray:
    """The inputs of MIXED, scaled."""
    sex = np.array(columns["sex"])
    x = np.stack([columns["age"], columns["dose"], sex == "f", sex == "m", columns["smokes"]], 1)
    x = x.astype(float)
    return (x - x.mean(axis=0)) / x.std(axis=0)


# --- columns ----------------------------------------------------------------------------------


def test_a_table_becomes_the_inputs_that_its_columns_say(table_of):
    preparation = data.Preparation.fit(table_of(MIXED), TARGET)
    assert preparation.schema.inputs == ("age", "dose", "sex=f", "sex=m", "smokes")
    assert [column.kind for column in preparation.schema.columns] == [
        "number", "number", "category", "bool",
    ]  # fmt: skip
    scaled = preparation.apply_inputs(table_of(MIXED), np.float64)
    np.testing.assert_allclose(scaled, expected(MIXED), rtol=1e-14, atol=1e-14)


def test_columns_are_found_by_their_names_whatever_their_order(table_of):
    preparation = data.Preparation.fit(table_of(MIXED), TARGET)
    swapped = table_of(dict(reversed(MIXED.items())))
    first = preparation.apply_inputs(table_of(MIXED))
    assert preparation.apply_inputs(swapped).tobytes() == first.tobytes()


def test_tables_of_all_libraries_are_the_same_to_a_preparation():
    fitted = data.Preparation.fit(of_pandas(MIXED), TARGET)
    assert data.Preparation.fit(of_polars(MIXED), TARGET) == fitted
    assert data.Preparation.fit(LIBRARIES["numpy"](MIXED), TARGET) == fitted


def test_a_bare_array_goes_by_place_and_its_size_is_checked(table_of):
    preparation = data.Preparation.fit(table_of(NUMBERS), TARGET)
    array = np.stack([NUMBERS["age"], NUMBERS["dose"]], axis=1)
    assert np.array_equal(
        preparation.apply_inputs(array), preparation.apply_inputs(table_of(NUMBERS))
    )
    with pytest.raises(ShapeError, match=r"rows of the shape \(3,\), expected \(2,\)"):
        preparation.apply_inputs(np.ones((5, 3)))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"age": None},
            UnknownNameError,
            "x: input column 'age' is not known: known are dose, sex, smokes",
        ),
        (
            {"age": None, "dose": None},
            DataError,
            "x: lacks the columns 'age', 'dose' of the training table: it has 'sex', 'smokes'",
        ),
        (
            {"size": [1, 2, 3, 4, 5]},
            DataError,
            "x: has the column 'size', which the training table did not have: leave them out",
        ),
        (
            {"sex": ["m", "f", "d", "m", "f"]},
            DataError,
            (
                "x: row 2, column 'sex': 'd' is none of the categories of the training table: known are "
                "f, m"
            ),
        ),
        (
            {"dose": ["a", "b", "c", "a", "b"]},
            DataError,
            "x: column 'dose' holds categories, expected numbers as in training",
        ),
        (
            {"smokes": [2, 0, 1, 1, 0]},
            DataError,
            "x: column 'smokes' holds numbers, expected truth values as in training",
        ),
    ],
)
def test_columns_that_are_not_those_of_training_are_named(table_of, change, error, text):
    preparation = data.Preparation.fit(table_of(MIXED), TARGET)
    columns = {k: v for k, v in {**MIXED, **change}.items() if v is not None}
    with pytest.raises(MagmaDNNError) as raised:
        preparation.apply_inputs(table_of(columns))
    assert (type(raised.value), str(raised.value)) == (error, text)


def test_numbers_may_change_their_type_between_training_and_prediction(table_of):
    preparation = data.Preparation.fit(table_of(NUMBERS), TARGET)
    other = {"age": [31, 45, 52, 28, 60], "dose": [7.0, 3.0, 9.0, 4.0, 1.0]}
    np.testing.assert_array_equal(
        preparation.apply_inputs(table_of(other)), preparation.apply_inputs(table_of(NUMBERS))
    )


def test_columns_without_names_go_by_place(pandas):
    array = np.stack([NUMBERS["age"], NUMBERS["dose"]], axis=1)
    preparation = data.Preparation.fit(pandas.DataFrame(array), TARGET)
    assert not preparation.schema.header
    named = of_pandas(NUMBERS)
    assert np.array_equal(preparation.apply_inputs(named), preparation.apply_inputs(array))
    with pytest.raises(DataError, match="has 3 columns, expected 2 as in the training table"):
        preparation.apply_inputs(of_pandas(MIXED).drop(columns="sex"))


# --- values -----------------------------------------------------------------------------------


def column_of(frame: Any, **options: Any) -> tuple[str, list[float]]:
    """What a single column becomes: its kind and its inputs, not scaled."""
    rows = len(frame)
    preparation = data.Preparation.fit(frame, np.arange(rows) * 0.5, **options)
    scaled = preparation.apply_inputs(frame, np.float64)
    known = np.where(np.isinf(preparation.std), 0.0, preparation.std)
    values = scaled * known + preparation.mean
    kind = preparation.schema.columns[0].kind
    return kind, values.round(12).tolist()


def test_nullable_columns_of_pandas(pandas):
    for dtype in ("Int64", "UInt8", "Float32", "boolean"):
        column = pandas.Series([1, None, 0, 1], dtype=dtype)
        kind, values = column_of(column.to_frame("v"), missing="mean")
        assert kind == ("bool" if dtype == "boolean" else "number")
        assert np.ravel(values).tolist() == [1.0, pytest.approx(2 / 3), 0.0, 1.0]


def test_missing_values_in_each_library(table_of):
    columns = {"v": [1.0, None, 4.0], "t": ["a", None, "b"]}
    if table_of is LIBRARIES["numpy"]:
        columns = {"v": [1.0, math.nan, 4.0], "t": ["a", "", "b"]}
    with pytest.raises(DataError) as raised:
        data.Preparation.fit(table_of(columns), [1.0, 2.0, 4.0])
    assert str(raised.value) == (
        "x: values are missing in 1 row (row 1) (columns 'v', 't'): use missing=\"mean\" to fill them "
        "or leave the rows out"
    )
    preparation = data.Preparation.fit(table_of(columns), [1.0, 2.0, 4.0], missing="mean")
    assert preparation.apply_inputs(table_of(columns))[1].tolist() == [0.0, 0.0, 0.0]
    again = preparation.apply_inputs(table_of({"v": [2.5], "t": ["a"]}))
    assert again.tolist() == [[0.0, 1.0, -1.0]]


@pytest.mark.parametrize("missing", ["?", "NA", "nan", "NaN", "null", "", "N/A"])
def test_texts_that_stand_for_a_missing_value(table_of, missing):
    with pytest.raises(DataError, match=r"values are missing in 1 row \(row 2\)"):
        data.Preparation.fit(table_of({"t": ["a", "b", missing]}), [1.0, 2.0, 4.0])


def test_decimal_numbers(table_of):
    if table_of is LIBRARIES["numpy"]:
        pytest.skip("NumPy has none")
    kind, values = column_of(table_of({"v": [decimal.Decimal("1.5"), decimal.Decimal("-2.25")]}))
    assert (kind, values) == ("number", [[1.5], [-2.25]])


def test_durations_are_seconds(table_of):
    columns: dict[str, list[Any]] = {"v": [HOUR, 2 * HOUR, HOUR / 4]}
    if table_of is LIBRARIES["numpy"]:
        columns = {"v": np.array([60, 120, 15], "m8[m]")}
    frame = table_of(columns)
    kind, values = column_of(frame)
    assert (kind, values) == ("duration", [[3600.0], [7200.0], [900.0]])
    preparation = data.Preparation.fit(frame, [1.0, 2.0, 4.0])
    with pytest.raises(DataError, match="column 'v' holds numbers, expected durations"):
        preparation.apply_inputs(table_of({"v": [1.0, 2.0, 3.0]}))


def test_categories_of_each_library(pandas, polars):
    as_categories = {
        "category": of_pandas({"v": ["b", "a", "b"]}).astype("category"),
        "numbers": of_pandas({"v": [3, 1, 3]}).astype("category"),
        "polars": of_polars({"v": ["b", "a", "b"]}).cast(polars.Categorical),
        "enum": of_polars({"v": ["b", "a", "b"]}).cast(polars.Enum(["a", "b"])),
    }
    for frame in as_categories.values():
        assert column_of(frame) == ("category", [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    kind, values = column_of(of_pandas({"v": [3, 1, 3]}), categories=["v"])
    assert (kind, values) == ("category", [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])


def test_numbers_written_as_text_are_not_taken_for_categories(table_of):
    columns = {"v": ["0.0", "3.0", "?", "2.0"]}
    with pytest.raises(
        DataError, match=r"column 'v' holds numbers as text, '0\.0' for instance: make"
    ):
        data.Preparation.fit(table_of(columns), [1.0, 2.0, 3.0, 5.0], missing="mean")
    columns = {"v": ["12", "A12", "A13", "A12"]}
    with pytest.raises(DataError, match="numbers as text, '12' for instance beside texts, 'A12'"):
        data.Preparation.fit(table_of(columns), [1.0, 2.0, 3.0, 5.0])
    kept = data.Preparation.fit(table_of(columns), [1.0, 2.0, 3.0, 5.0], categories=["v"])
    assert kept.schema.inputs == ("v=12", "v=A12", "v=A13")


def test_columns_of_objects_are_what_their_values_are(pandas):
    def of_objects(*values: object) -> Any:
        return pandas.DataFrame({"v": pandas.Series(list(values), dtype=object)})

    assert column_of(of_objects(1, 2.5, np.float32(4)))[0] == "number"
    assert column_of(of_objects("a", "b", "a"))[0] == "category"
    assert column_of(of_objects(True, np.bool_(False), True))[0] == "bool"
    assert column_of(of_objects(HOUR, 2 * HOUR))[0] == "duration"
    assert column_of(of_objects(None, 2, pandas.NA, 3), missing="mean")[0] == "number"
    cases: list[tuple[tuple[object, ...], str]] = [
        ((1, "a", 2), r"numbers \(1 in row 0\) and categories \('a' in row 1\): make it"),
        ((1, True, 2), "and truth values"),
        (([1], [2]), "holds a list in row 0"),
        ((1j, 2j), "holds a complex in row 0"),
        ((datetime.date(2020, 1, 1), 3), r"holds dates \(.*and numbers \(3 in row 1\)"),
    ]
    for objects, text in cases:
        with pytest.raises(MagmaDNNError, match=text):
            data.Preparation.fit(of_objects(*objects), np.arange(len(objects)) / 3)


def test_infinity_is_refused_in_tables_too(table_of):
    with pytest.raises(DataError, match="x: row 1, column 0 is inf"):
        data.Preparation.fit(table_of({"v": [1.0, math.inf, 2.0]}), [1.0, 2.0, 4.0])


def test_many_texts_are_refused_with_a_way_out(table_of):
    frame = table_of({"name": [f"n{k}" for k in range(300)], "v": np.arange(300.0)})
    with pytest.raises(
        DataError, match=r"300 different texts .* leave the column out with ignore="
    ):
        data.Preparation.fit(frame, np.arange(300.0))


# --- tables that cannot be read ---------------------------------------------------------------


def test_names_that_are_none(pandas, polars):
    twice = pandas.DataFrame(np.eye(3), columns=["a", "b", "a"])
    with pytest.raises(DataError, match="the name 'a' stands twice, in columns 0 and 2"):
        data.Preparation.fit(twice, [1.0, 2.0, 4.0])
    levels = pandas.MultiIndex.from_product([["a"], ["x", "y", "z"]])
    with pytest.raises(
        DataError, match=r"2 levels of names \(a MultiIndex\): make one name of each"
    ):
        data.Preparation.fit(pandas.DataFrame(np.eye(3), columns=levels), [1.0, 2.0, 4.0])
    with pytest.raises(DTypeError, match=r"a LazyFrame holds no rows yet: give .collect\(\) of it"):
        data.Preparation.fit(polars.LazyFrame({"a": [1.0]}), [1.0])


def test_an_index_that_was_written_to_a_file_is_no_input(pandas):
    frame = pandas.DataFrame({"Unnamed: 0": range(5), **NUMBERS})
    with pytest.raises(
        DataError, match=r"column 'Unnamed: 0' only numbers the rows: .*index_col=0"
    ):
        data.Preparation.fit(frame, TARGET)


def test_a_target_among_the_inputs_is_refused(table_of):
    frame = table_of({**NUMBERS, "score": TARGET.tolist()})
    score = frame["score"] if not hasattr(frame, "column_names") else frame.column("score")
    if getattr(score, "name", None) is None:
        pytest.skip("its columns do not know their names")
    with pytest.raises(DataError, match="the target 'score' stands among the inputs' columns too"):
        data.Preparation.fit(frame, score)


# --- targets ----------------------------------------------------------------------------------


def test_targets_of_each_library_are_the_same(table_of):
    frame = table_of({"y": ["no", "yes", "no"], "z": [1.5, 2.5, 4.0], "w": [1, 0, 1]})
    x = np.array([[1.0], [2.0], [4.0]])

    def column(name: str) -> Any:
        return frame.column(name) if hasattr(frame, "column_names") else frame[name]

    named = data.Preparation.fit(x, column("y"))
    assert (named.classes, named.labels) == (("no", "yes"), "text")
    assert named.apply_target(column("y")).tolist() == [0, 1, 0]
    numbers = data.Preparation.fit(x, column("z"))
    assert numbers.restore_target(numbers.apply_target(column("z"))).tolist() == pytest.approx(
        [1.5, 2.5, 4.0]
    )


def test_classes_come_back_as_what_they_were(pandas):
    x = np.arange(4.0)[:, None]
    for raw, kind in (
        (pandas.Series([3, 7, 3, 5]), np.int64),
        (pandas.Series([True, False, True, True]), np.bool_),
        (pandas.Series(["b", "a", "b", "a"]), np.str_),
        (pandas.Series([3, 7, 3, 5]).astype("category"), np.int64),
        (np.array([3.0, 7.0, 3.0, 5.0]), np.int64),
        (np.array([0.5, 1.5, 0.5, 0.5]), np.float64),
    ):
        preparation = data.Preparation.fit(x, raw, task="classification")
        classes = preparation.restore_target(preparation.apply_target(raw))
        assert isinstance(classes[0], kind)
        assert (classes == np.asarray(raw)).all()
        plain = json.loads(json.dumps(preparation.to_json()))
        assert data.Preparation.from_json(plain) == preparation


def test_categories_as_a_target_are_classes_whatever_their_number(pandas):
    raw = pandas.Series(np.arange(30) % 25)
    x = np.arange(30.0)[:, None]
    assert data.Preparation.fit(x, raw).task == "regression"
    assert data.Preparation.fit(x, raw.astype("category")).task == "classification"


def test_several_targets_are_found_by_their_names(pandas):
    frame = of_pandas(NUMBERS)
    targets = pandas.DataFrame({"u": [1.0, 2.0, 4.0, 3.0, 1.0], "v": [10, 30, 20, 50, 10]})
    preparation = data.Preparation.fit(frame, targets)
    assert preparation.target_names == ("u", "v")
    assert preparation.target_shape == (2,)
    first = preparation.apply_target(targets)
    assert preparation.apply_target(targets[["v", "u"]]).tobytes() == first.tobytes()
    with pytest.raises(DataError, match=r"has the columns .*'u', 'w'.*, expected .*'u', 'v'"):
        preparation.apply_target(targets.rename(columns={"v": "w"}))
    with pytest.raises(DTypeError, match="of several targets each must be numeric"):
        data.Preparation.fit(frame, targets.assign(v="x"))


def test_missing_targets_are_named(pandas):
    for raw in (
        pandas.Series([1.0, None, 3.0]),
        pandas.Series([1, None, 3], dtype="Int64"),
        pandas.Series(["a", None, "b"]),
    ):
        with pytest.raises(DataError, match=r"target: values are missing in 1 row \(row 1\)"):
            data.Preparation.fit(np.eye(3), raw)


def test_a_target_without_differences_is_refused():
    with pytest.raises(DataError, match=r"every training row is 2.5, so there is nothing to learn"):
        data.Preparation.fit(np.eye(3), [2.5, 2.5, 2.5])
    with pytest.raises(DataError, match="every training row is 7 in column 1"):
        data.Preparation.fit(np.eye(3), [[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]])


def test_rows_in_another_order_are_an_error(pandas):
    frame = of_pandas(NUMBERS)
    target = pandas.Series(TARGET, name="score")
    with pytest.raises(DataError) as raised:
        data.Preparation.fit(frame, target.sample(frac=1.0, random_state=1))
    assert str(raised.value).startswith("row 0 is labelled 0 in x but ")
    assert "target.loc[x.index]" in str(raised.value)
    data.Preparation.fit(frame.set_index(pandas.Index(list("abcde"))), target.to_numpy())
    with pytest.raises(DataError, match="row 0 is labelled 'a' in x but 0 in target"):
        data.Preparation.fit(frame.set_index(pandas.Index(list("abcde"))), target)
    with pytest.raises(ShapeError, match=r"x has the shape \(5, 2\) and the target \(4,\)"):
        data.Preparation.fit(frame, target[frame["age"] > 30])


# --- statistics -------------------------------------------------------------------------------


def test_statistics_of_some_rows_and_names_of_all(pandas):
    frame = of_pandas({"v": [1.0, 2.0, 4.0, 100.0], "t": ["a", "b", "a", "c"]})
    rows = np.array([0, 1, 2])
    some = data.Preparation.fit(frame, ["p", "q", "p", "r"], rows=rows)
    assert some.mean[0] == pytest.approx(7 / 3, rel=1e-15)
    assert some.schema.inputs == ("v", "t=a", "t=b", "t=c")
    assert some.classes == ("p", "q", "r")
    assert some.constant == ("t=c",)
    same = data.Preparation.fit(frame[:3], [1.0, 2.0, 4.0])
    assert some.std[:3] == same.std


# --- data.load --------------------------------------------------------------------------------


def test_load_takes_a_table(table_of):
    columns = {**MIXED, "score": TARGET.tolist()}
    found = data.load(table_of(columns), target="score", test_split=0.4, seed=3)
    assert found.description == (
        "table: columns; 3 training and 2 test rows (split by seed 3) of 5 inputs; "
        "target 'score': regression"
    )
    rows = data.load_for(found.preparation, table_of(columns))
    assert np.sort(rows.raw_target).tolist() == np.sort(TARGET).tolist()
    without = data.load_for(found.preparation, table_of(MIXED), with_target=False)
    assert np.array_equal(without.x, rows.x)


def test_no_library_is_imported_for_others():
    code = (
        "import sys, numpy as np, magmadnn as md; md.data.Preparation.fit(np.eye(3), [1., 2., 4.]);"
        "print(*{'pandas', 'polars', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_table_that_gives_an_arrow_stream_is_read_by_a_library_that_is_there(polars):
    class Stream:
        """What databases and the like hand out."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return polars.DataFrame(MIXED).__arrow_c_stream__(requested_schema)

    fitted = data.Preparation.fit(Stream(), TARGET)
    assert fitted == data.Preparation.fit(of_pandas(MIXED), TARGET)
