"""The door to running: graph, plan, run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magmadnn.compiler import Plan, compile_program
from magmadnn.graph.node import Node, Updated
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program

from .run import Watch, run


class Executable:
    """A program that is compiled once, at its first run, and then run many times.

    Args:
        outputs: what a run gives.
        updates: (variable, its new value): written when everything is computed.
        training: the phase (dropout, batch statistics).
        check: verify the graph after each pass, and each value against its shape and dtype; for tests.
    """

    def __init__(
        self,
        outputs: Sequence[Node],
        updates: Sequence[Updated] = (),
        *,
        training: bool = False,
        check: bool = False,
    ) -> None:
        self.program = Program.of(outputs, updates, training=training)
        self._check = check
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The compiled plan."""
        if self._plan is None:
            self._plan = compile_program(self.program, check=self._check)
        return self._plan

    def run(
        self, feeds: Mapping[Node, Any], watch: Watch | None = None, guard: bool = False
    ) -> list[Array]:
        """One run: outputs as arrays; updated variables have their new values afterwards.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
            NumericError: with `guard`, if NaN or infinity appears; nothing is updated then.
        """
        return run(self.plan, feeds, watch=watch, guard=guard, check=self._check)
