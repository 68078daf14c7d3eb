"""Epochs of one model as a program for one thread: whole batches, a smaller last one, what is evaluated.

Many such programs run beside each other, and no thread waits for another within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.variables import is_finite, memories_of

from .legs import CopiedLeg, Wanted, can_slice, known_places
from .slices import Saved


class Course:
    """Legs that follow each other in each epoch.

    Args:
        wanted: those that train come first.
        training: how many of them train; what they give, and what they leave, must be finite.

    Attributes:
        legs: in their order.
        sizes: of symbolic dimensions, in a batch of the first.
        wanted: as given.
        program: what `point` said.
        nbytes: memory of the values of batches, and of the copy of variables.
        scratch_bytes: scratch memory that the thread needs.
    """

    def __init__(self, wanted: Sequence[Wanted], training: int) -> None:
        plans = [w.runner.plan for w in wanted]
        places = known_places()
        changed = [places(node) for node in plans[0].changed]
        self.sizes = dict(wanted[0].sizes)
        self.wanted = list(wanted)  # as long as runners live, no other has their id
        for plan in plans:
            if plan.alike is not None:
                plan.alike.has_others = True  # a course is made where many models train
        self.legs = [CopiedLeg(w, places=places) for w in wanted]
        self._training = training
        self._touched = memories_of(dict.fromkeys(v for plan in plans for v in plan.variables))
        self._saved = Saved(
            [memory for memory, _ in changed], 1, plans[0].alike, [where for _, where in changed]
        )
        cache = kernel_cache()
        self._programs = [Nested(leg.table, cache) for leg in self.legs]
        self._epoch = Nested([program.task for program in self._programs], cache)
        saves, looks = Nested(self._saved.saves, cache), Nested(self._saved.looks, cache)
        self.program = Nested([saves.task, self._epoch.task, looks.task], cache)
        self.nbytes = sum(leg.nbytes for leg in self.legs) + sum(m.nbytes for m, _ in changed)
        self.scratch_bytes = max(leg.scratch_bytes for leg in self.legs)

    def point(
        self,
        epochs: int,
        counts: Sequence[int],
        data: Sequence[Sequence[Array]],
        orders: Sequence[Array],
        settings: Sequence[Mapping[Node, Array]],
    ) -> None:
        """Say what `program` is to do next.

        Args:
            epochs: how many.
            counts: batches of each leg in an epoch.
            data: what the batches of each leg are taken from.
            orders: the rows of each leg, of all epochs.
            settings: of each leg, for the batches of all epochs.
        """
        for memory in self._touched:  # what a device has written comes to the host
            memory.update_host(memory.writable)
        self._epoch.batches = epochs
        legs = zip(self.legs, self._programs, counts, data, orders, settings, strict=True)
        for leg, program, count, arrays, order, values in legs:
            program.batches = count
            leg.point(arrays, order, values)

    def found(self, counts: Sequence[int]) -> list[list[Array]] | None:
        """The outputs of each leg's first batches, when the program has run.

        None where a number is NaN or infinite that must not be, or a row was asked for that is not there;
        variables are then as they were before.
        """
        found = [leg.found(count) for leg, count in zip(self.legs, counts, strict=True)]
        checked = [array for arrays in found[: self._training] for array in arrays]
        well = [leg.went_well() for leg in self.legs]  # each is asked, since that forgets
        finite = self._saved.were_finite()
        if not (all(well) and finite and all(map(is_finite, checked))):
            self._saved.restore()
            return None
        return found

    def take_back(self) -> None:
        """Variables as they were before the program ran."""
        self._saved.restore()


def course_of(wanted: Sequence[Wanted], training: int) -> Course | None:
    """The course of these legs, made once for data that looks alike; None where a plan cannot run alone."""
    if not all(can_slice(w.runner, w.data, w.settings) for w in wanted):
        return None
    key = ("course", training, *((id(w.runner), w.looks) for w in wanted))
    return wanted[0].runner.kept(key, lambda: Course(wanted, training))
