"""A pad of 55 MB, alone and with a formula over it, beside a copy.

python -m benchmarks.cpu.pads

Each row: milliseconds of a run on one thread, the least of 15. A pad that is asked for is a copy of a few
boxes; one that a formula reads is no step, and the formula takes as long as over a whole operand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation

SHAPE = (16, 112, 112, 64)  # 51 MB; 55 MB with its edges
EDGES = ((0, 0), (2, 2), (2, 2), (0, 0))
RUNS = 15


def least(run: Callable[[], object]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def step(node: Node, x: Node, values: np.ndarray) -> tuple[float, int]:
    """Milliseconds of the steps of a plan, without its outputs' copies; how many steps there are."""
    plan = native_plan(Program.of([node]))
    instance = Instance(plan, {}, 1, timed=True)
    instance.run({x: values}, guard=False)
    return least(lambda: instance._drive(instance._early)), len(plan.work)


def main() -> None:
    """Print the table."""
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    x = placeholder("x", Spec(SHAPE, values.dtype))
    pad = ops.pad(Operation(x), EDGES)
    whole = placeholder("whole", Spec(pad.shape, values.dtype))
    padded = np.pad(values, EDGES)
    goal = np.empty_like(padded)
    print(f"copy by NumPy       {least(lambda: np.copyto(goal, padded)):8.2f} ms")
    cases = {
        "pad": (pad, x, values),
        "pad * 2": (pad * 2.0, x, values),
        "whole operand * 2": (Operation(whole) * 2.0, whole, padded),
    }
    for name, (made, node, fed) in cases.items():
        found, steps = step(made.node, node, fed)
        print(f"{name:20}{found:8.2f} ms  {steps} step{'s' * (steps > 1)}")


if __name__ == "__main__":
    main()
