"""Going on with a training: the same parameters as without the break, whatever the break was."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from magmadnn.cli import main
from magmadnn.storage.checkpoint import CheckpointStore
from magmadnn.storage.run_folder import create_run, read_run

# Of this process: those that are killed wait for the disk.
pytestmark = pytest.mark.usefixtures("quick_sync")
# 276 rows to train on: 35 steps an epoch, the last of 4 rows. The preset has dropout and a falling rate.
TRAINING = ("--hidden", "13,11", "--batch-size", "8", "--epochs", "3", "--checkpoint-every", "5")
LONGER = (*TRAINING[:-4], "--epochs", "9", "--checkpoint-every", "3")


def sha256(folder: Path) -> str:
    digest = json.loads((folder / "result.json").read_text())["parameters_sha256"]
    assert len(digest) == 64
    return digest


def history(folder: Path) -> list[dict[str, float]]:
    rows = json.loads((folder / "history.json").read_text())["rows"]
    timed = ("seconds", "samples_per_second")
    return [{k: v for k, v in row.items() if k not in timed} for row in rows]


@pytest.fixture(scope="module")
def unbroken(image_files, tmp_path_factory) -> Path:
    """The folder of a training without a break."""
    folder = tmp_path_factory.mktemp("unbroken")
    arguments = ["--data", str(image_files), *TRAINING, "--out", str(folder), "--quiet"]
    assert main(["train", *arguments]) == 0
    return folder


@pytest.mark.parametrize("step", [5, 23, 35, 104])
def test_a_break_in_this_process(
    command, images, tmp_path, unbroken, interrupt, goes_on, step: int
) -> None:
    interrupt(step)
    assert command("train", "--data", images, *TRAINING, "--out", "run").code == 130
    assert not (tmp_path / "run" / "result.json").exists()
    goes_on()
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(tmp_path / "run") == sha256(unbroken)
    assert history(tmp_path / "run") == history(unbroken)


def test_before_the_first_checkpoint_it_starts_at_step_0(
    command, images, tmp_path, unbroken, interrupt, goes_on
) -> None:
    interrupt(3)
    assert command("train", "--data", images, *TRAINING, "--out", "run").code == 130
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["run.json"]
    goes_on()
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(tmp_path / "run") == sha256(unbroken)


def test_a_finished_run_trains_nothing_and_gives_its_result_again(
    command, images, tmp_path, monkeypatch
) -> None:
    command("train", "--data", images, *TRAINING, "--out", "run", "--json", "r.json", "--quiet")
    first = (tmp_path / "r.json").read_bytes()
    (tmp_path / "r.json").unlink()
    shutil.rmtree(images)  # nothing of it is needed any more
    monkeypatch.setattr("magmadnn.training.Model.fit", None)
    done = command("train", "--resume", "run")
    assert done.code == 0
    assert done.out.splitlines()[0] == "run: this run is finished; nothing is trained"
    assert done.err.startswith(
        f"magmadnn: note: the run was started with --json {tmp_path / 'r.json'}, which --resume does not "
        "write by itself: give --json again"
    )
    assert not (tmp_path / "r.json").exists()
    assert command("train", "--resume", "run", "--json", "other.json", "--quiet").code == 0
    assert (tmp_path / "other.json").read_bytes() == first


def test_the_time_of_training_survives(command, images, tmp_path, interrupt, goes_on) -> None:
    interrupt(50)
    command("train", "--data", images, *TRAINING, "--out", "run")
    store = CheckpointStore(tmp_path / "run")
    record = store.latest().record
    spent = record["history"][0]["seconds"] + record["seconds"]
    assert record["batch"] == 15 and record["seconds"] > 0
    goes_on()
    command("train", "--resume", "run", "--quiet")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["train_seconds"] > spent
    assert result["samples_per_second"] == pytest.approx(
        3 * 276 / result["train_seconds"], rel=1e-9
    )


def test_arguments_may_repeat_but_not_contradict(
    command, images, tmp_path, interrupt, goes_on
) -> None:
    interrupt(20)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    for option, value, own in (
        ("--epochs", "4", "3"),
        ("--hidden", "13,12", "13,11"),
        ("--data", "mnist", str(images)),
        ("--preset", "paper", "image"),
    ):
        done = command("train", "--resume", "run", option, value)
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            f"magmadnn: error: {option} {value} contradicts {own} of the run in run; leave it out, or "
            "start a new run with another --out\n"
        )
    again = ("--data", images, *TRAINING, "--out", "run", "--quiet")
    assert command("train", "mlp", "--resume", "run", *again).code == 0


def test_a_run_of_somebody_else_overwrites_nothing_of_ours(command, images, tmp_path) -> None:
    """`run.json` names what it likes: the folder may have been copied, or come from anywhere."""
    mine = tmp_path / "mine.json"
    command("train", "--data", images, *TRAINING, "--out", "run", "--json", mine, "--quiet")
    mine.write_text("precious")
    for state in ("finished", "unfinished"):
        done = command("train", "--resume", "run", "--quiet")
        assert (done.code, done.out) == (0, "")
        assert mine.read_text() == "precious", state
        assert "give --json again" in done.err
        (tmp_path / "run" / "result.json").unlink()


@pytest.mark.parametrize(
    "name", ["history.csv", "result.json", "curves.png", "model", "checkpoints", "checkpoints/latest.json"]
)  # fmt: skip
def test_links_out_of_a_run_are_not_written_through(
    command, images, tmp_path, interrupt, goes_on, name: str
) -> None:
    interrupt(50)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    entry, mine = tmp_path / "run" / name, tmp_path / "mine"
    if entry.exists():
        entry.rename(mine)
    elif name == "model":
        mine.mkdir()
    else:
        mine.write_text("precious")
    entry.symlink_to(mine)
    before = mine.stat().st_mtime_ns
    done = command("train", "--resume", "run", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert f"{entry}: is a link to {mine}, outside the run's folder" in done.err
    assert mine.stat().st_mtime_ns == before


def test_a_run_may_lie_behind_a_link_as_a_whole(
    command, images, tmp_path, interrupt, goes_on, unbroken
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    interrupt(50)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(tmp_path / "elsewhere") == sha256(unbroken)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", "3"), ("hidden", [13, "x"]), ("hidden", 13), ("json", 7), ("cosine", 1), ("lr", None),
     ("batch_size", 2.5), ("task", "guess"), ("data", ["mnist"]), ("seed", True)],
)  # fmt: skip
def test_arguments_of_another_type_are_one_line(
    command, images, tmp_path, interrupt, goes_on, name: str, value: object
) -> None:
    interrupt(5)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    arguments = read_run(tmp_path / "run") | {name: value}
    shutil.rmtree(tmp_path / "run")
    create_run(tmp_path / "run", arguments)
    done = command("train", "--resume", "run", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert f"run.json is not of a training: argument {name!r} is" in done.err


def test_other_data_is_refused(command, images, tmp_path, interrupt, goes_on) -> None:
    interrupt(20)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    labels = images / "train-labels-idx1-ubyte"
    changed = bytearray(labels.read_bytes())
    changed[-1] ^= 1
    labels.write_bytes(changed)
    done = command("train", "--resume", "run", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"magmadnn: error: {images}: the training rows are not those that the run in run was started "
        "with; restore the data, or start a new run\n"
    )


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (flip, "tensors.safetensors"),
        (cut, "tensors.safetensors"),
        (Path.unlink, "record.json"),
        (flip, "manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(
    command, images, tmp_path, unbroken, interrupt, goes_on, damage: Callable, file: str
) -> None:
    interrupt(23)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    folders = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [f.name for f in folders] == ["step-00000015", "step-00000020"]
    damage(folders[1] / file)
    done = command("train", "--resume", "run", "--quiet")
    assert done.code == 0
    first, second = done.err.splitlines()
    assert first.startswith("magmadnn: note: the checkpoint of step 20 is passed over: ")
    assert second == "magmadnn: note: using the checkpoint of step 15"
    assert sha256(tmp_path / "run") == sha256(unbroken)


def test_without_a_whole_checkpoint_there_is_one_error(
    command, images, tmp_path, interrupt, goes_on
) -> None:
    interrupt(23)
    command("train", "--data", images, *TRAINING, "--out", "run")
    goes_on()
    for folder in (tmp_path / "run" / "checkpoints").glob("step-*"):
        flip(folder / "tensors.safetensors")
    done = command("train", "--resume", "run", "--quiet")
    assert done.code == 2
    errors = [line for line in done.err.splitlines() if not line.startswith("magmadnn: note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("magmadnn: error: no checkpoint is whole: ")


def wait_for(condition: Callable[[], bool], process) -> None:
    """Until it holds or the process has ended."""
    while process.poll() is None and not condition():
        time.sleep(0.002)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals there")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_exit(start, command, images, tmp_path, number: int, code: int) -> None:
    options = (
        "--hidden",
        "13,11",
        "--batch-size",
        "8",
        "--epochs",
        "12",
        "--checkpoint-every",
        "40",
    )
    assert command("train", "--data", images, *options, "--out", "whole", "--quiet").code == 0
    process = start("train", "--data", images, *options, "--out", "run")
    wait_for((tmp_path / "run" / "checkpoints" / "latest.json").exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    name = signal.Signals(number).name
    assert out.splitlines()[-1] == (
        f"{name}: the state is saved; go on with: magmadnn train --resume run"
    )
    assert command("train", "--resume", "run", "--quiet").code == 0
    assert sha256(tmp_path / "run") == sha256(tmp_path / "whole")


def saved_at(folder: Path) -> int:
    """When the newest checkpoint was written; 0 if there is none."""
    latest = folder / "checkpoints" / "latest.json"
    return latest.stat().st_mtime_ns if latest.exists() else 0


def kill_and_resume(start, folder: Path, moments: random.Random, kills: int) -> int:
    """Kill a training and resume it, again and again; returns how often it was killed."""
    done = 0
    while not (folder / "result.json").exists():
        before = saved_at(folder)
        process = start("train", "--resume", folder, "--quiet")
        if done < kills:
            # Once it has begun, so that a kill in the imports does not use up all moments.
            wait_for(lambda before=before: saved_at(folder) != before, process)
            time.sleep(moments.uniform(0, 0.12))
            if process.poll() is None:
                process.kill()
                done += 1
        _, err = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), err
        assert "error" not in err and "Traceback" not in err
    return done


def killed_trainings(start, command, images, tmp_path, interrupt, goes_on, kills: int) -> None:
    assert command("train", "--data", images, *LONGER, "--out", "whole", "--quiet").code == 0
    moments, number, done = random.Random(2026), 0, 0
    while done < kills:
        name, number = f"run{number}", number + 1
        interrupt(1)
        assert command("train", "--data", images, *LONGER, "--out", name).code == 130
        goes_on()
        done += kill_and_resume(start, tmp_path / name, moments, kills - done)
        assert sha256(tmp_path / name) == sha256(tmp_path / "whole")


def test_kill_9_at_random_moments(start, command, images, tmp_path, interrupt, goes_on) -> None:
    killed_trainings(start, command, images, tmp_path, interrupt, goes_on, kills=2)


@pytest.mark.long
def test_kill_9_at_50_random_moments(start, command, images, tmp_path, interrupt, goes_on) -> None:
    killed_trainings(start, command, images, tmp_path, interrupt, goes_on, kills=50)
