"""The tasks of single runs, copied from those of a plan that is alike: a model that is built the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.compiler.llvm.driver.driver import Table, Task
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array, Op

from .images import Image, addressed, image_of, keep_image, kept_image
from .tasks import Patch, Tasks

_LEAVES = (VARIABLE, PLACEHOLDER)


@dataclass(frozen=True)
class _Template:
    """What tasks are copied from.

    Attributes:
        images: of groups of phases that run one after the other; None of one without tasks.
        patches: a group, a place among its words, a placeholder's number, bytes from where it begins.
        useful_threads, scratch_bytes: as of `Tasks`.
    """

    images: tuple[Image | None, ...]
    patches: tuple[tuple[int, int, int, int], ...]
    useful_threads: int
    scratch_bytes: int


class CopiedTasks:
    """Tasks over the memory of another model.

    Attributes:
        tables: of groups of phases; None of one without tasks.
        patches: addresses to be set before each run.
        useful_threads, scratch_bytes: as of `Tasks`.
    """

    def __init__(
        self, template: _Template, plan: NativePlan, arena: Array, arrays: Mapping[Node, Array]
    ) -> None:
        self._faults = np.zeros(1, np.int64)
        self._images = template.images
        fed, memory = _own(plan, arena, arrays, self._faults)
        pieces = list(map(addressed, memory))
        over = [None if image is None else image.over(pieces) for image in template.images]
        self.tables: list[Table | None] = [None if made is None else made[0] for made in over]
        self.useful_threads, self.scratch_bytes = template.useful_threads, template.scratch_bytes
        self.patches: list[Patch] = []
        for group, place, number, offset in template.patches:
            made = over[group]
            assert made is not None
            self.patches.append(Patch(made[1], place, fed[number], offset))

    def forget(self) -> None:
        """Hold none of that memory; before the next run there is `go_on`."""
        for table in self.tables:
            if table is not None:
                Image.forget(table)

    def go_on(self, plan: NativePlan, arena: Array, arrays: Mapping[Node, Array]) -> None:
        """Be tasks over other memory."""
        pieces = list(map(addressed, _own(plan, arena, arrays, self._faults)[1]))
        for image, table in zip(self._images, self.tables, strict=True):
            if image is not None and table is not None:
                image.go_on(table, pieces)

    def went_well(self) -> bool:
        """Whether no row was asked for that is not there since this was asked last."""
        well, self._faults[0] = not self._faults[0], 0
        return well


def copied_tasks(
    plan: NativePlan, key: Any, arena: Array, arrays: Mapping[Node, Array]
) -> CopiedTasks | None:
    """Tasks like those that were kept under this key; None where none were.

    Args:
        plan: what is computed.
        key: what tasks depend on beside the plan.
        arena: memory of results.
        arrays: where values lie.
    """
    template: _Template | None = kept_image(plan.alike, key)
    return None if template is None else CopiedTasks(template, plan, arena, arrays)


Groups = Sequence[Sequence[Sequence[Task]]]


def keep_tasks(
    plan: NativePlan,
    key: Any,
    arena: Array,
    arrays: Mapping[Node, Array],
    tasks: Tasks,
    groups: Groups,
) -> None:
    """Keep tasks for `copied_tasks`, if they can be copied; `groups` of phases are all of them."""
    if tasks.can_be_copied:
        how = (plan, arena, arrays, tasks, groups)
        keep_image(plan.alike, key, lambda: _template_of(*how))


def _template_of(
    plan: NativePlan, arena: Array, arrays: Mapping[Node, Array], tasks: Tasks, groups: Groups
) -> _Template | None:
    """What copies are made from; None where a task cannot be copied."""
    fed, memory = _own(plan, arena, arrays, tasks.faults)
    shared = [a for n, a in arrays.items() if not isinstance(n.op, Op) and n.op not in _LEAVES]
    made = [task for phases in groups for phase in phases for task in phase]
    held = [x for task in made for x in task.holds if isinstance(x, np.ndarray)]
    shared += [x for x in held if x is not tasks.faults]
    images = [image_of(phases, memory, shared) if phases else None for phases in groups]
    if any(image is None and phases for image, phases in zip(images, groups, strict=True)):
        return None
    places: dict[int, tuple[int, int]] = {}  # of argument blocks: their group, and where they begin
    for number, (image, phases) in enumerate(zip(images, groups, strict=True)):
        each = [task for phase in phases for task in phase]
        for task, start in zip(each, () if image is None else image.starts, strict=True):
            places[id(task.arguments)] = number, int(start)
    patches = tuple(
        (group, start + patch.slot, fed.index(patch.node), patch.offset)
        for patch in tasks.patches
        for group, start in (places[id(patch.block)],)
    )
    return _Template(tuple(images), patches, tasks.useful_threads, tasks.scratch_bytes)


def _own(
    plan: NativePlan, arena: Array, arrays: Mapping[Node, Array], faults: Array
) -> tuple[list[Node], list[Array]]:
    """The placeholders; and all memory that each model has its own of, in an order that plans share."""
    leaves = [n for n in plan.program.nodes() if n.op in _LEAVES and n in arrays]
    fed = [n for n in leaves if n.op is PLACEHOLDER]
    return fed, [arena, *(arrays[n] for n in leaves), faults]
