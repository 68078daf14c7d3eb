"""On which line of a TOML file each table and key stands, so that a fault can be told with its line."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]
_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_-]+|\"[^\"]*\")\s*(?:\.[^=]*)?=")


def key_lines(text: str) -> dict[Path, int]:
    """Line of each table and key, by path: `("modules", 0, "name")`; lists of tables are numbered."""
    found: dict[Path, int] = {(): 1}
    counts: dict[Path, int] = {}
    here: Path = ()
    depth, quotes = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if depth == 0 and not quotes:
            if header := _HEADER.match(line):
                here = _table(header[2], header[1] == "[[", counts)
                found.setdefault(here, number)
                continue
            if key := _KEY.match(line):
                found.setdefault((*here, key[1].strip('"')), number)
        depth, quotes = _open(line, depth, quotes)
    return found


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Line of what is nearest to a path: itself, or the table that it belongs to."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _table(name: str, is_list: bool, counts: dict[Path, int]) -> Path:
    """The path of a table, with the number of the last entry of each list of tables on the way."""
    here: Path = ()
    parts = [part.strip().strip("\"'") for part in name.split(".")]
    for part in parts[:-1]:
        here = (*here, part)
        if here in counts:
            here = (*here, counts[here])
    here = (*here, parts[-1])
    if is_list:
        counts[here] = counts.get(here, -1) + 1
        here = (*here, counts[here])
    return here


def _open(line: str, depth: int, quotes: str) -> tuple[int, str]:
    """Brackets and quotes that are still open at the end of a line."""
    k = 0
    while k < len(line):
        if quotes:
            if quotes[0] == '"' and line[k] == "\\":
                k += 2
                continue
            if line.startswith(quotes, k):
                k += len(quotes)
                quotes = ""
                continue
        elif line[k] == "#":
            break
        elif line.startswith(('"""', "'''"), k):
            quotes = line[k : k + 3]
            k += 3
            continue
        elif line[k] in "\"'":
            quotes = line[k]
        elif line[k] in "[{":
            depth += 1
        elif line[k] in "]}":
            depth -= 1
        k += 1
    return max(0, depth), quotes if len(quotes) == 3 else ""
