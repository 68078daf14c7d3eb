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
    ledger, number = os.environ.get("MAGMADNN_LEDGER", ""), _rank_in_job()
    rank = os.fork()
    if rank == 0:
        _end_with_parent()
        _run(sys.argv[3:], _code_file(ledger, number))
        return
    asked: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(rank, number)

    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, pass_on)
    status = os.waitpid(rank, 0)[1]
    if os.WIFSIGNALED(status) and not asked:
        with contextlib.suppress(FileNotFoundError):  # on another machine than the launcher
            os.pwrite(os.open(ledger, os.O_WRONLY), b"k", number * slot + state)
        if os.environ.get("OMPI_MCA_mpi_ft_enable"):  # others learn of it only if this ends alike
            os.kill(os.getpid(), signal.SIGKILL)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) and signal.SIGTERM not in asked:
        _write_code(_code_file(ledger, number), os.WEXITSTATUS(status))  # of `os._exit`, for one
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _rank_in_job() -> int:
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _code_file(ledger: str, number: int) -> str:
    """Where the launcher looks for the exit code of a rank: beside its ledger."""
    return f"{os.path.dirname(ledger)}/{EXIT}{number}"  # noqa: PTH120 - pathlib is not imported yet


def _exit_code(code: Any) -> int:
    """The exit code of a process whose SystemExit has `code`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _write_code(file: str, code: int) -> None:
    """Write the code that a rank ends with, unless it is there, where the launcher is on this machine."""
    with contextlib.suppress(OSError):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(opened, str(code).encode())
        os.close(opened)


def _run(words: list[str], code_file: str) -> None:
    """What the rank does; the script may change the environment."""
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
        if code := _exit_code(end.code):
            _write_code(
                code_file, code
            )  # MPI may wait for the others before this process has ended
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
