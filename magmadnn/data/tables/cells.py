"""Text files of rows and fields: finding the delimiter and the header, and reading the cells.

`csv.Sniffer` is not used: it guesses from letters that recur, and takes spaces in names or the
points of numbers for delimiters. Here each candidate reads the first lines, and the one that gives
the same number of fields on most lines wins.
"""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from magmadnn.data._packed import unpacked
from magmadnn.errors import ArgumentError, DataError, UnknownNameError, quoted, shown
from magmadnn.storage.input_files import check_room, reading

# In this order where several fit: commas stand in texts and decimal numbers of the others' files.
_CANDIDATES = ("\t", ";", "|", ",")
WHITE_SPACE = " "  # any run of blanks and tabs
_SAMPLE = 100  # lines that the delimiter is told from
_HEADER_SAMPLE = 1000  # rows that the header is told from
_MOST_COLUMNS = 200_000  # some microseconds each
_BYTES_A_BYTE = 3  # of memory, for each of the file: the text and its lines
_BYTES_A_CELL = 100
_WAY_OUT = "write large data to .npy files, and train on numpy.load(mmap_mode='r')"

# Texts that stand for a missing value: what R, NumPy, pandas, SQL and spreadsheets write.
MISSING = frozenset(
    (
        "",
        "?",
        "NA",
        "N/A",
        "n/a",
        "nan",
        "NaN",
        "NAN",
        "-nan",
        "-NaN",
        "null",
        "NULL",
        "<NA>",
        "#N/A",
    )
)

DECIMALS = (".", ",")
UNNAMED = ("", "Unnamed: 0")  # names of the column that an index without a name leaves

Row = tuple[int, list[str]]  # line number from 1, fields without surrounding blanks


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a file: one list per column, and the line each row ends on.

    Attributes:
        source: the file.
        delimiter: what separates fields.
        header: whether columns have names.
        names: of the columns, `column <index>` where there is none.
        unnamed: whether the first column alone has no name, or the one that pandas gives such a column.
        columns: cells without surrounding blanks.
        lines: line of each row, from 1.
        decimal: the decimal sign of numbers.
    """

    path: Path
    delimiter: str
    header: bool
    names: tuple[str, ...]
    unnamed: bool
    columns: list[list[str]]
    lines: list[int]
    decimal: str = "."

    @property
    def source(self) -> str:
        """The file, as messages name it."""
        return shown(self.path)


def read_cells(
    path: Path,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    decimal: str = ".",
    expected_names: Collection[str] = (),
) -> Cells:
    """Reads a file of text in UTF-8, which may be packed (.gz, .xz, .bz2).

    Blank lines are skipped. Lines that begin with `#` are skipped at the top of the file; the last
    of them is the header if it has one name per column.

    Args:
        path: the file.
        delimiter: one character, or " " for any white space; None: detected.
        header: whether the first row holds names; None: detected.
        decimal: the decimal sign of numbers, a point or a comma.
        expected_names: a first row with all of these is a header.

    Raises:
        FileError: the file cannot be read.
        DataError: no text, no rows, rows of unequal length, open quotes, a name used twice.
        OutOfMemoryError: the table is larger than the memory that is free.
    """
    if decimal not in DECIMALS:
        raise UnknownNameError.of("decimal", decimal, DECIMALS)
    with reading(path):
        return _read_cells(path, delimiter, header, decimal, expected_names)


def _read_cells(
    path: Path,
    delimiter: str | None,
    header: bool | None,
    decimal: str,
    expected_names: Collection[str],
) -> Cells:
    comment, text = _without_comments(_read_lines(path))
    chosen = delimiter or _detect_delimiter(text, decimal)
    if chosen == decimal:
        raise ArgumentError(
            f"{shown(path)}: {decimal!r} cannot be the decimal sign and separate fields too"
        )
    cells = sum(line.count(chosen) for line in text) + len(text)
    check_room(path, _BYTES_A_CELL * cells, _WAY_OUT)
    rows = list(_rows(path, text, chosen))
    if not rows:
        raise DataError(f"{shown(path)}: is empty: expected rows of numbers")
    _check_lengths(path, rows)
    width = len(rows[0][1])
    if width > _MOST_COLUMNS:
        raise DataError(
            f"{shown(path)}: has {width} columns, at most {_MOST_COLUMNS} are read from text: write such "
            "data to an .npz file"
        )
    names: list[str] | None = None
    if header or (header is None and _has_header(rows, expected_names, decimal)):
        names, rows = rows[0][1], rows[1:]
        if not rows:
            raise DataError(
                f"{shown(path)}: holds a header and no rows: expected rows below line 1"
            )
    elif header is None and comment:
        fields = _fields_of_comment(comment, chosen)
        names = fields if len(fields) == width else None
    return Cells(
        path=path,
        delimiter=chosen,
        header=names is not None,
        names=_names(path, names, width),
        unnamed=names is not None and names[0] in UNNAMED and "" not in names[1:],
        columns=[list(column) for column in zip(*(row for _, row in rows), strict=True)],
        lines=[line for line, _ in rows],
        decimal=decimal,
    )


def _read_lines(path: Path) -> list[str]:
    with unpacked(path) as file:
        if not file.is_packed:
            check_room(path, _BYTES_A_BYTE * file.most, _WAY_OUT)
        data = file.read_all()
        if not (file.at_end() and file.is_whole):
            raise DataError(f"{shown(path)}: the packed data is cut short: fetch the file again")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shown(path)}: byte {error.start} is not UTF-8 text: save the table as UTF-8 text"
        ) from error
    if "\0" in text:
        raise DataError(f"{shown(path)}: holds zero bytes: it is no text file")
    # Not splitlines(), which splits at form feeds and other signs inside a cell too.
    return [line + "\n" for line in text.split("\n")]


def _without_comments(lines: list[str]) -> tuple[str, list[str]]:
    """The last comment line at the top, and the lines with those comments made blank."""
    comment, text = "", list(lines)
    for number, line in enumerate(lines):
        if line.startswith("#"):
            comment, text[number] = line.lstrip("#").strip(), "\n"
        elif line.strip():
            break
    return comment, text


def _fields_of_comment(comment: str, delimiter: str) -> list[str]:
    """Names in a comment: delimited as the rows are, or by white space."""
    with contextlib.suppress(csv.Error):  # a field of more letters than csv takes: no names
        for candidate in (delimiter, WHITE_SPACE):
            fields = next(_split([comment], candidate), [])
            if len(fields) > 1:
                return [field.strip() for field in fields]
    return []


def _tidy(lines: Iterable[str], delimiter: str) -> Iterable[str]:
    """The lines with every run of white space made one blank, if that is the delimiter."""
    if delimiter != WHITE_SPACE:
        return lines
    return (" ".join(line.split()) + "\n" for line in lines)


def _split(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    return csv.reader(_tidy(lines, delimiter), delimiter=delimiter, skipinitialspace=True)


def _detect_delimiter(lines: list[str], decimal: str) -> str:
    sample = list(islice((line for line in lines if line.strip()), _SAMPLE))
    candidates = [candidate for candidate in _CANDIDATES if candidate != decimal]
    shares = {candidate: _share_of_equal_lines(sample, candidate) for candidate in candidates}
    best = max(candidates, key=lambda candidate: shares[candidate])  # the first of equals
    # White space only where nothing else fits: names, dates and texts hold blanks too.
    if shares[best] <= 0.5 and _share_of_equal_lines(sample, WHITE_SPACE) > shares[best]:
        return WHITE_SPACE
    return best if shares[best] > 0.0 else candidates[-1]


def _share_of_equal_lines(sample: list[str], delimiter: str) -> float:
    """The share of lines that have the commonest number of fields, 0 if that is one field."""
    try:
        counts = Counter(len(row) for row in _split(sample, delimiter) if row)
    except csv.Error:
        return 0.0
    fields, lines = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return lines / sum(counts.values()) if fields > 1 else 0.0


def _rows(path: Path, lines: list[str], delimiter: str) -> Iterator[Row]:
    tidy = _tidy(lines, delimiter)
    reader = csv.reader(tidy, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if len(fields) > 1 or any(fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(
            f"{shown(path)}: line {reader.line_num}: cannot be split into fields "
            f"({shown(str(error), 80)}): check the quotes"
        ) from error


def _check_lengths(path: Path, rows: list[Row]) -> None:
    first_line, first = rows[0]
    for line, row in rows:
        if len(row) != len(first):
            raise DataError(
                f"{shown(path)}: line {line} has {len(row)} fields, expected {len(first)} as in line "
                f"{first_line}: repair or leave out the line"
            )


def to_number(cell: str, decimal: str = ".") -> float | None:
    """The number that a cell is, perhaps infinite; None for other texts, Python's `1_000` and NaN."""
    if decimal == ",":
        if "." in cell:  # 1.500 may be one and a half, or a thousand and five hundred
            return None
        cell = cell.replace(",", ".")
    try:
        value = float(cell)
    except ValueError:
        return None
    return None if "_" in cell or value != value else value


def is_number(cell: str) -> bool:
    """Whether a cell is a number; missing values are none."""
    return to_number(cell) is not None


def _has_header(rows: list[Row], expected_names: Collection[str], decimal: str) -> bool:
    """Whether the first row names the columns.

    It does if none of its cells is a number or `?` while some column below it is
    numeric; and in a table of texts only, if its cells differ from each other and none is met again in its
    column.
    """
    first, rest = rows[0][1], [row for _, row in rows[1 : 1 + _HEADER_SAMPLE]]
    if expected_names and set(expected_names) <= set(first):
        return True
    if any(to_number(cell, decimal) is not None or cell == "?" for cell in first):
        return False
    columns = list(zip(*rest, strict=True)) or [()] * len(first)
    named = zip(first, columns, strict=True)
    if any(name and _mostly_numbers(column, decimal) for name, column in named):
        return True
    distinct = len(set(first)) == len(first) and "" not in first
    return distinct and not any(name in column for name, column in zip(first, columns, strict=True))


def _mostly_numbers(column: Collection[str], decimal: str) -> bool:
    known = [cell for cell in column if cell not in MISSING]
    return 2 * sum(to_number(cell, decimal) is not None for cell in known) > len(known)


def _names(path: Path, names: list[str] | None, width: int) -> tuple[str, ...]:
    found = [name or f"column {index}" for index, name in enumerate(names or [""] * width)]
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        first = found.index(twice[0])
        second = found.index(twice[0], first + 1)
        raise DataError(
            f"{shown(path)}: the name {quoted(twice[0])} stands twice in the header, in columns {first} and "
            f"{second} (counted from 0): every column needs a name of its own"
        )
    return tuple(found)
