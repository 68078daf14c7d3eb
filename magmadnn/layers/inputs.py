"""Input: where data enters a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn.errors import ShapeError
from magmadnn.tensor import Placeholder, placeholder


def Input(shape: Sequence[Any], dtype: Any = "float32", *, name: str = "input") -> Placeholder:
    """A placeholder for a batch of samples of one shape.

    Args:
        shape: of one sample, without the batch: `(28, 28, 1)`; None or a name for an unknown size.
        dtype: what the data is converted to.
        name: shown in tables and errors.

    Raises:
        ShapeError: if a size is below 1.
    """
    if isinstance(shape, int):
        shape = (shape,)
    if any(isinstance(size, int) and size < 1 for size in shape):
        raise ShapeError(f"Input {name}: sizes must be at least 1, got {tuple(shape)}")
    return placeholder(name, (None, *shape), dtype)
