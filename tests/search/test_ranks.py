"""A search that several ranks of a job begin alike is refused; what a single rank begins is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.comm import job
from magmadnn.errors import ArgumentError
from tests.search.problems import GRID, S, build, table

ROOT = Path(__file__).resolve().parents[2]
X, Y = table()
BEGIN = """
import sys
import magmadnn as md
from tests.search.problems import S, build, table

def search(out):
    space = {"units": S.choice([3, 5])}
    study = S.run(build, space, *table(), method="grid", epochs=1, out=out)
    print(len(study.trials), "trials in", out, flush=True)
"""
ALIKE = BEGIN + 'search("study")\n'
CLIENT = BEGIN + 'with md.workers():\n    search("study")\n'
MODULES = """
def module(ctx):
    search(f"{ctx.args[0]}/{ctx.rank}")

if __name__ == "__main__":
    w = md.workflow.Workflow("two")
    w.add_module(module, "two", ranks=2, args=[sys.argv[1]])
    w.run(sys.argv[1] + "/job")
"""


def started(script: Path, text: str, *words: str, ranks: int = 0) -> tuple[int, str, str]:
    script.write_text(text)
    launch = ["-m", "magmadnn", "launch", "-n", str(ranks)] if ranks else []
    done = subprocess.run(
        [sys.executable, *launch, str(script), *words],
        cwd=script.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def third_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a launcher gives."""
    monkeypatch.setattr(job, "_world", [])
    monkeypatch.setenv("MAGMADNN_RANKS", "4")
    monkeypatch.setenv("PMI_RANK", "2")


def test_ranks_that_would_do_the_same_are_told(third_of_four: None, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as error:
        S.run(build, GRID, X, Y, method="grid", out=tmp_path / "study")
    assert str(error.value) == (
        "search: this is rank 2 of a job of 4 ranks, each of which would do the same search; start it by "
        "itself, without mpiexec, srun or magmadnn launch, with workers=4, or by magmadnn search --mpi 4, or "
        "in a module of a workflow by md.workflow.grid"
    )
    with pytest.raises(ArgumentError, match="this is rank 2 of a job of 4 ranks"):
        S.nested(build, GRID, X, Y, objective="accuracy", method="grid")
    assert not (tmp_path / "study").exists()


def test_ranks_of_the_command_line_are_told(
    third_of_four: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text("lr = {choice = [0.1, 0.2]}\n")
    for more in (["--out", "s"], ["--out", "s", "--mpi", "2"], ["--resume", "s"]):
        assert main(["search", "--data", "none.csv", "--space", "space.toml", *more]) == 2
        said = capsys.readouterr().err
        assert said.startswith("magmadnn: error: this is rank 2 of a job of 4 ranks, each of which")
        assert "with --workers 4, or by magmadnn search --mpi 4" in said
    assert not (tmp_path / "s").exists()


def test_a_rank_that_others_serve_may_search(
    third_of_four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_world", [md.comm.SerialCommunicator()])
    assert len(S.run(build, GRID, X, Y, method="grid", epochs=1).trials) == 12


def test_a_script_that_a_launcher_starts_is_told(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    code, out, err = started(tmp_path / "script.py", ALIKE, ranks=2)
    assert code != 0 and not out
    assert "of a job of 2 ranks, each of which would do the same search" in err
    assert not (tmp_path / "study").exists()


def test_a_client_of_workers_in_a_job_may_search(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    code, out, err = started(tmp_path / "script.py", CLIENT, ranks=2)
    assert code == 0, err
    assert out.split() == ["2", "trials", "in", "study"]


def test_a_rank_of_a_module_may_search_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    code, out, err = started(tmp_path / "script.py", BEGIN + MODULES, str(tmp_path))
    assert code == 0, out + err
    assert [len(md.search.load(tmp_path / str(rank)).trials) for rank in range(2)] == [2, 2]
