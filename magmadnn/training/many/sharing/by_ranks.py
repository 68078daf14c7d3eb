"""A set of models that the ranks of a job train: each rank whole models, and all ranks get all of them.

Ranks meet three times: before the first step, to look whether all have been asked for the same; when each of
them has ended, which is told the others at once, so that nobody trains on after an error; and to give each
other what their trainings have left. In between none waits for another.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from magmadnn.comm import Communicator, world
from magmadnn.comm.group import HostCommunicator
from magmadnn.comm.job import ranks_of_script
from magmadnn.data.tables.libraries import is_table, raw_column, raw_table
from magmadnn.data.tables.plain import is_foreign_data
from magmadnn.errors import ArgumentError, DataError, error_like, quoted, text_of
from magmadnn.parallel.agreement import told_in
from magmadnn.parallel.named_arrays import NamedArrays, in_messages
from magmadnn.training.many.running.members import Member
from magmadnn.training.many.running.room import devices_of, sharing_memory
from magmadnn.training.model.model import Model
from magmadnn.training.model.plain.identity import identity_of

from .results import Result, result_of, take_over

_TAG = 16_001  # of the message that a rank's part has ended
_PAUSE = 0.05  # seconds between two looks for it
_DONE, _FAILED, _STOPPED = 1, 2, 3
_WAY_OUT = (
    "give all ranks the same models, data and settings, or parallel=False where each trains its own"
)


def ranks_for(what: str, parallel: Any) -> Communicator | None:
    """The ranks that share a set of models; None where this process trains all of them.

    Raises:
        ArgumentError: if it is told something else.
    """
    if parallel is None:
        found: Communicator | None = world() if ranks_of_script() > 1 else None
    elif parallel is False:
        found = None
    elif isinstance(parallel, HostCommunicator):
        found = parallel
    else:
        raise ArgumentError(
            f"{what}: parallel must be None (all ranks of the job share out the models), False (this process "
            f"trains all of them) or a communicator of the host such as md.comm.world(), got "
            f"{quoted(parallel)}; each rank trains whole models, so no way of md.parallel applies"
        )
    return None if found is None or found.size == 1 else found


class Ranks:
    """The ranks that train a set of models.

    Args:
        what: for messages.
        communicator: of them.
        members: the trainings of all models.
        owners: which rank trains each.
    """

    def __init__(
        self,
        what: str,
        communicator: Communicator,
        members: Sequence[Member],
        owners: Sequence[int],
    ) -> None:
        self._what, self._comm, self._owners = what, communicator, owners
        self._members = members
        self.own = [
            member for member, owner in zip(members, owners, strict=True) if self._is(owner)
        ]
        self._news: _News | None = None

    def _is(self, rank: int) -> bool:
        return rank == self._comm.rank

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints how far the set is."""
        return self._comm.rank == 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._comm.size

    # --- before -----------------------------------------------------------------------------------

    def check_same(
        self, models: Sequence[Model], data: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        """Look whether all ranks are about to train the same models on the same data.

        Raises:
            CommunicationError: if another rank is in another call.
            DataError: naming what differs.
        """
        plain = {name: value for name, value in data.items() if not _is_foreign(value)}
        tables = {name: _columns(value) for name, value in data.items() if name not in plain}
        common = (
            {"number of models": str(len(models))}
            | identity_of(models[0], plain, settings)
            | tables
        )
        own = [_digest(identity_of(model, {}, {})) for model in models]
        found = told_in(self._comm, self._what, [common, own])
        for rank, (other, _) in enumerate(found):
            self._compare(found[0][0], rank, other)
        for number, digests in enumerate(zip(*(one for _, one in found), strict=True)):
            if len(set(digests)) > 1:
                aspects = self._comm.exchange(identity_of(models[number], {}, {}))
                for rank, other in enumerate(aspects):
                    self._compare(aspects[0], rank, other, f" of models[{number}]")

    def _compare(
        self, first: Mapping[str, str], rank: int, other: Mapping[str, str], of: str = ""
    ) -> None:
        for name in [*first, *(k for k in other if k not in first)]:
            if first.get(name) != other.get(name):
                raise DataError(
                    f"{self._what}: ranks differ in {name}{of}: rank 0 has {first.get(name, 'none')}, rank "
                    f"{rank} has {other.get(name, 'none')}; {_WAY_OUT}"
                )

    # --- while they train -------------------------------------------------------------------------

    @contextmanager
    def training(self) -> Iterator[None]:
        """What this rank trains runs inside; all ranks leave it together, with the error of one if there is.

        Raises:
            whatever one of them raises; on the others it is of the same class, with the rank's number.
        """
        raised: BaseException | None = None
        with sharing_memory(self._comm, devices_of(self.own)):
            self._news = _News(self._comm)
            try:
                yield
            except _OthersFailedError:
                pass
            except BaseException as error:
                raised = error
        stopped = raised is not None and not isinstance(raised, Exception)
        self._news.tell(_DONE if raised is None else _STOPPED if stopped else _FAILED)
        told = self._comm.exchange(None if raised is None else _described(raised))
        self._news = None
        if raised is not None:
            raise raised
        for rank, record in enumerate(told):
            if record is not None:
                raise self._again(rank, record)

    def look(self) -> None:
        """Now and then: end where another rank has failed, and save and end where one was interrupted.

        Raises:
            _OthersFailedError: inside `training`, which raises what it was.
        """
        assert self._news is not None
        for rank, code in self._news.look():
            if code == _FAILED:
                raise _OthersFailedError
            if code == _STOPPED:
                for member in self.own:
                    member.stop(f"rank {rank} was interrupted")

    def _again(self, rank: int, record: Mapping[str, Any]) -> BaseException:
        """The error of another rank."""
        if record["error"] == SystemExit.__name__:
            return SystemExit(record["code"])
        text = f"{self._what}: rank {rank} of {self._comm.size}: {record['text']}"
        error = error_like(record["error"], text)
        for one in record["notes"]:
            error.add_note(one)
        return error

    # --- behind -----------------------------------------------------------------------------------

    def share(self, models: Sequence[Model]) -> None:
        """Give all ranks what each training has left: histories, parameters, states of optimisers."""
        mine = {
            member.number: result_of(member.number, models[member.number], member.history)
            for member in self.own
        }
        plain = {number: [one.record, NamedArrays.of(one.tensors)] for number, one in mine.items()}
        told = self._comm.exchange(plain)
        for owner in range(self._comm.size):
            sets = {int(k): NamedArrays(shapes) for k, (_, shapes) in told[owner].items()}
            for numbers in in_messages({number: one.nbytes for number, one in sets.items()}):
                shapes = [one for number in numbers for one in sets[number].shapes]
                given: list[Any] | None = None
                if self._is(owner):
                    given = [a for number in numbers for a in mine[number].tensors.values()]
                buffer = NamedArrays(shapes).spread(self._comm, given, owner)
                if self._is(owner):
                    continue
                begin = 0
                for number in numbers:
                    end = begin + sets[number].nbytes
                    result = Result(
                        told[owner][str(number)][0], sets[number].found(buffer[begin:end])
                    )
                    self._members[number].history = take_over(models[number], result)
                    self._members[number].is_done, begin = True, end


class _OthersFailedError(Exception):
    """Another rank has failed, so this one ends."""


class _News:
    """A message from each rank to each other one: how its part has ended.

    Args:
        communicator: of the ranks.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._comm, self._looked = communicator, time.monotonic()
        others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        self._codes = {rank: np.zeros(1, np.int64) for rank in others}
        self._due = {
            rank: communicator.start_recv(code, rank, tag=_TAG)
            for rank, code in self._codes.items()
        }

    def look(self) -> list[tuple[int, int]]:
        """Ranks that have ended since the last look, and how."""
        if time.monotonic() - self._looked < _PAUSE:
            return []
        self._looked = time.monotonic()
        ended = [rank for rank, request in self._due.items() if request.done()]
        return [self._heard(rank) for rank in ended]

    def tell(self, code: int) -> None:
        """Tell the others how this rank has ended, and hear of all of them."""
        mine = np.array([code], np.int64)
        sent = [self._comm.start_send(mine, rank, tag=_TAG) for rank in self._codes]
        for request in sent:
            request.wait()
        for rank in list(self._due):
            self._heard(rank)

    def _heard(self, rank: int) -> tuple[int, int]:
        self._due.pop(rank).wait()
        return rank, int(self._codes[rank][0])


def _described(error: BaseException) -> dict[str, Any]:
    """An error as a record."""
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    notes = [str(one) for one in getattr(error, "__notes__", [])]
    return {"error": type(error).__name__, "text": text_of(error), "code": code, "notes": notes}


def _digest(aspects: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(aspects.items())).encode()).hexdigest()[:16]


def _is_foreign(value: Any) -> bool:
    """Whether there is a table of another library among these."""
    parts = value.values() if isinstance(value, Mapping) else value
    inner = parts if isinstance(value, (Mapping, list, tuple)) else ()
    return is_foreign_data(value) or any(map(is_foreign_data, inner))


def _columns(value: Any) -> str:
    """Tables and columns as a digest of what stands in them."""
    if isinstance(value, Mapping):
        return _digest({str(name): _columns(one) for name, one in value.items()})
    if isinstance(value, (list, tuple)):
        return _digest({str(k): _columns(one) for k, one in enumerate(value)})
    if is_table(value):
        table = raw_table(value, "x")
        return _digest(dict(zip(table.names, map(_columns, table.columns), strict=True)))
    values = raw_column(value).values if is_foreign_data(value) else np.asarray(value)
    return _digest({str(values.dtype): repr(values.tolist())})
