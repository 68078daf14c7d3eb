"""Steps that are done again only if a variable that they depend on has changed: `compiler/plan/lasting.py`.

Who may write a variable is not known: whoever has NumPy's view of one can at any time. So each run compares
the bytes with those that the results were made of. That is exact, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.fused.saving import FindDifferent, Save
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array

from .images import pieces_of
from .tasks import task_of

_PART_BYTES = 1 << 18


class LastingSteps:
    """The steps, and copies of the variables that their results were made of.

    Args:
        steps: does them.
        variables: the memory of the variables, contiguous.
        threads: that compare.
    """

    def __init__(self, steps: Driver, variables: Sequence[Array], threads: int) -> None:
        self._steps, self._variables = steps, list(variables)
        self._copies = [piece for piece, _ in pieces_of([v.nbytes for v in variables])]
        self._found = np.zeros(1, np.int64)
        self._are_there = False
        cache = kernel_cache()
        compares, saves = self._compare_tasks(), self._save_tasks()
        self._compares = Driver([compares], threads, cache=cache)
        self._saves = Driver([saves], threads, cache=cache)

    def run(self, drive: Callable[[Driver], bool]) -> bool:
        """Do the steps if a variable has changed, or they were not done well before.

        Args:
            drive: runs a driver, and gives whether that went well.

        Returns:
            Whether their results are those of the variables now.
        """
        if self._are_there and not self._have_changed():
            return True
        self._are_there = False  # also if this is interrupted
        self._saves.run(0, 1)
        self._are_there = drive(self._steps)
        return self._are_there

    def _have_changed(self) -> bool:
        self._found[0] = 0
        self._compares.run(0, 1)
        return bool(self._found[0])

    def _compare_tasks(self) -> list[Task]:
        return [
            task_of(FindDifferent(), start=start, end=end, source=v, other=copy, found=self._found)
            for v, copy, start, end in self._parts()
        ]

    def _save_tasks(self) -> list[Task]:
        return [
            task_of(Save(), start=start, end=end, source=v, result=copy)
            for v, copy, start, end in self._parts()
        ]

    def _parts(self) -> list[tuple[Array, Array, int, int]]:
        """Variables, their copies, and bytes of them."""
        return [
            (v, copy, start, min(start + _PART_BYTES, v.nbytes))
            for v, copy in zip(self._variables, self._copies, strict=True)
            for start in range(0, v.nbytes, _PART_BYTES)
        ]
