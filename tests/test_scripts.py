"""scripts/: finding a Python, making environments, running the checks.

The environments here are real ones, for a project without dependencies that builds itself, so that
nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    if os.path.exists("broken"):
        raise SystemExit("the build says why")
    if os.path.exists("slow"):
        open("building", "w").close()
        time.sleep(60)
    with zipfile.ZipFile(os.path.join(folder, "magmadnn-0-py3-none-any.whl"), "w") as wheel:
        about = "Metadata-Version: 2.1\\nName: magmadnn\\nVersion: 0\\nProvides-Extra: plot\\n"
        wheel.writestr("magmadnn-0.dist-info/METADATA", about)
        wheel.writestr("magmadnn-0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("magmadnn-0.dist-info/RECORD", "")
        wheel.writestr("installed.py", "")
    return "magmadnn-0-py3-none-any.whl"
"""
SETTING_UP = "setting up"
# What the command in the environment prints: its folder, its interpreter, and what it was given.
SHOW = "import installed, os, sys; print(os.getcwd(), sys.prefix, sys.argv[1:]); sys.exit(7)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a space in its path, and nothing set up."""
    root = tmp_path / "a project"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (root / "backend.py").write_text(BACKEND, encoding="utf-8")
    return root


def command(root: Path, *arguments: str) -> list[str]:
    return [str(root / "scripts" / "in-environment"), "train", "plot", "python", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"MAGMADNN_PYTHON": sys.executable, "PIP_NO_INDEX": "1"}


def run(root: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(root, *arguments), cwd=cwd, env=environment(), capture_output=True, text=True
    )


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(root, *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_an_environment_is_made_once_and_the_command_is_left_alone(project: Path) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    first = run(project, "-c", SHOW, "a b", "--flag", cwd=elsewhere)
    assert SETTING_UP in first.stderr
    again = run(project, "-c", SHOW, "a b", "--flag", cwd=elsewhere)
    assert again.stderr == ""
    for done in (first, again):
        assert done.stdout == f"{elsewhere} {project / '.venv-train'} ['a b', '--flag']\n"
        assert done.returncode == 7


@pytest.mark.long
def test_an_environment_is_made_again_when_it_has_to_be(project: Path) -> None:
    ready = project / ".venv-train" / "ready"
    assert SETTING_UP in run(project, "-c", "").stderr
    ready.unlink()  # as if the set-up had been cut short
    assert SETTING_UP in run(project, "-c", "").stderr
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# another one\n")
    assert SETTING_UP in run(project, "-c", "").stderr
    python = project / ".venv-train" / "bin" / "python"
    python.unlink()  # as if the system's Python had been removed
    python.symlink_to("gone")
    assert SETTING_UP in run(project, "-c", "").stderr
    moved = project.rename(project.parent / "moved")
    assert SETTING_UP in run(moved, "-c", "").stderr
    assert run(moved, "-c", "").stderr == ""


@pytest.mark.long
def test_a_failed_set_up_shows_why_and_is_not_taken_for_done(project: Path) -> None:
    (project / "broken").touch()
    for _ in range(2):
        done = run(project, "-c", "print('ran')")
        assert done.returncode == 1
        assert "the build says why" in done.stderr
        assert "set-up failed" in done.stderr.splitlines()[-1]
        assert done.stdout == ""
    (project / "broken").unlink()
    assert run(project, "-c", "print('ran')").stdout == "ran\n"


@pytest.mark.long
def test_two_at_the_same_time_set_up_once(project: Path) -> None:
    both = [start(project, "-c", "import installed") for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(SETTING_UP in error for error in errors) == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_set_up_that_is_interrupted_begins_again(project: Path, number: signal.Signals) -> None:
    (project / "slow").touch()
    process = start(project, "-c", "print('ran')")
    wait_for(project / "building")
    os.killpg(process.pid, number)
    output, errors = process.communicate()
    assert process.returncode == 128 + number
    assert output == ""
    assert "Traceback" not in errors
    (project / "slow").unlink()
    assert run(project, "-c", "print('ran')").stdout == "ran\n"


@pytest.mark.long
def test_an_environment_in_use_is_not_taken_away(project: Path) -> None:
    script = "import pathlib, sys; pathlib.Path('up').touch(); input(); import installed"
    with subprocess.Popen(
        command(project, "-c", script), cwd=project, env=environment(), stdin=subprocess.PIPE
    ) as user:
        wait_for(project / "up")
        # Another one may use the environment at the same time, but not make it anew.
        assert run(project, "-c", "").stderr == ""
        (project / "pyproject.toml").write_text(PYPROJECT + "# another\n", encoding="utf-8")
        maker = start(project, "-c", "")
        assert maker.stderr is not None
        assert "waiting for commands that still run" in maker.stderr.readline()
        assert maker.poll() is None
        user.communicate(b"\n")
        assert user.returncode == 0
        assert SETTING_UP in maker.communicate()[1]


@pytest.fixture
def few_programs(tmp_path: Path) -> Path:
    """A folder for PATH with what the scripts call, but no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (None, "no Python 3.11 or newer found"),
        ("exit 1", "no Python 3.11 or newer found"),  # too old, or a name with nothing behind it
        ('case "$*" in *ensurepip*) exit 1;; esac', "cannot make virtual environments"),
    ],
)
def test_a_missing_python_is_one_clear_line(
    few_programs: Path, python: str | None, message: str
) -> None:
    if python is not None:
        script = few_programs / "python3"
        script.write_text(f"#!{few_programs / 'bash'}\n{python}\n", encoding="utf-8")
        script.chmod(0o755)
    done = subprocess.run(
        [few_programs / "bash", SCRIPTS / "train"],
        env={"PATH": str(few_programs)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def stages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stages", SCRIPTS / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("exit_codes", "expected"), [((0, 0), 0), ((3, 0), 1), ((0, 1), 1)])
def test_all_stages_run_and_any_failure_counts(
    exit_codes: tuple[int, int],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    module = stages()
    commands = {
        f"stage{i}": [sys.executable, "-c", f"print('stage', {i}); raise SystemExit({code})"]
        for i, code in enumerate(exit_codes)
    }
    monkeypatch.setattr(module, "stages", lambda arguments: commands)
    assert module.main([]) == expected
    output = capfd.readouterr().out
    assert "stage 0" in output
    assert "stage 1" in output
    assert output.splitlines()[-1].startswith("FAILED" if expected else "All passed")


def test_stages_beside_the_tests_print_at_their_end_and_count(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The tests wait for a file that the stage beside them writes: one after the other would never end."""
    module = stages()
    sign = tmp_path / "sign"
    waiting = f"import os, time\nwhile not os.path.exists({str(sign)!r}): time.sleep(0.01)\nprint('waited')"
    beside = f"print('beside', flush=True); open({str(sign)!r}, 'w').close(); raise SystemExit(4)"
    commands = {"tests": [sys.executable, "-c", waiting], "docs": [sys.executable, "-c", beside]}
    monkeypatch.setattr(module, "stages", lambda arguments: commands)
    assert module.main([]) == 1
    lines = capfd.readouterr().out.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("== docs: "))
    assert lines[heading + 1] == "beside"
    assert lines[heading + 2].startswith("== docs: FAILED")
    assert "waited" in lines
    assert lines[-1].startswith("FAILED: docs (")


def test_arguments_go_on_to_pytest() -> None:
    assert stages().stages(["--all", "-k", "x"])["tests"][-3:] == ["--all", "-k", "x"]


def test_lines_are_counted_with_all_tests_only() -> None:
    assert "--cov=magmadnn" in stages().stages(["--all"])["tests"]
    assert "--cov=magmadnn" not in stages().stages([])["tests"]


def test_the_other_library_of_mpi_is_left_out_where_tests_are_chosen() -> None:
    assert "--all" in stages().stages(["--all"])["openmpi"]
    assert "openmpi" in stages().stages([]) and "openmpi" not in stages().stages(["-k", "x"])
