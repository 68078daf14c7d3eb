"""Workflows: programs started by dependency inside one job of MPI, which exchange data through tuples.

w = md.workflow.Workflow("coupled")
w.add_module(simulate, "simulate", ranks=2, copies=3)
w.add_module(["./post", "{copy}"], "post", after=["simulate"])
w.run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magmadnn.calls import missing_name

from .modules.context import Context
from .modules.outside import Outside, connect
from .workflow import Finished, Workflow, include

if TYPE_CHECKING:
    from .searches import grid

__all__ = ["Context", "Finished", "Outside", "Workflow", "connect", "grid", "include"]


def __getattr__(name: str) -> Any:
    """What needs all of the search is imported when it is used: ranks that only run modules start sooner."""
    if name == "grid":
        from .searches import grid

        return grid
    raise missing_name("module magmadnn.workflow", ["workflow"], name, lambda: __all__)
