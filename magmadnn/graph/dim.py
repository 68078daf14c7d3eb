"""Dimensions that are known only when a graph runs.

A dimension is an `int` or a `Dim`: a polynomial with integer coefficients over symbols such as `batch`, and
over quotients that are rounded down, such as `time // 2`.
Partial batches, growing batches and predictions for any number of rows so use one graph: the symbols
get their values when placeholders are fed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Union

from magmadnn.errors import GraphError, ShapeError

Size = Union[int, "Dim"]
Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Quotient:
    """`numerator // divisor`, rounded down; the divisor is 2 or more."""

    numerator: Dim
    divisor: int

    def substitute(self, sizes: Mapping[str, Size]) -> Size:
        """With some symbols replaced."""
        return _replaced(self.numerator, sizes) // self.divisor

    def __str__(self) -> str:
        text = str(self.numerator) if self.numerator.is_symbol else f"({self.numerator})"
        return f"({text} // {self.divisor})"


Factor = str | Quotient
Monomial = tuple[Factor, ...]  # the factors of one product, sorted; () is the constant term


def _in_order(monomial: Monomial) -> tuple[str, ...]:
    return tuple(map(str, monomial))


class Dim:
    """A polynomial over symbols, for instance `batch`, `2*batch + 1`, `batch*time` or `(time + 1) // 2`."""

    __slots__ = ("_terms",)

    __array_ufunc__: ClassVar[None] = None  # NumPy's integers on the left leave it to us

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = ((m, int(c)) for m, c in terms.items() if c)
        self._terms = tuple(sorted(kept, key=lambda term: (_in_order(term[0]), term[1])))

    @staticmethod
    @lru_cache(maxsize=1024)
    def symbol(name: str) -> Dim:
        """The dimension that is called `name`."""
        return Dim({(name,): 1})

    @property
    def terms(self) -> Mapping[Monomial, int]:
        """The coefficient of each product of factors."""
        return dict(self._terms)

    @property
    def symbols(self) -> frozenset[str]:
        """The names that this dimension depends on."""
        return frozenset(s for m, _ in self._terms for factor in m for s in _symbols_of(factor))

    @property
    def is_symbol(self) -> bool:
        """Whether it is one symbol and nothing else."""
        factor, coefficient = self._factor
        return isinstance(factor, str) and coefficient == 1

    @property
    def _factor(self) -> tuple[Factor | None, int]:
        """Its only factor and the coefficient; None where it has others."""
        (monomial, coefficient), *others = self._terms
        return (monomial[0] if len(monomial) == 1 and not others else None), coefficient

    @property
    def never_negative(self) -> bool:
        """Whether no size of the symbols makes it negative."""
        return all(c > 0 and all(map(_is_never_negative, m)) for m, c in self._terms)

    def bind(self, sizes: Mapping[str, int]) -> int:
        """The value once every symbol has a size.

        Raises:
            GraphError: if a symbol has none.
            ShapeError: if the value is negative.
        """
        factor, coefficient = self._factor
        if isinstance(factor, str) and factor in sizes and coefficient > 0:  # most often
            return coefficient * sizes[factor]
        for symbol in sorted(self.symbols - sizes.keys()):
            raise GraphError(
                f"the size of dimension {symbol} is not known: feed a placeholder that has it"
            )
        value = self.substitute(sizes)
        assert isinstance(value, int)
        return value

    def substitute(self, sizes: Mapping[str, Size]) -> Size:
        """This dimension with some symbols replaced.

        Raises:
            ShapeError: if the value is negative.
        """
        factor, coefficient = self._factor
        if isinstance(factor, str) and coefficient > 0:  # most often
            return coefficient * sizes[factor] if factor in sizes else self
        total = _replaced(self, sizes)
        if isinstance(total, int) and total < 0:
            known = sorted(self.symbols & sizes.keys())
            given = ", ".join(f"{symbol} = {sizes[symbol]}" for symbol in known)
            raise ShapeError(f"the size {self} would be {total} with {given}; feed a larger one")
        return total

    def __add__(self, other: Size) -> Size:
        terms = dict(self._terms)
        for monomial, coefficient in _terms_of(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _lower(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        if not isinstance(other, Dim):
            return _lower({monomial: c * int(other) for monomial, c in self._terms})
        terms: dict[Monomial, int] = {}
        for left, a in self._terms:
            for right, b in _terms_of(other):
                product = tuple(sorted(left + right, key=str))
                terms[product] = terms.get(product, 0) + a * b
        return _lower(terms)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Size:
        """The quotient by a positive integer, rounded down.

        Raises:
            GraphError: if the divisor is another one.
        """
        if isinstance(divisor, Dim) or divisor < 1:
            raise GraphError(f"the size {self} can be divided by integers from 1, got {divisor}")
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in self._terms:
            quotient, left = divmod(coefficient, divisor)
            if (
                monomial and left
            ):  # a part of a product stays whole: 3 * n // 2 is no n + n // 2 here
                quotient, left = 0, coefficient
            whole[monomial], rest[monomial] = quotient, left
        left_over = _lower(rest)
        if not isinstance(left_over, Dim):
            return _lower(whole)  # less than the divisor
        inner, coefficient = left_over._factor
        if isinstance(inner, Quotient) and coefficient == 1:  # x // 2 // 3 is x // 6
            return _lower(whole) + inner.numerator // (inner.divisor * divisor)
        return _lower(whole) + Dim({(Quotient(left_over, divisor),): 1})

    def __mod__(self, divisor: int) -> Size:
        return self - self // divisor * divisor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(self._terms)

    def __repr__(self) -> str:
        text = ""
        for monomial, coefficient in sorted(
            self._terms, key=lambda t: (-len(t[0]), _in_order(t[0]))
        ):
            factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []
            sign = (" - " if coefficient < 0 else " + ") if text else "-" * (coefficient < 0)
            text += sign + "*".join([*factors, *map(str, monomial)])
        return text


def _replaced(size: Size, sizes: Mapping[str, Size]) -> Size:
    """A size with some symbols replaced; it may be negative."""
    if not isinstance(size, Dim):
        return size
    total: Size = 0
    for monomial, coefficient in size._terms:
        term: Size = coefficient
        for factor in monomial:
            known = (
                sizes.get(factor, Dim.symbol(factor))
                if isinstance(factor, str)
                else factor.substitute(sizes)
            )
            term = term * known
        total = total + term
    return total


def _symbols_of(factor: Factor) -> frozenset[str]:
    return frozenset((factor,)) if isinstance(factor, str) else factor.numerator.symbols


def _is_never_negative(factor: Factor) -> bool:
    return isinstance(factor, str) or factor.numerator.never_negative


def _terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size._terms if isinstance(size, Dim) else (((), int(size)),)


def _lower(terms: Mapping[Monomial, int]) -> Size:
    """An int where no symbol is left."""
    dim = Dim(terms)
    return dim if dim.symbols else dim.terms.get((), 0)


def divide(total: Size, part: Size) -> Size:
    """`total / part` where that is exact; used for the -1 of a reshape.

    Polynomials are divided term by term, the leading one first.

    Raises:
        ShapeError: if the division leaves a rest.
    """
    quotient: Size = 0
    rest = total
    while rest != 0 and part != 0:
        term = _quotient(_leading(rest), _leading(part))
        if term is None:
            break
        quotient = quotient + term
        rest = rest - term * part
    if rest != 0 or part == 0:
        raise ShapeError(f"{total} elements cannot be divided into parts of {part}")
    return quotient


def _leading(size: Size) -> tuple[Monomial, int]:
    """The term of highest degree; among equals the last in order."""
    return max(_terms_of(size), key=lambda term: (len(term[0]), _in_order(term[0])))


def _quotient(total: tuple[Monomial, int], part: tuple[Monomial, int]) -> Size | None:
    """One term divided by another; None where that is no whole term."""
    left = list(total[0])
    for symbol in part[0]:
        if symbol not in left:
            return None
        left.remove(symbol)
    return None if total[1] % part[1] else _lower({tuple(left): total[1] // part[1]})


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements of a shape."""
    number = 1
    for size in sizes:
        if not isinstance(size, Dim):
            number = number * size
    total: Size = number
    for size in sizes:
        if isinstance(size, Dim):
            total = size * total if total != 1 else size
    return total


def bind_shape(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape once every symbol has a size."""
    return tuple(d.bind(sizes) if isinstance(d, Dim) else d for d in shape)


def bind_value(value: Any, sizes: Mapping[str, int]) -> Any:
    """`value`, an attribute of a node, once every symbol has a size."""
    if isinstance(value, Dim):
        return value.bind(sizes)
    return tuple(bind_value(v, sizes) for v in value) if isinstance(value, tuple) else value


class Inner(ABC):
    """A graph inside an attribute of a node (`body.py`), which has dimensions of its own."""

    @abstractmethod
    def substitute(self, sizes: Mapping[str, Size]) -> Inner:
        """The graph with some symbols replaced; itself where it has none of them."""

    @abstractmethod
    def in_phase(self, training: bool) -> Inner:
        """The graph of one phase; itself where it has no phases."""

    @abstractmethod
    def dims(self) -> Iterator[Dim]:
        """The symbolic dimensions in it."""


def substitute(value: Any, sizes: Mapping[str, Size]) -> Any:
    """`value`, an attribute of a node, with the symbols of its dimensions replaced."""
    if isinstance(value, (Dim, Inner)):
        return value.substitute(sizes)
    return tuple(substitute(v, sizes) for v in value) if isinstance(value, tuple) else value


def dims_of(value: Any) -> Iterator[Dim]:
    """The symbolic dimensions in a shape or an attribute of a node."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, Inner):
        yield from value.dims()
    elif isinstance(value, tuple):
        for inner in value:
            yield from dims_of(inner)
