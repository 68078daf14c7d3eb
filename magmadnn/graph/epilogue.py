"""What follows a call of a library element by element, and may become part of it: see `Op.absorbs`."""

from __future__ import annotations

from dataclasses import dataclass

from .node import Node


@dataclass(frozen=True)
class Epilogue:
    """What is done to each element of a result y [..., k]: `max(y * scale + added + shift, 0)`.

    Attributes:
        scale, shift: vectors [k]; None for none.
        added: of the shape of the result; None for none.
        positive: whether what is negative becomes 0.
    """

    scale: Node | None = None
    shift: Node | None = None
    added: Node | None = None
    positive: bool = False
