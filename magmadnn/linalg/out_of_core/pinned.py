"""Memory of the host that copies to and from a GPU are fastest with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.memory.dtypes import as_dtype
from magmadnn.runtime.places import device_of


def pinned_empty(shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
    """An array of any content in pinned memory, which is given back with the array.

    Other arrays are pinned while a function runs, which takes a fraction of a second for each GB.

    Args:
        shape: of the array.
        dtype: of its elements.

    Raises:
        DeviceError: if there is no GPU; says what is missing.
    """
    device_of("cuda")
    import cupyx

    found: NDArray[Any] = cupyx.empty_pinned(shape, as_dtype(dtype))
    return np.asarray(found)
