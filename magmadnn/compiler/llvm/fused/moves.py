"""Boxes of a copy, rows by number and their transpose as vector code: see `kernels/moves.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir

from magmadnn.compiler.kernels.moves import (
    AXES,
    BOX_WORDS,
    FIRST_ROW,
    PLACE,
    SOURCE,
    TO,
    AddPicked,
    Move,
    Pick,
)
from magmadnn.compiler.llvm.expressions.formulas import cast, memory_item
from magmadnn.compiler.llvm.ir.builder import I64, Array, Code, Value, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.llvm.ir.transposing import transposed

_TURNED_BYTES = (4, 8)  # of elements that are turned in vectors


def write_move(kernel: Move, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    item = ir.IntType(8 * kernel.item_bytes)
    table, result = frame.array("table", I64), frame.array("result", item)
    lanes = target.lanes(kernel.item_bytes) if kernel.item_bytes in _TURNED_BYTES else 0
    with code.loop(0, frame.integer("boxes")) as number:
        box = _Box(code, table.at(number * BOX_WORDS))
        source = frame.array_after("x0", box.word(SOURCE), item)
        first = code.larger(frame.integer("row0"), box.word(FIRST_ROW)) - box.word(FIRST_ROW)
        last = code.smaller(frame.integer("row1") - box.word(FIRST_ROW), box.rows)
        if lanes:
            with code.choose(box.is_turned) as (turned, other):
                with turned:
                    for to, place, begin, end in box.planes(first, last):
                        _turned(code, lanes, box, source.at(place), result.at(to), begin, end)
                with other:
                    _copied_rows(code, target, box, source, result, first, last)
        else:
            _copied_rows(code, target, box, source, result, first, last)


def _copied_rows(
    code: Code, target: Target, box: _Box, source: Array, result: Array, first: Value, last: Value
) -> None:
    """Rows of a box, one after the other."""
    for to, place in box.walked(first, last):
        _copied_row(code, target, box, source.at(place), result.at(to))


class _Box:
    """A box of a table, as `Move` says."""

    def __init__(self, code: Code, table: Array) -> None:
        self._code, self._table = code, table
        words = range(AXES, BOX_WORDS, 3)
        self.axes = [tuple(self.word(word + k) for k in range(3)) for word in words]
        self.rows = code.integer(1)
        for length, _, _ in self.axes[:-1]:
            self.rows = self.rows * length

    def word(self, number: int) -> Value:
        """A word of the box."""
        return self._table[number]

    @property
    def is_turned(self) -> Value:
        """Whether neighbours in the source are in different rows, as where a matrix is transposed."""
        (_, _, step), (_, to_step, apart) = self.axes[-2:]
        return step.equals(1) & to_step.equals(1) & apart.differs(1)

    def walked(self, first: Value, last: Value) -> Iterator[tuple[Value, Value]]:
        """Write a loop over rows: where each begins in the result and in the source.

        Rows that differ in the last outer axis only follow each other without a division.
        """
        _, to_step, step = self.axes[-2]
        for to, place, begin, end in self.planes(first, last):
            with self._code.loop(begin, end) as row:
                yield to + row * to_step, place + row * step

    def planes(self, first: Value, last: Value) -> Iterator[tuple[Value, Value, Value, Value]]:
        """Write a loop over planes, which the last two axes make: where they begin, which rows are wanted."""
        code, inner = self._code, self.axes[-2][0]
        with (
            code.when(first < last),
            code.loop(first // inner, (last - 1) // inner + 1) as plane,
        ):
            to, place, rest = self.word(TO), self.word(PLACE), plane
            for length, to_outer, outer in reversed(self.axes[:-2]):
                index = rest % length
                rest = rest // length
                to, place = to + index * to_outer, place + index * outer
            begin = code.larger(first - plane * inner, code.integer(0))
            yield to, place, begin, code.smaller(last - plane * inner, inner)


def _copied_row(code: Code, target: Target, box: _Box, origin: Array, goal: Array) -> None:
    """One after the other, where neighbours lie side by side in vectors; a constant is spread over them."""
    length, to_step, step = box.axes[-1]
    zero = code.integer(0)
    with code.choose(to_step.equals(1) & step.equals(1)) as (dense, other):
        with dense:
            _copied(code, target, origin, goal, zero, length)
        with other, code.choose(to_step.equals(1) & step.equals(0)) as (same, apart):
            with same:
                number = origin[0]

                def do(element: Value, lanes: int) -> None:
                    if lanes:
                        goal.put(element, code.splat(number, lanes))
                    else:
                        goal[element] = number

                _in_vectors(code, target.lanes(item_bytes(goal.item)), zero, length, do)
            with apart, code.loop(0, length) as element:
                goal[element * to_step] = origin[element * step]


def _turned(
    code: Code, lanes: int, box: _Box, origin: Array, goal: Array, begin: Value, end: Value
) -> None:
    """Rows of a plane whose columns lie side by side in the source: square blocks of vectors are turned."""
    (_, to_step, _), (length, _, step) = box.axes[-2:]
    whole, columns = end - (end - begin) % lanes, length - length % lanes
    with code.loop(begin, whole, lanes) as row:
        with code.loop(0, columns, lanes) as column:
            read = [origin.vector(row + (column + k) * step, lanes) for k in range(lanes)]
            for k, turned in enumerate(transposed(code, read)):
                goal.put((row + k) * to_step + column, turned)
        with code.loop(columns, length) as column:
            for k in range(lanes):
                goal[(row + k) * to_step + column] = origin[row + k + column * step]
    with code.loop(whole, end) as row, code.loop(0, length) as column:
        goal[row * to_step + column] = origin[row + column * step]


def write_pick(kernel: Pick, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    item = ir.IntType(8 * kernel.item_bytes)
    picked = _Picked(kernel.index_dtype, item, code, frame)
    with code.loop(frame.integer("row0"), frame.integer("row1")) as row:
        outer, pick = row // picked.picks, row % picked.picks
        goal = picked.result.at(row * picked.columns)
        with picked.valid(pick) as number:
            origin = picked.source.at((outer * picked.count + number) * picked.columns)
            _copied(code, target, origin, goal, picked.column0, picked.column1)


def write_add_picked(kernel: AddPicked, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    item = memory_item(kernel.dtype)
    picked = _Picked(kernel.index_dtype, item, code, frame)
    with code.loop(frame.integer("row0"), frame.integer("row1")) as outer:
        goal = picked.result.at(outer * picked.count * picked.columns)
        with code.loop(0, picked.count) as number:
            _cleared(code, target, goal.at(number * picked.columns), picked)
        with code.loop(0, picked.picks) as pick:
            origin = picked.source.at((outer * picked.picks + pick) * picked.columns)
            with picked.valid(pick) as number:
                _added(code, target, origin, goal.at(number * picked.columns), picked)


class _Picked:
    """What the two kernels have in common."""

    def __init__(self, index_dtype: str, item: Any, code: Code, frame: Frame) -> None:
        self.code, self._index_dtype = code, index_dtype
        self.column0, self.column1 = frame.integer("column0"), frame.integer("column1")
        self.columns, self.count = frame.integer("columns"), frame.integer("count")
        self.picks = frame.integer("picks")
        self.source, self.result = frame.array("source", item), frame.array("result", item)
        self._index = frame.array("index", memory_item(index_dtype))
        self._faults = frame.array("faults", I64)

    def valid(self, pick: Value) -> Any:
        """A block that runs where the number of a pick is one of a row, and gives it."""
        number = cast(self.code, self._index[pick], I64)
        inside = (number >= 0) & (number < self.count)
        with self.code.when(~inside):
            self._faults[0] = 1
        return _When(self.code, inside, number)


class _When:
    """`code.when` that gives a value."""

    def __init__(self, code: Code, condition: Value, value: Value) -> None:
        self._block, self._value = code.when(condition), value

    def __enter__(self) -> Value:
        self._block.__enter__()
        return self._value

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)


def _in_vectors(
    code: Code, lanes: int, first: Value, last: Value, do: Callable[[Value, int], None]
) -> None:
    """`do(element, lanes)` for whole vectors from `first` on, and `do(element, 0)` for what is left."""
    whole = last - (last - first) % lanes
    with code.loop(first, whole, lanes) as element:
        do(element, lanes)
    with code.loop(whole, last) as element:
        do(element, 0)


def _copied(
    code: Code, target: Target, origin: Array, goal: Array, first: Value, last: Value
) -> None:
    def do(element: Value, lanes: int) -> None:
        if lanes:
            goal.put(element, origin.vector(element, lanes))
        else:
            goal[element] = origin[element]

    _in_vectors(code, target.lanes(item_bytes(goal.item)), first, last, do)


def _cleared(code: Code, target: Target, goal: Array, picked: _Picked) -> None:
    def do(element: Value, lanes: int) -> None:
        if lanes:
            goal.put(element, code.zero(ir.VectorType(goal.item, lanes)))
        else:
            goal[element] = code.zero(goal.item)

    _in_vectors(code, target.lanes(item_bytes(goal.item)), picked.column0, picked.column1, do)


def _added(code: Code, target: Target, origin: Array, goal: Array, picked: _Picked) -> None:
    def do(element: Value, lanes: int) -> None:
        if lanes:
            goal.put(element, goal.vector(element, lanes) + origin.vector(element, lanes))
        else:
            goal[element] = goal[element] + origin[element]

    _in_vectors(code, target.lanes(item_bytes(goal.item)), picked.column0, picked.column1, do)
