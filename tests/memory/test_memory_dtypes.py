from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.errors import DTypeError
from magmadnn.memory import DTYPES, as_dtype, is_floating


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float32", "float32"), (np.float16, "float16"), (np.dtype("int8"), "int8"), (float, "float64"),
        (int, "int64"), (bool, "bool"), ("bfloat16", "bfloat16"), (ml_dtypes.bfloat16, "bfloat16"),
        (">f4", "float32"), ("<i2", "int16"), (np.uint8, "uint8"),
    ],
)  # fmt: skip
def test_known(given: Any, name: str) -> None:
    assert as_dtype(given) == DTYPES[name]
    assert as_dtype(given).isnative


@pytest.mark.parametrize(
    ("given", "near"),
    [("float23", "float32"), ("uint16", "int16"), (object, ""), (None, ""), (3, "")],
)  # fmt: skip
def test_unknown_names_the_nearest(given: Any, near: str) -> None:
    with pytest.raises(DTypeError, match="is not known") as caught:
        as_dtype(given)
    assert f"did you mean {near!r}" in str(caught.value) or not near


def test_floating() -> None:
    assert {n for n, d in DTYPES.items() if is_floating(d)} == {
        "float16", "bfloat16", "float32", "float64"
    }  # fmt: skip
