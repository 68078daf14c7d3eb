"""A task for processes that are begun anew, where forks would have a GPU that does not work in them."""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from multiprocessing import reduction
from typing import Any, BinaryIO

from magmadnn.search.trials.training import Task
from magmadnn.storage.printing import note

_MAIN = b"__main__"


class SentTask:
    """A task in a file without a name, from which all workers read it at the same time.

    A pipe would let one worker begin after the other: each has to be up before all data is in it.

    Args:
        data: the pickled task.
    """

    def __init__(self, data: bytes) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()
        self._file.write(data)
        self._file.flush()

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._file.fileno())

    def __setstate__(self, there: Any) -> None:
        self._file = os.fdopen(there.detach(), "rb")

    def read(self) -> Task:
        """The task, in a worker; places in the file are the same for all, so that it is mapped."""
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            task: Task = pickle.loads(data)
        self._file.close()
        return task

    def close(self) -> None:
        """No more workers will be begun."""
        self._file.close()


def sent(task: Task) -> SentTask | None:
    """A task for processes that are begun anew; None, with a note, where it cannot be sent to them."""
    try:
        data = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        _say_kept(str(error))
        return None
    if _MAIN in data and not hasattr(sys.modules["__main__"], "__file__"):
        _say_kept("build or callbacks were typed in, and no file has them")
        return None
    return SentTask(data)


def _say_kept(reason: str) -> None:
    note(
        f"search: this process has used a GPU, and its workers can train on the CPU only ({reason:.200}): to "
        "train on a GPU there, let build and callbacks be functions of a module, or search before one is used"
    )
