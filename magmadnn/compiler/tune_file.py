"""What was measured on this machine, as a readable JSON file that several processes may write.

One file for each machine (CPU, vectors, caches) in `$XDG_CACHE_HOME/magmadnn/tuning` (`~/.cache/...`). It
holds names of choices and times, nothing that is run; what cannot be read counts as not there. Writers take
turns (where the system has locks), add to what others wrote, and replace the file in one step.
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

from .emit.llvm.cache import default_folder
from .emit.llvm.target import Target

try:
    import fcntl
except ImportError:  # Windows: two writers at the same moment may lose what one of them measured
    _LOCK = None
else:
    _LOCK = fcntl

_FORMAT = 1
_NO_NAME = re.compile(r"[^\w.-]")
LIMIT = 2000  # products; those measured first go first


@dataclass(frozen=True)
class Record:
    """What was chosen for a product, and how long each way took, in microseconds."""

    choice: str
    microseconds: Mapping[str, float]

    def of_one(self, several: int) -> Record:
        """The same where the times are those of `several` products."""
        times = {name: round(time / several, 2) for name, time in self.microseconds.items()}
        return Record(self.choice, times)


def machine_words(target: Target) -> str:
    """The machine that measurements belong to, in one line."""
    caches = f"{target.l1_bytes >> 10} KiB and {target.l2_bytes >> 10} KiB of cache"
    return f"{target.cpu}, vectors of {target.vector_bytes} bytes, {caches}"


class RecordsOf:
    """The file of a machine or a device.

    Args:
        name: what the file is called after,
        exactly: all that measurements depend on,
        words: and what it is, in one line.
        folder: where the file lies; None: beside the kernels' folder.
    """

    def __init__(self, name: str, exactly: str, words: str, folder: Path | None = None) -> None:
        mark = hashlib.sha256(exactly.encode()).hexdigest()[:8]
        self.folder = folder or default_folder().parent / "tuning"
        self.path = self.folder / f"{_NO_NAME.sub('-', name)}-{mark}.json"
        self._machine = words

    def read(self) -> dict[str, Record]:
        """All products that were measured; without those that cannot be read."""
        try:
            everything = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(everything, dict) or everything.get("format") != _FORMAT:
            return {}
        products = everything.get("products")
        entries = products.items() if isinstance(products, dict) else ()
        found = {key: _record(value) for key, value in entries}
        return {key: record for key, record in found.items() if record is not None}

    def add(self, fresh: Mapping[str, Record]) -> None:
        """Add to the file; one that cannot be written costs the measurement and nothing else."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._turn():
                merged = list({**self.read(), **fresh}.items())[-LIMIT:]
                self._replace(self._text(merged))

    def settle(self, key: str, fresh: Record) -> Record | None:
        """What the file says of a product from now on: what it says already, or this.

        None where it cannot be written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._turn():
                known = self.read()
                if key not in known:
                    self._replace(self._text([*known.items(), (key, fresh)][-LIMIT:]))
                return known.get(key, fresh)
        except OSError:
            return None

    def clear(self) -> int:
        """Remove the file; gives how many products it held.

        Raises:
            OSError: it cannot be removed.
        """
        count = len(self.read())
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
            f'{{\n "format": {_FORMAT},\n "machine": {json.dumps(self._machine)},\n "products": {{'
        )
        return head + "\n" + ",\n".join(lines) + "\n }\n}\n"

    def _replace(self, text: str) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Nobody else writes meanwhile."""
        with self.path.with_suffix(".lock").open("a") as file:
            if _LOCK is not None:
                _LOCK.flock(file, _LOCK.LOCK_EX)  # given up when the file is closed
            yield


class Records(RecordsOf):
    """The file of a processor.

    Args:
        target: the processor.
        folder: as for `RecordsOf`.
    """

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        super().__init__(target.cpu, repr(target), machine_words(target), folder)


def _record(value: Any) -> Record | None:
    """An entry of the file; None where it is not what is written here."""
    if not isinstance(value, dict) or not isinstance(value.get("choice"), str):
        return None
    times = value.get("microseconds")
    if not isinstance(times, dict):
        return None
    for time in times.values():
        if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
            return None
    return Record(value["choice"], times)
