from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.errors import ArgumentError, CheckpointError, DTypeError, FileError
from magmadnn.storage import checkpoint
from magmadnn.storage.checkpoint import (
    CheckpointStore,
    State,
    load_state,
    parameters_sha256,
    save_state,
)
from magmadnn.storage.durable import read_folder, write_folder
from magmadnn.storage.formats.tensor_file import tensors_to_bytes

pytestmark = pytest.mark.usefixtures("quick_sync")


def state(step: int = 7) -> State:
    rng = np.random.default_rng(step)
    return State(
        {
            "dense_1/weight": rng.normal(size=(3, 5)).astype(np.float32).T,
            "dense_1/bias": rng.normal(size=5).astype(ml_dtypes.bfloat16),
            "half": rng.normal(size=(2, 3)).astype(np.float16),
            "count": np.array(step, np.uint64),
            "mask": np.array([True, False, True]),
            "none": np.zeros((0, 7), np.int8),
        },
        {
            "step": step,
            "epoch": 1,
            "settings": {"lr": 0.1, "seed": 2**64 - 1, "name": "Größe", "early": None},
            "history": [{"loss": 0.1 + 0.2, "ok": True}, {"loss": math.nan, "ok": False}],
        },
    )


def same(a: State, b: State) -> bool:
    return (
        list(a.tensors) == list(b.tensors)
        and all(
            x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()
            for x, y in zip(a.tensors.values(), b.tensors.values(), strict=True)
        )
        and repr(a.record) == repr(b.record)  # NaN is not equal to itself
    )


# --- save and load -----------------------------------------------------------------------------


def test_state_comes_back_exactly(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state())
    assert same(load_state(tmp_path / "s"), state())


def test_loaded_arrays_can_be_written_and_live_alone(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state())
    first, second = load_state(tmp_path / "s"), load_state(tmp_path / "s")
    first.tensors["half"][...] = 0
    assert same(second, state())


def test_record_is_plain_json_with_format_and_version(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state(), step=7, best=True)
    document = json.loads((tmp_path / "s" / "record.json").read_text())
    assert (document["format"], document["version"]) == ("magmadnn-checkpoint", 1)
    assert (document["step"], document["best"]) == (7, True)
    assert document["tensors"]["dense_1/bias"] == {"dtype": "bfloat16", "shape": [5]}
    assert document["record"]["settings"] == state().record["settings"]


def test_saving_twice_needs_replace(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state(1))
    with pytest.raises(FileError, match="exists already"):
        save_state(tmp_path / "s", state(2))
    assert same(load_state(tmp_path / "s"), state(1))
    save_state(tmp_path / "s", state(2), replace=True)
    assert same(load_state(tmp_path / "s"), state(2))


def test_what_cannot_be_saved_leaves_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(tmp_path / "s", state())
    monkeypatch.setattr(checkpoint, "JSON_BYTES", 5000)
    bad: list[tuple[State, type[Exception], str]] = [
        (State({}, {"a": (1, 2)}), ArgumentError, r"record\['a'\]: expected None, bool"),
        (State({}, {"a": np.float32(1)}), ArgumentError, r"got float32"),
        (State({}, {"a": "x" * 5000}), ArgumentError, "record: expected at most 5000 bytes"),
        (State({"w": np.array("text")}, {}), DTypeError, "tensor 'w': expected one of bool"),
        (State({"": np.zeros(1)}, {}), ArgumentError, "expected a printable name"),
    ]
    for one, kind, message in bad:
        with pytest.raises(kind, match=message):
            save_state(tmp_path / "s", one, replace=True)
    assert same(load_state(tmp_path / "s"), state())


# --- damage ------------------------------------------------------------------------------------


def test_every_byte_is_guarded(tmp_path: Path) -> None:
    """One flipped bit in each byte of each file is found, and the message names the file."""
    save_state(tmp_path / "s", State({"w": np.arange(41.0) + 0.1}, {"step": 7}))
    rng, flips = random.Random(11), 0
    for path in (tmp_path / "s").iterdir():
        whole = path.read_bytes()
        for i in range(len(whole)):
            flipped = bytearray(whole)
            flipped[i] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=path.name):
                load_state(tmp_path / "s")
            flips += 1
        path.write_bytes(whole)
    assert load_state(tmp_path / "s").record == {"step": 7}
    assert flips > 900


def forge(folder: Path, record: dict[str, Any] | bytes | None = None, **tensors: bytes) -> None:
    """A folder whose checksums are right, with a content of one's own."""
    save_state(folder, state(), replace=True)
    files: dict[str, Any] = read_folder(folder)
    if isinstance(record, dict):
        files["record.json"] = json.dumps(
            {**json.loads(files["record.json"]), **record}, allow_nan=False
        ).encode()
    elif record is not None:
        files["record.json"] = record
    files["tensors.safetensors"] = tensors.get("tensors", files["tensors.safetensors"])
    write_folder(folder, files, replace=True)


FORGED: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "foreign": ({"format": "other"}, "expected format 'magmadnn-checkpoint', got 'other'"),
    "newer": ({"version": 2}, "written by a newer magmadnn: version 2 .* update magmadnn"),
    "not JSON": (b"\x80\x04]q\x00.", "expected plain JSON"),
    "no record": ({"record": None}, "record: expected an object, got None"),
    "record a list": ({"record": []}, r"record: expected an object, got \[\]"),
    "record a number": ({"record": {"$float": "nan"}}, "record: expected an object, got nan"),
    "step a text": ({"step": "7"}, "step: expected an integer from 0 to 9+ or null, got '7'"),
    "best a number": ({"best": 2}, "best: expected true or false, got 2"),
    "tensors a list": ({"tensors": []}, "tensors: expected an object, got"),
    "no tensors": ({"tensors": {}}, r"tensor 'count': expected None as in record\.json"),
    "fields missing": (b'{"format": "magmadnn-checkpoint", "version": 1}', "a field 'step'"),
}


@pytest.mark.parametrize(("record", "message"), FORGED.values(), ids=FORGED)
def test_forged_records_are_refused(
    tmp_path: Path, record: dict[str, Any] | bytes, message: str
) -> None:
    forge(tmp_path / "s", record)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_state(tmp_path / "s")
    assert "\n" not in str(caught.value)


FORGED_TENSORS = {
    "truncated": (b"\0" * 4, "truncated or foreign"),
    "none": (tensors_to_bytes({}), r"tensor 'count': expected .*uint64.*, got None"),
    "other dtype": (
        tensors_to_bytes({**state().tensors, "half": np.zeros((2, 3), np.int16)}),
        r"tensor 'half': expected .*float16.* as in record\.json, got .*int16",
    ),
    "one more": (tensors_to_bytes({**state().tensors, "x": np.zeros(1)}), "'x': expected None"),
}


@pytest.mark.parametrize(("tensors", "message"), FORGED_TENSORS.values(), ids=FORGED_TENSORS)
def test_forged_tensors_are_refused(tmp_path: Path, tensors: bytes, message: str) -> None:
    forge(tmp_path / "s", tensors=tensors)
    with pytest.raises(CheckpointError, match=message):
        load_state(tmp_path / "s")


def test_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "s", {"other.txt": b"1"})
    with pytest.raises(CheckpointError, match=r"has no 'tensors.safetensors'"):
        load_state(tmp_path / "s")


EXPECT: dict[str, tuple[tuple[int, ...], Any]] = {
    "dense_1/weight": ((5, 3), "float32"),
    "dense_1/bias": ((5,), "bfloat16"),
    "half": ((2, 3), np.float16),
    "count": ((), np.dtype("uint64")),
    "mask": ((3,), bool),
    "none": ((0, 7), np.int8),
}


def test_expected_shapes_and_dtypes(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state())
    assert same(load_state(tmp_path / "s", EXPECT), state())
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"dense_1/weight": ((3, 5), "float32")},
            r"tensor 'dense_1/weight': expected shape \(3, 5\) float32, got shape \(5, 3\) float32; build",
        ),
        ({"dense_1/bias": ((5,), "float16")}, r"expected shape \(5,\) float16, got .* bfloat16"),
        ({"new": ((2,), "float32")}, r"expected tensor 'new' of shape \(2,\) float32, got none"),
    ]
    for change, message in wrong:
        with pytest.raises(CheckpointError, match=message):
            load_state(tmp_path / "s", {**EXPECT, **change})
    fewer = {name: one for name, one in EXPECT.items() if name != "mask"}
    with pytest.raises(CheckpointError, match="tensor 'mask' is not expected by this model"):
        load_state(tmp_path / "s", fewer)


AUDITED = """
import sys
from pathlib import Path
from magmadnn.storage.checkpoint import CheckpointStore, load_state
folder = Path(sys.argv[1])
load_state(folder / "s")  # loads the libraries
seen = []
sys.addaudithook(lambda event, arguments: seen.append((event, arguments[:1])))
CheckpointStore(folder, note=lambda note: None).latest()
load_state(folder / "s")
for broken in ("bad record", "bad tensors"):
    try:
        load_state(folder / broken)
    except Exception as error:
        seen.append(("raised", [type(error).__name__]))
allowed = {"open", "os.scandir", "os.listdir", "raised", "object.__getattr__"}
events = {event for event, _ in seen}
opened = [str(what[0]) for event, what in seen if event == "open" and type(what[0]) is not int]
print(sorted(events - allowed), len(opened), [p for p in opened if str(folder) not in p])
print([what[0] for event, what in seen if event == "raised"])
"""


def test_loading_runs_imports_and_opens_nothing_else(tmp_path: Path) -> None:
    save_state(tmp_path / "s", state())
    CheckpointStore(tmp_path).save(3, state(3))
    forge(tmp_path / "bad record", {"format": "other"})
    forge(tmp_path / "bad tensors", tensors=b"\0" * 9)
    result = subprocess.run(
        [sys.executable, "-c", AUDITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    first, second = result.stdout.splitlines()
    assert first.startswith("[] ") and first.endswith(" []"), first
    assert int(first.split()[1]) > 8
    assert second == "['CheckpointError', 'CheckpointError']"


def test_the_loader_contains_no_way_to_run_code() -> None:
    folder = Path(checkpoint.__file__).parent
    files = sorted(folder.rglob("*.py"))
    assert {"checkpoint", "durable", "plain_json", "tensor_file"} <= {file.stem for file in files}
    for file in files:
        source = file.read_text()
        for word in (
            "pickle",
            "marshal",
            "eval(",
            "exec(",
            "import_module",
            "__import__",
            "getattr(magma",
        ):
            assert word not in source, f"{file.name}: {word}"


# --- the digest of the parameters --------------------------------------------------------------


def test_digest_is_what_is_documented() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3).T
    text = (
        b'magmadnn-parameters 1\n["w","float32",[3,2]]\n'
        + np.array([0, 3, 1, 4, 2, 5], "<f4").tobytes()
    )
    text += b'["gr\\u00f6\\u00dfe","bfloat16",[]]\n\xc0\x3f'
    named = [("w", weight), ("größe", np.array(1.5, ml_dtypes.bfloat16))]
    assert parameters_sha256(named) == hashlib.sha256(text).hexdigest()
    assert parameters_sha256(iter(named)) == parameters_sha256(named)
    assert parameters_sha256([]) == hashlib.sha256(b"magmadnn-parameters 1\n").hexdigest()


def test_digest_depends_on_all_that_counts_and_nothing_else() -> None:
    w = np.array([[0.5, 1.5, 0.0]], np.float32)
    base = parameters_sha256([("a", w), ("b", w[0])])
    copy = np.asfortranarray(w.astype(">f4"))
    assert parameters_sha256([("a", copy), ("b", copy[0])]) == base
    others = [
        [("b", w[0]), ("a", w)],
        [("a", w)],
        [("c", w), ("b", w[0])],
        [("a", w.T), ("b", w[0])],
        [("a", w.view(np.int32)), ("b", w[0])],
        [("a", w * np.float32(-1) * np.float32(-1) - np.float32(0)), ("b", w[0] * -1)],
        [("a", np.array([[0.5, 1.5, -0.0]], np.float32)), ("b", w[0])],
        [("a", np.nextafter(w, np.float32(2))), ("b", w[0])],
    ]
    digests = {parameters_sha256(other) for other in others}
    assert base not in digests and len(digests) == len(others)
    with pytest.raises(DTypeError, match="parameter 'a'"):
        parameters_sha256([("a", np.array("x"))])
