"""The directive `op-records`: one entry for every op that `magmadnn.ops` exports, from its record.

Autodoc describes functions and classes; an op is neither, but its record holds all that an entry needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import magmadnn.ops
from magmadnn.graph import REQUIRED, NoGradient, Op


def call(op: Op) -> str:
    """The op as it is called: `softmax(x, axis=-1)`."""
    operands = [name.removeprefix("*") for name in op.args]
    attributes = [
        name if default is REQUIRED else f"{name}={default!r}"
        for name, default in op.attributes.items()
    ]
    return f"{op.name}({', '.join(operands + attributes)})"


def entry(op: Op) -> Iterator[str]:
    """The lines of an op's entry."""
    yield f".. py:function:: {call(op)}"
    yield "   :module: magmadnn.ops"
    yield ""
    yield f"   ``{op.formula}``"
    yield ""
    yield f"   {op.notes}"
    if isinstance(op.vjp, NoGradient):
        yield ""
        yield f"   No gradient: {op.vjp.why}."
    yield ""


class OpRecords(SphinxDirective):
    """Writes the entries in alphabetical order."""

    def run(self) -> list[nodes.Node]:
        """The entries, parsed."""
        exported = (getattr(magmadnn.ops, name) for name in sorted(magmadnn.ops.__all__))
        lines = [line for op in exported if isinstance(op, Op) for line in entry(op)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("op-records", OpRecords)
    return {"parallel_read_safe": True}
