"""Elements that are computed for a reduction over rows, and stored by it for others.

In a residual block two gradients are added and cut where ReLU was; a normalisation sums the result, and its
gradient and the block before read it again. The kernel that sums a block of rows computes the elements where
it would read them, and stores them: so they are read once less. Bits are those of two kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from magmadnn.compiler.cuda.fused.columns import ColumnsVariant
from magmadnn.compiler.cuda.fused.cut_columns import choose_columns
from magmadnn.compiler.cuda.fused.rows import RowsVariant
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import (
    Formula,
    arguments_in,
    put_in,
    read_again,
    renumbered,
)
from magmadnn.compiler.kernels.operands import FULL, PADDED, SCALAR, Operand, Result
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item

_NEAR = 16  # launches among which the reduction is looked for


def stored_by_sums(items: Sequence[Item], chip: Chip) -> list[Item]:
    """The launches, with those that compute elements as parts of the first that reads them, where it can be.

    Args:
        items: in order.
        chip: what they run on.
    """
    made: list[Item | None] = list(items)
    for number, item in enumerate(items):
        if not _computes_elements(item) or (reader := _first_reader(items, number)) is None:
            continue
        sums = made[reader]
        both = None if sums is None else _as_one(item, sums, chip)
        if both is not None:
            made[number], made[reader] = None, both
    return [item for item in made if item is not None]


def _computes_elements(item: Item) -> bool:
    """Whether a launch makes one matrix element by element, of matrices that lie as it does or in it."""
    if not isinstance(item.what, Launch) or not isinstance(item.what.variant, RowsVariant):
        return False
    kernel = item.what.variant.kernel
    if item.what.variant.group or len(kernel.stages) != 1:
        return False
    spreads = [operand.spread for operand in kernel.operands]
    (stage,) = kernel.stages
    return (
        set(spreads) <= {FULL, PADDED, SCALAR}
        and len(spreads) - spreads.count(SCALAR) > 1
        and [one.spread for one in stage.store] == [FULL]
        and _leaves(stage.store[0].formula) <= {"argument"}
    )


def _leaves(formula: Formula) -> set[str]:
    """Kinds of leaves, other than constants, that a formula has."""
    parts = [part for part in formula[1:] if isinstance(part, tuple)]
    return {kind for part in parts for kind in _leaves(part)} if parts else _kind(formula)


def _kind(leaf: Formula) -> set[str]:
    return set() if leaf[0] == "constant" else {leaf[0]}


def _first_reader(items: Sequence[Item], number: int) -> int | None:
    """The launch that first reads what another makes; None where the other cannot run as late as that."""
    one = items[number]
    for later in range(number + 1, min(number + 1 + _NEAR, len(items))):
        other = items[later]
        if _overlap(other.reads, one.writes):
            return later
        if _overlap(other.writes, (*one.reads, *one.writes)):
            return None
    return None


def _as_one(item: Item, reader: Item, chip: Chip) -> Item | None:
    """Both launches as one; None where that cannot be."""
    if not isinstance(reader.what, Launch) or not isinstance(reader.what.variant, ColumnsVariant):
        return None
    variant, launch = reader.what.variant, item.launch
    kernel = variant.kernel
    if not kernel.blocked or kernel.sums or kernel.put or variant.width == 1:
        return None
    if _overlap(reader.writes, (*item.reads, *item.writes)):
        return None
    if sum(_overlap((span,), item.writes) for span in reader.reads) != 1:
        return None
    found = _joined(launch, reader.what, kernel)
    if found is None:
        return None
    both = choose_columns(*found, chip)
    if both is None or not isinstance(both.variant, ColumnsVariant):
        return None
    if both.variant.width == 1 or both.variant.lanes != variant.lanes:
        return None
    reads = tuple(span for span in reader.reads if span not in item.writes)
    return Item(both, (*item.reads, *reads), (*item.writes, *reader.writes))


def _joined(first: Launch, last: Launch, kernel: Columns) -> tuple[Columns, dict[str, int]] | None:
    """A kernel that computes, stores and reduces, and the values of its slots."""
    assert isinstance(first.variant, RowsVariant)
    (result,) = first.variant.kernel.stages[0].store
    own, values = _values(first), _values(last)
    count = values["rows"] * values["column1"]
    taken = [
        k
        for k, one in enumerate(kernel.operands)
        if one.spread == FULL and values[one.name] == own[result.name]
    ]
    is_flat = own["row1"] == 1
    if len(taken) != 1 or own["row1"] * own["column1"] != count:
        return None
    by_index = any(one.spread == PADDED for one in first.variant.kernel.operands)
    if (by_index or not is_flat) and not _lies_alike(first, values["column1"]):
        return None
    ((number, operand),) = [(k, kernel.operands[k]) for k in taken]
    row, outer = values[f"{operand.name}_row"], values[f"{operand.name}_outer"]
    if row != values["column1"] or operand.dtype != result.dtype:
        return None
    kept = [one for k, one in enumerate(kernel.operands) if k != number]
    places = {k: kept.index(one) for k, one in enumerate(kernel.operands) if k != number}
    added: list[Operand] = []
    for k, one in enumerate(first.variant.kernel.operands):
        name = f"made{k}"
        added.append(replace(one, name=name))
        values |= {to: own[slot] for to, slot in zip(added[-1].slots, one.slots, strict=True)}
        values[f"{name}_outer"] = 0  # rows with pads are numbered through all blocks
        if one.spread == FULL:
            values |= {f"{name}_row": row, f"{name}_outer": outer}
    behind = {k: len(kept) + k for k in range(len(added))}
    formula = read_again(renumbered(result.formula, behind), result.dtype)
    reduce = tuple(
        replace(one, formula=put_in(one.formula, number, formula, places)) for one in kernel.reduce
    )
    if any(number in arguments_in(one.formula) for one in kernel.store):
        return None
    stored = tuple(replace(one, formula=renumbered(one.formula, places)) for one in kernel.store)
    put = (Result(operand.name, result.dtype, formula),)
    operands = (*kept, *added)
    return replace(kernel, operands=operands, reduce=reduce, store=stored, put=put), values


def _lies_alike(launch: Launch, columns: int) -> bool:
    """Whether rows of all matrices that a launch reads and makes follow each other."""
    assert isinstance(launch.variant, RowsVariant)
    values, kernel = _values(launch), launch.variant.kernel
    full = [one.name for one in kernel.parts if one.spread == FULL]
    return values["column1"] == columns and all(values[f"{n}_row"] == columns for n in full)


def _values(launch: Launch) -> dict[str, int]:
    return dict(zip(launch.variant.slots, launch.arguments, strict=True))


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a[0] < b[1] and b[0] < a[1] for a in some for b in others)
