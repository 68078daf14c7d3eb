"""NVIDIA's compute-sanitizer over kernels of products, rows and whole trainings: memory, races, barriers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magmadnn.backends import cuda

HAS_DEVICE, REASON = cuda.available()
ROOT = Path(__file__).resolve().parents[3]
TOOL = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin"
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    pytest.mark.skipif(not HAS_DEVICE, reason=REASON),
    pytest.mark.skipif(TOOL is None, reason="there is no compute-sanitizer"),
]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("what", ["products", "networks", "rows"])
def test_nothing_is_found(what: str, tool: str) -> None:
    """In kernels of this package only, which are called kernel_0, kernel_1, ..."""
    assert TOOL is not None
    program = [sys.executable, "-m", f"tests.runtime.cuda.sanitized_{what}"]
    command = [TOOL, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kns=kernel_"]
    done = subprocess.run(
        [*command, *program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{what} are right" in done.stdout
