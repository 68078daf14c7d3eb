"""Changes to the text of a workflow's file that leave everything else as it stands, comments too.

The text is cut before each `[[modules]]`, `[[groups]]` and `[tuple_space]`, with the comment lines above it,
and the part that changes is edited by itself, so that tables keep their order. What comes out is compared
with what the change must give: a change that cannot be made so is refused.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from magmadnn.errors import ArgumentError, UnknownNameError, quoted
from magmadnn.workflow.description import lines

_LISTS = ("modules", "groups")
_KINDS = ("function", "command", "library")
_HEADER = re.compile(r"^\s*\[")
_FIRST: dict[str, dict[str, Any]] = {"modules": {"command": ["true"]}, "groups": {"modules": []}}

Table = tuple[str | int, ...]
"""`()`, `("tuple_space",)`, `("modules", k)` or `("groups", k)`."""


def edited(text: str, change: Mapping[str, Any]) -> str:
    """The text after a change.

    Args:
        text: TOML.
        change: a table whose "op" is one of

            - "set": "table" (a path such as ["modules", 2]; [] is the workflow itself), "key" and "value". A
              value of None leaves the key out. Of function, command and library the others go.
            - "add": "kind" (modules or groups) and "name".
            - "remove": "kind" and "index"; where others name it, that goes too.
            - "rename": "kind", "index" and "name"; likewise.

    Raises:
        ArgumentError: it is no such change, or the text is laid out so that it must be made by hand.
    """
    changes: dict[str, Callable[[_Parts, Mapping[str, Any]], None]] = {
        "set": _set,
        "add": _add,
        "remove": _remove,
        "rename": _rename,
    }
    operation = change.get("op")
    if operation not in changes:
        raise UnknownNameError.of("workflow edit: op", str(operation), changes)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(
            f"workflow edit: the text is no TOML: {error}; mend it first"
        ) from error
    parts, wanted = _Parts(text, data), copy.deepcopy(data)
    try:
        changes[operation](parts, change)
        _EXPECTED[operation](wanted, change)
        found = tomllib.loads(parts.text())
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"workflow edit: not a change of this file: {quoted(change)}"
        ) from error
    except ValueError as error:
        raise _by_hand() from error
    if _without_empty(found) != _without_empty(wanted):
        raise _by_hand()
    return parts.text()


def _without_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says, where no modules and an empty list of them are the same."""
    return {key: value for key, value in data.items() if not (key in _LISTS and value == [])}


def _by_hand() -> ArgumentError:
    return ArgumentError(
        "workflow edit: this file is laid out so that the change cannot be made here; change its text"
    )


class _Parts:
    """A text in parts: what is before the first table, and each table by its path.

    Args:
        text: TOML.
        data: what it says.
    """

    def __init__(self, text: str, data: Mapping[str, Any]) -> None:
        self.data = data
        rows = text.splitlines(keepends=True)
        cuts = [(0, ())] + [
            (_with_comments(rows, line - 1), path)
            for path, line in sorted(lines.key_lines(text).items(), key=lambda one: one[1])
            if _is_table(path) and _HEADER.match(rows[line - 1])
        ]
        ends = [begin for begin, _ in cuts[1:]] + [len(rows)]
        self._parts: list[tuple[Table, str]] = [
            (path, "".join(rows[begin:end])) for (begin, path), end in zip(cuts, ends, strict=True)
        ]

    def text(self) -> str:
        """All of it."""
        return "".join(part for _, part in self._parts)

    def change(self, table: Table, edit: Callable[[Any], None]) -> None:
        """Let `edit` change a table; `edit` gets it as one of tomlkit's."""
        import tomlkit

        at = next((k for k, (path, _) in enumerate(self._parts) if path == table), 0)
        path, part = self._parts[at]
        body, space = _split_space(part)
        document: Any = tomlkit.parse(body)
        found = document
        for step in (*path[:1], *(0 for _ in path[1:])) if path else table:
            found = found[step]
        edit(found)
        changed = tomlkit.dumps(document)
        if "\r\n" in body:
            changed = re.sub(r"(?<!\r)\n", "\r\n", changed)
        self._parts[at] = path, changed + space

    def append(self, header: str, values: Mapping[str, Any]) -> None:
        """Add a table at the end."""
        import tomlkit

        path, last = self._parts[-1]
        blank = "" if not self.text().strip() else "\n" if last.endswith("\n") else "\n\n"
        self._parts[-1] = path, last + blank
        self._parts.append((("new",), f"{header}\n{tomlkit.dumps(dict(values))}"))

    def remove(self, kind: str, index: int) -> None:
        """Leave a table out."""
        if (kind, index) in [path for path, _ in self._parts]:
            self._parts = [one for one in self._parts if one[0] != (kind, index)]
        else:
            self.change((), lambda document: document[kind].pop(index))

    def tables(self) -> list[tuple[Table, Mapping[str, Any]]]:
        """All modules and groups, with what they say."""
        return [
            ((kind, k), row) for kind in _LISTS for k, row in enumerate(self.data.get(kind, []))
        ]


def _split_space(part: str) -> tuple[str, str]:
    """A part up to the end of its last line that is not empty, and the empty lines after it."""
    body = part.rstrip()
    space = part[len(body) :]
    for end in ("\r\n", "\n"):
        if space.startswith(end):
            return body + end, space.removeprefix(end)
    return (body + "\n" if body else ""), ""


def _is_table(path: Table) -> bool:
    return path == ("tuple_space",) or (len(path) == 2 and path[0] in _LISTS)


def _with_comments(rows: Sequence[str], line: int) -> int:
    """The first of the comment lines that stand right above a line."""
    while line and rows[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


# --- changes of the text -----------------------------------------------------------------------------


def _set(parts: _Parts, change: Mapping[str, Any]) -> None:
    table, key, value = _place(change), str(change["key"]), change["value"]
    if table == ("tuple_space",) and "tuple_space" not in parts.data:
        if value is not None:
            parts.append("[tuple_space]", {key: value})
        return

    def edit(found: Any) -> None:
        if value is None:
            found.pop(key, None)
            return
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            for name in [name for name in found[key] if name not in value]:
                del found[key][name]
            for name, one in value.items():
                found[key][name] = one
        elif isinstance(value, list) and isinstance(found.get(key), list):
            _set_list(found, key, value)
        else:
            found[key] = _plain(value)
        for other in _others(table, key):
            found.pop(other, None)

    parts.change(table, edit)


def _set_list(row: Any, key: str, value: list[Any]) -> None:
    """Make a list another one: entries go and come one by one where that gives it, so that comments stay."""
    kept = [one for one in row[key] if one in value]
    if kept != value[: len(kept)]:
        row[key] = value
        return
    for one in [one for one in row[key] if one not in value]:
        row[key].remove(one)
    for one in value[len(kept) :]:
        row[key].append(one)


def _add(parts: _Parts, change: Mapping[str, Any]) -> None:
    kind = _kind(change)
    parts.append(f"[[{kind}]]", {"name": str(change["name"]), **_FIRST[kind]})


def _remove(parts: _Parts, change: Mapping[str, Any]) -> None:
    kind, index = _kind(change), _index(change)
    name = parts.data[kind][index].get("name")
    for table, row in parts.tables():
        for key in _names_in(table[0], row, name):
            parts.change(table, partial(_leave_out, key=key, name=name))
    parts.remove(kind, index)


def _rename(parts: _Parts, change: Mapping[str, Any]) -> None:
    kind, index, new = _kind(change), _index(change), str(change["name"])
    old = parts.data[kind][index].get("name")
    parts.change((kind, index), lambda found: found.update({"name": new}))
    for table, row in parts.tables():
        for key in _names_in(table[0], row, old):
            parts.change(table, partial(_replace, key=key, old=old, new=new))


def _names_in(kind: Any, row: Mapping[str, Any], name: Any) -> list[str]:
    """The keys of a table under which a module or group is named."""
    keys = ("after", "modules") if kind == "groups" else ("after",)
    return [key for key in keys if isinstance(row.get(key), list) and name in row[key]]


def _leave_out(row: Any, key: str, name: Any) -> None:
    while name in row[key]:
        row[key].remove(name)
    if key == "after" and not row[key]:
        del row[key]


def _replace(row: Any, key: str, old: Any, new: str) -> None:
    for k, name in enumerate(row[key]):
        if name == old:
            row[key][k] = new


def _plain(value: Any) -> Any:
    """Tables within a table on one line."""
    import tomlkit

    if not isinstance(value, dict):
        return value
    made = tomlkit.inline_table()
    made.update(value)
    return made


# --- what must come out ------------------------------------------------------------------------------


def _set_data(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    table, key, value = _place(change), str(change["key"]), change["value"]
    if table == ("tuple_space",) and table[0] not in data:
        if value is None:
            return
        data["tuple_space"] = {}
    row: Any = data
    for step in table:
        row = row[step]
    if value is None:
        row.pop(key, None)
    else:
        row[key] = value
        for other in _others(table, key):
            row.pop(other, None)


def _add_data(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    kind = _kind(change)
    data.setdefault(kind, []).append({"name": str(change["name"]), **_FIRST[kind]})


def _remove_data(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    name = data[_kind(change)].pop(_index(change)).get("name")
    for kind in _LISTS:
        for row in data.get(kind, []):
            for key in _names_in(kind, row, name):
                row[key] = [one for one in row[key] if one != name]
                if key == "after" and not row[key]:
                    del row[key]


def _rename_data(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    old, new = data[_kind(change)][_index(change)].get("name"), str(change["name"])
    for kind in _LISTS:
        for row in data.get(kind, []):
            for key in _names_in(kind, row, old):
                row[key] = [new if one == old else one for one in row[key]]
    data[_kind(change)][_index(change)]["name"] = new


_EXPECTED: dict[str, Callable[[dict[str, Any], Mapping[str, Any]], None]] = {
    "set": _set_data,
    "add": _add_data,
    "remove": _remove_data,
    "rename": _rename_data,
}


# --- parts of a change -------------------------------------------------------------------------------


def _place(change: Mapping[str, Any]) -> Table:
    table: Table = tuple(change["table"])
    if table == () or _is_table(table):
        return table
    raise KeyError(table)


def _kind(change: Mapping[str, Any]) -> str:
    kind = change["kind"]
    if kind not in _LISTS:
        raise KeyError(kind)
    return str(kind)


def _index(change: Mapping[str, Any]) -> int:
    index = change["index"]
    if type(index) is not int or index < 0:
        raise IndexError(index)
    return index


def _others(table: Table, key: str) -> tuple[str, ...]:
    """Keys that may not stand beside another."""
    alone = table[:1] == ("modules",) and key in _KINDS
    return tuple(kind for kind in _KINDS if kind != key) if alone else ()
