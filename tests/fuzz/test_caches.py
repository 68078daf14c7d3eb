"""What lies in the user's cache: measurements and object code. Damaged, they cost time and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.cuts import RULE, cuts
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.object.cache import Cache
from magmadnn.compiler.tune.chosen_blocks import Tuner
from magmadnn.compiler.tune.file import Record, Records
from magmadnn.compiler.tune.products import product_words
from tests.compiler.tuning import part
from tests.fuzz.harness import Fuzz
from tests.fuzz.mutations import damaged, damaged_json

pytestmark = pytest.mark.timeout(3600)

NUMBERS = [10**400, -(10**400), 1e308, float("nan"), float("inf"), "RULE", RULE]


def test_measurements(fuzz: Fuzz, tmp_path: Path) -> None:
    """What is read is what can be used and written again; what cannot is as if it were not there."""
    fuzz.files //= 2
    records, again = Records(host(), tmp_path), Records(host(), tmp_path / "again")
    gemm, values = Gemm("float32"), part()
    key, known = product_words(gemm, values), [*cuts(gemm, host(), values["row1"], values["k"])]
    entries = {
        key: {"choice": known[-1], "microseconds": dict.fromkeys(known, 1.5)},
        "another": {"choice": RULE, "microseconds": {RULE: 7}},
    }
    document = {"format": 1, "machine": "a machine", "products": entries}

    def make(rng: random.Random) -> bytes:
        data = json.dumps(damaged_json(document, rng, NUMBERS)).encode()
        return damaged(data, rng, [b"{", b"}", b"1e999", b"null"]) if rng.random() < 0.3 else data

    def read(data: bytes) -> dict[str, Record]:
        records.path.write_bytes(data)
        Tuner(records, host()).cut(gemm, values)
        return records.read()

    def check(data: bytes, found: dict[str, Record]) -> None:
        again.path.unlink(missing_ok=True)
        again.add(found)
        assert again.read() == found

    records.add({})
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
