"""Averages of parameters over steps, which a step keeps beside its moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from magmadnn.graph.op import Array
from magmadnn.graph.spec import Spec

from .parts import Part, Values, zeros
from .records import FRACTION, Setting

AVERAGE = "average"  # the slot


@dataclass(frozen=True)
class AverageWeights(Part):
    """average = average_decay * average + (1 - average_decay) * (w - g); gives g as it is.

    As the last part of a chain, where w - g is the parameter after the step. The average begins at 0: after
    t steps divide it by 1 - average_decay**t, so that the weights of all steps add up to 1.

    Polyak, Juditsky, SIAM J. Control Optim. 30 (1992) average evenly; the correction is that of Kingma, Ba,
    ICLR 2015, section 3.
    """

    by_element: ClassVar[bool] = True

    average_decay: Setting = field(default=0.999, metadata=FRACTION)

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """See `Transform`."""
        return zeros(parameter, AVERAGE)

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        decay = settings["average_decay"]
        return g, {AVERAGE: decay * slots[AVERAGE] + (1 - decay) * (w - g)}
