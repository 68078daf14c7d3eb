"""Sums over leading axes, and products, of operands that are slices, pads, reordered or repeated axes.

python -m benchmarks.strided_operands [--threads 2 | --device cuda]

Each row: microseconds with such an operand, and the same with its elements packed, the least of several
runs; on a GPU of the kernels alone, in a graph of many repetitions. With a copy first it is what the commit
before has: run it with both in turns. The steps of the plan say whether there is a copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from magmadnn import ops
from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import EventNode, GraphNode
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.cuda.running.graphs import nodes_of
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.tensor import Operation

Shape = tuple[int, ...]
Fed = dict[Node, np.ndarray]
View = Callable[[Operation], Operation]
RUNS, REPEATED = 12, 40
NONE = (0, 0)
SUMS: dict[str, tuple[Shape, View]] = {
    "slice": ((64, 130, 512), lambda x: x[:, 1:-1]),
    "every second": ((64, 256, 128), lambda x: x[:, ::2]),
    "reordered axes": ((16, 200, 8, 64), lambda x: ops.transpose(x, (2, 0, 1, 3))),
    "pad": ((16, 56, 56, 64), lambda x: ops.pad(x, (NONE, (1, 1), (1, 1), NONE))),
    "pad of columns": ((8192, 100), lambda x: ops.pad(x, (NONE, (0, 28)))),
    "repeated row": ((1, 512), lambda x: ops.broadcast_to(x, (4096, 512))),
}
FACTORS: dict[str, tuple[Shape, View, int]] = {
    "slice": ((64, 130, 256), lambda x: x[:, 1:-1], 64),
    "the same slice": ((64, 130, 256), lambda x: x[:, 1:-1], 256),
    "wide slice": ((64, 130, 1024), lambda x: x[:, 1:-1], 1024),
    "every second column": ((512, 1024), lambda x: x[:, ::2], 512),
    "heads": ((64, 8, 64, 32), lambda x: ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (64, 64, 256)), 256),
    "pad": ((8064, 1024), lambda x: ops.pad(x, ((64, 64), NONE)), 256),
}  # fmt: skip


def given(name: str, shape: Shape) -> Operation:
    """What is fed."""
    return Operation(placeholder(name, Spec(shape, np.dtype(np.float32))))


def microseconds(made: Operation, device: str, threads: int) -> tuple[float, str]:
    """Of one run, and the steps of the plan."""
    program, rng = Program.of([made.node]), np.random.default_rng(0)
    leaves = [node for node in program.nodes() if not node.inputs]
    fed = {node: rng.standard_normal(node.shape, dtype=np.float32) for node in leaves}
    if device == "cpu":
        plan = native_plan(program)
        found = _on_cpu(Instance(plan, {}, threads), fed)
    else:
        plan = native_plan(program, rounding=False, libraries=device_engine(0).functions)
        found = _on_gpu(CudaRunner(plan, 0, True), fed)
    return 1e6 * found, ", ".join(work.region.kind.value for work in plan.work)


def _on_cpu(instance: Instance, fed: Fed) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        instance.run(fed, guard=False)
        times.append(time.perf_counter() - start)
    return min(times)


def _on_gpu(runner: CudaRunner, fed: Fed) -> float:
    instance = runner.instance({})
    instance.run(fed, guard=False)
    engine = instance.engine
    begin, end = engine.event(), engine.event()
    nodes: list[GraphNode] = [EventNode(begin)]
    for _ in range(REPEATED):
        for work in runner.plan.work:
            items, first = instance.items.of(work), len(nodes)
            nodes += nodes_of(engine, items, [(first + k - 1,) for k in range(len(items))])
    graph = engine.graph([*nodes, EventNode(end, (len(nodes) - 1,))])
    times = []
    for _ in range(RUNS):
        graph.launch()
        engine.wait()
        times.append(engine.seconds(begin, end) / REPEATED)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    device = options.device

    def compare(name: str, shape: Shape, view: View, use: View) -> None:
        seen = view(given("x", shape))
        packed = given("packed", tuple(int(n) for n in seen.shape))
        (us, steps), (bound, _) = (
            microseconds(use(one), device, options.threads) for one in (seen, packed)
        )
        print(f"{name} of {list(shape)}".ljust(48), f"{us:9.1f} {bound:9.1f}  {steps}", flush=True)

    for name, (shape, view) in SUMS.items():
        compare(f"sum: {name}", shape, view, lambda y: ops.sum(y, tuple(range(y.ndim - 1))))
    for name, (shape, view, columns) in FACTORS.items():
        w = given("w", (int(view(given("x", shape)).shape[-1]), columns))
        compare(f"@ {columns}: {name}", shape, view, lambda y, w=w: y @ w)


if __name__ == "__main__":
    main()
