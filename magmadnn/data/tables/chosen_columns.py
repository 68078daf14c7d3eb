"""Which columns of a table are inputs and which are targets, and which only name or number the rows."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from magmadnn.data.tables.cell_grid import Floats, Grid, names_text
from magmadnn.errors import ArgumentError, DataError, UnknownNameError, quoted

Name = str | int
Names = Name | Sequence[Name]

_NAMES_ROWS = re.compile(
    r"#|n[ro]\.?|num(ber)?|obs(ervation)?|record|case|sample|row(name|num|number)?s?"
    r"|(row|sample|record|case|obs)[ _.-]?(id|n[ro]|num(ber)?)"
    r"|(.*[ _.-])?(id|idx|index)|(?-i:.*[a-z]I[dD])",
    re.IGNORECASE,
)
_FEW = range(3, 11)  # different whole numbers that may name categories; two are the same either way


@dataclass(frozen=True)
class Choice:
    """Places of columns.

    Attributes:
        inputs: in the order of the table, or as they were asked for.
        targets: to be predicted.
        categories: inputs whose values name categories, whatever they look like.
        left_out: columns that nobody named, and that only name or number the rows.
        ignored: these, and those that somebody left out.
        notes: what somebody should know about the columns.
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    categories: frozenset[int]
    left_out: tuple[int, ...]
    ignored: tuple[int, ...]
    notes: tuple[str, ...]


def choose(
    grid: Grid,
    *,
    target: Names | None,
    ignore: Names = (),
    features: Names | None = None,
    categories: Names = (),
) -> Choice:
    """Which columns are what.

    A column of which nothing is said is an input, but for one that only names or numbers the rows: the
    first one, if it alone has no name and all its values differ; and one that is called `id`, `index`, `row`
    or the like, if it counts the rows in their order, from 0 or 1.

    Args:
        grid: the table.
        target: columns to be predicted.
        ignore: columns to be left out.
        features: the inputs; None: all others.
        categories: inputs whose values name categories.

    Raises:
        UnknownNameError, ArgumentError: a column that is not there, or that shall be two things at once.
        DataError: no column is left as an input.
    """
    targets = _places(grid, () if target is None else target, "target")
    named = _places(grid, categories, "category")
    wanted = _places(grid, features or (), "feature")
    ignored = _places(grid, ignore, "ignored")
    _check_apart(
        grid, {"an input": {*wanted, *named}, "a target": set(targets), "ignored": set(ignored)}
    )
    rest = [k for k in range(len(grid.names)) if k not in {*targets, *ignored, *wanted, *named}]
    left_out = () if features else tuple(k for k in rest if _only_counts(grid, k))
    inputs = wanted or tuple(sorted({*rest, *named}.difference(left_out)))
    if not inputs:
        raise DataError(
            f"{grid.source}: has {len(grid.names)} column{'s' * (len(grid.names) > 1)} and no inputs beside "
            "the target: expected fields separated by tabs, semicolons, bars, commas or blanks"
        )
    if other := [k for k in named if k not in inputs]:
        raise ArgumentError(f"{grid.source}: column {quoted(grid.names[other[0]])} is no input")
    notes = [
        f"column {quoted(grid.names[k])} only numbers the rows and is left out" for k in left_out
    ]
    return Choice(
        inputs=inputs,
        targets=targets,
        categories=frozenset(named),
        left_out=left_out,
        ignored=(*ignored, *left_out, *(rest if features else ())),
        notes=(*notes, *_suspicions(grid, [k for k in inputs if k not in {*wanted, *named}])),
    )


def _check_apart(grid: Grid, uses: Mapping[str, set[int]]) -> None:
    """Refuse a column that shall be two things at once."""
    for (first, some), (second, others) in combinations(uses.items(), 2):
        if both := sorted(some & others):
            raise ArgumentError(
                f"{grid.source}: column {quoted(grid.names[both[0]])} cannot be {first} and {second} at once"
            )


def column_number(grid: Grid, column: Name, what: str) -> int:
    """The place of a column given by name or number.

    Raises:
        UnknownNameError, ArgumentError: it is not there.
    """
    names = grid.names
    if column in names:
        return names.index(str(column))
    try:
        wanted = operator.index(int(column) if isinstance(column, str) else column)
    except (TypeError, ValueError):
        raise _unknown_column(grid, column, what) from None
    if not -len(names) <= wanted < len(names):
        raise ArgumentError(
            f"{grid.source}: {what} column {wanted} does not exist: there are {len(names)} "
            f"columns, 0..{len(names) - 1} or from the end -1..-{len(names)}"
        )
    return wanted % len(names)


def _unknown_column(grid: Grid, name: object, what: str) -> ArgumentError:
    if not grid.header:
        return ArgumentError(
            f"{grid.source}: {what} column {quoted(name)} is not known: the table has no header, so "
            f"columns are known by number, 0..{len(grid.names) - 1}"
        )
    return UnknownNameError.of(f"{grid.source}: {what} column", name, grid.names)


def _places(grid: Grid, names: Names, what: str) -> tuple[int, ...]:
    """The places of columns, each once."""
    one = isinstance(names, str) or not isinstance(names, Iterable)
    several: Any = (names,) if one else names
    found = [column_number(grid, name, what) for name in several]
    if len(set(found)) < len(found):
        twice = next(k for k in found if found.count(k) > 1)
        raise ArgumentError(
            f"{grid.source}: {what} column {quoted(grid.names[twice])} is named twice"
        )
    return tuple(found)


def _only_counts(grid: Grid, index: int) -> bool:
    """Whether a column only names or numbers the rows: see `choose`."""
    if index == 0 and grid.unnamed:
        return _all_differ(grid, index)
    if not (grid.header and _NAMES_ROWS.fullmatch(grid.names[index])):
        return False
    numbers = _whole_numbers(grid, index)
    if numbers is None or numbers.size < 2:
        return False
    return numbers[0] in (0.0, 1.0) and bool((np.diff(numbers) == 1.0).all())


def _whole_numbers(grid: Grid, index: int) -> Floats | None:
    """The values of a column, if all are whole numbers and none is missing."""
    if grid.kind(index) != "number" or grid.missing(index).any():
        return None
    numbers = grid.numbers(index)
    return numbers if (numbers == np.floor(numbers)).all() else None


def _all_differ(grid: Grid, index: int) -> bool:
    """Whether a column holds another whole number, another date, or another text in each row."""
    kind = grid.kind(index)
    if kind == "category":
        return len(set(grid.texts(index))) == grid.rows
    if kind in ("date", "instant"):
        return len(np.unique(grid.numbers(index, kind))) == grid.rows
    numbers = _whole_numbers(grid, index)
    return numbers is not None and len(np.unique(numbers)) == grid.rows


def _suspicions(grid: Grid, inputs: Sequence[int]) -> list[str]:
    """What may be wrong with columns that are taken for inputs."""
    ids, few, dates = [], [], []
    for index in inputs:
        name = grid.names[index]
        if grid.kind(index) in ("date", "instant"):
            dates.append(name)
        elif grid.header and _NAMES_ROWS.fullmatch(name) and _all_differ(grid, index):
            ids.append(name)
        elif grid.kind(index) == "number" and (found := _whole_numbers(grid, index)) is not None:
            if len(np.unique(found)) in _FEW and grid.rows >= 3 * len(np.unique(found)):
                few.append(name)
    notes = [
        f"column {quoted(name)} has another value in each row: if it only names the rows, leave it out with "
        f"ignore=[{name!r}]"
        for name in ids
    ]
    if few:
        notes.append(
            f"few whole numbers are taken for quantities in {names_text(few)}: where they name categories, "
            f"say so with categories={few!r}"
        )
    if dates:
        notes.append(
            f"dates are taken as days since 1970-01-01 in {names_text(dates)}: where the hour, the weekday "
            "or the season matters, add a column with it"
        )
    return notes
