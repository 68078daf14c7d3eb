"""Make or reuse the virtual environment of a script, then become the command that runs in it.

    python environment.py NAME EXTRAS COMMAND [ARGUMENT ...]

The environment is the folder `.venv-NAME` in the root of the repository and holds magmadnn itself,
installed in place (so changes in the source count at once), with the given extras. It is made again
when pyproject.toml is another one, when the repository was moved, and when making it was cut short.
Its last file, `ready`, tells: it is written when all else is done, and says for what.

Two locks, which end with the process that holds them, however it ends:

- on pyproject.toml, while an environment is looked at or made: one at a time, since an
  installation in place also writes into the source tree;
- on `ready`, shared, for as long as a command runs: an environment in use is not taken away.

For Linux and macOS.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"


def main(name: str, extras: str, *command: str) -> NoReturn:
    """Set up `.venv-NAME` if need be and replace this process by `command`, run in it."""
    # Raised inside subprocess.run, this also ends pip, which would go on writing on its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = ROOT / f".venv-{name}"
    ready = folder / "ready"
    with PYPROJECT.open("r+b") as setting_up:
        lock(setting_up.fileno(), shared=False, why="another set-up to finish")
        wanted = key(extras)
        if not is_current(folder, wanted):
            if ready.exists():
                with ready.open("r+b") as old:
                    lock(old.fileno(), shared=False, why=f"commands that still run in {folder}")
            make(folder, extras)
            ready.write_text(wanted, encoding="utf-8")
        in_use = os.open(ready, os.O_RDONLY)
        lock(in_use, shared=True, why=f"{folder}")
    os.set_inheritable(in_use, True)
    become(folder, command)


def key(extras: str) -> str:
    """What an environment depends on; the path, because its scripts hold it."""
    digest = hashlib.sha256(PYPROJECT.read_bytes()).hexdigest()
    return f"pyproject.toml {digest}\nextras {extras}\nroot {ROOT}\n"


def is_current(folder: Path, wanted: str) -> bool:
    """Whether the environment is complete, up to date, and its interpreter still there."""
    ready = folder / "ready"
    if not ready.is_file() or not (folder / "bin" / "python").exists():
        return False
    return ready.read_text(encoding="utf-8") == wanted


def make(folder: Path, extras: str) -> None:
    """Make the environment afresh; end the program with pip's output if that fails."""
    start = time.monotonic()
    say(f"setting up {folder} with Python {sys.version.split()[0]} (once; a minute or two) ...")
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-I", "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--no-user", "--progress-bar", "off", "--editable", f".[{extras}]"])
    say(f"ready after {time.monotonic() - start:.0f} s")


def run(command: list[str]) -> None:
    """Run `command` in the root, silent unless it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        say(f"set-up failed, see above; the command was: {' '.join(command)}")
        raise SystemExit(1)


def lock(file: int, *, shared: bool, why: str) -> None:
    """Lock an open file until it is closed; say so if it takes waiting for `why`."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for {why} ...")
        fcntl.flock(file, kind)
    except OSError as error:  # some network file systems have no locks
        say(f"going on without a lock: {error.strerror}")


def become(folder: Path, command: tuple[str, ...]) -> NoReturn:
    """Replace this process by `command`, so that its signals and exit code are its own."""
    environment = dict(os.environ)
    for name in ("PYTHONHOME", "PYTHONPATH"):  # they would mix another Python's libraries in
        environment.pop(name, None)
    environment["VIRTUAL_ENV"] = str(folder)
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"
    sys.stderr.flush()
    os.execvpe(command[0], list(command), environment)


def say(text: str) -> None:
    """One line on standard error; standard output belongs to the command."""
    print(f"magmadnn: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        say("interrupted; if the set-up was under way, the next start begins it again")
        raise SystemExit(128 + signal.SIGINT) from None
    except OSError as error:
        say(f"set-up failed: {error}")
        raise SystemExit(1) from None
