"""Workers that carry out a client's calls together: `with md.workers(4) as workers:`.

The module can be called: `md.workers(4)` is `md.workers.Workers(4)`.
"""

from __future__ import annotations

import sys
from types import ModuleType

from magmadnn.calls import check_calls, check_methods
from magmadnn.workers.client import Pending, Workers, entered
from magmadnn.workers.handlers import Answer, Worker, find_handler, handler

__all__ = ["Answer", "Pending", "Worker", "Workers", "entered", "find_handler", "handler"]


class workers(ModuleType):  # its calls are named so in errors
    """A module that is called like a class."""

    def __call__(self, count: int | None = None) -> Workers:
        """Start workers; see `Workers`."""
        return Workers(count)


check_methods(workers, "__call__")
check_calls(Workers)
sys.modules[__name__].__class__ = workers
