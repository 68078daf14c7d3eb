"""One process of a workflow's job: which of executive, tuple server and worker it is, and its end.

`start.py` calls `main`.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from magmadnn.comm.job import may_lose_ranks
from magmadnn.comm.mpi import load_mpi
from magmadnn.errors import ArgumentError, MagmaDNNError
from magmadnn.storage.event_log import EventLog
from magmadnn.storage.holding import Holding
from magmadnn.workflow.description.cores import Cores, as_mask, cores_here, of_mask
from magmadnn.workflow.description.history import History
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.client import TupleClient
from magmadnn.workflow.tuples.mail import KEEN, LOOKS, Mail, Pause
from magmadnn.workflow.tuples.segments import Segments, can_share, remove_all
from magmadnn.workflow.tuples.server import Server

from .executive import CannotEnd, Executive
from .plan_folder import LOG, STOP, Folder, open_folder
from .schedule import Schedule
from .worker import Worker

_WORDS = 1024


def run_here(folder: Folder) -> tuple[str, str]:
    """Take part in a job, as this process's rank says; on rank 0 how it ended, and why.

    Raises:
        ArgumentError: the job has too few ranks.
        MagmaDNNError: it cannot go on, on rank 0; the other ranks are ended.
    """
    MPI = load_mpi()
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    count = folder.description.model.tuple_space.servers
    servers, workers = list(range(1, 1 + count)), list(range(1 + count, size))
    if not workers:
        raise ArgumentError(
            f"workflow: a job of {size} ranks has none for modules: the executive and {count} tuple "
            f"servers need {1 + count}; start it with mpiexec -n {2 + count} or more"
        )
    own = {"process": os.getpid(), "host": MPI.Get_processor_name(), "cores": as_mask(cores_here())}
    about = _exchanged(world, own)
    token = _exchanged(world, {"token": uuid.uuid4().hex[:12]})[0]["token"]
    ulfm = may_lose_ranks()
    mails = control, space, direct = [Mail(world.Dup(), ulfm) for _ in range(3)]
    near = [r for r in range(size) if about[r]["host"] == about[rank]["host"]]
    prefix = f"magmadnn-{token}"
    ended = "", ""
    try:
        if rank == 0:
            ended = _executive(folder, control, space, servers, workers, about, prefix)
        elif rank in servers:
            _serve(folder, rank - 1, control, space, f"{prefix}-s{rank - 1}", near)
        else:
            copies = folder.description.model.tuple_space.copies
            tuples = TupleClient(space, servers, [s for s in servers if s in near], copies)
            Worker(
                world, control, direct, near, tuples, folder.description, folder.path, ulfm
            ).work()
        _wait_for_all(world, ulfm)
        for mail in mails:
            mail.close()
    except BaseException as error:
        _die(world, error)
    return ended


def _executive(
    folder: Folder,
    control: Mail,
    space: Mail,
    servers: list[int],
    workers: list[int],
    about: list[dict[str, Any]],
    prefix: str,
) -> tuple[str, str]:
    ulfm = may_lose_ranks()
    holding = Holding(folder.path, "run a workflow")
    (folder.path / STOP).unlink(missing_ok=True)
    log = EventLog(folder.path / LOG, folder.begin)
    history = History.of(log.records)
    processes = [one["process"] for one in about]
    log.add([{"event": "job", "ranks": len(about), "processes": processes, "prefix": prefix}])
    schedule = Schedule(folder.description, history.done(), history.goes_on)
    executive = Executive(
        folder,
        schedule,
        log,
        control,
        space,
        servers,
        workers,
        [(one["process"], one["host"]) for one in about],
        Cores(_cores_of_hosts(about) if folder.description.model.pin else {}),
        max(history.runs, default=0) + 1,
        ulfm,
    )
    try:
        state = executive.go()
    except CannotEnd as error:
        log.add([{"event": "finish", "state": "failed", "text": str(error)}])
        raise
    finally:
        log.close()
        holding.release()
    for rank in workers:
        control.send_json({"op": "quit"}, rank)
    for rank in servers:
        space.send(m.packed(m.QUIT), rank)
    return state, executive.text


def _cores_of_hosts(about: list[dict[str, Any]]) -> dict[str, set[int]]:
    """All cores that ranks of a machine may use: a launcher may have given each rank its own."""
    found: dict[str, set[int]] = {}
    for one in about:
        found.setdefault(one["host"], set()).update(of_mask(one["cores"]))
    return found


def _wait_for_all(world: Any, ulfm: bool) -> None:
    """Wait for all ranks, or for those that are left."""
    if ulfm:
        world = world.Shrink()
    world.Barrier()


def _serve(
    folder: Folder, number: int, control: Mail, space: Mail, prefix: str, near: list[int]
) -> None:
    """Be a tuple server until the executive ends the job."""
    segments = Segments(prefix) if can_share() else None
    memory = folder.description.model.tuple_space.memory

    def tell(record: dict[str, Any]) -> None:
        control.send_json(record, 0)

    server = Server(number, memory, segments, space.send, tell, near)
    pause, count = Pause(spins=KEEN), 0
    try:
        while not server.ended:
            found = space.receive(LOOKS)
            count += 1
            if found is not None:
                server.handle(*found)
                pause.reset()
            elif not server.work():
                pause()
            if found is None or count % 256 == 0:
                server.look_round()
    finally:
        if segments is not None:
            segments.close()
    control.finish()


def _exchanged(world: Any, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Small records of all ranks."""
    own = bytearray(json.dumps(record).encode().ljust(_WORDS))
    everybody = bytearray(_WORDS * world.Get_size())
    world.Allgather(own, everybody)
    return [json.loads(everybody[k : k + _WORDS]) for k in range(0, len(everybody), _WORDS)]


def _die(world: Any, error: BaseException) -> None:
    """End the whole job, since one rank cannot go on: others would wait for it for ever."""
    import traceback

    if isinstance(error, MagmaDNNError | CannotEnd):
        print(f"magmadnn: error: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
    elif not isinstance(error, SystemExit):
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    world.Abort(2 if isinstance(error, MagmaDNNError) else 1)


def main() -> int:
    """Run the job of a folder; the exit code: 0 done, 1 failed or stopped, 2 it could not run."""
    try:
        folder = open_folder(Path(sys.argv[1]))
        state, _ = run_here(folder)
    except MagmaDNNError as error:
        print(f"magmadnn: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0 if state in ("", "done") else 1


def clean(prefix: str) -> None:
    """Remove shared memory that a killed job has left."""
    remove_all(prefix)
