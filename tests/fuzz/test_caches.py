"""What lies in the user's cache: measurements and object code. Damaged, they cost time and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from magmadnn.compiler.llvm.object.cache import Cache
from magmadnn.runtime.cuda.measured import Record, RecordsOf
from tests.fuzz.harness import Fuzz
from tests.fuzz.mutations import damaged, damaged_json

pytestmark = pytest.mark.timeout(3600)

NUMBERS = [10**400, -(10**400), 1e308, float("nan"), float("inf"), "0", "choice"]


def test_measurements(fuzz: Fuzz, tmp_path: Path) -> None:
    """What is read is what can be used and written again; what cannot is as if it were not there."""
    fuzz.files //= 2
    records, again = RecordsOf("a device", tmp_path), RecordsOf("a device", tmp_path / "again")
    assert records.path is not None and again.path is not None
    entries = {
        "5 x 7 x 3 nn of tf32": {"choice": "00ff", "microseconds": {"0": 1.5, "1": 2.5}},
        "another": {"choice": "", "microseconds": {"0": 7}},
    }
    document = {"format": 1, "machine": "a machine", "products": entries}

    def make(rng: random.Random) -> bytes:
        data = json.dumps(damaged_json(document, rng, NUMBERS)).encode()
        return damaged(data, rng, [b"{", b"}", b"1e999", b"null"]) if rng.random() < 0.3 else data

    def read(data: bytes) -> dict[str, Record]:
        records.path.write_bytes(data)
        return records.read()

    def check(data: bytes, found: dict[str, Record]) -> None:
        again.path.unlink(missing_ok=True)
        for key, record in found.items():
            again.settle(key, record)
        assert again.read() == found

    fuzz.run(make, read, check)
    assert fuzz.found["read"] == fuzz.files


def test_object_code(fuzz: Fuzz, tmp_path: Path) -> None:
    """An entry is the code that was kept under its name, or none: nothing else is ever run."""
    cache, code = Cache(tmp_path / "cache"), bytes(range(256)) * 3
    for key in ("k", "other"):
        cache.keep(key, code if key == "k" else b"other code")
    path = cache._path("k")
    whole, other = path.read_bytes(), cache._path("other").read_bytes()

    def make(rng: random.Random) -> bytes:
        return damaged(rng.choice([whole, whole, other]), rng, [whole[:60], other, code])

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        path.chmod(0o600)
        return cache.find("k")

    def check(data: bytes, found: bytes | None) -> None:
        assert (found == code) if data == whole else found is None
        assert path.exists() == (found is not None)

    fuzz.run(make, read, check)
    assert fuzz.found["read"] == fuzz.files
