"""Rows that belong together: labels of rows (pandas' index) must say the same of inputs and targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import DataError, quoted


def check_rows(what: str, **given: Any) -> None:
    """Refuse tables and columns of pandas whose rows are labelled differently: they are in another order.

    Args:
        what: how messages begin, `fit: `, or nothing.
        **given: by name; only those that label their rows count, and those of one length, since another
            error tells of different lengths.

    Raises:
        DataError: naming the first row that differs.
    """
    labelled = [(name, value.index) for name, value in given.items() if _has_index(value)]
    for name, index in labelled[1:]:
        first_name, first = labelled[0]
        if len(first) != len(index) or first.equals(index):
            continue
        mine, other = first.tolist(), index.tolist()
        row = int(np.argmax(np.array([a != b for a, b in zip(mine, other, strict=True)])))
        raise DataError(
            f"{what}row {row} is labelled {quoted(mine[row])} in {first_name} but {quoted(other[row])} in "
            f"{name} (their index differs): bring them into one order with {name}.loc[{first_name}.index]; "
            f"where they stand in one order already, give {name}.to_numpy()"
        )


def _has_index(value: Any) -> bool:
    index = getattr(value, "index", None)
    return hasattr(value, "iloc") and hasattr(index, "equals")
