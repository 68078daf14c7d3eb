"""Columns of dates: days since 1970-01-01, from every library and from text."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
import magmadnn.data as data
from magmadnn.data.tables.dates import day, written
from magmadnn.errors import DataError, DTypeError
from tests.data.frames import LIBRARIES, of_pandas

TIMES = [
    datetime.datetime(2020, 2, 29, 6),
    datetime.datetime(1969, 12, 31),
    datetime.datetime(2100, 3, 1, 0, 0, 0, 500_000),
]
DAYS = [18321.25, -1.0, 47541 + 0.5 / 86400]
ZONE = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
TARGET = [1.0, 2.0, 4.0]


@pytest.fixture(params=LIBRARIES)
def table_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return LIBRARIES[request.param]


def values_of(preparation: data.Preparation, frame: Any) -> list[float]:
    """The inputs as they were before they were scaled; float32 keeps 24 bits."""
    x = preparation.apply_inputs(frame, np.float64)
    return (x[:, 0] * preparation.std[0] + preparation.mean[0]).tolist()


def frame_of(table_of: Any, values: list[Any]) -> Any:
    """A column `when` beside one of numbers."""
    if table_of is LIBRARIES["numpy"]:
        values = np.array(values, "M8[us]")
    return table_of({"when": values, "w": [1.0, 2.0, 5.0]})


def test_dates_are_days_since_1970(table_of):
    frame = frame_of(table_of, TIMES)
    made = data.Preparation.fit(frame, TARGET)
    assert [column.kind for column in made.schema.columns] == ["date", "number"]
    assert values_of(made, frame) == pytest.approx(DAYS, rel=1e-12, abs=1e-9)
    again = data.Preparation.from_json(made.to_json())
    assert again == made


def test_times_with_a_zone_are_those_of_utc(table_of):
    if table_of is LIBRARIES["numpy"]:
        pytest.skip("NumPy has no zones")
    frame = frame_of(table_of, [time.replace(tzinfo=ZONE) for time in TIMES])
    made = data.Preparation.fit(frame, TARGET)
    assert made.schema.columns[0].kind == "instant"
    expected = [value - 5.5 / 24 for value in DAYS]
    assert values_of(made, frame) == pytest.approx(expected, rel=1e-12, abs=1e-9)
    with pytest.raises(
        DataError, match="column 'when' holds dates, expected dates with a time zone"
    ):
        made.apply_inputs(frame_of(table_of, TIMES))
    plain = data.Preparation.fit(frame_of(table_of, TIMES), TARGET)
    with pytest.raises(
        DataError, match="holds dates with a time zone, expected dates as in training"
    ):
        plain.apply_inputs(frame)


def test_days_without_a_time(table_of):
    dates: Any = [time.date() for time in TIMES]
    if table_of is LIBRARIES["numpy"]:
        dates = np.array(dates, "M8[D]")
    frame = table_of({"when": dates, "w": [1.0, 2.0, 5.0]})
    made = data.Preparation.fit(frame, TARGET)
    assert made.schema.columns[0].kind == "date"
    assert values_of(made, frame) == pytest.approx([18321, -1, 47541], abs=1e-9)


def test_missing_dates_are_filled_or_refused(table_of):
    none: Any = np.datetime64("NaT") if table_of is LIBRARIES["numpy"] else None
    frame = frame_of(table_of, [TIMES[0], none, TIMES[1]])
    with pytest.raises(DataError, match="values are missing in 1 row"):
        data.Preparation.fit(frame, TARGET)
    made = data.Preparation.fit(frame, TARGET, missing="mean")
    assert made.mean[0] == pytest.approx((18321.25 - 1) / 2)
    assert made.apply_inputs(frame)[1, 0] == 0.0


def test_dates_are_no_targets_and_no_categories(table_of):
    frame = frame_of(table_of, TIMES)
    with pytest.raises(
        DTypeError, match="the target 'when' holds dates, expected numbers or names"
    ):
        data.load(frame, target="when")
    with pytest.raises(DataError, match="column 'when' holds dates, expected categories"):
        data.Preparation.fit(frame, TARGET, categories=["when"])
    left = data.Preparation.fit(frame, TARGET, ignore=["when"])
    assert left.schema.inputs == ("w",)


def test_a_model_takes_dates_and_keeps_what_they_were(tmp_path):
    pytest.importorskip("pandas")
    frame = of_pandas({"when": TIMES * 4, "w": np.arange(12.0)})
    model = md.Model(
        [md.layers.Input((2,)), md.layers.Dense(1)], loss="mse", optimizer="adam",
        preparation=data.Standardize(),
    )  # fmt: skip
    model.fit(frame, np.arange(12.0), epochs=1, verbose=False)
    model.save(tmp_path / "m")
    again = md.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(frame[["w", "when"]]), model.predict(frame))
    other = md.Model(
        [md.layers.Input((1,)), md.layers.Dense(1)], loss="mse", optimizer="adam",
        preparation=data.Standardize(),
    )  # fmt: skip
    with pytest.raises(DTypeError, match="holds dates, expected numbers or names of classes"):
        other.fit(frame[["w"]], frame["when"], verbose=False)


def test_times_of_the_day_are_refused(table_of):
    if table_of is LIBRARIES["numpy"]:
        pytest.skip("NumPy has none")
    frame = table_of({"v": [datetime.time(1), datetime.time(2)], "w": [1.0, 2.0]})
    with pytest.raises(DTypeError, match="column 'v' holds a time in row 0, expected numbers"):
        data.Preparation.fit(frame, [1.0, 2.0])


# --- text -------------------------------------------------------------------------------------


@pytest.fixture
def text_file(tmp_path: Path) -> Callable[[list[str]], Path]:
    def write(cells: list[str]) -> Path:
        rows = [f"{cell},{k * 0.5},{k * k}" for k, cell in enumerate(cells)]
        path = tmp_path / "t.csv"
        path.write_text("\n".join(["when,w,y", *rows]) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("cells", "kind", "days"),
    [
        (["2020-02-29", "1969-12-31", "2100-03-01"], "date", [18321, -1, 47541]),
        (["2020-02-29 06:00", "1969-12-31T00:00:00", "2100-03-01"], "date", [18321.25, -1, 47541]),
        (["2020-02-29T06:00Z", "2020-02-29T06:00+05:30", "2020-02-29 06:00:00.5-0100"], "instant",
         [18321.25, 18321.25 - 5.5 / 24, 18321.25 + (3600.5 / 86400)]),
    ],
)  # fmt: skip
def test_dates_in_text(text_file, cells, kind, days):
    path = text_file(cells)
    table = data.read_table(path, "y")
    assert table.schema.columns[0].kind == kind
    assert table.x[:, 0] == pytest.approx(days, rel=1e-12)
    assert "dates are taken as days since 1970-01-01 in 'when': where the hour" in table.notes[0]
    like = data.read_table_like(text_file(cells[::-1]), table.schema)
    np.testing.assert_array_equal(like.x[:, 0], table.x[::-1, 0])
    forced = data.read_table(path, "y", categories=["when"])
    assert len(forced.schema.inputs) == 4


def test_an_index_of_dates_without_a_name_is_left_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",w,y\n" + "".join(f"2020-01-0{k},{k * k},{k}.5\n" for k in range(1, 8)))
    table = data.read_table(path, "y")
    assert table.names == ("w",)
    assert table.notes[0] == "column 'column 0' only numbers the rows and is left out"


def test_other_cells_among_dates_are_refused_once_it_is_known(text_file):
    cells = ["2020-02-29", "2020-03-01", "2020-03-02"]
    schema = data.read_table(text_file(cells), "y").schema
    for wrong in ("2020-02-30", "yesterday", "17", "2020-03-01T00:00Z"):
        with pytest.raises(
            DataError, match=r"line 3, column 'when': the cell is '.*', expected a date such as"
        ):
            data.read_table_like(text_file([cells[0], wrong, cells[2]]), schema)
    gaps = data.read_table_like(text_file([cells[0], "NA", cells[2]]), schema, missing="mean")
    assert np.isnan(gaps.x[1, 0])
    with pytest.raises(DTypeError, match="the target 'when' holds dates"):
        data.read_table(text_file(cells), "when")


def test_a_frame_goes_where_a_file_was_trained_on(text_file):
    pytest.importorskip("pandas")
    made = data.load(text_file([f"2020-01-{k:02d}" for k in range(1, 31)]), target="y").preparation
    frame = of_pandas({"when": [datetime.datetime(2020, 1, 15)], "w": [3.0]})
    again = md.data.Preparation.from_json(made.to_json())
    x = again.apply_inputs(frame, np.float64)
    assert x[0, 0] * made.std[0] + made.mean[0] == pytest.approx(day(datetime.date(2020, 1, 15)))


@pytest.mark.parametrize(
    "text", ["20200101", "2020-1-1", "2020-W01-1", "2020-01-01T25:00", "2020-01-01x", "0000-01-01"]
)
def test_what_is_no_date(text):
    assert written(text) is None
