"""From regions to kernels: which formulas each computes, what it reads and what it stores.

`select` is the pass, `lower` makes the kernel of one region.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.compiler.formulas import formula_of
from magmadnn.compiler.kernels.columns import DEVIATIONS, Columns
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.formula import INTEGERS, Formula, constant
from magmadnn.compiler.kernels.gemm import Finish, Gemm, Loading
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import SMALL, Library, WholeLibrary
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    PADDED,
    ROW,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
    Operand,
    PaddedOperand,
    Result,
)
from magmadnn.compiler.kernels.own import description_of
from magmadnn.compiler.kernels.rows import NARROW_ROW, SHORT_ROW, Reduction, Rows, Stage
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.draft import Draft, Lowered, Work
from magmadnn.compiler.regions.open_sizes import is_below
from magmadnn.compiler.regions.region import (
    BY_PYTHON,
    Region,
    RegionKind,
    Stages,
    combined_by,
    is_reduction,
    matrix_of,
    product_of,
)
from magmadnn.graph.dim import Shape, Size, product
from magmadnn.graph.node import CONSTANT, PLACES, Node
from magmadnn.graph.op import Op, OpKind


class _Formulas:
    """Formulas of the nodes of a region, over the region's operands."""

    def __init__(self, region: Region, layouts: Layouts) -> None:
        self.region, self.layouts = region, layouts
        self.members = set(region.nodes)
        self.operands: list[Operand] = []
        self.reads: list[tuple[str, Node, str]] = []
        self.shapes: list[tuple[str, Shape]] = []  # that strided operands are read in
        self._walks: dict[
            Any, str
        ] = {}  # the first strided operand whose rows begin at each set of elements
        self._numbers: dict[tuple[Node, str, Shape], int] = {}
        self._known: dict[Node, Formula] = {}

    def define(self, node: Node, formula: Formula) -> None:
        """Use `formula` wherever `node` is read."""
        self._known[node] = formula

    def of(self, node: Node) -> Formula:
        """The formula of a pointwise member."""
        if node not in self._known:
            operands = [self.read(i, node) for i in node.inputs]
            self._known[node] = formula_of(node, operands)
        return self._known[node]

    def value(self, node: Node) -> Formula:
        """The formula of what is stored."""
        return _whole(self.of(node), node)

    def read(self, operand: Node, reader: Node) -> Formula:
        """What a member reads: another member's formula, a constant, or memory."""
        base = self.layouts.bases[operand]
        if base in self.members:
            return self.of(base)
        if base.op is CONSTANT and base.value.size == 1 and operand not in self.layouts.padded:
            return constant(base.value.item())
        spread = self._spread(operand, reader)
        strided = spread in (STRIDED, STRIDED_COLUMN)
        shape = _joined(self._domain(reader)) if strided else ()
        if self.region.kind is RegionKind.ROWS and self._counts_columns(operand, spread):
            return ("column",)
        return self.operand(operand, spread, shape)

    def _counts_columns(self, operand: Node, spread: str) -> bool:
        """Whether an operand is 0, 1, 2, ... in each row, or in the only one."""
        base, arrays = self.layouts.bases[operand], self.layouts.arrays
        if not _counts(base) or arrays[operand].ctypes.data != arrays[base].ctypes.data:
            return False  # or a part of it that begins later
        return spread == ROW or (spread == FULL and operand.ndim == 1)

    def matrix(self, node: Node) -> Formula:
        """A matrix that is reduced as it lies."""
        spread = self.layouts.spread(node, *matrix_of(node.shape))
        assert spread is not None
        strided = spread in (STRIDED, STRIDED_COLUMN)
        return self.operand(node, spread, node.shape if strided else ())

    def operand(self, node: Node, spread: str, shape: Shape = ()) -> Formula:
        """Memory that the kernel reads; `shape` that it is seen in, where its rows are strided."""
        key = (node, spread, shape)
        if spread == PADDED:
            return self._padded(node)
        if key not in self._numbers:
            self._numbers[key] = len(self.operands)
            name = f"x{len(self.operands)}"
            stored = self.layouts.bases[node].dtype.name
            axes = self.layouts.row_axes(node, shape) if shape else ()
            like = self._walks.setdefault((spread, axes), name) if shape else name
            like = "" if like == name else like
            self.operands.append(Operand(name, stored, spread, len(axes), like))
            self.reads.append((name, node, spread))
            self.shapes += [(name, shape)] if shape else []
        return self._converted(self._numbers[key], node)

    def _converted(self, number: int, node: Node) -> Formula:
        """What is read of an operand, with the digits that its reader sees."""
        digits, read = self.layouts.digits(node), ("argument", number)
        if digits in ("", self.operands[number].dtype):
            return read
        return ("cast", ("cast", read, digits), node.dtype.name)  # rounded by each that reads it

    def _padded(self, node: Node) -> Formula:
        """An operand with a constant around it."""
        key = (node, PADDED, node.shape)
        if key not in self._numbers:
            self._numbers[key] = len(self.operands)
            found = self.layouts.padding(node, self.layouts.sizes)
            assert found is not None
            name, dtype = f"x{len(self.operands)}", self.layouts.bases[node].dtype.name
            count, edges = len(found.axes), found.has_edges
            self.operands.append(PaddedOperand(name, dtype, PADDED, count, "", found.fill, edges))
            self.reads.append((name, node, PADDED))
            self.shapes.append((name, node.shape))
        return self._converted(self._numbers[key], node)

    def _spread(self, operand: Node, reader: Node) -> str:
        region = self.region
        if reader in region.numbers and not is_reduction(reader):
            number = self.layouts.number(operand, region.rows)
            assert number is not None
            return number
        if reader in region.elements and region.kind is RegionKind.COLUMNS:
            spread = self.layouts.spread(operand, *matrix_of(reader.shape))
            assert spread is not None
            return spread
        if self.layouts.is_run(operand, *region.domain):
            return ROW if region.kind is RegionKind.COLUMNS else FULL
        spread = self.layouts.spread(operand, *self._domain(reader))
        assert spread is not None
        if region.kind is RegionKind.COLUMNS and spread == FULL:
            return ROW
        return spread

    def _domain(self, reader: Node) -> tuple[tuple[Size, ...], Size]:
        """The matrix in which a member reads its operands."""
        pointwise = isinstance(reader.op, Op) and reader.op.kind is OpKind.POINTWISE
        return matrix_of(reader.shape) if pointwise else self.region.domain


def _joined(domain: tuple[tuple[Size, ...], Size]) -> Shape:
    rows, columns = domain
    return (*rows, columns)


def _whole(formula: Formula, node: Node) -> Formula:
    """The formula of a node that is no part of another; an integer that is known stays one."""
    known = formula[0] == "constant" and node.dtype.name in INTEGERS
    return ("cast", formula, node.dtype.name) if known else formula


def _counts(base: Node) -> bool:
    """Whether a node is 0, 1, 2, ..., in int64."""
    if base.op is PLACES:
        return True
    if base.op is not CONSTANT or base.dtype != np.int64:
        return False
    return bool(np.array_equal(base.value.ravel(), np.arange(base.value.size)))


def lower(
    region: Region, layouts: Layouts, needed: Iterable[Node], in_place: Container[Node] = ()
) -> Lowered:
    """The kernel of a region.

    Args:
        region: not a call.
        layouts: how values lie in memory.
        needed: members whose values are read elsewhere.
        in_place: members that are stored over what the kernel reads.
    """
    stored = [n for n in region.nodes if n in set(needed)]
    if region.kind is RegionKind.ROWS:
        return _lower_rows(region, layouts, stored)
    if region.kind is RegionKind.COLUMNS:
        return _lower_columns(region, layouts, stored)
    if region.kind is RegionKind.RANDOM:
        return _lower_random(region, layouts, stored)
    if region.kind in _ALONE:
        return _ALONE[region.kind](region.nodes[0])
    return _lower_gemm(region, layouts, stored, in_place)


def _dtype(region: Region) -> str:
    """The dtype of numbers that only constants make."""
    wide = any(n.dtype == np.float64 for n in region.nodes)
    return "float64" if wide else "float32"


# --- rows -----------------------------------------------------------------------------------------


def _lower_rows(region: Region, layouts: Layouts, needed: list[Node]) -> Lowered:
    formulas = _Formulas(region, layouts)
    stages = Stages(region, layouts)
    reduce: list[list[Reduction]] = [[] for _ in range(stages.count)]
    then: list[list[tuple[str, Formula]]] = [[] for _ in range(stages.count)]
    for number, node in enumerate(region.nodes):
        name = f"v{number}"
        if is_reduction(node):
            source = _whole(formulas.read(node.inputs[0], node), node.inputs[0])
            made = Reduction(name, combined_by(node), source, node.dtype.name)
            reduce[stages.stage[node]].append(made)
            formulas.define(node, ("value", name))
        elif node in region.numbers:
            then[stages.known[node] - 1].append((name, formulas.value(node)))
            formulas.define(node, ("value", name))
    store: list[list[Result]] = [[] for _ in range(stages.count)]
    store_row: list[list[Result]] = [[] for _ in range(stages.count)]
    writes = []
    for number, node in enumerate(needed):
        name, formula = f"y{number}", formulas.value(node)
        if node in region.numbers:
            result = Result(name, node.dtype.name, formula, COLUMN)
            store_row[stages.known[node] - 1].append(result)
        else:
            result = Result(name, node.dtype.name, formula)
            store[stages.stage[node]].append(result)
        writes.append((name, node, result.spread))
    kernel = Rows(
        tuple(formulas.operands),
        tuple(
            Stage(tuple(r), tuple(s), tuple(t), tuple(w))
            for r, s, t, w in zip(reduce, store, then, store_row, strict=True)
        ),
        _dtype(region),
        short=stages.count > 1 and is_below(region.columns, SHORT_ROW + 1),
        narrow=stages.count > 1 and is_below(region.columns, NARROW_ROW),
    )
    reads, shapes = tuple(formulas.reads), tuple(formulas.shapes)
    return Lowered(kernel, reads, tuple(writes), shapes=shapes)


# --- columns --------------------------------------------------------------------------------------


def _lower_columns(region: Region, layouts: Layouts, needed: list[Node]) -> Lowered:
    formulas = _Formulas(region, layouts)
    reduce: list[Reduction] = []
    for total in (n for n in region.nodes if is_reduction(n)):
        source = total.inputs[0]
        made = source in region.elements
        formula = _whole(formulas.of(source), source) if made else formulas.matrix(source)
        one = _added(reduce, Reduction("", combined_by(total), formula, total.dtype.name))
        formulas.define(total, ("value", one.name))
    results = [Result(f"y{i}", n.dtype.name, formulas.value(n), ROW) for i, n in enumerate(needed)]
    kernel = Columns(
        tuple(formulas.operands),
        tuple(reduce),
        tuple(results),
        _dtype(region),
        bool(region.rows),
    )
    writes = tuple((r.name, n, ROW) for r, n in zip(results, needed, strict=True))
    return Lowered(kernel, tuple(formulas.reads), writes, shapes=tuple(formulas.shapes))


def _added(reduce: list[Reduction], one: Reduction) -> Reduction:
    """A reduction among those of a kernel, each once; deviations are put right behind their sum."""
    for other in reduce:
        if replace(other, name="") == one:
            return other
    at = len(reduce)
    if one.kind == DEVIATIONS:
        at = reduce.index(_added(reduce, replace(one, kind="add"))) + 1
    named = replace(one, name=f"total{len(reduce)}")
    reduce.insert(at, named)
    return named


# --- random numbers -------------------------------------------------------------------------------


def _lower_random(region: Region, layouts: Layouts, needed: list[Node]) -> Lowered:
    formulas = _Formulas(region, layouts)
    drawn = region.nodes[0]
    formulas.operand(drawn.inputs[0], SCALAR)
    formulas.define(drawn, ("drawn",))
    results = [Result(f"y{i}", n.dtype.name, formulas.value(n), ROW) for i, n in enumerate(needed)]
    kernel = Draw(tuple(formulas.operands), tuple(results), drawn.dtype.name)
    writes = tuple((r.name, n, ROW) for r, n in zip(results, needed, strict=True))
    return Lowered(
        kernel, tuple(formulas.reads), writes, (("seed", _signed(drawn.attributes["seed"])),)
    )


def _signed(seed: int) -> int:
    """The low 64 bits of an integer, as a signed one."""
    low = seed & 0xFFFF_FFFF_FFFF_FFFF
    return low - (1 << 64) if low >> 63 else low


# --- movements, rows by number, running sums, library calls -----------------------------------------


def _lower_move(node: Node) -> Lowered:
    reads = tuple((f"x{k}", operand, FULL) for k, operand in enumerate(node.inputs))
    kernel = Move(node.dtype.itemsize, len(reads) + 1)  # constants are the last source
    return Lowered(kernel, reads, (("result", node, FULL),))


def _lower_gather(node: Node) -> Lowered:
    source, index = node.inputs
    axis = node.attributes["axis"]
    kernel = Pick(node.dtype.itemsize, index.dtype.name)
    return _picked(kernel, node, source.shape[axis], product(source.shape[axis + 1 :]))


def _lower_scatter(node: Node) -> Lowered:
    axis = node.attributes["axis"]
    kernel = AddPicked(node.dtype.name, node.inputs[1].dtype.name)
    return _picked(kernel, node, node.attributes["count"], product(node.shape[axis + 1 :]))


def _lower_own(node: Node) -> Lowered:
    assert isinstance(node.op, Op) and node.op.kernel is not None
    own = node.op.kernel
    settings = (node.attributes[name] for name in own.settings)
    kernel = description_of(own.name)(node.dtype.name, *settings)
    numbers = tuple(own.numbers(node.shape, node.attributes).items())
    reads = tuple((slot, x, FULL) for slot, x in zip(own.operands, node.inputs, strict=True))
    return Lowered(kernel, reads, (("result", node, FULL),), numbers)


def _lower_library(node: Node) -> Lowered:
    assert isinstance(node.op, Op) and node.op.library is not None
    call, operands = node.op.library, [(f"x{k}", x) for k, x in enumerate(node.inputs)]
    reads = tuple((slot, x, FULL) for slot, x in operands)
    if call.whole:
        told = tuple((name, node.attributes[name]) for name in call.settings)
        whole = WholeLibrary(call.function, node.inputs[0].dtype.name, len(operands), told)
        return Lowered(whole, reads, (("result", node, FULL),))
    settings = tuple(bool(node.attributes[name]) for name in call.settings)
    kernel = Library(call.function, node.dtype.name, len(operands), settings)
    steps = (
        (f"{slot}_step", 0 if all(n == 1 for n in x.shape[:-2]) else product(x.shape[-2:]))
        for slot, x in operands
    )
    height, width = node.inputs[0].shape[-2:]
    sizes = (
        ("rows", node.shape[-2]),
        ("columns", node.shape[-1]),
        ("height", height),
        ("width", width),
        (SMALL, 0),
    )
    numbers = (*sizes, *steps)
    return Lowered(kernel, reads, (("result", node, FULL),), numbers)


def _picked(kernel: Kernel, node: Node, count: Size, columns: Size) -> Lowered:
    source, index = node.inputs
    numbers = (("count", count), ("columns", columns), ("picks", product(index.shape)))
    reads = (("source", source, FULL), ("index", index, FULL))
    return Lowered(kernel, reads, (("result", node, FULL),), numbers)


_ALONE = {
    RegionKind.MOVE: _lower_move,
    RegionKind.GATHER: _lower_gather,
    RegionKind.SCATTER: _lower_scatter,
    RegionKind.OWN: _lower_own,
    RegionKind.LIBRARY: _lower_library,
}


# --- matrix products ------------------------------------------------------------------------------


def main_result(region: Region, needed: Iterable[Node], in_place: Container[Node]) -> Node:
    """The node that the product's own memory holds at the end.

    While the kernel runs that memory holds sums, so it must not be what the kernel reads. Where every
    needed value of the product's dtype is stored in place, it is the bare product.
    """
    product = product_of(region)
    free = [n for n in needed if n.dtype == product.dtype and n not in in_place]
    return free[-1] if free else product


def _lower_gemm(
    region: Region, layouts: Layouts, needed: list[Node], in_place: Container[Node]
) -> Lowered:
    formulas = _Formulas(region, layouts)
    product, main = product_of(region), main_result(region, needed, in_place)
    formulas.define(product, ("product",))
    others = [n for n in needed if n is not main]
    results = [Result(f"y{i}", n.dtype.name, formulas.value(n)) for i, n in enumerate(others)]
    formula = formulas.of(main)
    plain = formula == ("product",) and not results
    finish = None if plain else Finish(tuple(formulas.operands), tuple(results), formula)
    a, b = product.inputs
    kernel = Gemm(
        product.dtype.name,
        transpose_a=_is_transposed(layouts, a),
        transpose_b=_is_transposed(layouts, b),
        epilogue=finish,
        unread=main is product and main not in set(needed),
        load_a=_loading(layouts, a),
        load_b=_loading(layouts, b),
        joined_a=layouts.joined.get(a, 0),
        joined_b=layouts.joined.get(b, 0),
    )
    reads = (("a", a, FULL), ("b", b, FULL), *formulas.reads)
    writes = tuple((r.name, n, FULL) for r, n in zip(results, others, strict=True))
    shapes = tuple(formulas.shapes)
    return Lowered(kernel, reads, (*writes, ("c", main, FULL)), shapes=shapes)


def _loading(layouts: Layouts, factor: Node) -> Loading | None:
    """How a product reads a factor that it converts."""
    digits = layouts.digits(factor)
    return Loading(layouts.bases[factor].dtype.name, digits) if digits else None


def _is_transposed(layouts: Layouts, node: Node) -> bool:
    """Whether a matrix lies in memory column by column."""
    array = layouts.arrays[node]
    return node not in layouts.joined and bool(
        array.strides[-2] == array.itemsize and array.strides[-1] != array.itemsize
    )


# --- which kernel does each region ----------------------------------------------------------------


def select(draft: Draft) -> Draft:
    """Steps in the order of their phases: a kernel for each region, or the NumPy function of a call."""
    needed = _needed(draft)
    work = []
    for region in sorted(draft.regions, key=lambda r: draft.phases[r]):
        stored = tuple(n for n in region.nodes if n in needed)
        called = region.kind in BY_PYTHON
        lowered = None if called else lower(region, draft.layouts, stored, draft.in_place)
        gemm = region.kind is RegionKind.GEMM
        bare = gemm and main_result(region, stored, draft.in_place) not in stored
        room = product_of(region) if bare else None
        work.append(Work(region, stored, lowered, draft.phases[region], room))
    return replace(draft, work=tuple(work))


def _needed(draft: Draft) -> set[Node]:
    """Nodes whose values are read by other regions, or at the end."""
    home, bases = draft.dependencies.home, draft.layouts.bases
    needed = {bases[root] for root in draft.program.roots}
    for region in draft.regions:
        for node in region.nodes:
            read = (bases[operand] for operand in node.inputs)
            needed.update(base for base in read if home.get(base) is not region)
    return needed
