"""The same table in each library: what tests of tables of other libraries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

Columns = Mapping[str, Sequence[Any]]


def of_pandas(columns: Columns) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(dict(columns))


def of_polars(columns: Columns) -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame(dict(columns), strict=False)


def of_pyarrow(columns: Columns) -> Any:
    import pyarrow

    return pyarrow.table({name: list(values) for name, values in columns.items()})


def of_pandas_on_arrow(columns: Columns) -> Any:
    """Not by `convert_dtypes`, which casts infinity to integers: on some processors with a warning."""
    pandas, table = pytest.importorskip("pandas"), of_pyarrow(columns)
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def of_numpy(columns: Columns) -> Any:
    """A structured array."""
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    out = np.empty(len(next(iter(arrays.values()))), [(n, a.dtype) for n, a in arrays.items()])
    for name, values in arrays.items():
        out[name] = values
    return out


LIBRARIES: dict[str, Callable[[Columns], Any]] = {
    "pandas": of_pandas,
    "polars": of_polars,
    "numpy": of_numpy,
}
if find_spec("pyarrow"):  # larger than all that the tests need otherwise, so it may be absent
    LIBRARIES |= {"pyarrow": of_pyarrow, "pandas on pyarrow": of_pandas_on_arrow}
