"""The steps of a plan as kernels, copies and loops on places in memory.

A loop has the steps of a plan of its own, over what is carried, and over slices and outputs that move on with
its turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.moves import FAULTS, Move
from magmadnn.compiler.lower.size_rules import selected
from magmadnn.compiler.plan.export import Call, Copy, Loop, Place, Step
from magmadnn.compiler.plan.native_plan import LoopPlan, NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind, product_of
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Size, product
from magmadnn.graph.node import SIZE, Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.loops import moving_outputs

from .memory import Memory, nbytes_of
from .sizes import Layout, Samples


class Steps:
    """What does the steps of a plan.

    Args:
        plan: every value of it has memory of its own.
        symbols: of sizes that are known when the code is called.
        memory: buffers and constants; values that are stored get theirs.
        held: values that lie elsewhere: inputs, outputs that kernels write where the caller wants them.
        carried: variables without a value, which are among these.
        depth: how many loops are around.

    Attributes:
        samples: the plan laid out for several sets of sizes.
    """

    def __init__(
        self,
        plan: NativePlan,
        symbols: Sequence[str],
        memory: Memory,
        held: Mapping[Node, Place],
        carried: Collection[Node] = (),
        depth: int = 0,
    ) -> None:
        self._plan, self._symbols, self._memory = plan, symbols, memory
        self._held, self._depth = held, depth
        self.samples = Samples(plan, symbols, carried)
        self._buffers = memory.shared(life for life in self.samples.lives if life.node not in held)

    def all(self) -> list[Step]:
        """All steps, in order."""
        return [step for work in self._plan.work for step in self._of(work)]

    def place(self, node: Node) -> Place:
        """Where a value begins."""
        base = self._plan.layouts.bases[node]
        offset = self.samples.size(lambda s: s.offset(node))
        base = self._plan.in_place.get(base, base)
        if base in self._held:
            found = self._held[base]
        elif base in self._buffers:
            found = Place("buffer", self._buffers[base])
        elif base.op is SIZE:
            found = self._memory.fact(base)
        else:
            found = Place("constant", self._memory.constant(base))
        return replace(found, offset=found.offset + offset)

    def copy(self, node: Node, goal: Place) -> Copy:
        """A copy of a value, however it lies, to where it lies packed."""
        strides = tuple(
            self.samples.size(partial(Layout.stride, node=node, axis=axis))
            for axis in range(node.ndim)
        )
        return Copy(self.place(node), goal, node.shape, strides, node.dtype.itemsize)

    def _of(self, work: Work) -> Sequence[Step]:
        if work.region.kind is RegionKind.LOOP:
            return self._loop(work)
        if work.region.kind is RegionKind.MOVE:
            return self._movement(work.region.nodes[0])
        return [self._call(work)]

    def _call(self, work: Work) -> Call:
        lowered = work.lowered
        assert lowered is not None
        nodes = {slot: node for slot, node, _ in (*lowered.reads, *lowered.writes)}
        places = {slot: self.place(node) for slot, node in nodes.items()}
        if FAULTS in lowered.kernel.slots:
            places[FAULTS] = self._memory.wrong_rows()
        numbers = {
            slot: self.samples.size(partial(Layout.slot, work=work, slot=slot))
            for slot in lowered.kernel.slots
            if slot not in places
        }
        # A size that the caller gives counts as many: the kernel must do for all of them.
        kernel = lowered.kernel
        if work.region.kind is RegionKind.GEMM and product_of(work.region).ndim > 2:
            return self._stack(work, Call(kernel, numbers, places))
        if isinstance(kernel, Gemm):
            kernel = selected(kernel, numbers)
        return Call(kernel, numbers, places)

    def _stack(self, work: Work, whole: Call) -> Call:
        """A call for each product of a stack: its rows among those of all results."""
        node = product_of(work.region)
        leading, rows = node.shape[:-2], node.shape[-2]
        size = self.samples.size
        steps: dict[str, list[Size]] = {slot: [] for slot in ("row0", "row1", "a", "b")}
        for axis in range(len(leading)):
            apart = product((*leading[axis + 1 :], rows))
            back = (
                size(partial(Layout.rows_of_a, work=work)) * apart
            )  # A's rows begin with its own first
            for slot in ("row0", "row1"):
                steps[slot].append(apart)
            for slot, factor in zip("ab", node.inputs, strict=True):
                step = size(partial(Layout.stack_stride, node=factor, leading=leading, axis=axis))
                steps[slot].append(step - back if slot == "a" else step)
        made = {slot: tuple(found) for slot, found in steps.items()}
        return replace(whole, numbers={**whole.numbers, "row1": rows}, extents=leading, steps=made)

    def _movement(self, node: Node) -> Sequence[Call | Copy]:
        """A copy of one value in another layout, or of several: sample by sample, or each as a whole."""
        source = node.inputs[0] if node.inputs else node
        seen = self.samples.first.walked(node)
        if seen is None:
            return self._runs(node)
        place = self.place(source)
        offset = self.samples.size(partial(Layout.walk_offset, node=node))
        shape = node.shape if seen.shape == self.samples.first.arrays[node].shape else source.shape
        strides = tuple(
            self.samples.size(partial(Layout.walk_stride, node=node, axis=axis))
            for axis in range(seen.ndim)
        )
        origin = replace(place, offset=place.offset + offset)
        return [Copy(origin, self.place(node), shape, strides, node.dtype.itemsize)]

    def _side_by_side(self, node: Node, around: Array) -> list[Copy]:
        """A copy of each operand to where it lies in the result; before, of what is around into all of it."""
        size, goal, copies = self.samples.size, self.place(node), []

        def strides(of: Node) -> tuple[Size, ...]:
            return tuple(size(partial(Layout.stride, node=of, axis=a)) for a in range(of.ndim))

        if around.size:
            nowhere, item = (0,) * node.ndim, node.dtype.itemsize
            copies.append(Copy(self._memory.data_place(around), goal, node.shape, nowhere, item))
        for number, operand in enumerate(node.inputs):
            offset = size(partial(Layout.box_offset, node=node, number=number))
            there = replace(goal, offset=goal.offset + offset)
            place, item = self.place(operand), node.dtype.itemsize
            copies.append(Copy(place, there, operand.shape, strides(operand), item, strides(node)))
        return copies

    def _runs(self, node: Node) -> Sequence[Call | Copy]:
        """The runs of one row of the result, for each row."""
        found = self.samples.runs(node)
        if found is None:
            around = self.samples.around(node)
            if around is None:
                raise _made_for_one_size(node)
            return self._side_by_side(node, around)
        axes, runs = found
        size, count = self.samples.size, len(node.inputs)
        places = {f"x{k}": self.place(operand) for k, operand in enumerate(node.inputs)}
        places |= {"table": self._memory.data_place(runs.table), "result": self.place(node)}
        places[f"x{count}"] = self._memory.data_place(runs.constants)
        steps = {
            f"x{k}": tuple(
                size(partial(Layout.row_step, node=node, axes=axes, number=k, axis=axis))
                for axis in range(axes)
            )
            for k in range(count)
        }
        steps["result"] = tuple(nbytes_of(node.shape[axis + 1 :], node) for axis in range(axes))
        count_of = len(runs.table)
        numbers: dict[str, Size] = {"row0": 0, "row1": count_of, "boxes": count_of}
        kernel = Move(node.dtype.itemsize, count + 1)
        return [Call(kernel, numbers, places, node.shape[:axes], steps)]

    # --- loops ------------------------------------------------------------------------------------

    def _loop(self, work: Work) -> list[Step]:
        """What a loop begins with, and its steps."""
        plan = self._plan.loops[work.region.nodes[0]]
        results = {node.attributes["index"]: self.place(node) for node in work.needed}
        before: list[Step] = []
        held: dict[Node, Place] = {}
        for number, variable in plan.carried.items():
            goal = results.get(number) or self._memory.buffer(nbytes_of(variable.shape, variable))
            before.append(self.copy(plan.operands[plan.body.carried[number]], goal))
            held[variable] = goal
        used = set(plan.step.program.nodes())
        for node in (n for n in (*plan.body.captured, *plan.body.sliced) if n in used):
            operand = plan.operands[node]
            if self._plan.layouts.is_whole(operand):
                place = self.place(operand)
            else:
                place = self._memory.buffer(nbytes_of(operand.shape, operand))
                before.append(self.copy(operand, place))
            is_slice = node in plan.body.sliced
            held[node] = self._slice(plan, place, node) if is_slice else place
        for node, number in moving_outputs(plan).items():
            held[node] = self._slice(plan, results[number], node)
        step = replace(plan.step, inside={}, arenas={})
        carried = tuple(plan.carried.values())
        inner = Steps(step, self._symbols, self._memory, held, carried, self._depth + 1)
        return [*before, Loop(plan.length, tuple(inner.turn(plan, results)))]

    def turn(self, plan: LoopPlan, results: Mapping[int, Place]) -> list[Step]:
        """What is done in each turn of a loop, whose plan of a step this is.

        Args:
            plan: the loop.
            results: where those of its results begin that are wanted.
        """
        made: list[Step] = []
        for index, number in plan.before.items():
            variable = plan.carried[number]
            goal = self._outer_slice(plan, results[index], variable)
            made.append(_packed(self._held[variable], goal, variable))
        made += self.all()
        for node, index in zip(plan.step.program.outputs, plan.kept, strict=True):
            goal = self._outer_slice(plan, results[index], node)
            if self._held.get(node) != goal:
                made.append(self.copy(node, goal))
        new = plan.step.program.updates
        made += [self.copy(v, self._held[t]) for t, v in new if v not in plan.step.in_place]
        return made

    def _slice(self, plan: LoopPlan, place: Place, node: Node) -> Place:
        """Where a slice of a stacked value lies in each turn of a loop in this plan."""
        return _moving(place, nbytes_of(node.shape, node), plan, self._depth)

    def _outer_slice(self, plan: LoopPlan, place: Place, node: Node) -> Place:
        """The same, asked by the plan of the loop's step."""
        return _moving(place, nbytes_of(node.shape, node), plan, self._depth - 1)


def _moving(place: Place, nbytes: Size, plan: LoopPlan, depth: int) -> Place:
    """A place that moves on by so many bytes with each turn of a loop that `depth` others are around."""
    steps = (*place.steps, *(0,) * (depth - len(place.steps)))
    if not plan.reverse:
        return replace(place, steps=(*steps, nbytes))
    last = place.offset + (plan.length - 1) * nbytes
    return replace(place, offset=last, steps=(*steps, nbytes * -1))


def _packed(source: Place, goal: Place, node: Node) -> Copy:
    """A copy of a value that lies packed."""
    strides = tuple(nbytes_of(node.shape[axis + 1 :], node) for axis in range(node.ndim))
    return Copy(source, goal, node.shape, strides, node.dtype.itemsize)


def _made_for_one_size(node: Node) -> GraphError:
    where = f" of layer {node.scope}" if node.scope else ""
    return GraphError(
        f"export: op {node.label}{where} moves elements by a table that differs between samples or sizes, so "
        "it cannot be in an object file; give inputs fixed shapes, replace it, or export the part of the "
        "model without it: md.Model(inputs=..., outputs=...)"
    )
