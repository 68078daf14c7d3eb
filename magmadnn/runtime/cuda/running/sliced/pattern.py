"""A step of one block, told apart from the model that it was made for."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.graph.node import Node


class Meaning(NamedTuple):
    """What an address of a launch is.

    Attributes:
        kind: of "entry" (where the address of the order of rows, or of a setting, stands), "data" (where that
            of an array stands), "output" (of all batches), "variable", "fault" (a word), and "fixed", which
            is the same for all models.
        number: which; of a fixed one the address.
    """

    kind: Literal["entry", "data", "output", "variable", "fault", "fixed"]
    number: int


class Pattern(NamedTuple):
    """A step of one block.

    Attributes:
        launch: of the model that it was made for.
        meanings: of the launch's addresses, in order.
        data, settings: placeholders, in the order of their numbers.
        outputs: dtype and shape of each.
    """

    launch: Launch
    meanings: list[Meaning]
    data: list[Node]
    settings: list[Node]
    outputs: list[tuple[np.dtype[Any], tuple[int, ...]]]
