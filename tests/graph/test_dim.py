"""Symbolic dimensions: algebra of polynomials with integer coefficients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from magmadnn.errors import GraphError, ShapeError
from magmadnn.graph import Dim
from magmadnn.graph.dim import bind_shape, bind_value, dims_of, divide, product, substitute

B, T = Dim.symbol("batch"), Dim.symbol("time")


def random_size(rng: np.random.Generator) -> Any:
    """A polynomial of up to four terms in batch and time."""
    total: Any = int(rng.integers(-4, 5))
    for _ in range(rng.integers(0, 4)):
        term: Any = int(rng.integers(-3, 4))
        for _ in range(rng.integers(1, 3)):
            term = term * [B, T][rng.integers(2)]
        total = total + term
    return total


def value(size: Any, batch: int, time: int) -> int:
    """The value of a polynomial, counted from its terms."""
    if isinstance(size, int):
        return size
    known = {"batch": batch, "time": time}
    return sum(c * int(np.prod([known[s] for s in m], dtype=int)) for m, c in size.terms.items())


def test_algebra_is_that_of_the_values() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        a, b, c = (random_size(rng) for _ in range(3))
        for at in ((0, 1), (3, 7), (5, 2)):
            x, y, z = (value(s, *at) for s in (a, b, c))
            assert value(a + b, *at) == x + y
            assert value(a - b, *at) == x - y
            assert value(a * b, *at) == x * y
            assert value(-a, *at) == -x
            assert value((a + b) * c - a * c, *at) == y * z
        assert a + b == b + a
        assert a * b == b * a
        assert (a + b) + c == a + (b + c)
        assert (a * b) * c == a * (b * c)
        assert a * (b + c) == a * b + a * c
        assert isinstance(a - a, int)
        assert a - a == 0
        assert hash(a + b) == hash(b + a)


def test_division_undoes_multiplication() -> None:
    rng = np.random.default_rng(1)
    exact = 0
    for _ in range(300):
        a, b = random_size(rng), random_size(rng)
        if b != 0:
            assert divide(a * b, b) == a
            exact += isinstance(a * b, Dim)
    assert exact > 200


@pytest.mark.parametrize(
    ("total", "part"),
    [(B, 0), (0, 0), (7, 3), (B + 1, 2), (B, T), (B, B + 1), (3, B), (B * B + 1, B + 1)],
)
def test_division_with_a_rest_is_refused(total: Any, part: Any) -> None:
    with pytest.raises(ShapeError) as info:
        divide(total, part)
    assert str(info.value) == f"{total} elements cannot be divided into parts of {part}"


TEXT = [
    (B, "batch"),
    (2 * B, "2*batch"),
    (B + 1, "batch + 1"),
    (B - 1, "batch - 1"),
    (3 - B, "-batch + 3"),
    (-2 * B * T + T - 4, "-2*batch*time + time - 4"),
    (B * B + B * T * 2 + 1, "batch*batch + 2*batch*time + 1"),
]


@pytest.mark.parametrize(("dim", "text"), TEXT, ids=[text for _, text in TEXT])
def test_text(dim: Any, text: str) -> None:
    assert str(dim) == text


def test_equal_and_different() -> None:
    assert B == Dim.symbol("batch")
    assert len({B, Dim.symbol("batch"), 1 * B, B + 0, T}) == 2
    for a, b in itertools.combinations([B, T, B + 1, 2 * B, B * B, B * T, 1, 0], 2):
        assert a != b
    assert B != "batch"


def test_numpy_integers() -> None:
    three: Any = np.int64(3)
    assert three * B == B * three == 3 * B
    assert three + B == B + 3
    assert all(type(c) is int for c in (three * B).terms.values())


def test_what_is_known_of_a_size() -> None:
    assert B.is_symbol
    assert not any(d.is_symbol for d in (2 * B, B + 1, B * T, B * B) if isinstance(d, Dim))
    assert [d.never_negative for d in (B, B + 1, 2 * B * T, B - 1, T - B)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert (B * T + 1).symbols == {"batch", "time"}


def test_binding() -> None:
    assert (B * T + 1).bind({"batch": 3, "time": 5, "other": 2}) == 16
    assert bind_shape((B, 3, T + 1), {"batch": 2, "time": 4}) == (2, 3, 5)
    assert bind_value(("slice", (B - 1, None)), {"batch": 4}) == ("slice", (3, None))
    with pytest.raises(GraphError) as graph:
        (B * T).bind({"batch": 3})
    assert str(graph.value) == (
        "the size of dimension time is not known: feed a placeholder that has it"
    )
    with pytest.raises(ShapeError) as shape:
        (B - T).bind({"batch": 3, "time": 5})
    assert (
        str(shape.value)
        == "the size batch - time would be -2 with batch = 3, time = 5; feed a larger one"
    )


def test_substituting() -> None:
    assert (B * T + 1).substitute({"batch": T + 1}) == T * T + T + 1
    assert (B * 2).substitute({"batch": 7}) == 14
    assert B.substitute({"time": 7}) == B
    assert substitute(("a", (B, 3), None, 1.5), {"batch": 5}) == ("a", (5, 3), None, 1.5)
    with pytest.raises(ShapeError):
        (B - 3).substitute({"batch": 2})


def test_products_and_finding() -> None:
    assert product(()) == 1
    assert product((2, B, 3)) == 6 * B
    assert list(dims_of((1, ("slice", B, (T + 1,)), "x"))) == [B, T + 1]


def test_quotients_are_rounded_down() -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        a, b = (random_size(rng) for _ in range(2))
        divisor, other = (int(n) for n in rng.integers(1, 6, 2))
        for batch, time in ((0, 1), (3, 7), (5, 2), (11, 4)):
            sizes = {"batch": batch, "time": time}

            def known(size: Any, sizes: Any = sizes) -> int:
                """Beside a number that keeps it from being negative."""
                return bind_shape((size + 10**6,), sizes)[0] - 10**6

            x, y = known(a), known(b)
            assert known(a // divisor) == x // divisor
            assert known(a % divisor) == x % divisor
            assert known(a // divisor // other) == x // divisor // other
            assert known((a // divisor) * b + a) == x // divisor * y + x
            assert known((a // divisor + b) // other) == (x // divisor + y) // other


def test_quotients_are_written_one_way() -> None:
    assert (B * 4 + 6) // 2 == B * 2 + 3
    assert (B + 5) // 2 == (B + 1) // 2 + 2
    assert B // 2 // 3 == B // 6
    assert hash(B // 2) == hash(B // 2)
    assert B // 2 != T // 2
    assert (B * 6) // 3 - B * 2 == 0
    assert str((B + 1) // 2 * T + 3) == "((batch + 1) // 2)*time + 3"
    assert (B // 2).symbols == {"batch"}
    assert not (B // 2).is_symbol
    assert ((B + 3) // 2).never_negative
    assert not ((B - 3) // 2).never_negative
    assert divide(B // 2 * T * 3, T) == B // 2 * 3
    assert ((B + T) // 2).substitute({"batch": T}) == T
    with pytest.raises(GraphError, match="integers from 1, got 0"):
        B // 0
