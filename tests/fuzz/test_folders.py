"""Readers of folders: checkpoints, models, runs, preparations; damaged, or sealed anew with right sums."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import CheckpointError, DataError, FileError
from magmadnn.storage.checkpoint import CheckpointStore, load_state
from magmadnn.storage.durable import MANIFEST, read_folder, write_folder
from magmadnn.storage.formats.plain_json import seal
from magmadnn.storage.formats.tensor_file import tensors_from_bytes
from magmadnn.storage.run_folder import create_run, read_run
from magmadnn.training.loop.fit import Fit
from tests.fuzz.harness import Fuzz
from tests.fuzz.mutations import damaged, damaged_json

pytestmark = [pytest.mark.usefixtures("quick_sync"), pytest.mark.timeout(3600)]

X = np.random.default_rng(3).normal(size=(23, 4)).astype(np.float32)
Y = (np.arange(23) % 3).astype(np.int64)


def network() -> md.Model:
    x = md.layers.Input((4,))
    hidden = md.layers.Dense(5, activation="relu", name="first")(x)
    hidden = md.layers.Dropout(0.1)(md.layers.LayerNorm()(hidden))
    out = md.layers.Dense(3)(md.ops.concat([hidden, x[:, 1:]], axis=1) * 0.5)
    return md.Model(
        inputs=[x],
        outputs=[out],
        loss=md.losses.CrossEntropy(),
        optimizer=md.optim.Adam(md.optim.cosine(1e-3, 50)),
        metrics=["accuracy"],
    )


def sealed_anew(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """The files of a checkpoint, with a record or tensors of an attacker's own."""
    files = dict(files)
    if rng.random() < 0.8:
        document = damaged_json(json.loads(files["record.json"]), rng)
        files["record.json"] = json.dumps(document).encode("ascii")
    else:
        data = files["tensors.safetensors"]
        size = int.from_bytes(data[:8], "little")
        head, values = data[8 : 8 + size], data[8 + size :]
        if rng.random() < 0.5:
            head = json.dumps(damaged_json(json.loads(head), rng)).encode("ascii")
            data = struct.pack("<Q", len(head)) + head + values
        else:
            data = damaged(data, rng, [b"{", b"}", b"F64", b"null", b"BF16", b"1e9", b"-1"])
        files["tensors.safetensors"] = data
    return files


def written(folder: Path, files: dict[str, bytes]) -> Path:
    write_folder(folder, {k: v for k, v in files.items() if k != MANIFEST}, replace=True)
    return folder


@pytest.fixture
def model_files(tmp_path: Path) -> dict[str, bytes]:
    model = network()
    model.save(tmp_path / "model")
    return read_folder(tmp_path / "model")


def test_models_sealed_anew(fuzz: Fuzz, tmp_path: Path, model_files: dict[str, bytes]) -> None:
    """What loads can be asked for predictions: they come, or are refused in one line; some are compiled."""
    fuzz.files //= 10

    def read(files: dict[str, bytes]) -> Any:
        model = md.load(written(tmp_path / "m", files))
        inputs = [
            np.zeros((2, *(n if isinstance(n, int) else 2 for n in p.shape[1:])), p.dtype)
            for p in model.inputs
        ]
        model.executor = "reference" if len(files["record.json"]) % 8 else "native"
        return model.predict(inputs if len(inputs) > 1 else inputs[0], batch_size=2)

    fuzz.run(lambda rng: sealed_anew(model_files, rng), read)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_folders_whose_bytes_are_damaged(
    fuzz: Fuzz, tmp_path: Path, model_files: dict[str, bytes]
) -> None:
    write_folder(tmp_path / "m", model_files)
    files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    def make(rng: random.Random) -> tuple[str, bytes]:
        name = rng.choice(sorted(files))
        return name, damaged(files[name], rng)

    def read(made: tuple[str, bytes]) -> Any:
        (tmp_path / "m" / made[0]).write_bytes(made[1])
        try:
            return load_state(tmp_path / "m")
        finally:
            (tmp_path / "m" / made[0]).write_bytes(files[made[0]])

    def check(made: tuple[str, bytes], state: Any) -> None:
        assert made[1] == files[made[0]]

    fuzz.run(make, read, check)
    assert fuzz.found["refused"] > fuzz.files / 2


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Callable[[], Fit], dict[str, bytes]]:
    """What makes a training that may go on, and the files of its checkpoint within an epoch."""
    fits: list[Fit] = []

    class Keep(md.callbacks.Callback):
        def on_batch_end(self, fit: Fit) -> None:
            fits.append(fit)
            if fit.steps == 8:
                fit.stop("enough")

    checkpoint = md.callbacks.Checkpoint(tmp_path / "run", every_steps=8, signals=False)
    stopping = md.callbacks.EarlyStopping(restore_best=True, patience=3)
    network().fit(
        X, Y, batch_size=5, epochs=3, callbacks=[Keep(), stopping, checkpoint], verbose=False
    )
    files = read_folder(tmp_path / "run" / "checkpoints" / "step-00000008")
    return lambda: fits[0], files


@pytest.mark.long
def test_checkpoints_sealed_anew_leave_the_training_as_it_was(
    fuzz: Fuzz, tmp_path: Path, trained: tuple[Callable[[], Fit], dict[str, bytes]]
) -> None:
    fit, files = trained[0](), trained[1]
    whole = load_state(written(tmp_path / "c", files))
    fit.restore(whole)

    def everything() -> Any:
        values = {name: value.tobytes() for name, value in fit.model.values().items()}
        slots = {name: slot.read().tobytes() for name, slot in fit.step.state().items()}
        counts = (fit.epoch, fit.batch, fit.steps, fit.seconds, fit.stopped, repr(fit.history.rows))
        callbacks = [(repr(c.state()), sorted(c.tensors())) for c in fit.callbacks]
        return values, slots, counts, callbacks, repr(fit.totals.state())

    before = everything()

    def read(made: dict[str, bytes]) -> Any:
        fit.restore(load_state(written(tmp_path / "c", made)))
        return fit.state()

    def check(made: dict[str, bytes], state: Any) -> None:
        assert len(fit.history.rows) <= fit.epoch and fit.batch <= fit.steps
        fit.totals.results()
        fit.restore(whole)

    def refused(made: dict[str, bytes]) -> None:
        assert everything() == before

    fuzz.run(lambda rng: sealed_anew(files, rng), read, check, refused)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_pointers_and_runs_sealed_anew(fuzz: Fuzz, tmp_path: Path) -> None:
    create_run(tmp_path / "run", {"lr": 0.1, "hidden": [3, 4], "data": "mnist", "n": None})
    run = json.loads((tmp_path / "run" / "run.json").read_bytes())
    run.pop("sha256")
    pointer = {"format": "magmadnn-latest", "version": 1, "step": 7, "best": None}
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir()

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        made = []
        for document in (run, pointer):
            changed = damaged_json(document, rng)
            data = seal(changed) if isinstance(changed, dict) else json.dumps(changed).encode()
            made.append(damaged(data, rng) if rng.random() < 0.2 else data)
        return made[0], made[1]

    def read(made: tuple[bytes, bytes]) -> Any:
        (tmp_path / "run" / "run.json").write_bytes(made[0])
        (folder / "latest.json").write_bytes(made[1])
        notes: list[str] = []
        try:
            CheckpointStore(tmp_path / "run", notes.append).latest()
        except CheckpointError:
            pass
        assert all("\n" not in note and len(note) < 2000 for note in notes)
        return read_run(tmp_path / "run")

    fuzz.run(make, read, lambda made, found: None)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_preparations(fuzz: Fuzz) -> None:
    kept = md.data.Preparation.fit(X, Y, classes=("a", "b", "c")).to_json()

    def read(data: Any) -> Any:
        return md.data.Preparation.from_json(data)

    def check(data: Any, found: md.data.Preparation) -> None:
        if found.input_shape == (4,):
            with contextlib.suppress(DataError):  # an std so small that a quotient is infinite
                assert np.isfinite(found.apply_inputs(X)).all()

    fuzz.run(lambda rng: damaged_json(kept, rng), read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_tensor_headers(fuzz: Fuzz, model_files: dict[str, bytes]) -> None:
    def read(data: bytes) -> Any:
        return tensors_from_bytes(data, "f")

    fuzz.run(lambda rng: sealed_anew(model_files, rng)["tensors.safetensors"], read)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_names_of_folders(tmp_path: Path) -> None:
    for name in ("a" * 5000, "two\nlines", "\x1b[2J", "x/" * 1500, "~nobody-of-that-name"):
        for read in (md.load, load_state, read_run):
            with pytest.raises(FileError) as caught:
                read(tmp_path / name)
            assert str(caught.value).isprintable()
