"""The directive `op-records`: one entry for every op that a module exports, from its record.

Autodoc describes functions and classes; an op is neither, but its record holds all that an entry needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from magmadnn.graph import REQUIRED, NoGradient, Op


def call(op: Op) -> str:
    """The op as it is called: `softmax(x, axis=-1)`."""
    operands = [name.removeprefix("*") for name in op.args]
    attributes = [
        name if default is REQUIRED else f"{name}={default!r}"
        for name, default in op.attributes.items()
    ]
    return f"{op.name}({', '.join(operands + attributes)})"


def entry(op: Op, module: str) -> Iterator[str]:
    """The lines of an op's entry."""
    yield f".. py:function:: {call(op)}"
    yield f"   :module: {module}"
    yield ""
    yield f"   ``{op.formula}``"
    yield ""
    yield f"   {op.notes}"
    if isinstance(op.vjp, NoGradient):
        yield ""
        yield f"   No gradient: {op.vjp.why}."
    yield ""


class OpRecords(SphinxDirective):
    """Writes the entries of a module, `magmadnn.ops` where none is named, in alphabetical order."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The entries, parsed."""
        name = self.arguments[0] if self.arguments else "magmadnn.ops"
        module = import_module(name)
        exported = (getattr(module, one) for one in sorted(module.__all__))
        lines = [line for op in exported if isinstance(op, Op) for line in entry(op, name)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("op-records", OpRecords)
    return {"parallel_read_safe": True}
