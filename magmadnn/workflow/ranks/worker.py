"""A rank that runs modules: it waits for orders of the executive, and tells how runs ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magmadnn.comm.job import RANKS
from magmadnn.errors import WorkflowError
from magmadnn.workflow.description.checking import program_of
from magmadnn.workflow.description.reading import Description
from magmadnn.workflow.modules.commands import run_command
from magmadnn.workflow.modules.context import Context
from magmadnn.workflow.modules.direct import Direct, Place
from magmadnn.workflow.modules.functions import function_of
from magmadnn.workflow.modules.gpu_memory import ModuleMail
from magmadnn.workflow.modules.libraries import run_library
from magmadnn.workflow.tuples.client import TupleClient
from magmadnn.workflow.tuples.mail import Mail, Pause

from .pinning import VARIABLES, pinned
from .watching import Watch

INTERRUPT = signal.SIGUSR2


class Interrupted(BaseException):
    """The executive ends this run, or its time is over."""


class Worker:
    """A rank for modules.

    Args:
        world: communicator of all ranks.
        control: mail from and to the executive.
        direct: mail between modules.
        near: ranks on this machine.
        tuples: the tuple space.
        description: the workflow.
        folder: of its run.
        ulfm: whether ranks may be lost.
    """

    def __init__(
        self,
        world: Any,
        control: Mail,
        direct: Mail,
        near: Sequence[int],
        tuples: TupleClient,
        description: Description,
        folder: Path,
        ulfm: bool = False,
    ) -> None:
        self._ulfm = ulfm
        self._world, self._control, self._direct = world, control, ModuleMail(direct, near)
        self._tuples, self._description, self._folder = tuples, description, folder
        self._watch = Watch(folder, int(world.Get_rank()))
        self._active, self._why = False, ""
        self._orders: list[dict[str, Any]] = []
        # A module trains by itself, whatever else is in the job: `fit` would wait for all of its ranks.
        os.environ[RANKS] = "1"
        signal.signal(INTERRUPT, self._interrupted)
        signal.signal(signal.SIGALRM, self._interrupted)

    def work(self) -> None:
        """Obey until the executive ends the job."""
        pause = Pause()
        while True:
            order = self._next_order()
            if order is None:
                self._tuples.flush()
                self._direct.settle()
                pause()
                continue
            pause.reset()
            if order["op"] == "quit":
                return
            if order["op"] == "start":
                self._control.send_json(self._run(order), 0)

    def _next_order(self) -> dict[str, Any] | None:
        found = self._control.receive_json()
        return None if found is None else found[1]

    # --- one run -------------------------------------------------------------------------------------

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run a module; what the executive is told."""
        number, key = order["run"], order["key"]
        module = self._description.module(order["module"])
        self._tuples.begin(number, self._ulfm or module.on_failure == "retry")
        self._watch.set(key)
        begun, reason, self._loss = time.monotonic(), "", False
        folder = Path(order["folder"])
        comm = self._communicator(order)
        rank = order.get("member", comm.Get_rank())
        try:
            with _printing_to(folder / f"rank-{rank}.log") as log:
                reason = self._guarded(order, module, comm, folder, log)
        except OSError as error:
            reason = f"cannot write the log of {key}: {error}"
        finally:
            self._watch.set("")
        if not reason:
            comm.Free()
        elif self._ulfm and comm.Get_size() > 1:
            comm.Revoke()  # others may wait in it
        tuples = self._tuples
        tuples.flush()
        if tuples.keeps:
            tuples.sync()  # nothing of it may come after the executive has heard of its end
        return {
            "op": "ended",
            "run": number,
            "reason": reason,
            "loss": self._loss,
            "seconds": time.monotonic() - begun,
            "waited": round(tuples.waited, 6),
            "moved": tuples.moved,
            "puts": tuples.puts,
            "took": {str(k): v for k, v in tuples.took.items()},
        }

    def _communicator(self, order: dict[str, Any]) -> Any:
        """The communicator of a run's ranks; one that takes over from a lost rank is alone in its."""
        ranks, number = order["ranks"], order["run"]
        if "member" in order or len(ranks) == 1:
            from mpi4py import MPI

            return MPI.COMM_SELF.Dup()
        group = self._world.group.Incl(ranks)
        if self._ulfm:  # not through a communicator that may have lost ranks
            comm = type(self._world).Create_from_group(group, f"magmadnn-{number}")
        else:
            comm = self._world.Create_group(group, number % 30_000)
        group.Free()
        return comm

    def _guarded(
        self, order: dict[str, Any], module: Any, comm: Any, folder: Path, log: Any
    ) -> str:
        """Run what the module is; why it failed, or an empty text."""
        try:
            self._active, self._why = True, ""
            if module.time_limit is not None:
                self._why = f"took longer than its time limit of {module.time_limit:g} seconds"
                signal.setitimer(signal.ITIMER_REAL, module.time_limit)
            try:
                self._call(order, module, comm, folder, log)
            finally:
                self._active = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted as error:
            return str(error) or "was ended"
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                return ""
            self._loss = self._ulfm and _is_loss(error)
            return _reason(error)
        return ""

    def _call(self, order: dict[str, Any], module: Any, comm: Any, folder: Path, log: Any) -> None:
        rank = int(order.get("member", comm.Get_rank()))
        own = (module.name, order["copy"], rank)
        direct = Direct(self._direct, order["run"], own, self._find, self._tell)
        context = self._context(order, module, comm, folder, direct)
        with pinned(context.cores, module.threads), _seeing(context.gpus):
            try:
                self._call_pinned(module, context, log)
            finally:
                direct.close()

    def _call_pinned(self, module: Any, context: Context, log: Any) -> None:
        if module.command is not None:
            self._command(module, context, log)
        elif module.library is not None:
            path = self._description.base / module.library
            run_library(path, module.symbol, context)
        else:
            given = self._description.callables.get(module.name)
            function = given or function_of(module.function, self._description.base)
            function(context)

    def _context(
        self, order: dict[str, Any], module: Any, comm: Any, folder: Path, direct: Direct
    ) -> Context:
        rank = int(order.get("member", comm.Get_rank()))
        places = {"copy": order["copy"], "iteration": order["iteration"], "rank": rank}
        names = {**{k: str(v) for k, v in places.items()}, "folder": str(folder)}
        return Context(
            comm,
            module.name,
            order["copy"],
            module.copies,
            order["iteration"],
            order["attempt"],
            [filled(one, names) for one in module.args],
            folder,
            self._description.base,
            module.threads,
            order["gpus"][rank] if order["gpus"] else (),
            order["cores"][rank],
            self._tuples,
            direct,
            (rank, len(order["ranks"])),
            self._tell,
        )

    def _command(self, module: Any, context: Context, log: Any) -> None:
        names = {
            "copy": str(context.copy),
            "iteration": str(context.iteration),
            "rank": str(context.rank),
            "folder": str(context.folder),
            "base": str(context.base),
        }
        program, *rest = [filled(one, names) for one in module.command]
        found = program_of(program, context.base)
        if found is None:
            raise WorkflowError(f"command {program!r} is not there or may not be run")
        folder = context.base / module.directory if module.directory else context.folder
        environment = {k: filled(v, names) for k, v in module.environment.items()}
        environment |= {name: str(module.threads) for name in VARIABLES}
        environment |= {f"MAGMADNN_{k.upper()}": v for k, v in names.items()}
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(context.gpus)
        key = self._watch.run
        run_command(
            [found, *rest, *context.args],
            folder,
            environment,
            log,
            self._tuples,
            lambda group: self._watch.set(key, group),
        )

    # --- orders while a module runs ------------------------------------------------------------------

    def _find(self, module: str, copy: int) -> Place:
        """Where a module's copy runs."""
        self._control.send_json({"op": "where", "module": module, "copy": copy}, 0)
        pause = Pause()
        while True:
            order = self._next_order()
            if order is None:
                pause()
            elif order["op"] == "placed":
                return order["run"], order["ranks"]
            elif order["op"] == "fail":
                raise WorkflowError(order["text"])

    def _tell(self, record: dict[str, Any]) -> None:
        self._control.send_json(record, 0)

    def _interrupted(self, number: int, frame: Any) -> None:
        if self._active:
            self._active = False
            limit = number == signal.SIGALRM
            raise Interrupted(self._why if limit else "was ended by the executive")


def filled(text: str, names: dict[str, str]) -> str:
    """A text with `{copy}` and the like replaced; other braces stay."""
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


def _is_loss(error: BaseException) -> bool:
    """Whether MPI says that another rank was lost."""
    from mpi4py import MPI

    kinds = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
    return isinstance(error, MPI.Exception) and error.Get_error_class() in kinds


def _reason(error: BaseException) -> str:
    """An exception in one line, with the user's line that it came from; the rest goes to the run's log."""
    frames = traceback.extract_tb(error.__traceback__)
    home = str(Path(__file__).parents[1])
    own = [f for f in frames if not f.filename.startswith(home)]
    if not own:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    traceback.print_exception(error)
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{first} ({own[-1].filename}:{own[-1].lineno})"


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[Any]:
    """What this process prints goes to a file, also what C and Fortran print."""
    sys.stdout.flush()
    sys.stderr.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    before = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        yield log
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(before[0], 1)
        os.dup2(before[1], 2)
        for descriptor in (*before, log):
            os.close(descriptor)


@contextmanager
def _seeing(gpus: Sequence[str]) -> Iterator[None]:
    """Show a run its GPUs only, none where it asked for none, and afterwards those of the job again."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
