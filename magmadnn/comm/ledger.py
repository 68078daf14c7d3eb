"""The ledger: what each rank of this machine calls and waits for, in memory that ranks and launcher share.

A rank writes a line before it may block, which costs some microseconds and no message. Whoever waits
compares the others' lines with its own, so that calls that differ, a rank that has ended and ranks that wait
for each other are named with their lines of Python in well under a second, where MPI alone would wait for
ever.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .engine import Call

VARIABLE: Final = "MAGMADNN_LEDGER"
BEGINNING: Final = "beginning"  # the group of a call in which ranks wait until all have begun MPI
SLOT: Final = 2048
_HEAD: Final = struct.Struct(
    "=QQIIcc"
)  # writes, steps, process, length, state, whether calls go on beside
STATE: Final = 24  # where the state of a rank is among its bytes
RUNS, WAITS, ENDED, FAILED, KILLED = b"r", b"w", b"e", b"f", b"k"
_HOW: Final = {ENDED: "has ended", FAILED: "has failed", KILLED: "was killed"}
_BETWEEN: Final = "\x1f"  # the fields of a line
_FAILED: Final = 2.0  # seconds that a rank which has failed may take to end the job
_ATTEMPTS: Final = 60  # to read a line that is being written
_STUCK: Final = 0.6  # seconds in which no rank makes a step, until a circle of waiting is believed


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rank has written last."""

    rank: int
    steps: int
    process: int
    state: bytes
    beside: bool
    call: Call | None
    numbers: dict[str, int] = field(default_factory=dict)

    def last(self) -> str:
        """The last call in words."""
        return f"its last call was {self.call}" if self.call else "it made no call"


def _parsed(text: bytes) -> tuple[Call, dict[str, int]]:
    """The call of a line, and the number of the last call of each group."""
    group, number, what, site, peers, pairs = text.decode().split(_BETWEEN)
    others = tuple(int(one) for one in peers.split(",") if one)
    numbers = {}
    for pair in pairs.split(";"):
        name, _, last = pair.rpartition(":")
        if name:
            numbers[name] = int(last)
    return Call(group, int(number), what, site, 0, others), numbers


def _is_stopped(process: int) -> bool:
    """Whether a process of this machine is stopped, by a signal (T) or a debugger (t)."""
    try:
        line = Path(f"/proc/{process}/stat").read_bytes()  # its name may be no text
    except OSError:  # it has ended, or there is no /proc
        return False
    return line.rpartition(b")")[2].split()[0] in (b"T", b"t")  # the name may hold parentheses


class Ledger:
    """The lines of all ranks; this process writes that of `rank`, the launcher (rank -1) none.

    Raises:
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.path, self.rank, self.size = path, rank, size
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size * SLOT)
        self._steps = self._writes = 0
        self._numbers: dict[str, int] = {}
        self._seen: list[int] = []
        self._since = 0.0
        if rank >= 0:
            self._write(RUNS, b"")

    @staticmethod
    def create(path: Path, size: int) -> None:
        """Make an empty file for `size` ranks."""
        path.write_bytes(bytes(size * SLOT))

    def enter(self, call: Call, beside: bool = False) -> None:
        """This rank makes a call and may wait in it."""
        if call.number:
            self._numbers[call.group] = call.number
        numbers = ";".join([f"{g}:{n}" for g, n in self._numbers.items()][-8:])
        what = call.what if len(call.what) < 800 else call.what[:800]
        peers = ",".join(map(str, call.peers))
        fields = (call.group, str(call.number), what, call.site[-200:], peers, numbers)
        self._write(WAITS, _BETWEEN.join(fields).encode(), beside)

    def step(self) -> None:
        """Messages were sent or have come."""
        self._steps += 1
        struct.pack_into("=Q", self._memory, self.rank * SLOT + 8, self._steps)

    def leave(self, state: bytes = RUNS) -> None:
        """This rank does not wait any more."""
        self._steps += 1
        struct.pack_into("=Q", self._memory, self.rank * SLOT + 8, self._steps)
        self._memory[self.rank * SLOT + 24] = state[0]

    def _write(self, state: bytes, text: bytes, beside: bool = False) -> None:
        start = self.rank * SLOT
        text = text[: SLOT - _HEAD.size]
        self._writes += 1
        struct.pack_into("=Q", self._memory, start, 2 * self._writes - 1)  # odd: being written
        self._memory[start + _HEAD.size : start + _HEAD.size + len(text)] = text
        self._steps += 1
        flag = b"1" if beside else b"0"
        head = (2 * self._writes - 1, self._steps, os.getpid(), len(text), state, flag)
        _HEAD.pack_into(self._memory, start, *head)
        struct.pack_into("=Q", self._memory, start, 2 * self._writes)  # last: all of it is there

    def read(self, rank: int) -> Entry | None:
        """What a rank has written, or None if it has not begun.

        The entry is without a call where the rank is in the middle of writing, and stays there.
        """
        start = rank * SLOT
        for attempt in range(_ATTEMPTS):
            writes, steps, process, length, state, flag = _HEAD.unpack_from(self._memory, start)
            text = self._memory[start + _HEAD.size : start + _HEAD.size + length]
            if writes == 0:
                return None
            if writes % 2 == 0 and struct.unpack_from("=Q", self._memory, start)[0] == writes:
                call, numbers = _parsed(text) if text else (None, {})
                return Entry(rank, steps, process, state, flag == b"1", call, numbers)
            if attempt >= _ATTEMPTS // 2:
                time.sleep(1e-4)  # it may not have a core
        return Entry(rank, steps, process, state, flag == b"1", None)

    def entries(self) -> list[Entry | None]:
        """What all ranks have written."""
        return [self.read(rank) for rank in range(self.size)]

    def stopped(self, members: list[int]) -> list[Entry]:
        """Ranks of `members` whose processes the system has stopped; none where there is no /proc."""
        of = {entry.rank: entry for entry in self.entries() if entry is not None}
        return [of[rank] for rank in members if rank in of and _is_stopped(of[rank].process)]

    def failed(self) -> bool:
        """Whether another rank has failed."""
        gone = (FAILED, KILLED)
        return any(e and e.state in gone and e.rank != self.rank for e in self.entries())

    # --- what a waiting rank finds -----------------------------------------------------------

    def trouble(self, call: Call, members: list[int], waited: float) -> str | None:
        """Why a call can never end, as far as the ledger shows; None if it may.

        Args:
            call: the one that this rank waits in.
            members: the ranks of the call's group, by their numbers in the job.
            waited: seconds.
        """
        found = self.entries()
        peers = [members[peer] for peer in call.peers] if call.peers else members
        late = [
            r for r in peers if r != self.rank and not self._takes_part(call, found[r], self.rank)
        ]
        for rank in peers:
            entry = found[rank]
            if entry is None or entry.call is None or rank == self.rank:
                continue
            same = (entry.call.group, entry.call.number) == (call.group, call.number)
            if call.number and same and entry.call.what != call.what:
                return (
                    f"calls differ: rank {self.rank} makes {call}, rank {rank} {entry.call}, as call "
                    f"{call.number} of their group: all ranks make the same calls in the same order"
                )
            if not call.number and same and self._other_half(call, entry):
                return f"rank {self.rank} waits in {call}, but rank {rank} is in {entry.call}"
        for rank in late:
            entry = found[rank]
            if entry is None or entry.state not in (ENDED, FAILED, KILLED):
                continue
            if entry.state != ENDED and waited < _FAILED:
                return None  # the job is about to end, and says why
            how = _HOW[entry.state]
            return f"rank {self.rank} waits in {call} for rank {rank}, which {how}; {entry.last()}"
        if late and self._stuck(found):
            waits = [f"rank {e.rank} waits in {e.call}" for e in found if e and e.state == WAITS]
            return f"no rank can go on: {'; '.join(waits)}"
        return None

    def _takes_part(self, call: Call, entry: Entry | None, asking: int) -> bool:
        """Whether a rank has come as far as the call of the rank that asks."""
        if entry is None:
            return False
        if call.number:
            return entry.numbers.get(call.group, 0) >= call.number
        theirs = entry.call
        if theirs is None or theirs.number or theirs.group != call.group or entry.state == ENDED:
            return False
        towards = call.group != "world" or theirs.peers == (asking,)
        return towards and theirs.what.split(" ")[0] != call.what.split(" ")[0]

    def _blocked(self, entry: Entry, found: list[Entry | None]) -> bool:
        """Whether a rank that waits surely waits for one that has not come; large messages may take long."""
        call = entry.call
        if call is None:
            return False
        if call.number:
            peers = [
                e.rank for e in found if e and (call.group == "world" or call.group in e.numbers)
            ]
        elif call.group == "world":
            peers = list(call.peers)
        else:
            return False
        return any(
            peer != entry.rank and not self._takes_part(call, found[peer], entry.rank)
            for peer in peers
        )

    def _other_half(self, call: Call, entry: Entry) -> bool:
        """Whether the other rank is in the other half of this message, but names another array."""
        theirs = entry.call
        assert theirs is not None
        if entry.state != WAITS or {call.what[:4], theirs.what[:4]} != {"send", "recv"}:
            return False
        mine, other = (one.what.rsplit(" rank ", 1) for one in (call, theirs))
        tags = (mine[1].rpartition(" ")[2], other[1].rpartition(" ")[2])
        arrays = [one[0][5:].removesuffix(" to").removesuffix(" from") for one in (mine, other)]
        return tags[0] == tags[1] and arrays[0] != arrays[1]

    def _stuck(self, found: list[Entry | None]) -> bool:
        """Whether all ranks wait for one that has not come, and have done so for a while."""
        waiting = [e for e in found if e is not None and e.state == WAITS]
        if any(e is None or e.state == RUNS or e.beside for e in found) or not all(
            self._blocked(entry, found) for entry in waiting
        ):
            self._seen = []
            return False
        steps = [entry.steps for entry in found if entry]
        if steps != self._seen:
            self._seen, self._since = steps, time.monotonic()
        return time.monotonic() - self._since > _STUCK
