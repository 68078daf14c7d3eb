"""Checkpoints: everything a training step depends on, as arrays and plain data, and nothing that can run.

A checkpoint is a folder of three files (docs/reference/file-formats.md): `tensors.safetensors`, `record.json`
and the manifest with the checksums. `CheckpointStore` keeps those of one run under `checkpoints/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from magmadnn.errors import ArgumentError, CheckpointError, FileError, quoted, shown

from . import printing
from .disk import as_path, is_folder, is_there
from .durable import (
    clean_leftovers,
    folder_names,
    read_file,
    read_folder,
    remove_folder,
    write_file,
    write_folder,
)
from .formats.plain_json import (
    JSON_BYTES,
    check_format,
    decode,
    encode,
    excess,
    from_plain,
    seal,
    to_plain,
    unseal,
)
from .formats.plain_schema import Anything, Fields, Flag, Many, Table, Text, Whole, check, maybe
from .formats.tensor_file import (
    Array,
    dtype_of,
    little_endian_bytes,
    plain_array,
    tensors_from_bytes,
    tensors_to_bytes,
)
from .pieces import PIECES, ReadParts, are_whole, pieces_of

Expected = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
"""Tensor name -> the shape and dtype that it must have."""

_TENSORS, _RECORD, _LATEST = "tensors.safetensors", "record.json", "latest.json"
_FORMAT, _POINTER_FORMAT, _VERSION = "magmadnn-checkpoint", "magmadnn-latest", 1
_FIELDS = Table(Anything())
_DOCUMENT = Fields(
    {
        "format": Text(),
        "version": Whole(),
        "step": maybe(Whole(0, 10**18 - 1)),
        "best": Flag(),
        "tensors": Table(Fields({"dtype": Text(40), "shape": Many(Whole(0, 2**63 - 1), most=64)})),
        "record": _FIELDS,
    },
    {"pieces": PIECES},
    others=Anything(),
)
_POINTER = Fields(
    {"step": Whole(0, 10**18 - 1), "best": maybe(Whole(0, 10**18 - 1))}, others=Anything()
)
_STEP = re.compile(r"step-([0-9]{8,18})")

CHECKPOINTS = "checkpoints"  # the folder in that of a run


@dataclass(frozen=True, eq=False)
class State:
    """What a checkpoint holds.

    Attributes:
        tensors: name -> array: bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64.
        record: None, bool, int, float, str, list and dict with str names, nested; NaN is allowed.
    """

    tensors: dict[str, Array]
    record: dict[str, Any]


def save_state(
    folder: str | os.PathLike[str],
    state: State,
    *,
    replace: bool = False,
    step: int | None = None,
    best: bool = False,
) -> None:
    """Writes `state` as one folder, durably and in one step.

    Args:
        folder: where; must not exist or be empty, unless `replace`.
        state: the arrays and the record.
        replace: whether a folder that was saved before may be replaced.
        step: the training step, for a checkpoint of a run.
        best: whether this is the best of its run so far.

    Raises:
        ArgumentError: the record holds something that JSON cannot give back, or is too large.
        DTypeError: an array that the file does not hold.
        FileError: it cannot be written; what was there before is still there.
    """
    record = to_plain(state.record, "record")
    arrays = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in state.tensors.items()
    }
    values = tensors_to_bytes(state.tensors)
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "step": step,
        "best": best,
        "tensors": arrays,
        "record": record,
    }
    if step is not None:
        document["pieces"] = pieces_of(values)
    text = encode(document)
    if (found := excess(text, JSON_BYTES)) is not None:
        raise ArgumentError(f"record: expected {found}")
    files = {_TENSORS: values, _RECORD: text}
    write_folder(folder, files, replace=replace)


def load_state(folder: str | os.PathLike[str], expect: Expected | None = None) -> State:
    """Reads what `save_state` wrote; everything is checked before anything is returned.

    Args:
        folder: the checkpoint.
        expect: name -> (shape, dtype) of every tensor that must be there; None takes what there is.

    Raises:
        CheckpointError: damaged, foreign, of a newer version, or not what is expected.
        FileError: it is not there or cannot be read.
    """
    where = Path(folder)
    return _decode(read_folder(where, only=(_TENSORS, _RECORD)), where, expect)


def parameters_sha256(named: Iterable[tuple[str, Array]]) -> str:
    """SHA-256, in hex, of names and values in this order; equal only for bit-identical values.

    The digest is over the line `magmadnn-parameters 1`, then for each array one line of JSON
    `["name", "dtype", [sizes]]` (ASCII, no spaces) and the values, little-endian in C order. A line ends
    with one newline.

    Args:
        named: (name, array) in the order that counts, for instance a model's trained parameters.

    Raises:
        DTypeError: an array of a dtype that files do not hold.
    """
    digest = hashlib.sha256(b"magmadnn-parameters 1\n")
    for name, array in named:
        plain = plain_array(array, f"parameter {name!r}")
        digest.update(_head(name, plain.dtype, plain.shape))
        digest.update(little_endian_bytes(plain))
    return digest.hexdigest()


@lru_cache(maxsize=1024)  # many models have the same
def _head(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The line before an array's values."""
    return (
        json.dumps([name, dtype.name, list(shape)], separators=(",", ":")).encode("ascii") + b"\n"
    )


class CheckpointStore:
    """The checkpoints of one run: `<run>/checkpoints/step-00001234/` and `latest.json`.

    Kept are the last two and the newest that was saved as the best. A damaged checkpoint is passed over
    for the one before it, with a note.

    Args:
        run_folder: the run's folder.
        note: what is called with each note, one line; None prints it to standard error.

    Attributes:
        begins_anew: whether those that are there are of another training: they go once one of this is saved.
    """

    KEPT = 2

    def __init__(
        self, run_folder: str | os.PathLike[str], note: Callable[[str], None] | None = None
    ) -> None:
        self.folder = as_path("checkpoints: the folder", run_folder) / CHECKPOINTS
        self.begins_anew = False
        self._note = note or _print_note

    def save(self, step: int, state: State, best: bool = False) -> None:
        """Writes the checkpoint of a step, reads it back, points to it, and removes those not kept.

        Checkpoints of later steps are removed too: the run went back behind them, and they would be
        taken for the newest.

        Raises:
            ArgumentError, DTypeError, FileError: as `save_state`; the earlier checkpoints are still there.
            CheckpointError: what was written does not read back; likewise.
        """
        if not 0 <= step < 10**18:
            raise ArgumentError(f"checkpoint: step must be from 0 to 10**18 - 1, got {step}")
        path = self._path(step)
        for name in (path, self.folder / _LATEST):
            if name.is_symlink():  # of a copied folder, to files that are not the run's
                raise FileError(f"cannot write {name}: it is a link; remove it")
        save_state(path, state, replace=True, step=step, best=best)
        _read(path)
        best_step = step if best else None if self.begins_anew else self._best_step(step)
        self._point_to(step, best_step)
        self._prune(step, best_step, 1 if self.begins_anew else self.KEPT)
        self.begins_anew = False

    def latest(
        self, expect: Expected | None = None, read_parts: ReadParts | None = None
    ) -> State | None:
        """The newest checkpoint that is whole, or None if the run has none yet.

        Args:
            expect: as for `load_state`.
            read_parts: what reads and checks the arrays of a folder whose record has the digests of their
                pieces, for ranks that share that; where it gives None they are read here.

        Raises:
            CheckpointError: there are checkpoints, but none is whole; or it is not what is expected.
            FileError: they cannot be read.
        """
        return self._newest(self._steps, self._pointed_to("step"), expect, read_parts)

    def latest_record(self) -> dict[str, Any]:
        """The record of the newest checkpoint whose record is whole, no arrays read; nothing if none is."""
        with suppress(FileError):
            for step in self._steps():
                with suppress(FileError):
                    document = _decode_record(
                        read_folder(self._path(step), (_RECORD,))[_RECORD], self._path(step)
                    )
                    record: dict[str, Any] = from_plain(document["record"])
                    return record
        return {}

    def best(self, expect: Expected | None = None) -> State | None:
        """The newest whole checkpoint that was saved with `best=True`, or None if there is none.

        Raises:
            CheckpointError: there was one, but it is not whole; or it is not what is expected.
            FileError: the checkpoints cannot be read.
        """
        return self._newest(self._best_steps, self._pointed_to("best"), expect)

    def _newest(
        self,
        candidates: Callable[[], list[int]],
        promised: int | None,
        expect: Expected | None,
        read_parts: ReadParts | None = None,
    ) -> State | None:
        """The first of the candidates that is whole; `promised` is the one that should be there."""
        steps, failure = candidates(), None
        if promised is not None and (not steps or steps[0] < promised):
            failure = self._pass_over(
                promised, f"{shown(self._path(promised))}: is missing or damaged"
            )
        for step in steps:
            path = self._path(step)
            try:
                found = None if read_parts is None else _read_by(read_parts, path)
                files = _read(path) if found is None else {}
            except FileError as error:
                failure = self._pass_over(step, str(error), failure)
                continue
            if failure:
                self._note(f"using the checkpoint of step {step}")
            if found is not None:
                return _state_of(*found, path, expect)
            return _decode(files, path, expect)
        if steps != candidates():  # a training at work has saved and removed some meanwhile
            return self._newest(candidates, None, expect, read_parts)
        if failure:
            raise failure
        return None

    def _pass_over(self, step: int, reason: str, failure: FileError | None = None) -> FileError:
        self._note(f"the checkpoint of step {step} is passed over: {reason}")
        return failure or CheckpointError(f"no checkpoint is whole: {reason}")

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or not, newest first."""
        if not is_folder(self.folder):
            return []
        matches = [_STEP.fullmatch(name) for name in folder_names(self.folder)]
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _best_steps(self) -> list[int]:
        return [step for step in self._steps() if self._is_best(step)]

    def _best_step(self, last: int) -> int | None:
        return next((step for step in self._best_steps() if step <= last), None)

    def _is_best(self, step: int) -> bool:
        path = self._path(step)
        try:
            files = read_folder(path, only=(_RECORD,))
            return _decode_record(files[_RECORD], path)["best"] is True
        except CheckpointError:  # damaged
            return False

    def _point_to(self, step: int, best_step: int | None) -> None:
        pointer = {"format": _POINTER_FORMAT, "version": _VERSION, "step": step, "best": best_step}
        write_file(self.folder / _LATEST, seal(pointer))

    def _pointed_to(self, field: str) -> int | None:
        """The step in this field of `latest.json`; None if there is none or it is damaged."""
        path = self.folder / _LATEST
        try:
            if not is_there(path):
                return None
            where = shown(path)
            document = unseal(read_file(path, JSON_BYTES), where, _POINTER_FORMAT, _VERSION)
            check(_POINTER, document, where)
        except FileError as error:
            self._note(f"{error}; going by the checkpoints that are there")
            return None
        step: int | None = document[field]
        return step

    def _prune(self, step: int, best_step: int | None, count: int) -> None:
        steps = self._steps()
        kept = {best_step, *[one for one in steps if one <= step][:count]}
        try:
            for one in steps:
                if one not in kept:
                    remove_folder(self._path(one))
            clean_leftovers(self.folder)
        except FileError as error:  # the new checkpoint is safe; only space is lost
            self._note(str(error))


def _print_note(note: str) -> None:
    printing.note(note)


def _read(path: Path) -> dict[str, bytes]:
    return read_folder(path, only=(_TENSORS, _RECORD))


def _decode(files: Mapping[str, bytes], path: Path, expect: Expected | None) -> State:
    """The state in files whose checksums are right."""
    document = _decode_record(files[_RECORD], path)
    found = tensors_from_bytes(files[_TENSORS], shown(path / _TENSORS))
    return _state_of(document, found, path, expect)


def _read_by(read_parts: ReadParts, path: Path) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """The record and the arrays, which several readers have checked; None where they cannot."""
    document = _decode_record(read_folder(path, only=(_RECORD,))[_RECORD], path)
    pieces = document.get("pieces")
    if pieces is None or not are_whole(pieces):
        return None
    found = read_parts(path, _TENSORS, pieces)
    return None if found is None else (document, found)


def _state_of(
    document: dict[str, Any], found: dict[str, Array], path: Path, expect: Expected | None
) -> State:
    """The state of a record and its arrays."""
    where = shown(path / _TENSORS)
    listed = document["tensors"]
    actual = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in found.items()
    }
    if listed != actual:
        names = sorted(name for name in {*listed, *actual} if listed.get(name) != actual.get(name))
        raise CheckpointError(
            f"{where}: tensor {quoted(names[0])}: expected {quoted(listed.get(names[0]), 120)} as in "
            f"{_RECORD}, got {quoted(actual.get(names[0]), 120)}"
        )
    tensors = {name: found[name] for name in listed}
    if expect is not None:
        _check_expected(tensors, expect, where)
    record = from_plain(document["record"])
    check(_FIELDS, record, f"{shown(path / _RECORD)}: record")  # where it was {"$float": "nan"}
    return State(tensors, record)


def _decode_record(data: bytes, path: Path) -> dict[str, Any]:
    where = shown(path / _RECORD)
    document = decode(data, where)
    check_format(document, where, _FORMAT, _VERSION)
    check(_DOCUMENT, document, where)
    return document


def _check_expected(tensors: Mapping[str, Array], expect: Expected, where: str) -> None:
    way_out = "build the model as it was when it was saved"
    for name, (shape, dtype) in expect.items():
        wanted = f"shape {tuple(shape)} {_dtype_name(dtype)}"
        if name not in tensors:
            raise CheckpointError(
                f"{where}: expected tensor {quoted(name)} of {wanted}, got none; {way_out}"
            )
        array = tensors[name]
        got = f"shape {array.shape} {array.dtype.name}"
        if got != wanted:
            raise CheckpointError(
                f"{where}: tensor {quoted(name)}: expected {wanted}, got {got}; {way_out}"
            )
    for name in tensors.keys() - expect.keys():
        raise CheckpointError(
            f"{where}: tensor {quoted(name)} is not expected by this model; {way_out}"
        )


def _dtype_name(dtype: DTypeLike) -> str:
    return (dtype_of(dtype) if isinstance(dtype, str) else np.dtype(dtype)).name
