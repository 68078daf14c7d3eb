"""From a program to what runs it on a device."""

from __future__ import annotations

from magmadnn.backends.cuda import device_engine
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.decompose import has_calls
from magmadnn.graph.program import Program
from magmadnn.runtime.cuda.schedule.library.few_pooled import OF_FEW_POOLED
from magmadnn.runtime.cuda.schedule.library.pictures import OF_PICTURES

from .runner import CudaRunner

_OF_CONVOLUTIONS = frozenset({"fprop", "wgrad"})


def runner_of(program: Program, device: int, tensor_float: bool, check: bool = False) -> CudaRunner:
    """The plan of a program, with calls of the libraries that the device has.

    Args:
        program: in its phase and precision.
        device: number of the device.
        tensor_float: whether products of float32 may be computed in TF32.
        check: verify the graph after each pass; for tests.
    """
    has = frozenset[str]()
    if has_calls(program):
        has = device_engine(device).functions | OF_PICTURES | OF_FEW_POOLED
        if tensor_float and _OF_CONVOLUTIONS <= has:
            has |= {"tf32"}
    plan = native_plan(program, check=check, rounding=False, libraries=has)
    return CudaRunner(plan, device, tensor_float)
