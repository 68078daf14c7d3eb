"""What `magmadnn launch` runs on each rank: the user's script or module, whose errors end the job.

python child.py SLOT STATE [-m] PROGRAM [ARGUMENTS]

It begins as two processes: the first only waits for the second, the rank. If that is killed, the first
writes so into the ledger (of SLOT bytes a rank, the state at STATE) before mpiexec can know, and so before
other ranks are ended too. Nothing is imported before they part.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

EXIT = "exit."  # with a rank's number a file beside the ledger, of the code that it ended with


def main(slot: int, state: int) -> None:
    """Run the program of the arguments in a process of its own."""
    _end_with_parent()
    rank = os.fork()
    if rank == 0:
        _end_with_parent()
        _run(sys.argv[3:])
        return
    asked: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(rank, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    status = os.waitpid(rank, 0)[1]
    if os.WIFSIGNALED(status) and not asked:
        place = _rank_in_job() * slot + state
        with contextlib.suppress(FileNotFoundError):  # on another machine than the launcher
            os.pwrite(os.open(os.environ["MAGMADNN_LEDGER"], os.O_WRONLY), b"k", place)
        if os.environ.get("OMPI_MCA_mpi_ft_enable"):  # others learn of it only if this ends alike
            os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _rank_in_job() -> int:
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
    return next(int(os.environ[name]) for name in names if name in os.environ)


def _tell_code(code: Any) -> None:
    """Write the code that a rank ends with beside the ledger, where the launcher is on this machine."""
    from pathlib import Path

    place = Path(os.environ["MAGMADNN_LEDGER"]).with_name(f"{EXIT}{_rank_in_job()}")
    with contextlib.suppress(OSError):
        place.write_text(str(code & 0xFF if isinstance(code, int) else 1))


def _run(words: list[str]) -> None:
    """What the rank does."""
    import functools
    import runpy
    from pathlib import Path

    here = os.path.realpath(__file__)
    sys.path[0] = here.rpartition("/magmadnn/")[0]  # this package first, wherever it lies
    from magmadnn.comm.job import fail, own_ledger
    from magmadnn.comm.ledger import ENDED, FAILED

    ledger = own_ledger()
    module = words[0] == "-m"
    sys.argv = words[1:] if module else words
    program = sys.argv[0]
    try:
        if module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            _tell_code(end.code)  # MPI may wait for the others before this process has ended
            if ledger is not None:
                ledger.leave(FAILED)
            raise
    except BaseException as error:  # ends the job, with its text
        fail(error, sys.modules.get("mpi4py.MPI"), functools.partial(_show, error))
    if ledger is not None:
        ledger.leave(ENDED)


def _show(error: BaseException) -> None:
    """The traceback without the frames of this file and of runpy."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen")):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _end_with_parent() -> None:
    """Let the kernel kill this process when what started it dies, so that no rank is left behind."""
    if sys.platform == "linux":
        import ctypes

        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
