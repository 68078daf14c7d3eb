"""`Workflow`: modules, groups and a run of them, from Python or from a file."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.comm.job import ranks_of_job
from magmadnn.comm.launching.wheels import find_starter
from magmadnn.comm.mpi import load_mpi
from magmadnn.errors import ArgumentError, quoted
from magmadnn.storage.disk import as_path
from magmadnn.storage.durable import write_file

from .description.checking import check
from .description.drawing import svg
from .description.gpus import gpus_here
from .description.history import History
from .description.planning import Plan, plan_of
from .description.reading import Description, described, read_workflow
from .modules.functions import IN_JOB, Loading
from .ranks.job import run_here
from .ranks.plan_folder import Folder, create, open_folder
from .running import checked_end, run_job


@dataclass(frozen=True)
class Finished:
    """A workflow that has ended.

    Attributes:
        folder: that keeps its log and those of its modules.
        history: what happened.
    """

    folder: Path
    history: History

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.history.seconds


class Workflow:
    """Programs that run by dependency inside one job of MPI.

    Args:
        name: of the workflow.
        servers: tuple servers.
        copies: of each part of what is spread over them.
        memory: most bytes that a server holds; None: no bound.
        pin: whether ranks of modules are kept on cores of theirs.
    """

    def __init__(
        self,
        name: str = "workflow",
        *,
        servers: int = 1,
        copies: int = 1,
        memory: int | None = None,
        pin: bool = True,
    ) -> None:
        self._data: dict[str, Any] = {"name": name, "pin": pin, "modules": [], "groups": []}
        self._data["tuple_space"] = {"servers": servers, "copies": copies, "memory": memory}
        self._callables: dict[str, Callable[..., Any]] = {}
        self._base = Path.cwd()
        self._file: Description | None = None

    @classmethod
    def load(cls, file: str | Path) -> Workflow:
        """The workflow in a TOML file.

        Raises:
            FileError: it cannot be read.
            DataError: it is no workflow; tells each fault with its line.
        """
        made = cls()
        made._file = read_workflow(file)
        made._base = made._file.base
        return made

    def add_module(
        self,
        program: Callable[..., Any] | Sequence[str] | str,
        name: str,
        **options: Any,
    ) -> None:
        """Add a module.

        Args:
            program: a function of one argument, the context; a command as a list; `"package.module:name"`; or
                the path of a shared library, with `symbol`.
            name: of the module.
            options: as in the file: ranks, copies, threads, gpus, args, after, time_limit, on_failure,
                retries, puts, gets, environment, directory, seconds, symbol.

        Raises:
            ArgumentError: the workflow was read from a file, or the program is none of these.
        """
        self._changeable()
        if callable(program):
            self._callables[name] = program
            how: dict[str, Any] = {"function": _name_of(program)}
        elif isinstance(program, str):
            how = {"library" if ":" not in program else "function": program}
        elif isinstance(program, Sequence):
            how = {"command": [str(part) for part in program]}
        else:
            raise ArgumentError(
                f"add_module: {name}: the program must be a function, a command as a list, or a text, got "
                f"{quoted(program)}"
            )
        self._data["modules"].append({"name": name, **how, **options})

    def add_group(self, name: str, modules: Sequence[str], **options: Any) -> None:
        """Add a group of modules that run together.

        Args:
            name: of the group.
            modules: names of its modules.
            options: as in the file: after, iterations, until.
        """
        self._changeable()
        self._data["groups"].append({"name": name, "modules": list(modules), **options})

    def check(self, ranks: int | None = None) -> None:
        """Refuse what cannot run, before anything does.

        Args:
            ranks: for modules; None: as many as they need.

        Raises:
            DataError: tells all faults.
        """
        check(self._description(), ranks)

    def graph(self, file: str | Path) -> Path:
        """Draw the graph of dependencies as SVG."""
        self.check()
        path = Path(file)
        write_file(path, svg(self._description()).encode())
        return path

    def plan(
        self,
        ranks: int | None = None,
        earlier: History | None = None,
        cores: Iterable[int] | None = None,
    ) -> Plan:
        """When each module is expected to run, and on which cores and GPUs each of its ranks.

        Args:
            ranks: of the job; None: as many as it needs.
            earlier: of a run that times are taken from.
            cores: of the machine; None: those of this one.
        """
        self.check()
        times = None if earlier is None else earlier.typical()
        return plan_of(self._description(), ranks, times, cores, gpus_here())

    def save(self, file: str | Path) -> Path:
        """Write the workflow's file; paths in it are relative to the folder that it is in.

        Raises:
            DataError: it is no workflow.
            FileError: it cannot be written.
        """
        import tomlkit

        model = self._description().model
        path = as_path("workflow: save: the file", file)
        data = model.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        write_file(path, tomlkit.dumps(data).encode())
        return path

    def run(
        self,
        out: str | Path | None = None,
        *,
        ranks: int | None = None,
        resume: bool = False,
        with_ft: str | None = None,
        spares: int = 1,
    ) -> Finished | None:
        """Run to the end: under mpiexec in this job, otherwise in one that is started.

        Args:
            out: folder for log and output; None: `runs/<name>-<time>` beside the file.
            ranks: of the job, all told; None: as many as modules need that may run together, and the
                executive and the tuple servers.
            resume: go on with the run in `out`.
            with_ft: "ulfm": with Open MPI a rank of a module may be killed, and the job goes on. Under
                mpiexec its own `--with-ft ulfm` says so.
            spares: ranks that then wait to take over, beside those that the modules need.

        Returns:
            What happened; None on all ranks but the first where this process is one of a job.

        Raises:
            DataError: it cannot run.
            WorkflowError: a module failed, or waits for what cannot come.
        """
        if os.environ.get(IN_JOB) == "loading":
            raise Loading  # this file is being imported for its functions
        description = self._description()
        if ranks_of_job() > 1:
            return _run_in_job(description, out, resume)
        if with_ft not in (None, "ulfm"):
            raise ArgumentError(f"workflow: with_ft must be None or 'ulfm', got {quoted(with_ft)}")
        if with_ft:
            find_starter(ulfm=True)  # before a folder is made
        check(description)
        folder = create(_folder(description, out), description, resume)
        state, text = run_job(folder, ranks, spares if with_ft else None)
        checked_end(state, text)
        return Finished(folder.path, History.of(folder.records()))

    # --- what it is ----------------------------------------------------------------------------------

    def _changeable(self) -> None:
        if self._file is not None:
            raise ArgumentError("workflow: it was read from a file; add modules there")

    def _description(self) -> Description:
        if self._file is not None:
            return self._file
        return described(self._data, self._base, callables=self._callables)


def _folder(description: Description, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out).absolute()
    name = f"{description.model.name}-{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    return description.base / "runs" / name


def _run_in_job(description: Description, out: str | Path | None, resume: bool) -> Finished | None:
    """Run in the job of MPI that this process belongs to; every rank calls it."""
    MPI = load_mpi()
    world = MPI.COMM_WORLD
    path = bytearray(4096)
    failure: BaseException | None = None
    servers = description.model.tuple_space.servers
    if world.Get_rank() == 0:
        try:
            check(description, max(0, world.Get_size() - 1 - servers))
            made = create(_folder(description, out), description, resume)
            path[: len(str(made.path).encode())] = str(made.path).encode()
        except Exception as error:
            failure = error
    world.Bcast(path)
    text = bytes(path).rstrip(b"\0").decode()
    if failure is not None:
        raise failure
    if not text:
        raise SystemExit(2)  # the first rank says why
    opened = open_folder(Path(text))
    folder = Folder(opened.path, dataclasses.replace(description), opened.begin)
    state, why = run_here(folder)
    if not state:
        return None
    checked_end(state, why)
    return Finished(folder.path, History.of(folder.records()))


def _name_of(function: Callable[..., Any]) -> str:
    """The file and name by which another process finds a function.

    Raises:
        ArgumentError: it can only be found here.
    """
    name = getattr(function, "__qualname__", "")
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file() or not name.isidentifier():
        raise ArgumentError(
            f"add_module: {name or quoted(function)} is not a function of a file's or module's top level, so "
            'other processes cannot find it; move it there, or give "file.py:name"'
        )
    return f"{Path(file).absolute()}:{name}"


def include() -> Path:
    """The folder with `magmadnn_workflow.h` and `magmadnn_workflow.f90`, for modules in C and Fortran."""
    return Path(__file__).parent / "native"
