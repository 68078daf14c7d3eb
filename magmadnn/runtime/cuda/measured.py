"""What was measured with a device's library, as a readable JSON file that several processes may write.

One file for each device and version of its library in the folder `tuning` of `storage.places.cache_places`.
It holds names of choices and times, nothing that is run; what cannot be read, or was written by somebody
else, counts as not there. Writers take turns (where the system has locks), add to what others wrote, and
replace the file in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, FileError
from magmadnn.storage.private import cache_folder, private_folder, read_private

try:
    import fcntl
except ImportError:  # Windows: two writers at the same moment may lose what one of them measured
    _LOCK = None
else:
    _LOCK = fcntl

_FORMAT = 1
_VARIABLE = "MAGMADNN_TUNE_SECONDS"
_NO_NAME = re.compile(r"[^\w.-]")
_MOST_MICROSECONDS = 1e15  # thirty years
ENDINGS = (".json", ".part", ".lock")
LIMIT = 2000  # products; those measured first go first


@dataclass(frozen=True)
class Record:
    """What was chosen for a product, and how long each algorithm took, in microseconds."""

    choice: str
    microseconds: Mapping[str, float]


def may_measure() -> bool:
    """Whether algorithms are measured in this process: not where MAGMADNN_TUNE_SECONDS is 0.

    Raises:
        ArgumentError: it is not a number of at least 0.
    """
    text = os.environ.get(_VARIABLE) or "1"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ArgumentError(f"{_VARIABLE} must be a number of at least 0, got {text!r}")
    return seconds > 0


class RecordsOf:
    """The file of a device.

    Args:
        library: the device and its library with their versions, in one line: all that measurements depend
            on. The file is called after the first words, up to a comma.
        folder: where the file lies; None: in the first of `cache_places` that can be used.

    Attributes:
        path: the file; None where no folder can be used.
    """

    def __init__(self, library: str, folder: Path | None = None) -> None:
        name, mark = library.partition(",")[0], hashlib.sha256(library.encode()).hexdigest()[:8]
        place = folder or cache_folder("tuning", ENDINGS).path
        self.path = place / f"{_NO_NAME.sub('-', name)}-{mark}.json" if place else None
        self._library = library

    def read(self) -> dict[str, Record]:
        """All products that were measured; without those that cannot be read."""
        if self.path is None:
            return {}
        try:
            everything = json.loads(read_private(self.path) or b"")
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(everything, dict) or everything.get("format") != _FORMAT:
            return {}
        products = everything.get("products")
        entries = products.items() if isinstance(products, dict) else ()
        found = {key: _record(value) for key, value in entries}
        return {key: record for key, record in found.items() if record is not None}

    def settle(self, key: str, fresh: Record) -> Record | None:
        """What the file says of a product from now on: what it says already, or this.

        None where it cannot be written.
        """
        try:
            with self._turn() as path:
                known = self.read()
                if key not in known:
                    _replace(path, self._text([*known.items(), (key, fresh)][-LIMIT:]))
                return known.get(key, fresh)
        except OSError:
            return None

    def clear(self) -> int:
        """Remove the file; gives how many products it held.

        Raises:
            OSError: it cannot be removed.
        """
        count = len(self.read())
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        return count

    def _text(self, products: list[tuple[str, Record]]) -> str:
        """A line for each product."""
        lines = [
            f"  {json.dumps(key)}: "
            + json.dumps({"choice": r.choice, "microseconds": dict(r.microseconds)})
            for key, r in products
        ]
        head = (
            f'{{\n "format": {_FORMAT},\n "machine": {json.dumps(self._library)},\n "products": {{'
        )
        return head + "\n" + ",\n".join(lines) + "\n }\n}\n"

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Path]:
        """The file to write, which nobody else writes meanwhile.

        Raises:
            FileError: there is no folder that can be used.
        """
        if self.path is None:
            raise FileError("tune: no folder for measurements can be written: set XDG_CACHE_HOME")
        private_folder(self.path.parent, ENDINGS)
        with self.path.with_suffix(".lock").open("a") as file:
            if _LOCK is not None:
                _LOCK.flock(file, _LOCK.LOCK_EX)  # given up when the file is closed
            yield self.path


def _replace(path: Path, text: str) -> None:
    """Write a file in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _record(value: Any) -> Record | None:
    """An entry of the file; None where it is not what is written here."""
    if not isinstance(value, dict) or not isinstance(value.get("choice"), str):
        return None
    times = value.get("microseconds")
    if not isinstance(times, dict):
        return None
    for time in times.values():
        known = isinstance(time, int | float) and not isinstance(time, bool)
        if not known or not 0 <= time < _MOST_MICROSECONDS:  # nor is it NaN
            return None
    return Record(value["choice"], times)
