"""A native plan as text that is the same for the same program: what runs, on what, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from magmadnn.compiler.formulas import is_contraction, operations
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import Library, WholeLibrary
from magmadnn.compiler.rates import Rates
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind, is_reduction
from magmadnn.graph.dim import Size, dims_of, product, substitute
from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.text import constant_text

from .memory import arena_of
from .native_plan import NativePlan


def describe(
    plan: NativePlan, sizes: Mapping[str, int] = MappingProxyType({}), rates: Rates | None = None
) -> str:
    """The text of a plan.

    A block for each step: phase, kernel, matrix, nodes and layer; what it reads and keeps; operations and
    bytes, as multiples of sizes that are not given.

    Args:
        plan: what is described.
        sizes: of symbolic dimensions, as far as they are known.
        rates: limits of a core; with them, and all sizes known, each step has its expected time.
    """
    steps = _steps(plan, sizes, rates)
    return "\n".join([*steps, *_updates(plan), *_totals(plan, sizes, rates)])


def _steps(plan: NativePlan, sizes: Mapping[str, int], rates: Rates | None) -> list[str]:
    stored = [node for work in plan.work for node in work.needed]
    names = {node: f"%{k} {node.label}" for k, node in enumerate(stored)}
    known = False
    lines = []
    for work in plan.work:
        if work.phase >= plan.checked and not known:
            known = True
            lines.append("    # outputs are known")
        lines.append(f"{work.phase:3} {_work_text(work, sizes)}")
        lines.append(f"      reads {_listed(reads_of(plan, work), names, plan, sizes)}")
        lines.append(f"      keeps {_listed(work.needed, names, plan, sizes)}")
        lines.append(f"      {_costs(plan, [work], sizes)}{_expected(plan, [work], sizes, rates)}")
        loop = plan.loops.get(work.region.nodes[0])
        if loop is not None:
            inside = describe(loop.step, sizes).splitlines()
            lines += ["      each step:", *(f"        {line}" for line in inside)]
    return lines if known else [*lines, "    # outputs are known"]


def title_of(work: Work, sizes: Mapping[str, int]) -> str:
    """Kernel, matrix and nodes of a step: `gemm [16, 5] matmul add relu`."""
    if work.region.kind is RegionKind.LOOP:
        steps = work.region.nodes[0].attributes["length"]
        return f"loop {_shape_text((steps,), sizes)} of {len(work.needed)} results"
    way = "numpy" if work.lowered is None else _title_of(work.lowered.kernel)
    names = " ".join(n.label for n in work.region.nodes)
    return f"{way} {_shape_text((*work.region.rows, work.region.columns), sizes)} {names}"


def _title_of(kernel: Kernel) -> str:
    """The kind of a kernel; of a library's call the function too."""
    if isinstance(kernel, Library | WholeLibrary):
        return f"library {kernel.function}"
    return type(kernel).__name__.lower()


def layer_of(work: Work) -> str:
    """The layer that a step belongs to, or the optimiser; that of a product where there is one."""
    nodes = sorted(work.region.nodes, key=lambda n: not is_contraction(n))
    scopes = (n.scope.removesuffix("/gradient") for n in nodes)
    return next((scope for scope in scopes if scope and scope != "gradient"), "")


def _work_text(work: Work, sizes: Mapping[str, int]) -> str:
    scope = next((n.scope for n in work.region.nodes if n.scope), "")
    return f"{title_of(work, sizes)}{f'  # {scope}' if scope else ''}"


def _listed(
    nodes: Iterable[Node], names: Mapping[Node, str], plan: NativePlan, sizes: Mapping[str, int]
) -> str:
    texts = []
    for node in nodes:
        base = plan.layouts.bases[node]
        name = f"constant {constant_text(base.value)}" if base.op is CONSTANT else base.label
        digits = plan.layouts.digits(node)
        view = "" if base is node or (digits and plan.layouts.is_whole(node)) else "view of "
        rounded = f" as {digits}" if digits not in ("", base.dtype.name) else ""
        where = f" in {plan.in_place[node].label}" if node in plan.in_place else ""
        where += f" inside {names[plan.inside[base]]}" if base in plan.inside else ""
        shape = _shape_text(node.shape, sizes)
        texts.append(f"{view}{names.get(base, name)} {base.dtype.name}{shape}{rounded}{where}")
    return ", ".join(texts) or "nothing"


def _shape_text(shape: tuple[Size, ...], sizes: Mapping[str, int]) -> str:
    return f"[{', '.join(map(str, substitute(shape, sizes)))}]"


def _updates(plan: NativePlan) -> list[str]:
    return [
        f"{t.name} := {v.label}{' (in place)' if v in plan.in_place else ''}"
        for t, v in plan.program.updates
    ]


def _totals(plan: NativePlan, sizes: Mapping[str, int], rates: Rates | None) -> list[str]:
    loops, updates = len(plan.loops), len(plan.program.updates)
    calls = len(plan.work) - plan.kernels - loops
    libraries = sum(work.region.kind is RegionKind.LIBRARY for work in plan.work)
    by_library = f"{libraries} calls of libraries, " if libraries else ""
    counts = f"# {plan.kernels - libraries} kernels, {by_library}{calls} calls of NumPy"
    counts += f", loops: {loops}" if loops else ""
    lines = [
        f"{counts}, {len(plan.in_place)} of {updates} updates in place",
        f"# {_costs(plan, plan.work, sizes)}{_expected(plan, plan.work, sizes, rates)}",
    ]
    shapes = tuple(node.shape for work in plan.work for node in (*work.placed, *_reduced(work)))
    chosen = tuple(size for _, size in plan.choices)
    if {symbol for dim in dims_of((*shapes, chosen)) for symbol in dim.symbols} <= sizes.keys():
        arena = arena_of(plan, sizes)
        lines.append(f"# arena of {arena.nbytes} bytes; {arena.apart} if nothing were shared")
    return lines


def _reduced(work: Work) -> list[Node]:
    """What a region reduces: how large it is tells of room for partial results."""
    return [node.inputs[0] for node in work.region.nodes if is_reduction(node)]


# --- costs ----------------------------------------------------------------------------------------


def reads_of(plan: NativePlan, work: Work) -> list[Node]:
    """What a step reads from memory, each once."""
    if work.lowered is not None:
        return list(dict.fromkeys(node for _, node, _ in work.lowered.reads))
    return work.region.read


def _costs(plan: NativePlan, work: Iterable[Work], sizes: Mapping[str, int]) -> str:
    flops: Size = 0
    read: Size = 0
    written: Size = 0
    for one in work:
        flops += _operations(plan, one)
        read += _read_bytes(plan, one)
        written += _written_bytes(plan, one)
    numbers = [substitute(n, sizes) for n in (flops, read, written)]
    return "{} operations, {} bytes read, {} written".format(*numbers)


def costs_of(plan: NativePlan, work: Work, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Operations, bytes read and bytes written by a step, for known sizes."""
    flops = _operations(plan, work)
    read = _read_bytes(plan, work)
    written = _written_bytes(plan, work)
    found = [substitute(n, sizes) for n in (flops, read, written)]
    return int(found[0]), int(found[1]), int(found[2])


def _operations(plan: NativePlan, work: Work) -> Size:
    """Operations of a step; of a loop those of all its steps."""
    loop = plan.loops.get(work.region.nodes[0])
    if loop is None:
        return sum((_flops(n) for n in work.region.nodes), start=0)
    inside: Size = sum((_operations(loop.step, one) for one in loop.step.work), start=0)
    return inside * loop.length


def _expected(
    plan: NativePlan, work: Iterable[Work], sizes: Mapping[str, int], rates: Rates | None
) -> str:
    """The time that steps take on one core at its measured limits."""
    if rates is None:
        return ""
    seconds = 0.0
    for one in work:
        flops, read, written = costs_of(plan, one, sizes)
        wide = any(n.dtype == np.float64 for n in one.region.nodes)
        seconds += rates.seconds(flops, read + written, "float64" if wide else "float32")
    return f"; expected {1e6 * seconds:.2f} us"


def _flops(node: Node) -> Size:
    """Operations on numbers: two for each term of a product, one for each primitive of a formula."""
    op = node.op
    if not isinstance(op, Op):
        return 0
    if op.kind is OpKind.CONTRACTION and not node.attributes:
        return product((*node.shape, node.inputs[0].shape[-1], 2))
    if op.library is not None:
        return op.library.operations(node.shape, *(i.shape for i in node.inputs))
    if op.kind is OpKind.REDUCTION:
        return product(node.inputs[0].shape)
    return product(node.shape) * operations(node) if op.kind is OpKind.POINTWISE else 0


def _nbytes(node: Node) -> Size:
    return product(node.shape) * node.dtype.itemsize


def _read_bytes(plan: NativePlan, work: Work) -> Size:
    """What a step reads: of a view that widens, the halves; nothing of what lies in its result already."""
    bases, result = plan.layouts.bases, work.region.nodes[0]
    read = (n for n in reads_of(plan, work) if plan.inside.get(bases[n]) is not result)
    return sum((product(n.shape) * bases[n].dtype.itemsize for n in read), start=0)


def _written_bytes(plan: NativePlan, work: Work) -> Size:
    """What a step writes, without what lies in its result already."""
    result = work.region.nodes[0]
    bases = dict.fromkeys(plan.layouts.bases[i] for i in result.inputs)
    there = (n for n in bases if plan.inside.get(n) is result)
    return sum((_nbytes(n) for n in work.needed), start=0) - sum(map(_nbytes, there), start=0)
