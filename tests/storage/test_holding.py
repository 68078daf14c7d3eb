"""One training at a time in a folder."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import FileError
from magmadnn.storage import holding
from magmadnn.storage.checkpoint import CheckpointStore
from magmadnn.storage.holding import Holding

pytestmark = [
    pytest.mark.usefixtures("quick_sync"),
    pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX"),
]

_HOLDER = """
import sys, time
from pathlib import Path
from magmadnn.storage.holding import Holding
held = Holding(Path(sys.argv[1]), "train")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Any:
    """A process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_who_holds_a_folder_is_told_and_a_killed_one_blocks_nobody(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    with pytest.raises(FileError) as caught:
        Holding(tmp_path, "train")
    host = os.uname().nodename
    message = str(caught.value)
    assert (
        f"cannot train in {tmp_path}: it is in use by process {elsewhere.pid} on {host} since 2"
        in message
    )
    elsewhere.send_signal(signal.SIGKILL)
    elsewhere.wait()
    Holding(tmp_path, "train").release()
    assert not list(tmp_path.iterdir())


def test_one_process_holds_a_folder_once(tmp_path: Path) -> None:
    held = Holding(tmp_path / "new" / "run", "train")
    with pytest.raises(FileError, match=f"in use by this process on {os.uname().nodename}"):
        Holding(tmp_path / "new" / "run", "train")
    held.release()
    held.release()  # does nothing
    Holding(tmp_path / "new" / "run", "train").release()


def test_a_forked_child_neither_holds_a_folder_nor_gives_it_up(tmp_path: Path) -> None:
    held = Holding(tmp_path, "train")
    child = os.fork()
    if not child:
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(FileError, match="in use"):
        Holding(tmp_path, "train")
    held.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(holding._LOCK, "flock", flock)
    Holding(tmp_path, "train").release()


def test_a_folder_that_cannot_be_written_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> int:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(holding, "_opened", refused)
    Holding(tmp_path, "train").release()


def network() -> md.Model:
    return md.Model(
        [md.layers.Input((3,)), md.layers.Dense(2)], loss="mse", optimizer="sgd", seed=0
    )


def fit(model: md.Model, *callbacks: md.callbacks.Callback) -> md.History:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 2), "f4")
    return model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)


def test_two_trainings_do_not_share_a_folder_and_the_first_loses_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    refused: list[str] = []

    def begin(now: Any) -> None:
        with pytest.raises(FileError) as caught:
            fit(network(), md.callbacks.Checkpoint(tmp_path))
        refused.append(str(caught.value))

    first = md.callbacks.Checkpoint(tmp_path)
    fit(network(), md.callbacks.LambdaCallback(on_epoch_end=begin), first)
    assert len(refused) == 2 and "in use by this process" in refused[0]
    assert signal.getsignal(signal.SIGINT) is before
    state = CheckpointStore(tmp_path).latest()
    assert state is not None and state.record["steps"] == 2
    assert len(fit(network(), md.callbacks.Checkpoint(tmp_path))) == 2  # held no more


def test_a_training_in_a_folder_of_another_process_is_refused(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    with pytest.raises(FileError, match=f"in use by process {elsewhere.pid}"):
        fit(network(), md.callbacks.Checkpoint(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [holding.NAME]


_SAVER = """
import sys
import magmadnn as md
layers = [md.layers.Input((3,)), md.layers.Dense(2)]
model = md.Model(layers, loss="mse", optimizer="sgd", seed=int(sys.argv[1]))
for _ in range(60):
    model.save("model")
    md.load("model")
"""


def test_processes_that_save_a_model_into_one_folder_all_succeed(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _SAVER, str(seed)],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for process in running:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    md.load(tmp_path / "model")
