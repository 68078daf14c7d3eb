"""Kernels around a step that runs for many batches: fetch rows, move addresses on, keep values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gather:
    """result[i] = source[order[batch * batch_rows + i]] for rows `row0` to `row1` of the batch.

    Slots: `row0, row1, columns, batch_rows`; `source, source_row`, `result, result_row`, addresses and
    elements from row to row; `order`, int64.

    Attributes:
        dtype: of the data set.
        result_dtype: of the batch, such as float32 for bytes of images.
    """

    dtype: str
    result_dtype: str
    slots = (
        "row0", "row1", "columns", "batch_rows", "source", "source_row", "order", "result",
        "result_row",
    )  # fmt: skip


@dataclass(frozen=True)
class Advance:
    """Address i is base[i] + batch * step[i]: what kernels are given for a batch moves on with its number.

    Slots: `count`; `table`, the address of three int64 for each: where the address is to stand, `base` and
    `step`.
    """

    slots = ("count", "table")


@dataclass(frozen=True)
class Keep:
    """result[batch * step + i] = source[i] for elements `column0` to `column1`; step 0 is a plain copy.

    Slots: `column0, column1, step`; `source, result`, addresses.

    Attributes:
        dtype: of source and result.
    """

    dtype: str
    slots = ("column0", "column1", "step", "source", "result")
