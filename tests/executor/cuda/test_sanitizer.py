"""NVIDIA's compute-sanitizer over the kernels of matrix products: memory, races, barriers."""

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
def test_products(tool: str) -> None:
    """Those of this package only: its kernels are called kernel_0, kernel_1, ..."""
    assert TOOL is not None
    program = [sys.executable, "-m", "tests.executor.cuda.sanitized_products"]
    command = [TOOL, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kns=kernel_"]
    done = subprocess.run(
        [*command, *program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "products are right" in done.stdout
