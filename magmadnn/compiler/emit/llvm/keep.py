"""The kernel that keeps a value of each batch, or copies a value to where it belongs."""

from __future__ import annotations

from dataclasses import dataclass

from .builder import Code
from .formulas import memory_item
from .kernel import Frame
from .target import Target


@dataclass(frozen=True)
class Keep:
    """result[batch * step + i] = source[i] for elements `column0` to `column1`; step 0 is a plain copy.

    Slots: `column0, column1, step`; `source, result`, addresses.

    Attributes:
        dtype: of source and result.
    """

    dtype: str
    slots = ("column0", "column1", "step", "source", "result")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        item = memory_item(self.dtype)
        source, result = frame.array("source", item), frame.array("result", item)
        goal = result.at(frame.batch * frame.integer("step"))
        with code.loop(frame.integer("column0"), frame.integer("column1")) as column:
            goal[column] = source[column]
