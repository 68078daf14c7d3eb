"""Signatures: the shape rule, the sizes, and the words of the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn.errors import ShapeError
from magmadnn.graph import Dim, Spec
from magmadnn.graph.signature import (
    OpWords,
    Signature,
    axes_text,
    axis_number,
    broadcast,
    by_signature,
    is_integer,
    shape_text,
)

B = Dim.symbol("batch")
WORDS = OpWords("attend", ("q", "k", "v"), "")
LISTED = OpWords("join", ("*xs",), "")


def specs(*shapes: Any) -> list[Spec]:
    return [Spec(shape, np.dtype(np.float32)) for shape in shapes]


BOUND = [
    ("m k, k n -> m n", [(2, 3), (3, 5)], (2, 5)),
    ("... m k, ... k n -> ... m n", [(7, 1, 2, 3), (5, 3, 4)], (7, 5, 2, 4)),
    ("... m k, ... k n -> ... m n", [(B, 3), (3, 5)], (B, 5)),
    ("... -> ...", [(B, 3)], (B, 3)),
    ("a b -> b 1", [(2, 3)], (3, 1)),
    ("a 2 -> a", [(5, 2)], (5,)),
    ("k, k -> ", [(3,), (3,)], ()),
    ("... k, ... -> ...", [(4, 5, 7), (5,)], (4, 5)),
]


@pytest.mark.parametrize(("text", "shapes", "expected"), BOUND)
def test_shapes(text: str, shapes: list[Any], expected: Any) -> None:
    shape, _ = Signature.parse(text).bind(WORDS, specs(*shapes))
    assert shape == expected


def test_sizes_of_axes() -> None:
    _, sizes = Signature.parse("... m k, k n -> ... m n").bind(WORDS, specs((B, 5, 2, 3), (3, 4)))
    assert sizes == {"m": 2, "k": 3, "n": 4, "...": 5 * B}


MATMUL = "... m k, ... k n -> ... m n"
REFUSED = [
    (
        MATMUL,
        [(2, 3), (4, 5)],
        f"axis k is 3 in q but 4 in k; make them equal: {MATMUL}, q (2, 3), k (4, 5)",
    ),
    (MATMUL, [(3,), (3, 5)], "q has 1 axis, expected 2 or more (... m k): q (3,), k (3, 5)"),
    ("m k -> k", [(2, 3, 4)], "q has 3 axes, expected 2 (m k): q (2, 3, 4)"),
    (" -> ", [(2,)], "q has 1 axis, expected 0 (a scalar): q (2,)"),
    ("a 2 -> a", [(5, 3)], "axis 2 is 2 but 3 in q; make them equal: a 2 -> a, q (5, 3)"),
    (
        "... a, ... a -> ... a",
        [(2, 5, 3), (4, 5, 3)],
        "axis -3 is 2 in q but 4 in k; make them equal, or one of them 1: q (2, 5, 3), k (4, 5, 3)",
    ),
    (
        "m k, k m -> m",
        [(B, 3), (3, 5)],
        "axis m is batch in q but 5 in k; make them equal: m k, k m -> m, q (batch, 3), k (3, 5)",
    ),
    (
        "... a, ... -> ...",
        [(2, 5), (3,)],
        "axis -2 is 2 in q but axis -1 is 3 in k; make them equal, or one of them 1: q (2, 5), k (3,)",
    ),
]


@pytest.mark.parametrize(("text", "shapes", "message"), REFUSED)
def test_refused(text: str, shapes: list[Any], message: str) -> None:
    with pytest.raises(ShapeError) as info:
        Signature.parse(text).bind(WORDS, specs(*shapes))
    assert str(info.value) == f"attend: {message}"


def test_operands_of_a_list_are_numbered() -> None:
    assert [LISTED.operand(i) for i in range(3)] == ["xs[0]", "xs[1]", "xs[2]"]
    mixed = OpWords("f", ("x", "*ys"), "")
    assert [mixed.operand(i) for i in range(3)] == ["x", "ys[0]", "ys[1]"]


def test_broadcasting_is_numpys() -> None:
    rng = np.random.default_rng(0)
    fitting = 0
    for _ in range(500):
        shapes = [
            tuple(int(n) for n in rng.choice([0, 1, 2, 3], rng.integers(0, 4))) for _ in range(3)
        ]
        numbered = list(enumerate(shapes))
        try:
            expected = np.broadcast_shapes(*shapes)
        except ValueError:
            with pytest.raises(ShapeError):
                broadcast(WORDS, specs(*shapes), numbered)
        else:
            assert broadcast(WORDS, specs(*shapes), numbered) == expected
            fitting += 1
    assert 100 < fitting < 450


def test_signatures_that_depend_on_ranks_and_attributes() -> None:
    rule = by_signature(lambda x, axis: "a b -> b" if axis == 0 else "a b -> a")
    assert rule(WORDS, specs((2, 3)), {"axis": 0}) == (3,)
    assert rule(WORDS, specs((2, 3)), {"axis": 1}) == (2,)


def test_axis_numbers() -> None:
    assert [axis_number(WORDS, a, 3) for a in (0, 2, -1, -3, np.int64(1))] == [0, 2, 2, 0, 1]


def test_small_words() -> None:
    assert [shape_text(s) for s in [(), (3,), (B, 3)]] == ["()", "(3,)", "(batch, 3)"]
    assert [axes_text(n) for n in (0, 1, 2)] == ["0 axes", "1 axis", "2 axes"]
    counts = [3, np.int8(3), np.array(3)]
    assert all(is_integer(v) for v in counts)
    assert not any(is_integer(v) for v in (True, np.bool_(True), 3.0, "3", None, np.array([3])))
