"""Workflows: programs started by dependency inside one job of MPI, which exchange data through tuples.

w = md.workflow.Workflow("coupled")
w.add_module(simulate, "simulate", ranks=2, copies=3)
w.add_module(["./post", "{copy}"], "post", after=["simulate"])
w.run()
"""

from __future__ import annotations

from .modules.context import Context
from .modules.outside import Outside, connect
from .workflow import Finished, Workflow, include

__all__ = ["Context", "Finished", "Outside", "Workflow", "connect", "include"]
