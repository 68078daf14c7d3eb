from __future__ import annotations

import json
import math
import random
import time
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.storage.formats.plain_json import (
    JSON_BYTES,
    JSON_DEPTH,
    decode,
    encode,
    from_plain,
    seal,
    to_plain,
    unseal,
)
from tests.fuzz.harness import bounded_memory

DOCUMENT: dict[str, Any] = {
    "format": "test",
    "version": 1,
    "text": 'quote " and [bracket], ä, \u2028, \ud800',
    "number": 0.1,
    "large": 2**64 - 1,
    "nested": {"list": [1, None, True, [], {}], "": "empty name"},
}


def test_encoding_is_json_of_one_line_a_field() -> None:
    data = encode(DOCUMENT)
    assert json.loads(data) == DOCUMENT == decode(data, "f")
    assert data.isascii() and data.endswith(b"\n}\n")
    assert data.count(b"\n") == len(DOCUMENT) + 2


def test_sealed_document_comes_back_less_what_every_file_has() -> None:
    fields = {k: v for k, v in DOCUMENT.items() if k not in ("format", "version")}
    assert unseal(seal(DOCUMENT), "f", "test", 1) == fields


def test_every_changed_byte_breaks_the_seal() -> None:
    data = seal(DOCUMENT)
    rng = random.Random(1)
    for i in range(len(data)):
        changed = bytearray(data)
        changed[i] ^= 1 << rng.randrange(8)
        with pytest.raises(CheckpointError, match="f: "):
            unseal(bytes(changed), "f", "test", 1)
    for change in (b" " + data, data + b"\n", data[:-1], data.replace(b": ", b":", 1)):
        with pytest.raises(CheckpointError, match="damaged or edited: expected checksum"):
            unseal(change, "f", "test", 1)


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return f'{{"a": {opening * (depth - 1)}{closing * (depth - 1)}}}'.encode()


BAD = {
    "empty": (b"", "expected plain JSON"),
    "no JSON": (b"\x80\x04K\x01.", "expected plain JSON"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "expected plain JSON"),
    "list": (b"[]", "expected a JSON object, got list"),
    "number": (b"1", "expected a JSON object, got int"),
    "two": (b"{} {}", "expected plain JSON"),
    "twice": (b'{"a": 1, "a": 2}', "the name 'a' twice"),
    "twice within": (b'{"b": {"a": 1, "\\u0061": 2}}', "the name 'a' twice"),
    "NaN": (b'{"a": NaN}', "the constant NaN"),
    "infinity": (b'{"a": [-Infinity]}', "the constant -Infinity"),
    "overflow": (b'{"a": 1e999}', "the number 1e999"),
    "digits": (b'{"a": 1%s}' % (b"0" * 5000), "expected plain JSON"),
    "deep": (nested(JSON_DEPTH + 1), f"expected JSON of at most {JSON_DEPTH} levels, got 65"),
    "deep objects": (b'{"a":' * 10**5, "expected JSON of at most 64 levels, got 100000"),
    "open string": (b'{"a": "' + b'\\"' * 10**5, "expected plain JSON"),
    "many strings": (b'{"' + b'""' * 10**5, "expected plain JSON"),
    "comment": (b'{"a": 1 /* */}', "expected plain JSON"),
    "control": (b'{"a": "\n"}', "expected plain JSON"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD)
def test_bad_json_is_one_clear_line_and_quick(data: bytes, message: str) -> None:
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        decode(data, "some/file")
    assert time.process_time() - start < 1.0  # quadratic time would be minutes
    assert str(caught.value).startswith("some/file: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_limits_let_what_is_allowed_pass() -> None:
    assert decode(nested(JSON_DEPTH), "f")
    assert decode(b'{"a": "[[[[%s"}' % (b"[{" * 1000), "f")  # brackets in a string do not nest
    assert decode(b"{}", "f", limit=2) == {}
    with pytest.raises(CheckpointError, match="expected at most 2 bytes of JSON, got 3"):
        decode(b"{ }", "f", limit=2)


FORMATS = {
    "foreign": ({"format": "onnx", "version": 1}, "expected format 'test', got 'onnx'"),
    "none": ({}, "expected format 'test', got None"),
    "newer": ({"format": "test", "version": 3}, "written by a newer magmadnn: version 3"),
    "zero": ({"format": "test", "version": 0}, "expected version 1 to 2, got 0"),
    "bool": ({"format": "test", "version": True}, "expected version 1 to 2, got True"),
    "text": ({"format": "test", "version": "1"}, "expected version 1 to 2, got '1'"),
}


@pytest.mark.parametrize(("document", "message"), FORMATS.values(), ids=FORMATS)
def test_other_formats_and_versions_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        unseal(seal(document), "f", "test", 2)


PLAIN: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    0.1,
    -0.0,
    5e-324,
    "ä\n",
    [],
    {},
    [[1], {"a": []}],
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_come_back_exactly(value: Any) -> None:
    back = from_plain(decode(encode({"v": to_plain(value, "v")}), "f")["v"])
    assert back == value and type(back) is type(value) and str(back) == str(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_come_back_and_the_file_is_valid_json(value: float) -> None:
    data = encode({"v": to_plain([{"loss": value}], "v")})
    json.loads(data, parse_constant=lambda text: pytest.fail(text))
    back = from_plain(decode(data, "f")["v"])
    assert str(back) == str([{"loss": value}])


def test_what_looks_like_nan_but_is_not_stays() -> None:
    for value in ({"$float": "1.5"}, {"$float": [1]}, {"$float": "nan", "b": 1}):
        assert from_plain(value) == value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NOT_PLAIN = [
    ((1, 2), r"record\['a'\]\[0\]: expected .* got tuple"),
    (b"x", "got bytes"),
    (1j, "got complex"),
    (2**64, "must fit in 64 bits, got one of 65"),
    (1 << 20000, "must fit in 64 bits"),
    (CYCLE, "nested deeper than 60 levels, or within itself"),
    ({1: 2}, "a name must be a str .* got 1"),
    ({"$float": "nan"}, r"a name must be a str other than '\$float'"),
    (print, "got builtin_function_or_method"),
]


@pytest.mark.parametrize(("value", "message"), NOT_PLAIN, ids=range(len(NOT_PLAIN)))
def test_other_values_are_named_by_their_path(value: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        to_plain({"a": [value]}, "record")


def test_the_deepest_that_is_taken_can_be_read() -> None:
    value: Any = 1
    for _ in range(JSON_DEPTH - 4):
        value = [value]
    data = encode({"record": to_plain(value, "record")})
    assert from_plain(decode(data, "f")["record"]) == value
    with pytest.raises(ArgumentError):
        to_plain([value], "record")


def test_ten_million_empty_objects_are_refused_before_they_are_made() -> None:
    for piece in (b"{},", b"[],", b"[0],", b'{"a":0},'):
        data = b'{"a": [' + piece * ((JSON_BYTES - 100) // len(piece)) + b"0]}"
        with bounded_memory(400 << 20), pytest.raises(CheckpointError, match="objects and lists"):
            decode(data, "f")


def test_integers_have_64_bits() -> None:
    assert decode(b'{"a": [18446744073709551615, -9223372036854775808]}', "f") == {
        "a": [2**64 - 1, -(2**63)]
    }
    for number in (2**64, -(2**63) - 1, 10**4000, 10**100_000):
        digits = b"9" * 100_000 if number > 10**5000 else str(number).encode()
        with pytest.raises(CheckpointError, match="which has more than 64 bits") as caught:
            decode(b'{"a": ' + digits + b"}", "f")
        assert len(str(caught.value)) < 300
