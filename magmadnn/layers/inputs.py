"""Input: where data enters a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.graph.signature import is_integer
from magmadnn.tensor import Placeholder, placeholder


@checked_call
def Input(shape: Sequence[Any], dtype: Any = "float32", *, name: str = "input") -> Placeholder:
    """A placeholder for a batch of samples of one shape.

    Args:
        shape: of one sample, without the batch: `(28, 28, 1)`; None or a name for an unknown size.
        dtype: what the data is converted to.
        name: shown in tables and errors.

    Raises:
        ShapeError: if a size is below 1.
    """
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        shape = (shape,)
    for size in shape:
        if not (size is None or isinstance(size, (str, Dim)) or is_integer(size)):
            raise ShapeError(f"Input {name}: a size is an integer, a name or None, got {size!r}")
    if any(isinstance(size, int) and size < 1 for size in shape):
        raise ShapeError(f"Input {name}: sizes must be at least 1, got {tuple(shape)}")
    return placeholder(name, (None, *shape), dtype)
