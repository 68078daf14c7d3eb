"""From a program to what runs it on a device."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from magmadnn.backends.cuda import device_engine
from magmadnn.compiler.plan.native_plan import LaterPlan
from magmadnn.compiler.plan.planning import ON_GPUS, native_plan
from magmadnn.compiler.program.simplify import has_calls
from magmadnn.graph.program import LaterProgram, Program
from magmadnn.runtime.cuda.schedule.library.few_pooled import OF_FEW_POOLED
from magmadnn.runtime.cuda.schedule.library.pooling import OF_POOLING

from .alike import AlikeRunner
from .runner import CudaRunner

_OF_CONVOLUTIONS = frozenset({"fprop", "wgrad"})
# of programs that are built alike, by what they are known by: for each sizes, whether they have calls
_known: WeakKeyDictionary[Any, dict[tuple[int, ...], bool]] = WeakKeyDictionary()


def runner_of(program: Program, device: int, tensor_float: bool, check: bool = False) -> CudaRunner:
    """The plan of a program, with calls of the libraries that the device has.

    Args:
        program: in its phase and precision.
        device: number of the device.
        tensor_float: whether products of float32 may be computed in TF32.
        check: verify the graph after each pass; for tests.
    """
    has = frozenset[str]()
    if _has_calls(program):
        has = device_engine(device).functions | OF_POOLING | OF_FEW_POOLED | ON_GPUS
        if tensor_float and _OF_CONVOLUTIONS <= has:
            has |= {"tf32"}
    plan = native_plan(program, check=check, rounding=False, libraries=has)
    if isinstance(plan, LaterPlan):
        return AlikeRunner(plan, device, tensor_float)
    return CudaRunner(plan, device, tensor_float)


def _has_calls(program: Program) -> bool:
    """Whether libraries may compute parts of a program; one that is built like another is not made for it."""
    if not isinstance(program, LaterProgram):
        return has_calls(program)
    known = _known.setdefault(program.like, {})
    if program.sizes not in known:
        known[program.sizes] = has_calls(program)
    return known[program.sizes]
