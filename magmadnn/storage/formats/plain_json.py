"""Plain JSON, read with limits: data only, no deep nesting, no repeated names, format and version.

Every file carries `format` and `version`. A file that stands alone, with no manifest to vouch for it,
is sealed: its last field `sha256` is the SHA-256 of the same file without that field.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, CheckpointError, quoted, shown

JSON_BYTES = 32 * 2**20
JSON_DEPTH = 64
JSON_CONTAINERS = (
    500_000  # objects and lists: an empty one takes 2 letters, and more than 60 bytes of memory
)

_NOT_FINITE = "$float"  # JSON has no NaN or infinity: {"$float": "nan"}, "inf" or "-inf"
_IS_BRACKET = bytes(byte in b"[]{}" for byte in range(256))


def encode(document: Mapping[str, Any]) -> bytes:
    """The document's one spelling: a line for each field, ASCII, its own order, a final newline."""
    # Not `indent`: that takes Python's slow encoder, and a long history takes seconds.
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
        for name, value in document.items()
    ]
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode("ascii")


def decode(data: bytes, where: str, limit: int = JSON_BYTES) -> dict[str, Any]:
    """The JSON object in `data`.

    Args:
        data: the file's bytes.
        where: how messages name the file.
        limit: most bytes that are looked at.

    Raises:
        CheckpointError: too large, too deep, a repeated name, NaN, or not a JSON object.
    """
    if (found := excess(data, limit)) is not None:
        raise CheckpointError(f"{where}: expected {found}")
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_whole,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: expected plain JSON, got {_one_line(error)}; the file is damaged or foreign"
        ) from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{where}: expected a JSON object, got {type(document).__name__}")
    return document


def seal(document: Mapping[str, Any]) -> bytes:
    """The document's bytes with a last field `sha256` over the bytes without it."""
    digest = hashlib.sha256(encode(document)).hexdigest()
    return encode({**document, "sha256": digest})


def unseal(data: bytes, where: str, form: str, version: int) -> dict[str, Any]:
    """The fields of a sealed file, less `format`, `version` and `sha256`.

    Raises:
        CheckpointError: as `decode`; another format or version; a byte was changed.
    """
    document = decode(data, where)
    check_format(document, where, form, version)
    claimed = document.pop("sha256", None)
    actual = hashlib.sha256(encode(document)).hexdigest()
    # Bytes are compared, not only checksums, so that a changed blank is found too.
    if encode({**document, "sha256": actual}) != data:
        raise CheckpointError(
            f"{where}: damaged or edited: expected checksum {quoted(claimed)}, got {actual!r}; "
            "restore the file from a copy"
        )
    return {name: value for name, value in document.items() if name not in ("format", "version")}


def check_format(document: Mapping[str, Any], where: str, form: str, version: int) -> None:
    """Raises `CheckpointError` unless the document is of this format, at most of this version."""
    if document.get("format") != form:
        got = quoted(document.get("format"))
        raise CheckpointError(
            f"{where}: expected format {form!r}, got {got}; not a file of magmadnn's"
        )
    found = document.get("version")
    if type(found) is not int or found < 1:
        raise CheckpointError(f"{where}: expected version 1 to {version}, got {quoted(found)}")
    if found > version:
        raise CheckpointError(
            f"{where}: written by a newer magmadnn: version {found} of {form}, this one reads up to "
            f"{version}; update magmadnn"
        )


def to_plain(value: Any, where: str, depth: int = 1) -> Any:
    """`value` as JSON can hold it: NaN and infinity spelled out, everything else as it is.

    Raises:
        ArgumentError: something that JSON cannot give back exactly, named by its path.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ArgumentError(
                f"{where}: an integer must fit in 64 bits, got one of {value.bit_length()}"
            )
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_NOT_FINITE: str(float(value))}
    if depth > JSON_DEPTH - 4:  # what the file puts around it
        raise ArgumentError(
            f"{where}: nested deeper than {JSON_DEPTH - 4} levels, or within itself"
        )
    if isinstance(value, list):
        return [to_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            _plain_name(name, where): to_plain(item, f"{where}[{name!r}]", depth + 1)
            for name, item in value.items()
        }
    raise ArgumentError(
        f"{where}: expected None, bool, int, float, str, list or dict, got {type(value).__name__}"
    )


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_NOT_FINITE} and value[_NOT_FINITE] in ("nan", "inf", "-inf"):
        return float(value[_NOT_FINITE])
    return {name: from_plain(item) for name, item in value.items()}


def _plain_name(name: object, where: str) -> str:
    if not isinstance(name, str) or name == _NOT_FINITE:
        raise ArgumentError(
            f"{where}: a name must be a str other than {_NOT_FINITE!r}, got {quoted(name)}"
        )
    return name


def excess(data: bytes, limit: int = JSON_BYTES) -> str | None:
    """What makes JSON too large, too deep or too long to be read; None where nothing does."""
    if len(data) > limit:
        return f"at most {limit} bytes of JSON, got {len(data)}"
    # Backslashes stand in strings only; without what they escape, every quote begins or ends one.
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    letters = np.frombuffer(plain, np.uint8)
    in_text = np.add.accumulate(letters == ord('"'), dtype=np.uint8) & 1
    is_bracket = np.frombuffer(plain.translate(_IS_BRACKET), np.bool_)
    brackets = letters[is_bracket & (in_text == 0)]
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    if (count := np.count_nonzero(opening)) > JSON_CONTAINERS:
        return f"JSON of at most {JSON_CONTAINERS} objects and lists, got {count}"
    depth = np.cumsum(np.where(opening, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0)
    return f"JSON of at most {JSON_DEPTH} levels, got {depth}" if depth > JSON_DEPTH else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"the name {quoted(name)} twice")
        document[name] = value
    return document


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:80]}")
    return value


def _whole(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**64
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"the integer {shown(text, 40)}, which has more than 64 bits")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"the constant {text}")


def _one_line(error: Exception) -> str:
    return shown(" ".join(str(error).split()), 200)
