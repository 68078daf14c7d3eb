"""What ops refuse, and in which words: each mistake with arrays and on a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn import errors, linalg, ops
from magmadnn.graph import Dim, Node, Spec, scope
from magmadnn.graph.node import constant, placeholder
from magmadnn.memory.dtypes import BFLOAT16, DTYPES
from magmadnn.runtime import Executable

ARRAYS = {
    "x": np.ones((5, 7)),
    "f": np.ones((5, 7), np.float32),
    "v": np.ones(3),
    "i": np.array([0, 1]),
    "h": np.ones((2, 3), np.float16),
    "b": np.ones((2, 3), BFLOAT16),
    "e": np.ones((0, 3)),
    "u": np.ones(2, np.uint8),
    "m": np.ones((5, 7), bool),
    "deep": np.ones((2, 5, 7)),
    "odd": np.ones((3, 7, 2)),
    "s": np.ones((2, 3, 3)),
}
NODES = {name: placeholder(name, Spec(a.shape, a.dtype)) for name, a in ARRAYS.items()}
UNKNOWN = placeholder("n", Spec((Dim.symbol("batch"), 3), np.dtype(np.float32)))
KNOWN = ", ".join(sorted([*DTYPES, "complex64", "complex128"]))

# What is called; on the next line the class of the error and its text.
LINES = Path(__file__).with_name("refusals.txt").read_text().splitlines()
TABLE = [
    (call, *text.strip().split(": ", 1)) for call, text in zip(LINES[::2], LINES[1::2], strict=True)
]


def names(values: dict[str, Any]) -> dict[str, Any]:
    return {**vars(linalg), **vars(ops), "slice": slice, "np": np, "n": UNKNOWN, **values}


def evaluated(result: Any) -> Any:
    """Compute what a call gave, so that mistakes in the data show as well."""
    if isinstance(result, Node):
        feeds = {NODES[name]: array for name, array in ARRAYS.items()}
        return Executable([result]).run(feeds)
    return result


@pytest.mark.parametrize(("call", "kind", "text"), TABLE, ids=[row[0] for row in TABLE])
def test_refused(call: str, kind: str, text: str, checked: Callable[[int], None]) -> None:
    for values in (ARRAYS, NODES):
        with pytest.raises(getattr(errors, kind)) as info:
            evaluated(eval(call, names(values)))
        assert str(info.value) == text.replace("KNOWN", KNOWN)
        assert type(info.value) is getattr(errors, kind)
    checked(2)


def test_an_error_inside_a_graph_says_where() -> None:
    with scope("encoder"), scope("embedding_1"):
        rows = ops.take(constant(np.ones((5, 7))), NODES["i"])
    with pytest.raises(errors.DataError) as info:
        Executable([rows]).run({NODES["i"]: np.array([0, 5])})
    assert str(info.value) == ("take: index 5 at (1,) is outside 0 to 4 (in encoder/embedding_1)")


def test_einsum_wants_its_text_first() -> None:
    with pytest.raises(errors.ArgumentError) as info:
        ops.einsum(ARRAYS["x"], "ij")
    assert str(info.value) == "einsum: the first argument must be text, got ndarray"
