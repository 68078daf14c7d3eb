"""Folders and files that cannot be read or written, a full disk, devices, and graphs without an end.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DeviceError,
    FileError,
    GraphError,
    UnknownNameError,
)
from magmadnn.storage import disk
from magmadnn.storage.run_folder import create_run
from tests.refusals.cases import (
    TRAIN,
    CommandCase,
    D,
    PythonCase,
    check_in_python,
    check_on_the_command_line,
    fit,
    network,
)

ROOT = Path(__file__).resolve().parents[2]


PYTHON: dict[str, PythonCase] = {
    "file: picture": (
        lambda p: md.History([{"epoch": 1, "loss": 2.0}]).plot("curves.xyz"),
        UnknownNameError,
        r"~history.plot curves.xyz: format 'xyz' is not known: known are .*png.*",
    ),
    "file: picture below a file": (
        lambda p: md.History([{"epoch": 1, "loss": 2.0}]).plot("file/curves"),
        FileError,
        (
            "cannot write {p}/file/curves.png: a part of the path is a file, not a folder; "
            "choose another path (Not a directory)"
        ),
    ),
    "device: memory": (
        lambda p: md.MemoryManager(20, kind=md.DEVICE),
        DeviceError,
        (
            "DEVICE memory: device 0 cannot be used: no NVIDIA driver was found "
            "(libcuda.so.1); use HOST or MANAGED, which work without a GPU"
        ),
    ),
    "graph: no input": (
        lambda p: md.Model([D(3)]),
        ArgumentError,
        "Model: the first of the layers must be md.layers.Input(shape)",
    ),
    "graph: not fed": (
        lambda p: md.placeholder("x", (None, 2)).sum().eval(),
        GraphError,
        "placeholder x (batch, 2) is not fed: give {x: array}",
    ),
    "graph: a list": (
        lambda p: md.variable("v", [1.0, 2.0]),
        ArgumentError,
        (
            "variable v: a list could be a shape or values: write a tuple for a shape, "
            "np.array([...]) for values"
        ),
    ),
    "graph: no loss": (
        lambda p: fit(model=network(loss=None)),
        ArgumentError,
        "the model has no loss; give one: Model(..., loss='cross_entropy')",
    ),
    "file: no model": (
        lambda p: md.load("nowhere"),
        FileError,
        "cannot read {p}/nowhere: there is no such folder; check the path",
    ),
    "file: foreign folder": (
        lambda p: md.load("used"),
        CheckpointError,
        (
            "{p}/used: has no manifest.json; expected a folder that magmadnn wrote, this "
            "one is foreign or only partly copied"
        ),
    ),
    "file: folder in use": (
        lambda p: network().save("used"),
        FileError,
        (
            "cannot replace {p}/used: it holds 'notes.txt', which is not part of what "
            "magmadnn wrote there; choose another folder or move that file away"
        ),
    ),
    "file: below a file": (
        lambda p: network().save("file/model"),
        FileError,
        (
            "cannot write {p}/file/model: a part of the path is a file, not a folder; "
            "choose another path (Not a directory)"
        ),
    ),
    "file: run exists": (
        lambda p: create_run("used", {}),
        FileError,
        (
            "{p}/used: expected a new or empty folder, got one that holds 'notes.txt'; "
            "give another --out, or go on with the run there by --resume"
        ),
    ),
    "file: a number to save to": (
        lambda p: network().save(3),
        ArgumentError,
        "save: the folder must be a path, got 3",
    ),
    "file: no name to save to": (
        lambda p: network().save(""),
        ArgumentError,
        "save: the folder must be a path, got ''",
    ),
    "file: a number to load": (
        lambda p: md.load(3),
        ArgumentError,
        "load: the folder must be a path, got 3",
    ),
    "file: a folder to export to": (
        lambda p: network().export("."),
        ArgumentError,
        "export: the file name must end in .o, got '.'",
    ),
    "file: a number to export to": (
        lambda p: network().export(None),
        ArgumentError,
        "export: the file must be a path, got None",
    ),
}

COMMAND: dict[str, CommandCase] = {
    "file: evaluate a file": (
        ("evaluate", "good.csv", "--data", "good.csv"),
        "good.csv: expected the output folder of a training, got a file",
    ),
    "device: cuda": (
        (*TRAIN, "--device", "cuda"),
        "--device cuda: no NVIDIA driver was found (libcuda.so.1); use --device cpu",
    ),
    "file: folder in use": (
        (*TRAIN, "--out", "used"),
        (
            "--out used: expected a new or empty folder, got one that holds 'notes.txt'; "
            "give another --out, or go on with the run there by --resume"
        ),
    ),
    "file: a file": (
        (*TRAIN, "--out", "file"),
        "--out file: expected a new or empty folder, got a file",
    ),
    "file: below a file": (
        (*TRAIN, "--out", "file/run"),
        "--out file/run: {p}/file is a file, not a folder; choose another path",
    ),
    "file: json below a file": (
        (*TRAIN, "--json", "file/r.json"),
        "--json {p}/file/r.json: {p}/file is a file, not a folder; choose another path",
    ),
    "file: json is a folder": (
        (*TRAIN, "--json", "used"),
        "--json {p}/used: expected the name of a file, got a folder",
    ),
    "file: no model": (
        ("evaluate", "nowhere", "--data", "good.csv"),
        "nowhere: expected the output folder of a training, which is not there",
    ),
    "file: foreign folder": (
        ("evaluate", "used", "--data", "good.csv"),
        (
            "{p}/used: has no manifest.json; expected a folder that magmadnn wrote, this "
            "one is foreign or only partly copied"
        ),
    ),
    "file: nothing to resume": (
        ("train", "--resume", "nowhere"),
        "nowhere: expected a run's folder, got none with a run.json; check the path",
    ),
    "file: foreign run": (
        ("train", "--resume", "used"),
        "used: expected a run's folder, got none with a run.json; check the path",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    check_on_the_command_line(place, capsys, COMMAND[name])


# --- a disk that is full ----------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write fails as on a full disk."""

    def write(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.calls, "write", write)


FULL = "the disk is full; free some space or choose another folder (No space left on device)"


def test_a_full_disk_in_python(place: Path, full_disk: None) -> None:
    for act, where in (
        (lambda: network().save("model"), "model"),
        (lambda: fit(callbacks=[md.callbacks.Checkpoint("run")]), "run/checkpoints/step-00000001"),
    ):
        with pytest.raises(FileError) as raised:
            act()
        assert str(raised.value) == f"cannot write {place}/{where}: {FULL}"


def test_a_full_disk_on_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str], full_disk: None
) -> None:
    assert main([*TRAIN, "--out", "run", "--quiet"]) == 2
    assert capsys.readouterr() == ("", f"magmadnn: error: cannot write {place}/run: {FULL}\n")
    assert not (place / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits there")
def test_a_disk_that_fills_up_while_training(place: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        f"sys.path.insert(0, {str(ROOT)!r}); from magmadnn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    wide = ("train", "--data", "good.csv", "--epochs", "1", "--hidden", "997")
    done = subprocess.run(
        [sys.executable, "-c", code, *wide, "--out", "run", "--quiet"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"magmadnn: error: cannot write {place}/run/checkpoints/step-00000001: it would be too large for "
        "this file system; choose another folder (File too large)\n"
    )
    # What can be fixed is fixed, and the run goes on.
    assert main(["train", "--resume", "run", "--quiet"]) == 0
