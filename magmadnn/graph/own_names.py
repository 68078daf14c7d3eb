"""Classes known by name: a name of ours always means ours."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.errors import ArgumentError


def check_name(what: str, name: str, cls: type, known: Mapping[str, type], way_out: str) -> None:
    """Look whether a class may be known by a name from now on.

    One that was defined by a user before may be defined again, as when a cell of a notebook runs again.

    Args:
        what: the class in words: 'loss Huber'.
        name: what it is to be known by.
        cls: the class.
        known: the classes known so far.
        way_out: what the user can do.

    Raises:
        ArgumentError: the name is that of one of magmadnn's classes: "huber" always means that.
    """
    before = known.get(name)
    if before is not None and _is_ours(before) and not _is_ours(cls):
        folder = before.__module__.split(".")[1].replace("tensor", "init")
        raise ArgumentError(
            f"{what}: md.{folder}.{before.__name__} is known by the name {name!r}; {way_out}"
        )


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("magmadnn.")
