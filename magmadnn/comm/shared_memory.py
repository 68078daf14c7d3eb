"""Shared memory that MPICH leaves behind when ranks are killed: noted when MPI begins, removed with the job.

MPICH removes its files in /dev/shm, of some MB a job, in MPI_Finalize only: a job that is ended early leaves
them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .ledger import VARIABLE

_NOTES: Final = "shared-memory"
_FILES: Final = "/dev/shm/mpich_shm_"


def note_files() -> None:
    """Write down which of MPICH's files this rank has mapped, beside the launcher's ledger."""
    ledger, maps = os.environ.get(VARIABLE, ""), Path("/proc/self/maps")
    if not maps.exists() or not Path(ledger).is_file():  # none, or on the launcher's machine
        return
    names = {line.split()[-1] for line in maps.read_text().splitlines() if _FILES in line}
    notes = os.open(Path(ledger).with_name(_NOTES), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(notes, "".join(f"{name}\n" for name in sorted(names)).encode())
    finally:
        os.close(notes)


def remove_files(folder: Path) -> None:
    """Remove what ranks wrote down in the job's folder and what is still there, once they have ended."""
    notes = folder / _NOTES
    if notes.exists():
        for name in set(notes.read_text().splitlines()):
            if name.startswith(_FILES):
                Path(name).unlink(missing_ok=True)
