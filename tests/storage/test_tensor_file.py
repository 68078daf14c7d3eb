from __future__ import annotations

import json
import random
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.errors import ArgumentError, CheckpointError, DTypeError
from magmadnn.storage.formats.tensor_file import (
    Array,
    check_header,
    dtype_of,
    little_endian_bytes,
    plain_array,
    tensors_from_bytes,
    tensors_to_bytes,
)

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
]
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (0, 3), (2, 3, 5, 1)]


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Random bits of this dtype: negative zeros, NaN payloads and extremes included."""
    kind = dtype_of(dtype)
    count = int(np.prod(shape))
    raw = np.random.default_rng(seed).integers(0, 256, count * kind.itemsize, np.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    return raw.view(kind).reshape(shape)


def same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


# --- writing and reading -----------------------------------------------------------------------


def test_every_dtype_and_shape_comes_back_bit_for_bit() -> None:
    tensors = {f"{d} {s}": sample(d, s, i) for i, d in enumerate(DTYPES) for s in SHAPES}
    back = tensors_from_bytes(tensors_to_bytes(tensors), "f")
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        assert same(back[name], array), name
        assert back[name].flags.writeable and back[name].flags.c_contiguous


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_layouts_come_back_in_order(dtype: str) -> None:
    base = sample(dtype, (6, 5))
    layouts = {
        "transposed": base.T,
        "reversed": base[::-1, ::-2],
        "fortran": np.asfortranarray(base),
        "broadcast": np.broadcast_to(base[0], (3, 5)),
        "read-only": base[1:4],
    }
    layouts["read-only"].flags.writeable = False
    back = tensors_from_bytes(tensors_to_bytes(layouts), "f")
    for name, array in layouts.items():
        assert same(back[name], np.array(array, order="C")), name


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">f2", ">u2"])
def test_the_other_byte_order_comes_back_by_value(dtype: str) -> None:
    array = np.arange(-3 if dtype[1] != "u" else 3, 7).astype(dtype)
    back = tensors_from_bytes(tensors_to_bytes({"a": array}), "f")["a"]
    assert np.array_equal(back, array) and back.dtype.isnative
    assert (
        little_endian_bytes(plain_array(array, "a"))
        == array.astype(dtype.replace(">", "<")).tobytes()
    )


def test_bytes_depend_on_the_tensors_only() -> None:
    tensors = {name: sample("float32", (3, 5), i) for i, name in enumerate("abcdef")}
    assert tensors_to_bytes(tensors) == tensors_to_bytes(dict(reversed(tensors.items())))
    assert tensors_from_bytes(tensors_to_bytes({}), "f") == {}


def test_another_reader_of_the_format_reads_it() -> None:
    from safetensors.numpy import load

    array = sample("float32", (3, 5))
    assert same(load(tensors_to_bytes({"a": array}))["a"], array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1j]),
        np.array(["a"]),
        np.array([object()]),
        np.array([1.0], dtype=np.longdouble),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, ml_dtypes.float8_e4m3fn),
    ],
)
def test_other_dtypes_are_refused(array: Array) -> None:
    with pytest.raises(DTypeError, match=r"tensor 'w': expected one of bool, uint8, .* got dtype"):
        tensors_to_bytes({"w": array})


@pytest.mark.parametrize("name", ["", "__metadata__", "a\nb", "\x1b[2J", "\ud800", 5])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a printable name"):
        tensors_to_bytes({name: np.zeros(2)})


# --- hostile files -----------------------------------------------------------------------------


def pack(header: object, values: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + values


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


EIGHT = bytes(range(8))
HOSTILE = {
    "empty": (b"", "expected a safetensors header of at most 0 bytes"),
    "seven bytes": (b"\0" * 7, "truncated or foreign"),
    "no header": (b"\0" * 8, "expected plain JSON"),
    "pickle": (b"\x80\x04\x95\x1a" + b"\0" * 40, "truncated or foreign"),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "truncated or foreign"),
    "huge length": (pack({}, length=2**64 - 1), "got 18446744073709551615"),
    "length just too large": (pack({}, length=3), "header of at most 2 bytes, got 3"),
    "length over the limit": (pack(b" " * 2**24 + b"{}"), "truncated or foreign"),
    "short length": (pack({"a": entry()}, EIGHT, length=5), "expected plain JSON"),
    "list": (pack([]), "expected a JSON object, got list"),
    "not UTF-8": (pack(b'{"\xff": 1}'), "expected plain JSON"),
    "deep": (pack(b'{"a":' * 9999 + b"1" + b"}" * 9999), "at most 64 levels, got 9999"),
    "same name twice": (
        pack(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), EIGHT),
        "the name 'a' twice",
    ),
    "metadata no texts": (pack({"__metadata__": {"a": 1}}), "expected texts in __metadata__"),
    "metadata no object": (pack({"__metadata__": "a"}), "expected texts in __metadata__"),
    "entry no object": (pack({"a": [0, 8]}, EIGHT), "expected dtype, shape and data_offsets"),
    "field missing": (pack({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "expected dtype, shape"),
    "field too many": (pack({"a": {**entry(), "file": "/etc"}}, EIGHT), "expected dtype, shape"),
    "unknown dtype": (pack({"a": entry("F8_E5M2")}, EIGHT), "expected a dtype of BOOL, U8"),
    "complex": (pack({"a": entry("C64", [1])}, EIGHT), "expected a dtype of BOOL, U8"),
    "dtype no text": (pack({"a": entry(["F32"])}, EIGHT), "expected a dtype of BOOL, U8"),
    "negative size": (pack({"a": entry(shape=[-2])}, EIGHT), "expected a shape of sizes"),
    "two negative sizes": (pack({"a": entry(shape=[-2, -1])}, EIGHT), "expected a shape of sizes"),
    "size a float": (pack({"a": entry(shape=[2.0])}, EIGHT), "expected a shape of sizes"),
    "size a bool": (pack({"a": entry(shape=[2, True])}, EIGHT), "expected a shape of sizes"),
    "size too large": (pack({"a": entry(shape=[2**63])}, EIGHT), "expected a shape of sizes"),
    "shape a number": (pack({"a": entry(shape=2)}, EIGHT), "expected a shape of sizes"),
    "shape null": (pack({"a": entry(shape=None)}, EIGHT), "expected a shape of sizes"),
    "65 axes": (pack({"a": entry(shape=[1] * 65, offsets=[0, 4])}, EIGHT[:4]), "expected a shape"),
    "product wraps to 8": (
        pack({"a": entry("U8", [2**32, 2**32 - 1, 2**3], [0, 8])}, EIGHT),
        r"expected fewer than 2\*\*63 bytes",
    ),
    "zero times huge": (
        pack({"a": entry("U8", [0, 2**62, 2**62], [0, 0])}),
        r"expected fewer than 2\*\*63 bytes",
    ),
    "offsets negative": (pack({"a": entry(offsets=[-8, 0])}, EIGHT), "expected two byte offsets"),
    "offsets swapped": (pack({"a": entry(offsets=[8, 0])}, EIGHT), "expected 8 bytes for F32"),
    "three offsets": (pack({"a": entry(offsets=[0, 4, 8])}, EIGHT), "expected two byte offsets"),
    "offsets null": (pack({"a": entry(offsets=None)}, EIGHT), "expected two byte offsets"),
    "offset too large": (pack({"a": entry(offsets=[0, 2**64])}, EIGHT), "which has more than 64 bits"),
    "too few bytes": (pack({"a": entry(shape=[3])}, EIGHT), "expected 12 bytes for F32"),
    "gap at the start": (pack({"a": entry(shape=[1], offsets=[4, 8])}, EIGHT), "or leave a gap"),
    "gap": (
        pack({"a": entry("U8", [2], [0, 2]), "b": entry("U8", [5], [3, 8])}, EIGHT),
        "tensor 'b': expected its bytes from 2, got 3",
    ),
    "overlap": (
        pack({"a": entry("U8", [5], [0, 5]), "b": entry("U8", [5], [3, 8])}, EIGHT),
        "tensor 'b': expected its bytes from 5, got 3; they overlap",
    ),
    "same bytes twice": (pack({"a": entry(), "b": entry()}, EIGHT), "they overlap"),
    "values missing": (pack({"a": entry()}, EIGHT[:7]), "expected 8 bytes of values, got 7"),
    "something appended": (pack({"a": entry()}, EIGHT + b"PK"), "expected 8 bytes of values, got 10"),
    "bool of two": (pack({"a": entry("BOOL", [8])}, EIGHT), "a bool must be stored as 0 or 1"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_one_clear_line(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        tensors_from_bytes(data, "some/file")
    assert str(caught.value).startswith("some/file")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_valid_oddities_are_read() -> None:
    header = {
        "__metadata__": {"format": "np"},
        "empty": entry("F64", [0, 7], [3, 3]),
        "b": entry("U8", [], [2, 3]),
        "a": entry("U8", [2, 1], [0, 2]),
    }
    back = tensors_from_bytes(pack(json.dumps(header).encode() + b"   ", EIGHT[:3]), "f")
    assert {name: array.shape for name, array in back.items()} == {
        "empty": (0, 7),
        "b": (),
        "a": (2, 1),
    }
    assert back["b"] == 2


def test_mutated_files_are_read_or_refused_and_nothing_else() -> None:
    """What the checks let pass, the library takes: it never has to refuse."""
    whole = tensors_to_bytes({"a": sample("float32", (2, 3)), "b": sample("bool", (5,))})
    pieces = [
        b"-",
        b"9",
        b"[",
        b"]",
        b'"',
        b"{",
        b"}",
        b",",
        b"F64",
        b"null",
        b"1e9",
        b"\xff",
        b"a",
        b"",
    ]
    rng = random.Random(3)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(data))
            data[at : at + rng.choice([0, 1, 1, 2])] = rng.choice(pieces)
        if rng.random() < 0.5:  # keep the length right, so that more than the first check works
            end = data.rfind(b"}") + 1
            data[:8] = struct.pack("<Q", max(0, end - 8))
        try:
            check_header(bytes(data), "f")
        except CheckpointError:
            refused += 1
            continue
        try:
            tensors_from_bytes(bytes(data), "f")
        except CheckpointError as error:
            assert "a bool must be" in str(error)
    assert 1000 < refused < 3000


def test_a_stricter_library_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors

    def refuse(data: bytes) -> Any:
        raise safetensors.SafetensorError("not like this")

    monkeypatch.setattr(safetensors, "deserialize", refuse)
    with pytest.raises(CheckpointError, match="f: not a valid safetensors file: not like this"):
        tensors_from_bytes(tensors_to_bytes({}), "f")
