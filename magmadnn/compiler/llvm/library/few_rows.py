"""A kernel of eigenvalues and eigenvectors of one symmetric matrix of some dozens of rows.

LAPACK's sytrd makes three diagonals, and orgtr the columns that made them; the implicit QL method rotates
these. Each rotation is applied to all rows at once while the next one is found, which waits for a root and a
division. LAPACK's steqr takes five times as long, and stedc with ormtr, which syevd calls, up to twice.

From some hundred rows on columns do not fit into the nearest cache: each half of the diagonals is rotated by
itself, laed1 joins them, and ormtr multiplies by the columns, as stedc does with parts of sixteen rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from magmadnn.compiler.llvm.ir.builder import FLOATS, I8, I32, I64, VOID, Array, Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

NUMBERS = 6  # for each row: diagonals, what sytrd tells orgtr, eigenvalues, and diagonals that are rotated
INTEGERS = 5  # for each row, which laed1 works with
_SWEEPS = 30  # at most, for each eigenvalue, as LAPACK has it
# Of the largest number of three diagonals: squares below are 0, since they would not be exact.
_LITTLE = {"float32": 1e-30, "float64": 1e-280}
_CONVERGED, _FAILED = 0, 1
_TOGETHER = 2  # rotations of the same numbers, which are read and written once
_PARTS = 4  # vectors that are rotated at once


@dataclass(frozen=True)
class FewRows:
    """Eigenvalues that ascend, and eigenvectors, each a row, of A [n, n], of which one triangle is read.

    As in Bowdler, Martin, Reinsch and Wilkinson, The QR and QL algorithms for symmetric matrices, 1968,
    but for the rule that tells when a number beside the diagonal is 0, which is LAPACK's, and for the end to
    begin at, which is that of the smaller numbers.

    Slots: `n`; `a`; `down, along`, from an element of the triangle that is read to the one below it and
    beside it, seen as a lower one; `values` [n]; `vectors` [n, n]; `room`, where it works, and `step` of rows
    there; `words`, numbers for LAPACK at its end; `sytrd, orgtr, laed1, ormtr`, addresses; `failed`, which
    becomes 1 where it does not converge, or numbers are too large or too small.

    Attributes:
        dtype: of all numbers.
        halved: whether halves are joined.
    """

    dtype: str
    halved: bool
    slots = (
        "n", "a", "down", "along", "values", "vectors", "room", "step", "words", "sytrd", "orgtr", "laed1",
        "ormtr", "failed",
    )  # fmt: skip

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the kernel."""
        item = FLOATS[self.dtype]
        n, step, words = (frame.integer(slot) for slot in ("n", "step", "words"))
        z, failed = frame.array("room", item), frame.array("failed", I64)
        numbers = [z.at(n * (step + k)) for k in range(NUMBERS)]
        rest = z.at(n * (step + NUMBERS))
        diagonal, beside, scales, d = numbers[:4]
        largest = self._copied(code, frame, z)
        limits = np.finfo(self.dtype)
        least = float(np.sqrt(limits.tiny / limits.eps))
        failed[0] = code.select((largest > least) & (largest < 0.5 / least), _CONVERGED, _FAILED)
        with code.when(failed[0].equals(_CONVERGED)):
            work = rest.at(n * step + n * INTEGERS) if self.halved else rest
            lower, size, columns = (
                _held(code, I8, ord("L")),
                _integer(code, n),
                _integer(code, step),
            )
            room, info = _integer(code, words), _integer(code, code.integer(0))
            behind = work, room, info
            lapack = self._lapack(code, frame, failed, info)
            lapack("sytrd", lower, size, z, columns, diagonal, beside, scales, *behind)
            lanes = target.lanes(np.dtype(self.dtype).itemsize)
            if not self.halved:
                lapack("orgtr", lower, size, z, columns, scales, *behind)
                self._parts(code, numbers, (z, step, lanes), (code.integer(0), n), failed)
                rows = z
            else:
                rows, places = rest, rest.at(n * step).viewed(I32)
                with code.loop(0, n * step) as k:
                    rows[k] = 0.0
                with code.loop(0, n) as k:
                    rows[k * step + k] = 1.0
                half = n // 2
                torn = beside[half - 1]
                for at in (half - 1, half):
                    diagonal[at] = diagonal[at] - _size(code, torn)
                for first, count in ((code.integer(0), half), (half, n - half)):
                    own = rows.at(first * step + first)
                    self._parts(code, numbers, (own, step, lanes), (first, count), failed)
                    _ascending(code, d.at(first), count, places.at(first))
                lapack(
                    "laed1", size, d, rows, columns, places, _held(code, item, torn),
                    _integer(code, half), work, places.at(n), info,
                )  # fmt: skip
                lapack(
                    "ormtr", _held(code, I8, ord("L")), lower, _held(code, I8, ord("N")), size, size, z,
                    columns, scales, rows, columns, *behind,
                )  # fmt: skip
            goals = frame.array("values", item), frame.array("vectors", item)
            _in_order(code, d, (rows, step), goals, n)

    def _lapack(self, code: Code, frame: Frame, failed: Array, info: Array) -> Callable[..., None]:
        def call(name: str, *words: Array) -> None:
            code.call_address(frame.integer(name), VOID, *words)
            with code.when(info[0].differs(0)):
                failed[0] = _FAILED

        return call

    def _parts(
        self, code: Code, numbers: list[Array], rows: tuple[Array, Value, int],
        part: tuple[Value, Value], failed: Array,
    ) -> None:  # fmt: skip
        """Eigenvalues of a part of the diagonals, from its first place on, in `numbers[3]`; rows are rotated.

        The part of the diagonals is that of a matrix of its own. It is seen from the end of larger numbers.
        """
        (first, count), (z, step, lanes) = part, rows
        diagonal, beside, _, found, d, e = (one.at(first) for one in numbers)
        turn = _size(code, diagonal[0]) > _size(code, diagonal[count - 1])
        scale = self._divided(code, (diagonal, beside, d, e), count, turn)
        seen = code.select_array(turn, z.at((count - 1) * step), z), code.select(turn, -step, step)
        self._rotated(code, (d, e), count, (*seen, lanes), failed)
        with code.loop(0, count) as k:
            found[code.select(turn, count - 1 - k, k)] = d[k] * scale

    def _copied(self, code: Code, frame: Frame, z: Array) -> Value:
        """The largest size of a number of the triangle, which is copied to the lower one of columns."""
        n, step, down, along = (frame.integer(slot) for slot in ("n", "step", "down", "along"))
        a, largest = frame.array("a", z.item), code.variable(code.zero(z.item))
        with code.loop(0, n) as column, code.loop(column, n) as row:
            one = a[row * down + column * along]
            z[column * step + row] = one
            largest.value = _larger(code, _size(code, one), largest.value)
        found: Value = largest.value
        return found

    def _divided(
        self, code: Code, diagonals: tuple[Array, Array, Array, Array], n: Value, turn: Value
    ) -> Value:
        """The largest number of two diagonals, over which they are given, from either end."""
        diagonal, beside, d, e = diagonals
        largest = code.variable(code.zero(d.item))
        for numbers, count in ((diagonal, n), (beside, n - 1)):
            with code.loop(0, count) as k:
                largest.value = _larger(code, _size(code, numbers[k]), largest.value)
        scale = code.select(largest.value > 0.0, largest.value, 1.0)
        for numbers, goal, count in ((diagonal, d, n), (beside, e, n - 1)):
            with code.loop(0, count) as k:
                goal[code.select(turn, count - 1 - k, k)] = numbers[k] / scale
        return scale

    def _rotated(
        self, code: Code, diagonals: tuple[Array, Array], n: Value, rows: tuple[Array, Value, int],
        failed: Array,
    ) -> None:  # fmt: skip
        """The diagonal becomes eigenvalues, and rows eigenvectors."""
        d, e = diagonals
        left = code.variable(n * _SWEEPS)
        with code.loop(0, n) as low, code.repeat() as done:
            high = self._end(code, d, e, low, n - 1)
            done.when(high.equals(low))
            with code.when(left.value.equals(0)):
                failed[0] = _FAILED
            done.when(left.value.equals(0))
            left.value = left.value - 1
            self._sweep(code, (d, e), (low, high), rows, n)

    def _end(self, code: Code, d: Array, e: Array, low: Value, last: Value) -> Value:
        """The first place from `low` on behind which the number beside the diagonal is 0, nearly."""
        at = code.variable(low)
        unit = float(np.finfo(self.dtype).eps) ** 2
        with code.repeat() as found:
            found.when(at.value.equals(last))
            one, both = e[at.value], _size(code, d[at.value] * d[at.value + 1])
            found.when(one * one <= both * unit + _LITTLE[self.dtype])
            at.value = at.value + 1
        place: Value = at.value
        return place

    def _sweep(
        self, code: Code, diagonals: tuple[Array, Array], ends: tuple[Value, Value],
        rows: tuple[Array, Value, int], m: Value,
    ) -> None:  # fmt: skip
        """One step of the method between two places, from the higher one on."""
        last = m - 1
        (d, e), (low, high) = diagonals, ends
        z, step, lanes = rows
        first, one = e[low], code.lift(1.0, d.item)
        half = (d[low + 1] - d[low]) / (first * 2.0)
        root = code.call_like("llvm.copysign", _root(code, code.fma(half, half, 1.0)), half)
        g = code.variable(d[high] - d[low] + first / (half + root))
        sine, cosine, less = code.variable(one), code.variable(one), code.variable(one * 0.0)

        def step_at(i: Value) -> tuple[Value, Value]:
            """Sine and cosine of the rotation of places i and i + 1."""
            f, b = sine.value * e[i], cosine.value * e[i]
            twice, square = b * 2.0, code.fma(f, f, g.value * g.value)
            some = square > _LITTLE[self.dtype]
            r = _root(code, square)
            inverse = 1.0 / code.select(some, r, 1.0)
            e[i + 1] = code.select(some, r, 0.0)
            s = code.select(some, f * inverse, 0.0)
            c = code.select(some, g.value * inverse, 1.0)
            above = d[i + 1] - less.value
            rest = code.fma(d[i] - above, s, c * twice)
            less.value = s * rest
            d[i + 1] = above + less.value
            g.value = code.fma(c, rest, -b)
            sine.value, cosine.value = s, c
            return s, c

        first_place = high - 1
        for count in (_TOGETHER, 1):
            blocks = (first_place - low + 1) // count
            with code.loop(0, blocks) as k:
                i = first_place - k * count
                turns = [step_at(i - number) for number in range(count)]
                _rotate(
                    code,
                    [z.at((i + 1 - number) * step) for number in range(count + 1)],
                    turns,
                    m,
                    lanes,
                )
            first_place = first_place - blocks * count
        d[low] = d[low] - less.value
        e[low] = g.value
        with code.when(high < last):
            e[high] = 0.0


def _rotate(
    code: Code, rows: list[Array], turns: list[tuple[Value, Value]], m: Value, lanes: int
) -> None:
    """Rows of m numbers y, x, ... become s x + c y, and the next ones what c x - s y is rotated to."""
    place = code.integer(0)
    for size, parts in ((lanes, _PARTS), (lanes, 1), (1, 1)):
        by = [tuple(code.splat(v, size) if size > 1 else v for v in turn) for turn in turns]
        end = m - m % (size * parts)
        with code.loop(place, end, size * parts) as k:
            places = [k + part * size for part in range(parts)]
            kept = [_read(rows[0], at, size) for at in places]
            for number, (s, c) in enumerate(by):
                others = [_read(rows[number + 1], at, size) for at in places]
                for part, (at, x) in enumerate(zip(places, others, strict=True)):
                    y = kept[part]
                    _write(rows[number], at, code.fma(s, x, c * y), size)
                    kept[part] = code.fma(c, x, -(s * y))
            for at, one in zip(places, kept, strict=True):
                _write(rows[-1], at, one, size)
        place = end


def _read(row: Array, at: Value, size: int) -> Value:
    return row.vector(at, size) if size > 1 else row[at]


def _write(row: Array, at: Value, value: Value, size: int) -> None:
    if size > 1:
        row.put(at, value)
    else:
        row[at] = value


def _in_order(
    code: Code, d: Array, rows: tuple[Array, Value], goals: tuple[Array, Array], n: Value
) -> None:
    """Copy eigenvalues and rows to their places in ascending order."""
    (z, step), (values, vectors) = rows, goals
    with code.loop(0, n) as k:
        place = _before(code, d, k, n)
        values[place] = d[k]
        with code.loop(0, n) as column:
            vectors[place * n + column] = z[k * step + column]


def _ascending(code: Code, d: Array, n: Value, places: Array) -> None:
    """Where the numbers are in ascending order, from 1 on."""
    with code.loop(0, n) as k:
        places[_before(code, d, k, n)] = code.convert(k + 1, I32)


def _before(code: Code, d: Array, k: Value, n: Value) -> Value:
    """How many numbers come before the one at k in ascending order."""
    own, found = d[k], code.variable(code.integer(0))
    with code.loop(0, n) as other:
        is_before = (d[other] < own) | (d[other].equals(own) & (other < k))
        found.value = found.value + code.convert(is_before, I64)
    count: Value = found.value
    return count


def _size(code: Code, x: Value) -> Value:
    return code.call_like("llvm.fabs", x)


def _larger(code: Code, one: Value, other: Value) -> Value:
    return code.select(one > other, one, other)


def _root(code: Code, x: Value) -> Value:
    return code.call_like("llvm.sqrt", x)


def _held(code: Code, item: object, value: Value | int) -> Array:
    memory = code.stack(item, 1)
    memory[0] = value
    return memory


def _integer(code: Code, value: Value) -> Array:
    return _held(code, I32, code.convert(value, I32))
