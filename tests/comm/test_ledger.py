"""What a rank that waits reads in the ledger; the ranks here are files of one process."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magmadnn.comm import ledger as module
from magmadnn.comm.engine import Call
from magmadnn.comm.ledger import ENDED, FAILED, KILLED, Ledger
from magmadnn.comm.mpi import MpiEngine

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [0, 1, 2]


def barrier(number: int, site: str = "a.py:1", group: str = "world") -> Call:
    return Call(group, number, "barrier", site, number)


def pair(what: str, other: int, array: str = "float64 (3,)") -> Call:
    direction = "to" if what == "send" else "from"
    text = f"{what} {array} {direction} rank {other} with tag 0"
    return Call("world", 0, text, f"{what}.py:{other}", 0, (other,))


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    monkeypatch.setattr(module, "_STUCK", 0.01)
    Ledger.create(tmp_path / "ledger", 3)
    return [Ledger(tmp_path / "ledger", rank, 3) for rank in MEMBERS]


def trouble(rank: Ledger, call: Call, waited: float = 1.0) -> str | None:
    """The second look: the first one only begins to count."""
    rank.trouble(call, MEMBERS, waited)
    time.sleep(0.02)
    return rank.trouble(call, MEMBERS, waited)


def test_a_line_comes_back_as_it_was_written(ranks: list[Ledger]) -> None:
    call = Call(
        "world/3.0", 12, "all_gather float32 rows of (2,) counts [1, 2]", "tr:ain.py:7", 5, (1, 2)
    )
    ranks[1].enter(barrier(4))
    ranks[1].enter(call, beside=True)
    entry = ranks[0].read(1)
    assert entry is not None and entry.call is not None
    assert (entry.call.what, entry.call.site, entry.call.peers) == (call.what, call.site, (1, 2))
    assert entry.numbers == {"world": 4, "world/3.0": 12}
    assert entry.beside
    assert Ledger(ranks[0].path, -1, 3).read(1) == entry


def test_calls_that_differ(ranks: list[Ledger]) -> None:
    other = Call("world", 1, "all_reduce float64 (3,) sum", "b.py:2", 1)
    ranks[0].enter(barrier(1))
    ranks[2].enter(other)
    text = ranks[0].trouble(barrier(1), MEMBERS, 0.1)
    assert text is not None and "rank 2 all_reduce float64 (3,) sum at b.py:2" in text


@pytest.mark.parametrize(
    ("state", "how"), [(ENDED, "has ended"), (FAILED, "has failed"), (KILLED, "was killed")]
)
def test_a_rank_that_is_gone(ranks: list[Ledger], state: bytes, how: str) -> None:
    ranks[1].enter(barrier(1, "b.py:2"))
    ranks[1].leave(state)
    ranks[0].enter(barrier(2))
    text = ranks[0].trouble(barrier(2), MEMBERS, 3.0)
    assert text is not None and text.endswith(
        f"for rank 1, which {how}; its last call was barrier at b.py:2"
    )
    # A rank that fails says why itself; one that has ended will say nothing.
    assert (ranks[0].trouble(barrier(2), MEMBERS, 0.1) is None) == (state != ENDED)
    # It took part in the call before.
    assert ranks[0].trouble(barrier(1), MEMBERS, 3.0) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system says so in /proc")
def test_a_stopped_rank_is_named(
    ranks: list[Ledger],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Which the ledger shows as one that waits, and others would wait for without a word."""
    program = (
        os.fsencode(tmp_path) + b"/s) T \xc3"
    )  # the system's name of a process is cut by bytes
    shutil.copy(shutil.which("sleep") or "", program)
    engine = object.__new__(MpiEngine)  # without MPI
    engine._ledger, engine._members = ranks[0], MEMBERS
    with subprocess.Popen(["sleep", "60"], executable=program) as other:
        monkeypatch.setattr(os, "getpid", lambda: other.pid)
        try:
            ranks[1].enter(barrier(4))
            assert not engine._notice_stopped(barrier(4), 1.2)
            other.send_signal(signal.SIGSTOP)
            until = time.monotonic() + 10
            while not engine._notice_stopped(barrier(4), 1.2) and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            other.kill()
    assert capsys.readouterr().err == (
        "magmadnn: rank 0 has waited 1 s in barrier at a.py:1, and rank 1 is stopped (SIGSTOP, Ctrl-Z, a "
        f"debugger): kill -CONT {other.pid} lets it go on; its last call was barrier at a.py:1\n"
    )


def test_a_circle_is_found_only_when_nobody_works(ranks: list[Ledger]) -> None:
    calls = [pair("recv", (rank + 1) % 3) for rank in MEMBERS]
    ranks[0].enter(calls[0])
    ranks[1].enter(calls[1])
    assert trouble(ranks[0], calls[0]) is None  # rank 2 computes
    ranks[2].enter(calls[2])
    text = trouble(ranks[0], calls[0])
    assert text is not None and text.startswith("no rank can go on: rank 0 waits in recv")
    ranks[2].enter(calls[2], beside=True)  # something is under way beside
    assert trouble(ranks[0], calls[0]) is None


def test_a_large_message_is_no_circle(ranks: list[Ledger]) -> None:
    ranks[0].enter(pair("send", 1))
    ranks[1].enter(pair("recv", 0))
    ranks[2].enter(barrier(1))
    for rank, call in ((0, pair("send", 1)), (1, pair("recv", 0)), (2, barrier(1))):
        assert trouble(ranks[rank], call) is None


def test_a_collective_that_all_take_part_in_is_no_circle(ranks: list[Ledger]) -> None:
    for rank in ranks:
        rank.enter(barrier(1))
    assert trouble(ranks[0], barrier(1)) is None


def test_two_collectives_that_wait_for_each_other(ranks: list[Ledger]) -> None:
    group = barrier(1, "g.py:1", "world/1.0")
    ranks[1].enter(group)
    ranks[1].leave()
    ranks[0].enter(barrier(1, "g.py:2", "world/1.0"))
    later = barrier(2, "g.py:3", "world/1.0")
    ranks[1].enter(barrier(1))
    ranks[2].enter(barrier(1))
    ranks[0].enter(later)
    text = trouble(ranks[1], barrier(1))
    assert text is not None and "rank 0 waits in barrier at g.py:3" in text


def test_halves_of_a_message_that_do_not_fit(ranks: list[Ledger]) -> None:
    ranks[0].enter(pair("send", 1, "float64 (4,)"))
    ranks[1].enter(pair("recv", 0))
    text = ranks[1].trouble(pair("recv", 0), MEMBERS, 0.1)
    assert text is not None and text.endswith(
        "but rank 0 is in send float64 (4,) to rank 1 with tag 0 at send.py:1"
    )


WRITER = """
import sys
from pathlib import Path
from magmadnn.comm.engine import Call
from magmadnn.comm.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), 0, 1)
print(flush=True)
while True:
    for length in (1, 700):
        ledger.enter(Call("world", length, "x" * length, "a.py:" + "7" * (length // 7), length))
"""


def test_lines_that_are_being_written_are_read_whole(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger", 1)
    reader = Ledger(tmp_path / "ledger", -1, 1)
    command = [sys.executable, "-c", WRITER, str(tmp_path / "ledger")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            seen = set()
            until = time.monotonic() + 2
            while time.monotonic() < until:
                entry = reader.read(0)
                if entry is not None and entry.call is not None:
                    call = entry.call
                    assert call.what == "x" * call.number == "x" * entry.numbers["world"]
                    assert call.site == "a.py:" + "7" * (call.number // 7)
                    seen.add(call.number)
        finally:
            writer.kill()
    assert seen == {1, 700}


def test_a_rank_that_was_killed_while_it_wrote_has_no_call(ranks: list[Ledger]) -> None:
    ranks[1].enter(barrier(1))
    struct.pack_into("=Q", ranks[1]._memory, 1 * module.SLOT, 3)  # odd: being written
    entry = ranks[0].read(1)
    assert entry is not None and entry.call is None and not entry.numbers
