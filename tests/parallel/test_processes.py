"""Data parallel training on processes of MPI: a script without `parallel=`, and the bits of simulated
ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import simulate

SCRIPT = """
import os
import re

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256


def train(way=None):
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(75, 6)).astype("f"), draw.integers(0, 3, 75)
    layers = [
        md.layers.Input((6,)), md.layers.Dense(9), md.layers.BatchNorm(), md.layers.Dropout(0.2),
        md.layers.Dense(3),
    ]
    model = md.Model(layers, loss="cross_entropy", optimizer="adam")
    kept = [md.callbacks.Checkpoint("kept", signals=False)]
    model.fit(x, y, batch_size=16, epochs=int(os.environ.get("EPOCHS", 3)), parallel=way, callbacks=kept)
    return parameters_sha256(model.values().items())


if __name__ == "__main__":
    print(f"<{train()}>")
"""


def launched(ranks: int, folder: Path, **environment: str) -> Any:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(ranks), "train.py"]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=90,
        cwd=folder,
        env=os.environ | environment,
    )


def expected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "script"}
    exec(SCRIPT, names)  # the script above
    return str(simulate(1, lambda comm: names["train"](md.parallel.DataParallel(comm)))[0])


def test_launched_processes_share_a_fit_and_resume_with_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    (tmp_path / "alone").mkdir()
    sha = expected(tmp_path / "alone", monkeypatch)
    first = launched(3, tmp_path, EPOCHS="2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("<") == 3
    assert sha not in first.stdout
    assert first.stdout.count("epoch ") == 1  # rank 0 alone prints
    then = launched(2, tmp_path)
    assert then.returncode == 0, then.stderr
    assert then.stdout.count(f"<{sha}>") == 2, then.stdout


def test_a_launched_fit_may_be_alone(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    program = "from train import train; import sys; print('<' + train(False) + '>')"
    (tmp_path / "train.py").write_text(
        SCRIPT.replace('Checkpoint("kept"', 'Checkpoint(f"kept-{os.getpid()}"')
    )
    (tmp_path / "alone.py").write_text(program)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "2", "alone.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert np.unique([line for line in found.stdout.splitlines() if "<" in line]).size == 1


def table(folder: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 4))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{d:.4f},{int(a > b)}" for a, b, c, d in x]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,y", *lines]))


def command(folder: Path, *words: str) -> Any:
    line = [sys.executable, "-m", "magmadnn", "train", *words]
    return subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


@pytest.mark.long
def test_the_command_line_splits_layers(tmp_path: Path) -> None:
    """`--parallel auto` says what it takes; hybrid gives what two other processes do but for rounding."""
    pytest.importorskip("mpi4py")
    table(tmp_path)
    losses = []
    for way in ("hybrid", "auto"):
        given = ("mlp", "--data", "table.csv", "--epochs", "2", "--device", "cpu", "--out", way)
        job = command(
            tmp_path, *given, "--workers", "2", "--parallel", way, "--json", f"{way}.json"
        )
        out, errors = job.communicate(timeout=90)
        assert job.returncode == 0, errors
        assert ("predictions for a step of" in out) == (way == "auto")
        losses.append(json.loads((tmp_path / f"{way}.json").read_text())["test_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_command_line_trains_on_workers(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    table(tmp_path)
    found = []
    for workers, way in (("2", "data"), ("3", "parameters")):  # which have the same bits
        given = (
            "mlp",
            "--data",
            "table.csv",
            "--parallel",
            way,
            "--epochs",
            "2",
            "--device",
            "cpu",
            "--out",
            f"out{workers}",
        )
        job = command(tmp_path, *given, "--workers", workers, "--json", f"{workers}.json")
        out, errors = job.communicate(timeout=90)
        assert job.returncode == 0, errors
        assert out.count("output in") == 1
        found.append(json.loads((tmp_path / f"{workers}.json").read_text()))
    one, other = found
    assert one.keys() == other.keys()
    assert {k for k in one if one[k] != other[k]} <= {"train_seconds", "samples_per_second"}


@pytest.mark.long
def test_a_killed_rank_ends_the_job_which_goes_on_with_others(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    table(tmp_path)
    given = ("mlp", "--data", "table.csv", "--epochs", "60", "--device", "cpu")
    often = ("--checkpoint-every", "5", "--out", "killed")
    job = command(tmp_path, *given, *often, "--workers", "2")
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("killed/*/*")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
        ranks = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cwd")
            if str(tmp_path) == _target(path) and _is_rank(path.parent)
        ]
        ranks = [one for one in ranks if _parent(one) in ranks]  # not what watches a rank
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        killed = time.monotonic()
        out, errors = job.communicate(timeout=30)
        assert time.monotonic() - killed < 5
        assert job.returncode != 0
        assert re.search(r"rank [01]", errors), (out[-500:], errors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    again = command(tmp_path, "--resume", "killed", "--workers", "3", "--json", "a.json")
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    whole = command(
        tmp_path, *given, *often[:2], "--out", "whole", "--workers", "4", "--json", "b.json"
    )
    _, errors = whole.communicate(timeout=200)
    assert whole.returncode == 0, errors
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert one["parameters_sha256"] == other["parameters_sha256"]


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _is_rank(process: Path) -> bool:
    """A Python process that runs the launcher's child, unlike mpiexec and its helpers."""
    words = (process / "cmdline").read_bytes().split(b"\0")
    return b"python" in Path(words[0].decode()).name.encode() and any(
        b"child.py" in w for w in words
    )


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


SLOW = """
import os
import time

import numpy as np

import magmadnn as md


class Slow(md.callbacks.Callback):
    def on_batch_end(self, fit):
        print(f"step {fit.steps}", flush=True)
        time.sleep(float(os.environ["SLOW"]))


x = np.random.default_rng(0).normal(size=(64, 4)).astype("f")
model = md.Model([md.layers.Input(4), md.layers.Dense(1)], loss="mse", optimizer="adam")
rank = md.comm.world().rank
os.write(1, b"<%d %d>\\n" % (rank, os.getpid()))
try:
    model.fit(
        x, x[:, :1], batch_size=16, epochs=2, callbacks=[Slow(), md.callbacks.Checkpoint("kept")]
    )
except BaseException as error:
    os.write(1, f"rank {rank} was ended by {error!r}\\n".encode())
    raise
os.write(1, b"all is done\\n")
"""


@pytest.mark.parametrize(
    ("number", "rank"),
    [
        (signal.SIGINT, None),
        pytest.param(signal.SIGTERM, None, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.long),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM to rank 1"],
)
def test_ranks_finish_their_step_and_save_when_a_signal_ends_the_job(
    number: int, rank: int | None, tmp_path: Path
) -> None:
    """Also where the step takes longer than a job without checkpoints is given; whichever rank is told."""
    pytest.importorskip("mpi4py")
    (tmp_path / "train.py").write_text(SLOW)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "2", "train.py"]
    given: dict[str, Any] = {"cwd": tmp_path, "text": True, "stderr": subprocess.STDOUT}
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=os.environ | {"SLOW": "1.5"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # not ignored
        **given,
    )
    assert job.stdout is not None
    processes, seen = dict[str, int](), ""
    while "step 2" not in seen:  # the first one tells what steps take, so one may end at once
        seen = job.stdout.readline()
        assert seen, "it ended by itself"
        if found := re.fullmatch(r"<(\d) (\d+)>\n", seen):
            processes[found[1]] = int(found[2])
    os.kill(job.pid if rank is None else processes[str(rank)], number)
    said = job.communicate(timeout=60)[0]
    assert job.returncode == (130 if number == signal.SIGINT else 143)
    for one in (0, 1):
        assert f"rank {one} was ended by SystemExit(143)" in said
    assert "all is done" not in said
    if rank is None:
        assert "the ranks finish a step and save; Ctrl-C again ends them at once" in said
    steps = said.count("step ") - said.count("a step and save")
    goes_on = subprocess.run(
        command, capture_output=True, env=os.environ | {"SLOW": "0"}, timeout=90, cwd=tmp_path
    ).stdout.decode()
    assert goes_on.count("all is done") == 2
    assert goes_on.count("step ") == 8 - 2 - steps  # of those that were done none is done again
