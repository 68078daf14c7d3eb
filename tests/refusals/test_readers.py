"""Files that were damaged, cut short or taken for others: each reader says which, and what to do.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import CheckpointError, DataError, FileError
from tests.refusals.cases import (
    CommandCase,
    PythonCase,
    X,
    Y,
    check_in_python,
    check_on_the_command_line,
    fits,
    network,
    table,
)
from tests.refusals.conftest import make_files

IMAGES = "train-images-idx3-ubyte"
RECORD = bytes([3]) + bytes(3072)
GOES_ON = (
    ": fit goes on with a training by md.callbacks.Checkpoint(folder); model.save writes models"
)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def checkpoint(**more: object) -> md.callbacks.Checkpoint:
    return md.callbacks.Checkpoint("training", signals=False, **more)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All the files, which no test changes."""
    p = tmp_path_factory.mktemp("damaged")
    make_files(p)
    images = (p / "idx" / IMAGES).read_bytes()
    packed = gzip.compress(images, mtime=0)
    for name, data in {
        "gz_cut": packed[:-20],
        "gz_not": images,
        "gz_bit": flipped(packed, 30),
    }.items():
        shutil.copytree(p / "idx", p / name)
        (p / name / IMAGES).unlink()
        (p / name / f"{IMAGES}.gz").write_bytes(data)
    batches = {
        "cifar_cut": {"data_batch_1.bin": RECORD[:-1], "test_batch.bin": RECORD},
        "cifar_label": {"data_batch_1.bin": b"\x0c" + RECORD[1:], "test_batch.bin": RECORD},
        "cifar_missing": {"data_batch_1.bin": RECORD},
        "cifar_xz": {"data_batch_1.bin.xz": lzma.compress(RECORD)[:-9], "test_batch.bin": RECORD},
    }
    for folder, files in batches.items():
        (p / folder).mkdir()
        for name, data in files.items():
            (p / folder / name).write_bytes(data)
    whole = (p / "nan.npz").read_bytes()
    (p / "text.npz").write_text("x,y\n1,2\n")
    (p / "cut.npz").write_bytes(whole[:-30])
    (p / "packed.csv").write_bytes(whole)
    (p / "utf16.csv").write_bytes(table().encode("utf-16"))
    (p / "zero.csv").write_bytes(table().encode().replace(b"wind", b"wi\0nd"))
    np.savez(p / "objects.npz", x=np.array([{}, 1], object), y=np.arange(2))
    with (p / "single.npz").open("wb") as file:
        np.save(file, X)
    network().save(p / "model")
    changes: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "model_cut": ("tensors.safetensors", lambda data: data[:-8]),
        "model_bit": ("tensors.safetensors", lambda data: flipped(data, len(data) - 1)),
        "model_changed": ("record.json", lambda data: data.replace(b"relu", b"gelu")),
    }
    for name, (file_name, change) in changes.items():
        shutil.copytree(p / "model", p / name)
        (p / name / file_name).write_bytes(change((p / name / file_name).read_bytes()))
    shutil.copytree(p / "model", p / "model_part")
    (p / "model_part" / "tensors.safetensors").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(p)
        network().fit(X, Y, epochs=2, verbose=False, callbacks=[checkpoint()])
    return p


@pytest.fixture
def place(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(damaged)
    return damaged


def reads(name: str, text: str) -> PythonCase:
    return lambda p: md.data.load(name), DataError, text


def loads(name: str, text: str) -> PythonCase:
    return lambda p: md.load(name), CheckpointError, text


SUM = "with SHA-256 [0-9a-f]{64}"
DAMAGED = (
    rf"damaged: expected \d+ bytes {SUM}, got \d+ bytes with \w+; use another checkpoint or a copy"
)

PYTHON: dict[str, PythonCase] = {
    "gz: cut": reads(
        "gz_cut",
        f"~gz_cut/{IMAGES}.gz: is cut short: 9 images need 160 bytes, got \\d+: fetch the file again",
    ),
    "gz: not packed": reads(
        "gz_not",
        f"gz_not/{IMAGES}.gz: the gzip data is damaged (incorrect header check): fetch the file again",
    ),
    "gz: a bit": reads(
        "gz_bit", f"~gz_bit/{IMAGES}.gz: the gzip data is damaged \\(.*\\): fetch the file again"
    ),
    "cifar: cut": reads(
        "cifar_cut",
        "cifar_cut/data_batch_1.bin: is cut short or no CIFAR-10 batch: expected a multiple of 3073 bytes, "
        "got 3072: fetch the file again",
    ),
    "cifar: label": reads(
        "cifar_label",
        "cifar_label/data_batch_1.bin: record 0 has the label 12, outside the classes 0..9: it is no "
        "CIFAR-10 batch",
    ),
    "cifar: missing": reads(
        "cifar_missing",
        "cifar_missing: test_batch.bin (plain, .gz, .xz or .bz2) is missing: CIFAR-10 needs test_batch.bin "
        "and at least one data_batch_<number>.bin",
    ),
    "cifar: packed and cut": reads(
        "cifar_xz",
        "cifar_xz/data_batch_1.bin.xz: the packed data is cut short after 3073 bytes: fetch the file again",
    ),
    "npz: text": reads(
        "text.npz", "text.npz: is damaged (File is not a zip file): write or fetch it again"
    ),
    "npz: cut": reads(
        "cut.npz", "cut.npz: is damaged (File is not a zip file): write or fetch it again"
    ),
    "npz: objects": reads(
        "objects.npz",
        "objects.npz: x is no array of numbers (it holds Python objects, which are never loaded): write it "
        "with numpy.savez(file, x=..., y=...)",
    ),
    "npz: one array": reads(
        "single.npz",
        "single.npz: holds a single array, expected an .npz file of named ones: write it with "
        "numpy.savez(file, x=..., y=...)",
    ),
    "csv: packed": reads(
        "packed.csv", "~packed.csv: byte \\d+ is not UTF-8 text: save the table as UTF-8 text"
    ),
    "csv: UTF-16": reads(
        "utf16.csv", "utf16.csv: byte 0 is not UTF-8 text: save the table as UTF-8 text"
    ),
    "csv: zero bytes": reads("zero.csv", "zero.csv: holds zero bytes: it is no text file"),
    "model: cut": loads("model_cut", rf"~{{p}}/model_cut/tensors\.safetensors: {DAMAGED}"),
    "model: a bit": loads("model_bit", rf"~{{p}}/model_bit/tensors\.safetensors: {DAMAGED}"),
    "model: changed": loads("model_changed", rf"~{{p}}/model_changed/record\.json: {DAMAGED}"),
    "model: a part": loads(
        "model_part", "{p}/model_part/tensors.safetensors: is missing; restore it from a copy"
    ),
    "model: checkpoints": loads(
        "training", f"training: holds the checkpoints of a training, not a model{GOES_ON}"
    ),
    "model: one checkpoint": loads(
        "training/checkpoints/step-00000002",
        f"training/checkpoints/step-00000002: holds a state, not a model{GOES_ON}",
    ),
    "model: its file": (
        lambda p: md.load("model/record.json"),
        FileError,
        "cannot read {p}/model/record.json: it is a file, expected a folder; check the path",
    ),
}

COMMAND: dict[str, CommandCase] = {
    "gz: not packed": (
        ("train", "--data", "gz_not"),
        f"{{p}}/gz_not/{IMAGES}.gz: the gzip data is damaged (incorrect header check): fetch the file again",
    ),
    "csv: UTF-16": (
        ("train", "--data", "utf16.csv"),
        "{p}/utf16.csv: byte 0 is not UTF-8 text: save the table as UTF-8 text",
    ),
    "model: not of a run": (
        ("evaluate", "model", "--data", "good.csv"),
        (
            "model: holds a model without the preparation of its data, so it was not saved by magmadnn "
            "train; use it from Python: md.load"
        ),
    ),
    "model: checkpoints": (
        ("summary", "training"),
        f"training: holds the checkpoints of a training, not a model{GOES_ON}",
    ),
    "checkpoint: a model": (
        ("train", "--resume", "model"),
        "model: expected a run's folder, got none with a run.json; check the path",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    act, error, text = PYTHON[name]
    check_in_python(place, (act, error, text.replace("{p}", str(place))))


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    check_on_the_command_line(place, capsys, COMMAND[name])


def test_a_training_of_which_no_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is damaged is passed over with a note; when all are, nothing is trained."""
    monkeypatch.chdir(tmp_path)
    network().fit(X, Y, epochs=2, verbose=False, callbacks=[checkpoint()])
    for folder in (tmp_path / "training" / "checkpoints").glob("step-*"):
        file = folder / "tensors.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError) as caught:
        network().fit(X, Y, epochs=3, verbose=False, callbacks=[checkpoint()])
    where = rf"{tmp_path}/training/checkpoints/step-0000000\d/tensors\.safetensors"
    assert fits(str(caught.value), f"~no checkpoint is whole: {where}: {DAMAGED}", tmp_path)
    assert "is passed over" in capsys.readouterr().err
