"""Epochs of one model as a program for one thread: whole batches, a smaller last one, what is evaluated.

Many such programs run beside each other, and no thread waits for another within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.native import NativeRunner, variable_memory
from magmadnn.runtime.variables import is_finite

from .legs import Leg, can_slice, variables_of
from .saved import Saved, saving_kernels

LONGEST = 4096  # batches of a leg in one go


@dataclass(frozen=True)
class Wanted:
    """A leg that a course shall have.

    Attributes:
        runner: of the plan.
        data: what batches are taken from, for each placeholder.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
    """

    runner: NativeRunner
    data: Mapping[Node, Array]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch_size: int


class Course:
    """Legs that follow each other in each epoch.

    Args:
        wanted: those that train come first.
        training: how many of them train; what they give, and what they leave, must be finite.

    Attributes:
        program: what `point` said.
        nbytes: memory of the values of batches, and of the copy of variables.
        scratch_bytes: scratch memory that the thread needs.
    """

    def __init__(self, wanted: Sequence[Wanted], training: int) -> None:
        plans = [w.runner.plan for w in wanted]
        changed = [variable_memory(target) for target, _ in plans[0].program.updates]
        beside = saving_kernels(changed)
        self._data = [w.data for w in wanted]
        self._legs = [
            Leg(w.runner.plan, w.data, w.settings, w.sizes, w.batch_size, 1, LONGEST, beside)
            for w in wanted
        ]
        self._training = training
        self._touched = list(dict.fromkeys(v for plan in plans for v in variables_of(plan)))
        self._saved = Saved(changed, 1)
        cache = kernel_cache()
        self._programs = [
            Nested([task for phase in leg.phases for task in phase], cache) for leg in self._legs
        ]
        self._epoch = Nested([program.task for program in self._programs], cache)
        self.program = Nested([*self._saved.saves, self._epoch.task, *self._saved.looks], cache)
        self.nbytes = sum(leg.nbytes for leg in self._legs) + sum(m.nbytes for m in changed)
        self.scratch_bytes = max(leg.tasks.scratch_bytes for leg in self._legs)

    def point(
        self,
        epochs: int,
        counts: Sequence[int],
        orders: Sequence[Array],
        settings: Sequence[Mapping[Node, Array]],
    ) -> None:
        """Say what `program` is to do next.

        Args:
            epochs: how many.
            counts: batches of each leg in an epoch.
            orders: the rows of each leg, of all epochs.
            settings: of each leg, for the batches of all epochs.
        """
        for node in self._touched:
            variable_memory(node)  # what a device has written comes to the host
        self._epoch.batches = epochs
        legs = zip(self._legs, self._programs, self._data, counts, orders, settings, strict=True)
        for leg, program, data, count, order, values in legs:
            program.batches = count
            leg.point(data, order, values)

    def found(self, counts: Sequence[int]) -> list[list[Array]] | None:
        """The outputs of each leg's first batches, when the program has run.

        None where a number is NaN or infinite that must not be, or a row was asked for that is not there;
        variables are then as they were before.
        """
        found = [leg.found(count) for leg, count in zip(self._legs, counts, strict=True)]
        checked = [array for arrays in found[: self._training] for array in arrays]
        well = [leg.went_well() for leg in self._legs]  # each is asked, since that forgets
        finite = self._saved.were_finite()
        if not (all(well) and finite and all(map(is_finite, checked))):
            self._saved.restore()
            return None
        for leg in self._legs:
            leg.tasks.tune()
        return found


def course_of(wanted: Sequence[Wanted], training: int) -> Course | None:
    """The course of these legs; None where a plan cannot run alone."""
    if not all(can_slice(w.runner, w.data, w.settings) for w in wanted):
        return None
    return Course(wanted, training)
