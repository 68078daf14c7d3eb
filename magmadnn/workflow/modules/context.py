"""What a module gets: its communicator, its place in the workflow, the tuple space, other modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magmadnn.workflow.tuples.client import TupleClient

from .direct import Direct


@dataclass
class Context:
    """What a module knows and can do; the argument of its function.

    Attributes:
        comm: communicator of this copy's ranks, of mpi4py.
        module: name of the module.
        copy: number of this copy, from 0.
        copies: how many there are.
        iteration: of the group, from 0.
        attempt: 0, or more where the module is tried again.
        args: arguments from the workflow's file.
        folder: of this run, for what it writes.
        base: folder of the workflow's file.
        threads: that this rank may use.
        gpus: numbers of the GPUs that it sees.
        cores: that this rank is kept on; empty where there were too few for all, so that it may use any.
    """

    comm: Any
    module: str
    copy: int
    copies: int
    iteration: int
    attempt: int
    args: Sequence[str]
    folder: Path
    base: Path
    threads: int = 1
    gpus: Sequence[str] = ()
    cores: Sequence[int] = ()
    _tuples: TupleClient = field(default=None, repr=False)  # type: ignore[assignment]  # always given
    _direct: Direct = field(default=None, repr=False)  # type: ignore[assignment]  # likewise
    _place: tuple[int, int] | None = None
    _tell: Callable[[dict[str, Any]], None] = lambda record: None

    @property
    def rank(self) -> int:
        """Number of this process within the copy."""
        return int(self.comm.Get_rank()) if self._place is None else self._place[0]

    @property
    def size(self) -> int:
        """Ranks of this copy."""
        return int(self.comm.Get_size()) if self._place is None else self._place[1]

    # --- tuple space ---------------------------------------------------------------------------------

    def put(self, tag: str, value: Any) -> None:
        """Put an array, bytes or JSON value under a tag; returns at once, `value` may be changed then.

        Raises:
            DTypeError: it is something else.
            WorkflowError: the server is full.
        """
        self._tuples.put(tag, value)

    def get(self, tag: str, *, dtype: Any = None, timeout: float | None = None) -> Any:
        """Take the oldest value of a tag; waits until there is one.

        Args:
            tag: the tag.
            dtype: of the array that it must be.
            timeout: seconds.

        Raises:
            WorkflowError: nobody can put it any more, or the time is over.
            DTypeError: it is not of that dtype.
        """
        return self._tuples.get(tag, dtype=dtype, timeout=timeout)

    def read(self, tag: str, *, dtype: Any = None, timeout: float | None = None) -> Any:
        """As `get`, and it stays for others."""
        return self._tuples.get(tag, take=False, dtype=dtype, timeout=timeout)

    def try_get(self, tag: str, *, dtype: Any = None) -> Any:
        """As `get`; None where there is none yet."""
        return self._tuples.get(tag, wait=False, dtype=dtype)

    def try_read(self, tag: str, *, dtype: Any = None) -> Any:
        """As `read`; None where there is none yet."""
        return self._tuples.get(tag, wait=False, take=False, dtype=dtype)

    def get_any(self, pattern: str, *, wait: bool = True) -> Any:
        """Take the oldest value whose tag meets a pattern such as `"result/*"`: tag and value.

        Returns:
            (tag, value); None where there is none and `wait` is false. Over several servers the oldest of
            one of them.
        """
        return self._tuples.get_any(pattern, wait=wait)

    def dist_put(self, tag: str, value: Any) -> None:
        """Spread a value over all tuple servers, in as many copies as the file says."""
        self._tuples.dist_put(tag, value)

    def dist_get(self, tag: str, *, dtype: Any = None) -> Any:
        """Take what was spread under a tag, put together again; waits for it."""
        return self._tuples.dist_get(tag, dtype=dtype)

    def confirm(self) -> None:
        """Wait until the servers hold what this rank has put, and have done with what it took.

        Where ranks may be lost, what a lost one took since it last confirmed is there again for others.
        """
        self._tuples.confirm()

    def allow_replacements(self) -> None:
        """Say that the ranks of this copy work for themselves: no messages through `comm`.

        A spare rank then takes over from any but the first that is lost; otherwise the copy begins anew.
        """
        self._tell({"op": "replaceable"})

    # --- other modules -------------------------------------------------------------------------------

    def send(self, value: Any, module: str, *, copy: int = 0, rank: int = 0, tag: str = "") -> None:
        """Send a value straight to a rank of a module that runs; returns once it is copied.

        An array of CuPy above 64 KB goes from GPU to GPU where both processes are on one machine and one can
        read the other's memory (CUDA IPC); the first to a rank, and others, through the host. The copy stays
        on this GPU until the receiver has it.
        """
        self._direct.send(value, module, copy, rank, tag)

    def recv(
        self, module: str, *, copy: int = 0, rank: int = 0, tag: str = "", dtype: Any = None
    ) -> Any:
        """Receive the next value that a rank of a module has sent to this one; waits for it."""
        return self._direct.recv(module, copy, rank, tag, dtype)


Function = Callable[[Context], Any]
