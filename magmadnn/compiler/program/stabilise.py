"""stabilise: formulas that lose digits, or overflow, become others of the same value that do not."""

from __future__ import annotations

from magmadnn.graph.program import Program
from magmadnn.graph.transforms.stable import stabilised


def stabilise(program: Program) -> Program:
    """Apply the ops' rules `Op.stable`: log(softmax(x)) becomes log_softmax(x), and the like."""
    new = stabilised(program.roots)
    return program.with_roots([new[root] for root in program.roots])
