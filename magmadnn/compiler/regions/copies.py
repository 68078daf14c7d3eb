"""Which movements get memory: views that kernels cannot walk over, pads that others than rows' kernels read.

A transposed operand of a sum, say, or the rows of a table that were reversed: they are copied first.

Products may read matrices in place whose rows and columns are each several axes of memory. The windows over
an image, as the matrix of a convolution's product, are such a view: `[n, y, x, i, j, c]` joined to
`[n * y * x, i * j * c]`. A copy of it holds each place as often as there are windows over it.

Conversions of half precision get none: every kernel that reads halves widens them. A parameter, and what is
fed, lies in memory as float32: where it is wanted with the digits of halves, each kernel that reads it rounds
it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

import numpy as np

from magmadnn.compiler.formulas import converts_half, widens
from magmadnn.compiler.kernels.columns import DEVIATIONS
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.kernels.operands import FULL
from magmadnn.compiler.kernels.rows import COMBINED, LONG_ROW, NARROW_ROW
from magmadnn.compiler.layout import Joinable, Layouts, lies_in_rows
from magmadnn.compiler.regions.open_sizes import is_at_least, is_below
from magmadnn.compiler.regions.region import combined_by, matrix_of
from magmadnn.graph.dim import Size
from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.op import Array, Op, OpKind
from magmadnn.graph.program import Program

Compilable = Callable[[Node], bool]


def possible_loads(program: Program, compilable: Compilable, rounding: bool) -> set[Node]:
    """Conversions that readers might do, before anything is known of layouts.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        rounding: whether kernels round as they read.
    """
    nodes = program.nodes()
    found = {n for n in nodes if widens(n) and compilable(n)}
    if not rounding:
        return found
    halves = (n for n in nodes if n.dtype.name in HALVES and converts_half(n))
    return found | {n for n in halves if _is_made_on_reading(n, program.readers, found)}


def _is_made_on_reading(node: Node, readers: dict[Node, list[Node]], widened: set[Node]) -> bool:
    """Whether a rounded value is best rounded again by each reader, and not stored.

    It is where float32 lies in memory anyway: a leaf, or what others read as well.
    """
    if not set(readers[node]) <= widened:
        return False
    source = node.inputs[0]
    computed = isinstance(source.op, Op) and source.op.kind is not OpKind.MOVEMENT
    return not computed or readers[source] != [node]


def illegal_loads(
    program: Program, layouts: Layouts, copied: set[Node], compilable: Compilable, rounding: bool
) -> set[Node]:
    """Conversions that some reader cannot do.

    Args:
        program: what is compiled.
        layouts: with conversions that have no memory.
        copied: views that get memory of their own.
        compilable: whether compiled code can do a node; NumPy reads what lies in memory.
        rounding: whether kernels round as they read; otherwise both factors of a product are alike.
    """
    found: set[Node] = set()
    for node in program.nodes():
        if layouts.is_view(node) and node not in copied:
            continue
        if not compilable(node) or not _converts(node, layouts, copied, rounding):
            for operand in node.inputs:
                found |= set(_on_the_way(operand, layouts))
    for root in program.roots:
        found |= set(_on_the_way(root, layouts))
    return found


def _on_the_way(node: Node, layouts: Layouts) -> Iterator[Node]:
    """The conversions between a value and its memory."""
    at = layouts.loaded(node)
    while at is not None:
        yield at
        at = layouts.loaded(at.inputs[0])


def _converts(node: Node, layouts: Layouts, copied: set[Node], rounding: bool) -> bool:
    """Whether the kernel of a node converts what it reads."""
    if not isinstance(node.op, Op):
        return True
    if node.op.kind is OpKind.CONTRACTION:
        arrays = [layouts.arrays[i] for i in node.inputs]
        alike = rounding or len({a.dtype for a in arrays}) == 1
        readable = (i in copied or layouts.is_factor(i) for i in node.inputs)
        return is_product(node) and node.dtype == np.float32 and alike and all(readable)
    return node.op.kind in (OpKind.POINTWISE, OpKind.REDUCTION)


def is_product(node: Node) -> bool:
    """Whether it is a product of two matrices, or of stacks of them, of one dtype."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.CONTRACTION:
        return False
    if node.attributes or len(node.inputs) != 2 or node.ndim < 2:
        return False
    return all(i.ndim >= 2 and i.dtype == node.dtype for i in node.inputs)


# --- movements ------------------------------------------------------------------------------------


# ops that take operands only that are packed, as GPUs do that call each other
_PACKED = (
    OpKind.GATHER,
    OpKind.SCATTER,
    OpKind.KERNEL,
    OpKind.LIBRARY,
    OpKind.LOOP,
)

# products of a stack: rows of each matrix and length of a row at least, columns of the second factor at most,
# and those for which any number of rows will do
_STACK_ROWS, _STACK_DEPTH, _STACK_COLUMNS, _FEW_COLUMNS = 32, 64, 256, 32
_TILES, _LARGEST_TILE = (32, 64), 128  # rows of a library's tiles


def layouts_of(
    program: Program, compilable: Callable[[Node], bool], *, rounding: bool = True
) -> Layouts:
    """How the values of a program lie in memory, with copies where kernels need them.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        rounding: whether kernels round float32 to half precision as they read it; they all widen
            halves. Those that round, on the CPU, also read matrices of joined axes; the others stacks of
            matrices in their place, where `_is_stack` holds.
    """
    nodes, loads = program.nodes(), possible_loads(program, compilable, rounding)
    joined = joinable(program, compilable)
    if not rounding:
        joined = {
            n: replace(how, stacked=True) for n, how in joined.items() if _is_stack(n, program)
        }
    loads -= _of_pads(program, compilable, loads)
    while True:
        padded = paddable(program, compilable, loads)
        layouts = Layouts(nodes, (), loads, joined, padded)
        copied = {i for node in nodes for i in _unreadable(node, layouts, compilable)}
        illegal = illegal_loads(program, layouts, copied, compilable, rounding)
        illegal |= copied & loads  # what is wanted as a copy is converted first
        if not illegal:
            return Layouts(nodes, copied, loads, joined, padded) if copied else layouts
        loads -= illegal


def _unreadable(node: Node, layouts: Layouts, compilable: Callable[[Node], bool]) -> Iterable[Node]:
    """The operands of a node that are views which its kernel cannot read."""
    op = node.op
    if not isinstance(op, Op) or layouts.is_view(node):
        return
    if op.kind is not OpKind.LOOP and op.on_device is None and not compilable(node):
        return
    for operand in node.inputs:
        if layouts.is_view(operand) and not _reads(node, op, operand, layouts):
            yield operand


def _reads(node: Node, op: Op, operand: Node, layouts: Layouts) -> bool:
    if op.kind in _PACKED or op.on_device is not None:
        return takes_in_rows(node, operand, layouts.arrays[operand], _start(operand, layouts))
    if op.kind is OpKind.POINTWISE:
        return layouts.spread(operand, *matrix_of(node.shape)) is not None
    if op.kind is OpKind.REDUCTION:
        return is_walked(node.attributes.get("axis"), operand, layouts)
    if op.kind is OpKind.CONTRACTION and operand.ndim > 1:
        return layouts.is_factor(operand)
    return True


def takes_in_rows(node: Node, operand: Node, array: Array, start: int) -> bool:
    """Whether what takes packed operands can read one where it lies: some libraries take rows that lie apart.

    Args:
        node: what reads.
        operand: what is read, maybe several times.
        array: how it lies,
        start: and the address of the memory that it has a part of.
    """
    call = node.op.library if isinstance(node.op, Op) else None
    if call is None or not call.strided:
        return bool(array.flags.c_contiguous)
    numbers = {number for number, other in enumerate(node.inputs) if other is operand}
    alignment = call.alignment if numbers <= set(call.strided) else 0
    return lies_in_rows(array, start, alignment) if alignment else bool(array.flags.c_contiguous)


def _start(node: Node, layouts: Layouts) -> int:
    return int(layouts.arrays[layouts.bases[node]].ctypes.data)


def is_walked(axes: object, operand: Node, layouts: Layouts) -> bool:
    """Whether a reduction can walk over the operand of this layout: over its rows, or down its columns.

    Over all rows of a matrix, or along each, kernels read every layout that they know; over the rows of each
    matrix of a stack such only whose rows lie equally far apart.
    """
    spread = layouts.spread(operand, *matrix_of(operand.shape))
    alone = axes in ((operand.ndim - 1,), tuple(range(operand.ndim - 1)))
    return spread == FULL or (alone and spread is not None)


def paddable(
    program: Program, compilable: Callable[[Node], bool], loads: Container[Node]
) -> set[Node]:
    """Movements that may have no memory: all that read them are formulas over their elements, or reductions.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        loads: conversions that are done on reading: what they read lies in memory.
    """
    readers, roots = program.readers, set(program.roots)
    return {
        node
        for node in program.nodes()
        if _may_pad(node)
        and node not in roots
        and readers[node]
        and all(one not in loads and _is_formula(one, node, compilable) for one in readers[node])
    }


def _of_pads(program: Program, compilable: Callable[[Node], bool], loads: set[Node]) -> set[Node]:
    """Conversions that are formulas over the elements of what has no memory then, and not done on reading.

    None that a product reads: halves that are copied are half as many bytes, and multiplied as halves.
    """
    candidates, readers = paddable(program, compilable, ()), program.readers
    read = {node for node in loads if any(map(is_product, readers[node]))}
    found = {node for node in loads - read if node.inputs[0] in candidates}
    if not found:
        return found
    padded = Layouts(program.nodes(), (), loads - found, {}, candidates).padded
    return {node for node in found if node.inputs[0] in padded}


def _may_pad(node: Node) -> bool:
    moves = (
        isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT and node.op.boxes is not None
    )
    if not moves or len(node.inputs) != 1 or node.inputs[0].op is CONSTANT or not node.ndim:
        return False
    return node.inputs[0].dtype == node.dtype and not is_below(node.shape[-1], NARROW_ROW)


def _is_formula(reader: Node, node: Node, compilable: Callable[[Node], bool]) -> bool:
    if not isinstance(reader.op, Op) or not compilable(reader):
        return False
    if reader.op.kind is OpKind.REDUCTION:
        return _combines_rows(reader, node) or _combines_columns(reader, node)
    return reader.op.kind is OpKind.POINTWISE and reader.shape == node.shape


def _combines_rows(reader: Node, node: Node) -> bool:
    """Whether a reduction combines the elements of each row, of rows that are not cut into blocks."""
    along = reader.attributes.get("axis") == (node.ndim - 1,)
    return along and combined_by(reader) in COMBINED and is_below(node.shape[-1], LONG_ROW)


def _combines_columns(reader: Node, node: Node) -> bool:
    """Whether a reduction combines the rows of a matrix."""
    leading = node.ndim > 1 and reader.attributes.get("axis") == tuple(range(node.ndim - 1))
    return leading and combined_by(reader) in (*COMBINED, DEVIATIONS)


def joinable(program: Program, compilable: Callable[[Node], bool]) -> dict[Node, Joinable]:
    """Matrices that only products read, as one of their factors: as they are, or by a movement of the matrix.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.

    Returns:
        Movements that give such a matrix from more than two axes. `Layouts` says which need no memory.
    """
    users, roots = program.readers, set(program.roots)

    def are_products(readers: Iterable[Node], factor: Node) -> bool:
        return all(_is_factor(factor, reader) and compilable(reader) for reader in readers)

    found = {}
    for node in program.nodes():
        if _is_movement(node) and users[node]:
            moved = tuple(reader for reader in users[node] if _is_movement(reader))
            inside = roots.isdisjoint((node, *moved)) and all(users[other] for other in moved)
            direct = (reader for reader in users[node] if reader not in moved)
            if inside and are_products(direct, node):
                if all(are_products(users[other], other) for other in moved):
                    factors = (node, *moved)
                    second = any(_is_second(users[f], f) for f in factors)
                    read = (r for f in factors for r in users[f] if r not in moved)
                    found[node] = Joinable(moved, second, any(map(_is_single, read)))
    return found


def _is_movement(node: Node) -> bool:
    """Whether it gives a matrix of the elements of one operand."""
    moves = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT
    return moves and node.ndim == 2 and len(node.inputs) == 1


def _is_factor(node: Node, reader: Node) -> bool:
    """Whether a product of two matrices reads it as one of them."""
    return is_product(reader) and reader.ndim == 2 and reader.inputs.count(node) == 1


def _is_single(reader: Node) -> bool:
    """Whether a product has one row or one column."""
    return any(is_below(size, 2) for size in reader.shape[-2:])


def _is_stack(node: Node, program: Program) -> bool:
    """Whether products on a GPU are faster that read a matrix as a stack, where it is one, than with a copy.

    Those of a stack have the second factor in common. Measured on an H200, in TF32 and in float32: the fewer
    columns they have, the more of the time the copy takes. A product of all rows at once fills its tiles, one
    of a stack computes what is left of the last tile of each matrix for nothing: at most an eighth, unless
    columns are few, since it would outweigh the copy. Small ones are left to kernels that compute a whole
    step.
    """
    source = node.inputs[0]
    if source.ndim != 3 or node.dtype != np.float32 or source.shape[-1] != node.shape[-1]:
        return False
    if not is_at_least(source.shape[1], _STACK_ROWS) or not is_at_least(
        source.shape[2], _STACK_DEPTH
    ):
        return False
    return all(
        is_product(reader)
        and reader.inputs[0] is node
        and (
            is_below(reader.shape[-1], _FEW_COLUMNS + 1)
            or (is_below(reader.shape[-1], _STACK_COLUMNS + 1) and _fills(source.shape[1]))
        )
        for reader in program.readers[node]
    )


def _fills(rows: Size) -> bool:
    """Whether a product's rows fill tiles of them but for an eighth."""
    unused = -(-rows // _LARGEST_TILE) * _LARGEST_TILE - rows
    if is_below(8 * unused - rows, 1):
        return True
    return any(is_at_least(rows, tile - tile // 8) and is_below(rows, tile + 1) for tile in _TILES)


def _is_second(readers: Iterable[Node], factor: Node) -> bool:
    """Whether a product reads it as its second factor."""
    return any(is_product(reader) and reader.inputs[1] is factor for reader in readers)
