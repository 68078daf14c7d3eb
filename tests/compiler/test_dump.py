"""MAGMADNN_DUMP: files of every pass and every kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.plan.planning import PASSES
from magmadnn.errors import FileError
from magmadnn.runtime import Executable
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed


def run(executor: str = "native") -> None:
    x, w = placed("x", BATCH, 7), md.variable("w", ramp(7, 5)).node
    y = ops.softmax(x @ w)
    executable = Executable([y], [(w, w * 0.5)], executor=executor)
    for batch in (3, 5):
        executable.run({x: ramp(batch, 7)})


def test_every_pass_and_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGMADNN_DUMP", str(tmp_path))
    monkeypatch.setattr(kernel, "_loaded", {})
    run()
    (native,) = tmp_path.glob("0*-native")
    names = [path.name for path in sorted(native.glob("*.txt"))]
    passes = ["given", *(p.__name__ for p in PASSES), "plan", "plan_memory", "plan_memory"]
    assert names == [f"{k:02}-{name}.txt" for k, name in enumerate(passes)]
    texts = {path.name[3:-4]: path.read_text() for path in native.glob("*.txt")}
    assert "softmax(" in texts["given"] and "softmax(" not in texts["decompose"]
    assert "writes multiply in w" in texts["fold"] and "gemm [" in texts["plan"]
    assert "# arena of" in texts["plan_memory"] and "phases 0 to" in texts["plan_memory"]
    kernels = [path.name for path in sorted((tmp_path / "kernels").iterdir())]
    assert [name[:4] for name in kernels] == [f"{k + 1:04}" for k in range(len(kernels))]
    assert any(name.endswith("-gemm.ll") for name in kernels)
    text = (tmp_path / "kernels" / kernels[0]).read_text()
    assert text.startswith("; ") and "define void" in text


def test_programs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGMADNN_DUMP", str(tmp_path / "new"))
    run("reference")
    run("reference")
    found = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert found == ["0001-reference", "0002-reference"]
    assert "s0 = " in (tmp_path / "new" / found[1] / "04-plan.txt").read_text()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGMADNN_DUMP", str(tmp_path / "file"))
    with pytest.raises(
        FileError, match=r"MAGMADNN_DUMP: cannot write .*file: .*; choose another folder"
    ):
        run()


def test_nothing_is_written_unless_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAGMADNN_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    run()
    assert not list(tmp_path.iterdir())
