"""Small data, and the command line run in this process or in one of its own."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from magmadnn.cli import main
from magmadnn.training.callbacks import Checkpoint
from magmadnn.training.loop.fit import Fit

ROOT = Path(__file__).resolve().parents[2]


class Outcome:
    """Exit code and what was printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading matplotlib takes longer than these trainings; the tests that want it `draw`."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch, nothing_is_drawn: None) -> None:
    """Curves are drawn after all."""
    monkeypatch.delitem(sys.modules, "matplotlib.figure")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def without_curves(tmp_path: Path) -> str:
    """A search path for processes, with the package and without matplotlib."""
    absent = tmp_path / "absent" / "matplotlib"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ImportError\n")
    return os.pathsep.join([str(absent.parent), str(ROOT)])


@pytest.fixture
def start(tmp_path: Path, without_curves: str) -> Callable[..., subprocess.Popen]:
    """Starts a command in a process of its own, without matplotlib; it is gone after the test."""
    running: list[subprocess.Popen] = []
    environment = {**os.environ, "PYTHONPATH": without_curves, "PYTHONWARNINGS": "error"}

    def run(*arguments: object, **options: object) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "magmadnn", *map(str, arguments)]
        running.append(
            subprocess.Popen(command, cwd=tmp_path, env=environment, **{**pipes, **options})
        )
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def image_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with IDX files: 307 and 61 images of 5 x 7 in four classes; not to be changed."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(17)
    for part, rows in (("train", 307), ("t10k", 61)):
        labels = random.integers(0, 4, rows).astype(np.uint8)
        pixels = random.integers(0, 180, (rows, 5, 7)).astype(np.uint8)
        pixels[np.arange(rows), labels, labels + 1] += 75
        for array, kind in ((pixels, "images-idx3"), (labels, "labels-idx1")):
            magic = 2051 if array.ndim == 3 else 2049
            head = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + array.tobytes())
    return folder


@pytest.fixture
def images(tmp_path: Path, image_files: Path) -> Path:
    """A copy of `image_files` in the test's folder."""
    return Path(shutil.copytree(image_files, tmp_path / "images"))


def write_table(path: Path, target: str, rows: list[tuple[float, ...]], values: list[str]) -> Path:
    lines = [f"north,east,depth,{target}"]
    lines += [
        ",".join(f"{v:.5f}" for v in row) + f",{value}"
        for row, value in zip(rows, values, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _rows() -> np.ndarray:
    return np.random.default_rng(23).normal(size=(157, 3)) * (1.0, 30.0, 0.1) + (0.0, 100.0, 5.0)


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A table whose target is a number around 4000, with a standard deviation around 300."""
    x = _rows()
    y = 4000 + 200 * x[:, 0] - 7 * (x[:, 1] - 100)
    return write_table(tmp_path / "prices.csv", "price", x.tolist(), [f"{v:.4f}" for v in y])


@pytest.fixture
def soils(tmp_path: Path) -> Path:
    """A table whose target is text."""
    x = _rows()
    names = np.array(["clay", "loam", "sand"])[(x[:, 0] > 0).astype(int) + (x[:, 1] > 110)]
    return write_table(tmp_path / "soils.csv", "soil", x.tolist(), names.tolist())


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes training in this process break off after a step, without a chance to save."""
    on_batch_end, batches = Checkpoint.on_batch_end, Checkpoint.batches

    def at(step: int) -> None:
        def broken(self: Checkpoint, fit: Fit) -> None:
            on_batch_end(self, fit)
            if fit.steps == step:
                raise KeyboardInterrupt

        def up_to_there(self: Checkpoint, fit: Fit) -> int:
            return min(step - fit.steps, batches(self, fit) or step)

        monkeypatch.setattr(Checkpoint, "on_batch_end", broken)
        monkeypatch.setattr(Checkpoint, "batches", up_to_there)

    return at


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Undoes `interrupt`."""
    on_batch_end, batches = Checkpoint.on_batch_end, Checkpoint.batches

    def undo() -> None:
        monkeypatch.setattr(Checkpoint, "on_batch_end", on_batch_end)
        monkeypatch.setattr(Checkpoint, "batches", batches)

    return undo
