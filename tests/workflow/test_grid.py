"""The grid engine: the same table as a search in one process, each point once, on the ranks of a job."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.search import searching
from magmadnn.search.trials.records import DONE, Job, Outcome, plain_result
from magmadnn.workflow.description.history import History
from magmadnn.workflow.ranks.plan_folder import open_folder
from magmadnn.workflow.searches import _TuplePlace

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).resolve().parents[2]
SEARCH = """
import sys
import numpy as np
import magmadnn as md
from pathlib import Path

def build(lr, units, seed):
    layers = [md.layers.Input(5), md.layers.Dense(units, activation="tanh"), md.layers.Dense(2)]
    optimizer = md.optim.SGD(lr)
    return md.Model(layers, loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=seed)
SPACE = {"lr": md.search.choice([0.01, 0.1, 0.5]), "units": md.search.choice([3, 7])}
draw = np.random.default_rng(3)
x = draw.normal(size=(60, 5)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int64)

def module(ctx):
    out = Path(ctx.args[0])
    study = md.workflow.grid(ctx, build, SPACE, x, y, method="grid", epochs=2, out=out, resume=out.exists())
    if study:
        print(len(study.trials))

if __name__ == "__main__":
    w = md.workflow.Workflow("grid")
    w.add_module(module, "grid", ranks=3, args=[sys.argv[1]])
    w.run(sys.argv[1] + "-job")
"""


class Tuples:
    """A context's tuple space, of one process."""

    def __init__(self) -> None:
        self.put_: list[tuple[str, Any]] = []

    def put(self, tag: str, value: Any) -> None:
        self.put_.append((tag, json.loads(json.dumps(value))))

    def get(self, tag: str, timeout: float | None = None) -> Any:
        for k, (name, value) in enumerate(self.put_):
            if name.endswith("/jobs"):
                del self.put_[k]
                results = [
                    {**one, "state": DONE, "metrics": {"loss": 1.0}} for one in value["jobs"]
                ]
                return {"number": value["number"], "results": results}
        raise AssertionError(tag)


@pytest.mark.parametrize("batches", [False, True])
def test_batches_wait_for_all_and_others_for_one(batches: bool) -> None:
    place = _TuplePlace(Tuples(), "grid", 3, batches)  # type: ignore[arg-type]
    jobs = [Job(k, 0, 0, {"lr": 0.1 * k}, (2,)) for k in range(4)]
    for job in jobs[:3]:
        assert place.has_room
        place.start([job])
    assert not place.has_room and place.is_busy
    found = place.wait()
    assert len(found) == (3 if batches else 1)
    assert found[0][0] == jobs[0] and found[0][1].metrics == {"loss": 1.0}
    assert place.has_room and place.is_busy != batches
    assert plain_result(*found[0])["state"] == DONE and isinstance(found[0][1], Outcome)


class Module(Tuples):
    """The context of the first of `size` ranks; all jobs that were put are answered."""

    module, copy, iteration, attempt, rank = "grid", 0, 0, 0, 0

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.together = size, list[int]()

    def put(self, tag: str, value: Any) -> None:
        super().put(tag, value)
        if value != "end":
            self.together.append(len(value["jobs"]))

    def allow_replacements(self) -> None:
        """Nothing: none is lost."""


@pytest.mark.parametrize(
    ("batches", "together", "expected"),
    [
        (True, None, [1] * 26),  # the papers' engine: a set of parameters for each worker
        (True, 7, [7, 7, 7, 5]),
        (False, None, [4] * 6 + [2]),  # 26 points, four calls for each of two ranks: 4 in one
        (False, 1, [1] * 26),
        (False, 40, [16, 10]),  # no more than a search trains in one call
    ],
)
def test_points_of_one_call(
    batches: bool, together: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_TOGETHER", 16)
    names: dict[str, Any] = {"__name__": "here"}
    exec(SEARCH, names)
    context = Module(3)
    space = {"lr": md.search.choice([0.01 * k for k in range(1, 14)])}
    space["units"] = md.search.choice([3, 7])
    study = md.workflow.grid(
        context,  # type: ignore[arg-type]
        names["build"],
        space,
        names["x"],
        names["y"],
        method="grid",
        epochs=1,
        batches=batches,
        together=together,
    )
    assert study is not None and len(study.trials) == 26
    assert context.together == expected


def test_points_of_one_call_are_at_least_one() -> None:
    with pytest.raises(
        md.errors.ArgumentError, match=r"together=0: give a number of points from 1"
    ):
        md.workflow.grid(Module(3), None, {}, None, together=0)  # type: ignore[arg-type]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MAGMADNN_DATA": str(ROOT / "data")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_grid_on_ranks_has_the_table_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SEARCH)
    names: dict[str, Any] = {"__name__": "here"}
    exec(SEARCH, names)
    alone = md.search.run(  # before the ranks, which find the kernels then
        names["build"], names["SPACE"], names["x"], names["y"], method="grid", epochs=2
    )
    run([sys.executable, "s.py", "out"], tmp_path)
    study = md.search.load(tmp_path / "out")
    assert all(t.state == DONE for t in study.trials)
    assert [t.point for t in study.trials] == [t.point for t in alone.trials]
    assert [t.value for t in study.trials] == [t.value for t in alone.trials]
    assert [t.parameters_sha256 for t in study.trials] == [
        t.parameters_sha256 for t in alone.trials
    ]
    assert len({tuple(t.point.items()) for t in study.trials}) == 6 == np.prod([3, 2])


def test_heart_disease_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("lr = {choice = [0.01, 0.03, 0.1, 0.3]}\n")
    data = str(ROOT / "data" / "heart-disease" / "processed.cleveland.data")
    command = [sys.executable, "-m", "magmadnn", "search", "--data", data, "--missing", "mean"]
    more = ["--space", "space.toml", "--method", "grid", "--epochs", "1", "--out", "out"]
    command += ["--mpi", "2"]
    done = run([*command, *more], tmp_path)
    with (tmp_path / "out" / "trials.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    assert "best" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_random_kills_leave_each_point_once(tmp_path: Path, seed: int) -> None:
    """Any rank is killed: the executive, the tuple server, ranks that train; `resume` goes on."""
    wide = '"lr": md.search.choice([round(0.01 * k, 2) for k in range(1, 41)])'
    text = SEARCH.replace('"lr": md.search.choice([0.01, 0.1, 0.5])', wide)
    text = text.replace("choice([3, 7])", "choice([3, 4, 5, 6, 7])")
    text = text.replace(
        "def build(lr, units, seed):", "def build(lr, units, seed):\n    time.sleep(0.1)"
    )
    text = text.replace("import sys", "import sys, time")
    text = text.replace('"-job")', '"-job", resume=Path(sys.argv[1] + "-job").exists())')
    (tmp_path / "s.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    chance, kills = random.Random(1000 + seed), 0
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, "s.py", "out"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        job = tmp_path / "out-job"
        while process.poll() is None and not ranks_of(job):
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1 + 3 * chance.random())
        if kills < 3 and process.poll() is None and (ranks := ranks_of(job)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(ranks), signal.SIGKILL)
                kills += 1
        assert process.wait(timeout=120) in (0, 1)
        if process.returncode == 0:
            break
    assert process.returncode == 0 and kills >= 2
    study = md.search.load(tmp_path / "out")  # refuses a log in which a point is there twice
    assert len(study.trials) == 200 == len({tuple(t.point.items()) for t in study.trials})
    assert all(t.state == DONE for t in study.trials)


def ranks_of(folder: Path) -> list[int]:
    """Process numbers of the ranks that run now."""
    try:
        processes = History.of(open_folder(folder).records()).processes
    except md.errors.MagmaDNNError:
        return []
    return [p for p in processes if Path(f"/proc/{p}").exists()]
