"""Output that cannot be written ends nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from magmadnn.storage.printing import SafeStream, note

POSIX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_failure_is_told_once_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    stream = SafeStream(Full())
    for _ in range(3):
        assert stream.write("line\n") == 5
        stream.flush()
    assert isinstance(stream.failure, OSError)
    assert not stream.isatty()
    assert capsys.readouterr().err == (
        "magmadnn: note: standard output cannot be written any more (No space left on device); work goes on "
        "without it\n"
    )


def test_a_stream_that_is_closed_is_one_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (SafeStream(None), SafeStream(closed)):
        stream.write("line\n")
        assert not stream.isatty()
        assert "closed" in str(stream.failure)
    assert capsys.readouterr().err.count("\n") == 2


def test_characters_that_an_encoding_lacks_are_replaced() -> None:
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("loss ━ 1\n")
    stream.flush()
    assert raw.getvalue() == b"loss ? 1\n"
    assert stream.failure is None


def test_notes_need_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, Full()):
        monkeypatch.setattr(sys, "stderr", stream)
        note("nobody hears")


_TRAINING = """
import numpy as np
import magmadnn as md
model = md.Model([md.layers.Input((3,)), md.layers.Dense(2)], loss="mse", optimizer="sgd")
model.fit(np.ones((64, 3), "f4"), np.ones((64, 2), "f4"), epochs=3)
model.save("model")
"""


@POSIX
@pytest.mark.parametrize(
    "output",
    [
        pytest.param(">&-", marks=pytest.mark.long),
        ">/dev/full",
        "| true",
        ">&- 2>&-",
        pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.long),
    ],
)
def test_a_training_in_python_goes_on(tmp_path: Path, output: str) -> None:
    (tmp_path / "train.py").write_text(_TRAINING)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} train.py {output}"],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (tmp_path / "model" / "manifest.json").exists(), done.stderr
    assert "Traceback" not in done.stderr
    if output in (">&-", ">/dev/full"):
        assert done.stderr.count("cannot be written any more") == 1
