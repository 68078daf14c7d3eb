"""What the columns of a table are: kept with a model, so that another table is read the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from magmadnn.data.tables.values import KINDS, Kind
from magmadnn.errors import DataError

_VERSION = 2  # 1 had one target, and no kinds


@dataclass(frozen=True)
class Column:
    """One input column of a table.

    Attributes:
        name: its own, or `column <index>`.
        index: its place in the table, from 0.
        categories: the texts it may hold, sorted, one input each; None unless it holds categories.
        kind: "number", "bool", "duration" (in seconds), "date" or "instant" (in days since 1970-01-01; of
            times with a zone, in UTC), or "category".
    """

    name: str
    index: int
    categories: tuple[str, ...] | None = None
    kind: Kind = "number"

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == "category") != (self.categories is not None):
            raise DataError(
                f"column {self.name!r}: its kind is {self.kind!r}, which does not go with the categories "
                f"{self.categories}"
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that it becomes, its own or `name=category` for each category."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclass(frozen=True)
class Target:
    """A column that is to be predicted.

    Attributes:
        name: its own, or `column <index>`.
        index: its place in the table, from 0; None where it came in an array of its own.
        is_text: whether its values are kept as texts.
    """

    name: str
    index: int | None
    is_text: bool = False


@dataclass(frozen=True)
class Schema:
    """What a table's columns were, so that another table is read the same way.

    Attributes:
        columns: the input columns.
        targets: the columns to be predicted.
        ignored: names of columns that were left out.
        header: whether the table had names; then columns of another one are found by name.
        width: columns of the table.
        decimal: the decimal sign of numbers in text.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    header: bool
    width: int
    ignored: tuple[str, ...] = ()
    decimal: str = "."

    def __post_init__(self) -> None:
        found: list[Column | Target] = [*self.columns, *self.targets]
        places = [column.index for column in found if column.index is not None]
        names = [column.name for column in found]
        inside = all(0 <= place < self.width for place in places)
        if not (self.columns and inside and len(set(places)) == len(places)):
            raise DataError(
                f"columns of a table: {len(found)} do not go with a width of {self.width}"
            )
        if len(set(names)) < len(names):
            raise DataError(f"columns of a table: a name stands twice among {names}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs, in order."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def target(self) -> str | None:
        """Name of the target, if it is a single one."""
        return self.targets[0].name if len(self.targets) == 1 else None

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(target.name for target in self.targets)

    @property
    def target_is_text(self) -> bool:
        """Whether the single target holds texts."""
        return len(self.targets) == 1 and self.targets[0].is_text

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "version": _VERSION,
            "columns": [
                {
                    "name": column.name,
                    "index": column.index,
                    "kind": column.kind,
                    "categories": None if column.categories is None else list(column.categories),
                }
                for column in self.columns
            ],
            "targets": [
                {"name": target.name, "index": target.index, "is_text": target.is_text}
                for target in self.targets
            ],
            "ignored": list(self.ignored),
            "header": self.header,
            "width": self.width,
            "decimal": self.decimal,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The schema that `to_json` wrote, also of version 1.

        Raises:
            DataError: the data is something else, or of a newer version.
        """
        try:
            version = data.get("version", 1)
            if _typed(version, int) > _VERSION:
                raise DataError(
                    f"columns of the training table: were saved by a newer magmadnn (version {version} of "
                    f"their description, this one reads up to {_VERSION}): update magmadnn"
                )
            return cls(
                columns=tuple(map(_column, _typed(data["columns"], list))),
                targets=_targets(data) if version > 1 else _first_target(data),
                header=_typed(data["header"], bool),
                width=_typed(data["width"], int),
                ignored=_texts(data.get("ignored", [])),
                decimal=_typed(data.get("decimal", "."), str),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"columns of the training table: the saved description is damaged ({error!r})"
            ) from error


def _column(data: Mapping[str, Any]) -> Column:
    categories = None if data["categories"] is None else _texts(data["categories"])
    kind = data.get("kind", "number" if categories is None else "category")
    return Column(
        name=_typed(data["name"], str),
        index=_typed(data["index"], int),
        categories=categories,
        kind=cast(Kind, _typed(kind, str)),
    )


def _targets(data: Mapping[str, Any]) -> tuple[Target, ...]:
    return tuple(
        Target(
            name=_typed(target["name"], str),
            index=None if target["index"] is None else _typed(target["index"], int),
            is_text=_typed(target["is_text"], bool),
        )
        for target in _typed(data["targets"], list)
    )


def _first_target(data: Mapping[str, Any]) -> tuple[Target, ...]:
    """The target of version 1, if there was one."""
    if data["target"] is None:
        return ()
    index = _typed(data["target_index"], int)
    return (Target(_typed(data["target"], str), index, _typed(data["target_is_text"], bool)),)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_typed(value, str) for value in _typed(values, list))


def _typed(value: Any, kind: type) -> Any:
    """The value, which must be exactly of this type: JSON's true is no number."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value
