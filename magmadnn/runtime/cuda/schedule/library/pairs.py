"""Steps that compute two results of the same operands, values and numbers of places, by one launch."""

from __future__ import annotations

from typing import Any

from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work

Pair = tuple[Work, Work]  # the earlier first


def pairs_of(plan: NativePlan, functions: tuple[str, str]) -> dict[Work, Pair]:
    """Of steps by two functions of the same operands and settings both.

    The later one's launch may write both where nobody has read the earlier one's result before: its memory is
    its own until it was read for the last time.

    Args:
        plan: whose steps they are.
        functions: names, as those of `WholeLibrary`.
    """
    found: dict[Work, Pair] = {}
    waiting: dict[Any, Work] = {}
    bases = plan.layouts.bases
    for work in plan.work:
        read = {bases[i] for node in work.region.nodes for i in node.inputs}
        for key, earlier in list(waiting.items()):
            if earlier.needed[0] in read:
                del waiting[key]
        kernel = None if work.lowered is None else work.lowered.kernel
        if not isinstance(kernel, WholeLibrary) or kernel.function not in functions:
            continue
        key = (work.needed[0].inputs, kernel.settings)
        other = waiting.pop(key, None)
        if other is not None and kernel_of(other).function != kernel.function:
            found[work] = found[other] = (other, work)
        else:
            waiting[key] = work
    return found


def kernel_of(work: Work) -> WholeLibrary:
    """The function that a step calls."""
    assert work.lowered is not None and isinstance(work.lowered.kernel, WholeLibrary)
    return work.lowered.kernel
