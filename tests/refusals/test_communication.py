"""Mistakes of programs on several workers: no MPI, no NCCL, calls that differ, a rank that is missing.

See `cases.py` for what the tables hold; a GPU used twice is in `tests/comm/test_nccl.py`.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm.launching import wheels
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    DataError,
    MissingExtraError,
    ShapeError,
    UnknownArgumentError,
)
from tests.refusals.cases import (
    CommandCase,
    PythonCase,
    check_in_python,
    check_on_the_command_line,
)

simulate, SerialCommunicator = md.comm.simulate, md.comm.SerialCommunicator

PYTHON: dict[str, PythonCase] = {
    "calls differ": (
        lambda p: simulate(2, lambda c: c.all_reduce(np.ones(3 + c.rank))),
        CommunicationError,
        (
            r"~calls differ: rank [01] makes all_reduce float64 \([34],\) sum at "
            r"test_communication.py:\d+, rank [01] made all_reduce float64 \([34],\) sum at "
            r"test_communication.py:\d+, as call 1 of their "
            "group: all ranks make the same calls in the same order"
        ),
    ),
    "a rank is missing": (
        lambda p: simulate(2, lambda c: c.rank or c.barrier()),
        CommunicationError,
        (
            r"~no rank can go on: rank 0 waits in barrier at test_communication.py:\d+; "
            "rank 1 has ended; it made no call"
        ),
    ),
    "rows that do not divide": (
        lambda p: simulate(2, lambda c: c.reduce_scatter(np.ones((7, 2)))),
        ShapeError,
        (
            "~rank [01] of 2: reduce_scatter: axis 0 of 7 rows does not divide among 2 ranks: "
            "give counts"
        ),
    ),
    "ranks": (
        lambda p: simulate(65, print),
        ArgumentError,
        "simulate: size must be from 1 to 64, got 65",
    ),
    "ranks that are no number": (
        lambda p: simulate("3", print),  # type: ignore[arg-type]
        ArgumentError,
        "simulate: size must be from 1 to 64, got '3'",
    ),
    "elements that are masked": (
        lambda p: SerialCommunicator().all_reduce(np.ma.masked_less([1.0, 2.0], 2)),
        DataError,
        "all_reduce: source: elements are masked: fill them, x.filled(value), or leave them out",
    ),
    "an argument": (
        lambda p: md.comm.measure_all_reduce(SerialCommunicator(), size=3),  # type: ignore[call-arg]
        UnknownArgumentError,
        (
            "measure_all_reduce: argument 'size' is not known: did you mean 'sizes'? known are communicator, "
            "repeats, sizes"
        ),
    ),
    "workers": (
        lambda p: md.workers(-2),
        ArgumentError,
        "workers: count must be an integer from 0 to 256, got -2",
    ),
    "workers: no such handler": (
        lambda p: md.workers(0).call("no.thing"),
        md.errors.UnknownNameError,
        "~workers: call 'no.thing' is not known: .*known are.*",
    ),
}

COMMAND: dict[str, CommandCase] = {
    "no program": (
        ("launch", "-n", "2"),
        "launch: a program is missing: give a script, such as train.py",
    ),
    "no script": (
        ("launch", "-n", "2", "nowhere.py"),
        "launch: there is no script 'nowhere.py': give a file's path",
    ),
    "no ranks": (
        ("launch", "-n", "0", "file"),
        "-n: must be a whole number of at least 1, got '0'; see magmadnn launch --help",
    ),
}

NO_MPI = (
    "to start processes (magmadnn launch, md.workers, workflows) needs mpi4py, which is not installed: "
    'pip install -e ".[mpi]" in the clone, or '
    'pip install "magmadnn[mpi]"'
)


@pytest.mark.parametrize("name", PYTHON)
def test_a_mistake_in_python(name: str, place: Path) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.parametrize("name", COMMAND)
def test_a_mistake_on_the_command_line(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_on_the_command_line(place, capsys, COMMAND[name])


def test_no_mpi(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    check_on_the_command_line(place, capsys, (("launch", "-n", "2", "file"), NO_MPI))
    check_in_python(place, (lambda p: md.workers(2), MissingExtraError, NO_MPI))


def test_no_nccl(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.comm.gpu import NcclCommunicator

    monkeypatch.setitem(sys.modules, "cupy", None)
    text = (
        "communication among GPUs needs CuPy, which is not installed: pip install -e "
        '".[cuda13]" in the clone, or pip install "magmadnn[cuda13]"'
    )
    alone = md.comm.SerialCommunicator()
    check_in_python(place, (lambda p: NcclCommunicator(alone), MissingExtraError, text))
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    nccl: Any = SimpleNamespace(available=False)  # CuPy is there, the library of NCCL is not
    cupy.cuda, cuda.nccl = cuda, nccl  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    text = text.replace("CuPy", "NCCL")
    check_in_python(place, (lambda p: NcclCommunicator(alone), MissingExtraError, text))


def test_ports_are_those_that_are_free(place: Path) -> None:
    """The system chooses them, so none can be in use: two sets of workers at a time find their own."""
    pytest.importorskip("mpi4py")
    found: list[str] = []
    bind = socket.socket.bind

    def noted(self: socket.socket, address: Any) -> None:
        found.append(str(address))
        bind(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "bind", noted)
        with md.workers(1):
            pass
    assert found and all(address.endswith(", 0)") for address in found), found


PORTS = ("MPIEXEC_PORT_RANGE", "MPICH_PORT_RANGE")


@pytest.mark.parametrize("variable", PORTS)
def test_a_port_in_use(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Only MPICH's own variables name ports: where none of theirs is free, nothing is started."""
    pytest.importorskip("mpi4py")
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv(variable, f"{port}:{port}")
        text = (
            f"{variable}={port}:{port}: every port of this range is in use; give another range, or leave it "
            "unset for any that is free"
        )
        check_in_python(place, (lambda p: md.workers(2), CommunicationError, text))
        check_on_the_command_line(place, capsys, (("launch", "-n", "2", "file"), text))
    for wrong in ("5000", "9:3", "1:70000", "a:b"):
        monkeypatch.setenv(variable, wrong)
        range_of = "must be a range of ports such as 20000:20100"
        text = f"{variable} {range_of}, got {wrong!r}; leave it unset for any"
        check_in_python(place, (lambda p: md.workers(2), ArgumentError, text))


def test_jobs_begin_while_ports_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ports of MPICH's range are taken; workers and their messages take others."""
    pytest.importorskip("mpi4py")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(20)]
        first = min(server.getsockname()[1] for server in servers)
        monkeypatch.setenv("MPIEXEC_PORT_RANGE", f"{first}:{min(first + 500, 65535)}")
        with md.workers(2) as workers:
            assert workers.size == 2


def test_no_port_is_free(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")

    def refused(*given: Any, **more: Any) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket, "create_server", refused)
    text = (
        "workers: the client cannot listen at 127.0.0.1 for 2 workers: Address already in use; end programs "
        "that hold many connections (ss -t lists them), or let the system have more ports "
        "(net.ipv4.ip_local_port_range)"
    )
    check_in_python(place, (lambda p: md.workers(2), CommunicationError, text))
