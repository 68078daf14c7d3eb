"""Small matrices of a stack, as many at a time as a vector has lanes, in place of calls of a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.llvm.ir.builder import Array, Code, Value
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.compiler.llvm.side_by_side.definite import factorise_definite
from magmadnn.compiler.llvm.side_by_side.elimination import exchange_all, factorise
from magmadnn.compiler.llvm.side_by_side.lanes import Lanes, lanes_of, tile_size
from magmadnn.compiler.llvm.side_by_side.substitution import Seen, substitute

from .arguments import LibraryArguments
from .room import Room, Sizes

MOST = 128  # rows of a matrix
_LEAST_SHARE = 2  # of the lanes, one in so many has a matrix


def is_small(kernel: Library, values: Mapping[str, int]) -> bool:
    """Whether the matrices of a stack are taken side by side: a rule of sizes, whatever the threads.

    Args:
        kernel: the step.
        values: its slots, for the whole stack.
    """
    if kernel.function not in SMALL:
        return False
    count, right = values["row1"], values["rows"] * values["columns"]
    enough = count * _LEAST_SHARE >= host().lanes(4 if kernel.dtype == "float32" else 8)
    return enough and 0 < values["width"] <= MOST and 0 < right <= 2 * MOST * MOST


def room_of_small(sizes: Sizes) -> Room:
    """The first operand, the result and the exchanges, one of each in each lane."""
    n = sizes["width"]
    elements = sizes["height"] * n + sizes["rows"] * sizes["columns"] + n
    return Room(numbers=elements * host().lanes(4))


class Group:
    """As many matrices of a stack as there are lanes; behind the last one it stands for itself again."""

    def __init__(
        self, arguments: LibraryArguments, target: Target, first: Value, end: Value
    ) -> None:
        self.arguments, self.code = arguments, arguments.code
        self.n, self.tile = arguments.width, tile_size(target)
        self.lanes = lanes_of(target, arguments.item)
        self._matrices = [self.code.smaller(first + k, end - 1) for k in range(self.lanes)]
        self.memory = Lanes(self.code, self.lanes, arguments.numbers(0))

    def operands(self, number: int) -> list[Array]:
        """The matrices of an operand."""
        return [self.arguments.operand(number, matrix) for matrix in self._matrices]

    def results(self, behind: Value | int = 0) -> list[Array]:
        """The matrices of the result, from an element on."""
        return [self.arguments.result(matrix).at(behind) for matrix in self._matrices]

    def fail_when(self, lanes: Value) -> None:
        """Tell whoever runs the plan that something is wrong in one of them."""
        self.arguments.fail_when(self.code.any(lanes))

    def fail_at_zeros(self, triangle: Seen) -> None:
        """Tell it where there is a 0 on the diagonal: there is no solution, or more than one."""
        zeros = self.code.variable(self.memory.constant(0.0).differs(0.0))
        with self.code.loop(0, self.n) as row:
            zeros.value = zeros.value | triangle[row, row].equals(0.0)
        self.fail_when(zeros.value)


def _definite(group: Group) -> None:
    count = group.n * group.n
    group.memory.read(group.operands(0), count)
    group.fail_when(factorise_definite(group.code, group.memory, group.n, group.tile))
    group.memory.write(group.results(), count)


def _factors(group: Group) -> None:
    """Exchanges in the first row, below them the factors, column by column."""
    n, pivots = group.n, group.memory
    a = group.memory.at(n)
    group.fail_when(a.read(group.operands(0), n * n).differs(0.0))
    factorise(group.code, a, pivots, n, group.tile)
    pivots.write(group.results(), n)
    a.write(group.results(n), n * n, n)


def _by_factors(group: Group) -> None:
    """Right sides are rows, and so are factors' columns."""
    n, count = group.n, group.arguments.rows
    pivots, right = group.memory, group.memory.at(n * n + n)
    pivots.read(group.operands(0), n * n + n)
    group.fail_when(right.read(group.operands(1), count * n).differs(0.0))
    (turned,) = group.arguments.settings
    factors = Seen(group.memory.at(n), 1, n)
    _solve(group, factors, pivots, Seen(right, 1, n), count, bool(turned))
    right.write(group.results(), count * n)


def _solutions(group: Group) -> None:
    """Factors and solutions, of which only these are kept."""
    n, count = group.n, group.arguments.columns
    pivots, a = group.memory, group.memory.at(n)
    right = a.at(n * n)
    group.fail_when(a.read(group.operands(0), n * n).differs(0.0))
    group.fail_when(right.read(group.operands(1), n * count).differs(0.0))
    factorise(group.code, a, pivots, n, group.tile)
    (turned,) = group.arguments.settings
    _solve(group, Seen(a, n, 1), pivots, Seen(right, count, 1), count, bool(turned))
    right.write(group.results(), n * count)


def _solve(
    group: Group, factors: Seen, pivots: Lanes, right: Seen, count: Value, turned: bool
) -> None:
    code, size, tile = group.code, (group.n, count), group.tile
    group.fail_at_zeros(factors)
    if turned:
        substitute(code, factors.turned, right, size, tile, lower=True, unit=False)
        substitute(code, factors.turned, right, size, tile, lower=False, unit=True)
        exchange_all(code, right, pivots, size, backward=True)
    else:
        exchange_all(code, right, pivots, size, backward=False)
        substitute(code, factors, right, size, tile, lower=True, unit=True)
        substitute(code, factors, right, size, tile, lower=False, unit=False)


def _triangles(group: Group) -> None:
    n, count = group.n, group.arguments.columns
    right = group.memory.at(n * n)
    group.memory.read(group.operands(0), n * n)
    right.read(group.operands(1), n * count)
    lower, turned = group.arguments.settings
    triangle = Seen(group.memory, n, 1)
    group.fail_at_zeros(triangle)
    seen, size = triangle.turned if turned else triangle, (n, count)
    substitute(
        group.code, seen, Seen(right, count, 1), size, group.tile, lower=lower != turned, unit=False
    )
    right.write(group.results(), n * count)


# by the name in the op's record (`LibraryCall.function`)
SMALL: dict[str, Callable[[Group], None]] = {
    "gesv": _solutions,
    "getrf": _factors,
    "getrs": _by_factors,
    "potrf": _definite,
    "trsm": _triangles,
}


def write_small(
    kernel: Library, arguments: LibraryArguments, target: Target, part: tuple[Value, Value]
) -> None:
    """The body for a part of a stack of small matrices."""
    first, end = part
    code: Code = arguments.code
    with code.loop(first, end, lanes_of(target, arguments.item)) as matrix:
        SMALL[kernel.function](Group(arguments, target, matrix, end))
