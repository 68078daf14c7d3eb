"""From a plan to what an object file needs: every size as a polynomial, every address as a place.

A plan is laid out for given sizes. What an argument block holds is therefore looked up for several sets of
sizes, and the polynomials through them are found and checked on further sets (`standalone_sizes.py`). So this
file knows how layouts behave, and not what any kernel's arguments mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS, Move
from magmadnn.compiler.lower.product_rule import selected
from magmadnn.compiler.plan.arena import Life
from magmadnn.compiler.plan.export import Call, Copy, Fact, Place, Standalone
from magmadnn.compiler.plan.native_plan import NativePlan, Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.compiler.regions.stages import product_of
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Dim, Size, dims_of, product
from magmadnn.graph.node import PLACEHOLDER, SIZE, VARIABLE, Node
from magmadnn.graph.op import Array

from .export_sizes import Layout, Samples


def standalone(plan: NativePlan, inputs: Sequence[Node], longest: int) -> Standalone:
    """What the object file of a plan computes.

    Args:
        plan: of a prediction.
        inputs: placeholders in the order in which the caller gives them.
        longest: samples that are computed at a time.

    Raises:
        GraphError: for a step without a kernel, naming op and layer; for updates of variables; for inputs
            or outputs whose first axis is not the batch.
    """
    return _Exporter(plan, inputs).made(longest)


class _Exporter:
    """The work of `standalone`."""

    def __init__(self, plan: NativePlan, inputs: Sequence[Node]) -> None:
        plan = replace(plan, inside={}, arenas={})  # every value in memory of its own
        self.plan, self.inputs = plan, list(inputs)
        self.outputs = list(plan.program.outputs)
        self.batch = _batch_of(self.inputs, self.outputs)
        _check_kernels(plan)
        found = {s for n in self.inputs for d in dims_of(n.shape) for s in d.symbols}
        self.symbols = tuple(sorted(found - {self.batch}))
        self._samples = Samples(plan, (self.batch, *self.symbols))
        self._direct = self._written_directly()
        self._buffers, self._lives = _shared_buffers(
            [life for life in self._samples.lives if life.node not in self._direct]
        )
        self._constants: dict[Node, int] = {}
        self._data: list[bytes] = []
        self._facts: dict[Node, Fact] = {}
        self._faults: Place | None = None

    def made(self, longest: int) -> Standalone:
        """All parts together."""
        calls = tuple(call for work in self.plan.work for call in self._calls(work))
        copies = tuple(self._copies())
        nodes = self.plan.program.nodes()
        dims = dict.fromkeys(d for n in nodes for d in dims_of((n.shape, *n.attributes.values())))
        return Standalone(
            self.batch,
            self.symbols,
            tuple(_nbytes(n.shape[1:], n) for n in self.inputs),
            tuple(_nbytes(n.shape[1:], n) for n in self.outputs),
            tuple(self._buffers),
            tuple(self._data),
            (*self._facts.values(), *self._no_faults()),
            calls,
            copies,
            (*(dim for dim in dims if not dim.never_negative), *self._chosen_from()),
            longest,
            self._faults,
        )

    def _written_directly(self) -> dict[Node, int]:
        """Stored values that kernels write straight into the caller's memory."""
        stored = {node for work in self.plan.work for node in work.needed}
        found: dict[Node, int] = {}
        for number, node in enumerate(self.outputs):
            base = self.plan.layouts.bases[node]
            if base in stored and base not in found and self.plan.layouts.is_whole(node):
                found[base] = number
        return found

    # --- places -----------------------------------------------------------------------------------

    def _place(self, node: Node) -> Place:
        """Where a value begins."""
        base = self.plan.layouts.bases[node]
        offset = self._samples.size(lambda s: s.offset(node))
        if base in self._direct:
            return Place("output", self._direct[base], offset)
        if base in self._lives:
            return Place("buffer", self._lives[base], offset)
        if base.op is PLACEHOLDER:
            return Place("input", self.inputs.index(base), offset)
        if base.op is SIZE:
            return self._fact(base)
        return Place("constant", self._constant(base), offset)

    def _constant(self, node: Node) -> int:
        if node not in self._constants:
            self._constants[node] = len(self._data)
            value = node.value.read() if node.op is VARIABLE else node.value
            self._data.append(np.asarray(value, node.dtype).tobytes())
        return self._constants[node]

    def _fact(self, node: Node) -> Place:
        if node not in self._facts:
            place = Place("buffer", len(self._buffers))
            self._buffers.append((node.dtype.itemsize,))
            self._facts[node] = Fact(place, node.attributes["dim"], node.dtype.name)
        return self._facts[node].goal

    # --- steps ------------------------------------------------------------------------------------

    def _chosen_from(self) -> list[Dim]:
        """What must not be negative, so that there is always something to choose from."""
        made = [size - 1 for _, size in self.plan.choices if str(size) != self.batch]
        return [dim for dim in dict.fromkeys(made) if isinstance(dim, Dim)]

    def _calls(self, work: Work) -> Sequence[Call | Copy]:
        if work.region.kind is RegionKind.MOVE:
            return self._movement(work.region.nodes[0])
        return [self._call(work)]

    def _call(self, work: Work) -> Call:
        lowered = work.lowered
        assert lowered is not None
        nodes = {slot: node for slot, node, _ in (*lowered.reads, *lowered.writes)}
        places = {slot: self._place(node) for slot, node in nodes.items()}
        if FAULTS in lowered.kernel.slots:
            places[FAULTS] = self._wrong_rows()
        numbers = {
            slot: self._samples.size(partial(Layout.slot, work=work, slot=slot))
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
        size = self._samples.size
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
        seen = self._samples.first.walked(node)
        if seen is None:
            return self._runs(node)
        place = self._place(source)
        offset = self._samples.size(partial(Layout.walk_offset, node=node))
        shape = node.shape if seen.shape == self._samples.first.arrays[node].shape else source.shape
        strides = tuple(
            self._samples.size(partial(Layout.walk_stride, node=node, axis=axis))
            for axis in range(seen.ndim)
        )
        origin = replace(place, offset=place.offset + offset)
        return [Copy(origin, self._place(node), shape, strides, node.dtype.itemsize)]

    def _side_by_side(self, node: Node, around: Array) -> list[Copy]:
        """A copy of each operand to where it lies in the result; before, of what is around into all of it."""
        size, goal, copies = self._samples.size, self._place(node), []

        def strides(of: Node) -> tuple[Size, ...]:
            return tuple(size(partial(Layout.stride, node=of, axis=a)) for a in range(of.ndim))

        if around.size:
            nowhere, item = (0,) * node.ndim, node.dtype.itemsize
            copies.append(Copy(self._data_place(around), goal, node.shape, nowhere, item))
        for number, operand in enumerate(node.inputs):
            offset = size(partial(Layout.box_offset, node=node, number=number))
            there = replace(goal, offset=goal.offset + offset)
            place, item = self._place(operand), node.dtype.itemsize
            copies.append(Copy(place, there, operand.shape, strides(operand), item, strides(node)))
        return copies

    def _runs(self, node: Node) -> Sequence[Call | Copy]:
        """The runs of one row of the result, for each row."""
        found = self._samples.runs(node)
        if found is None:
            around = self._samples.around(node)
            if around is None:
                raise _made_for_one_size(node)
            return self._side_by_side(node, around)
        axes, runs = found
        size, count = self._samples.size, len(node.inputs)
        places = {f"x{k}": self._place(operand) for k, operand in enumerate(node.inputs)}
        places |= {"table": self._data_place(runs.table), "result": self._place(node)}
        places[f"x{count}"] = self._data_place(runs.constants)
        steps = {
            f"x{k}": tuple(
                size(partial(Layout.row_step, node=node, axes=axes, number=k, axis=axis))
                for axis in range(axes)
            )
            for k in range(count)
        }
        steps["result"] = tuple(_nbytes(node.shape[axis + 1 :], node) for axis in range(axes))
        count_of = len(runs.table)
        numbers: dict[str, Size] = {"row0": 0, "row1": count_of, "boxes": count_of}
        kernel = Move(node.dtype.itemsize, count + 1)
        return [Call(kernel, numbers, places, node.shape[:axes], steps)]

    def _data_place(self, array: Array) -> Place:
        """What never changes, as data of the object file."""
        self._data.append(array.tobytes() or bytes(1))
        return Place("constant", len(self._data) - 1)

    def _wrong_rows(self) -> Place:
        """Where kernels note that a number of a row was wrong."""
        if self._faults is None:
            self._faults = Place("buffer", len(self._buffers))
            self._buffers.append((8,))
        return self._faults

    def _no_faults(self) -> list[Fact]:
        return [] if self._faults is None else [Fact(self._faults, 0, "int64")]

    def _copies(self) -> list[Copy]:
        """Outputs that do not lie in the caller's memory already."""
        copies = []
        for number, node in enumerate(self.outputs):
            if self._direct.get(self.plan.layouts.bases[node]) == number:
                continue
            strides = tuple(
                self._samples.size(partial(Layout.stride, node=node, axis=axis))
                for axis in range(node.ndim)
            )
            goal = Place("output", number)
            made = Copy(self._place(node), goal, node.shape, strides, node.dtype.itemsize)
            copies.append(made)
        return copies


def _batch_of(inputs: Sequence[Node], outputs: Sequence[Node]) -> str:
    """The symbol that all inputs and outputs have as first axis."""
    first = inputs[0].shape[0] if inputs[0].shape else 1
    if not isinstance(first, Dim) or not first.is_symbol:
        raise GraphError(
            f"export: the first axis of input {inputs[0].name} must be the batch, of any size, got "
            f"{first}; make it with md.layers.Input"
        )
    for what, nodes in (("input", inputs), ("output", outputs)):
        for node in nodes:
            if not node.shape or node.shape[0] != first:
                raise GraphError(
                    f"export: the first axis of {what} {node.label} must be {first} as in input "
                    f"{inputs[0].name}, got shape {node.spec}"
                )
    return str(first)


def _check_kernels(plan: NativePlan) -> None:
    for work in plan.work:
        node = work.region.nodes[0]
        where = f" of layer {node.scope}" if node.scope else ""
        if work.region.kind is RegionKind.LOOP:
            raise GraphError(
                f"export: there is a loop of unknown length{where} (md.scan), which cannot be in an object "
                "file; give the number of steps when the graph is made"
            )
        if work.lowered is None:
            raise GraphError(
                f"export: op {node.label}{where} has no native kernel for {node.spec} (predict calls "
                "NumPy there), so it cannot be in an object file; replace it, or export the part of "
                "the model without it: md.Model(inputs=..., outputs=...)"
            )
        if isinstance(work.lowered.kernel, Library):
            raise GraphError(
                f"export: op {node.label}{where} is a call of {work.lowered.kernel.function} of LAPACK or "
                "BLAS, which an object file does not hold; replace it, or export the part of the model "
                "without it: md.Model(inputs=..., outputs=...)"
            )
    for target, _ in plan.program.updates:
        raise GraphError(
            f"export: a prediction gives {target.label} a new value, but an exported function keeps "
            "nothing between calls; export a model without that update"
        )


def _made_for_one_size(node: Node) -> GraphError:
    where = f" of layer {node.scope}" if node.scope else ""
    return GraphError(
        f"export: op {node.label}{where} moves elements by a table that differs between samples or sizes, so "
        "it cannot be in an object file; give inputs fixed shapes, replace it, or export the part of the "
        "model without it: md.Model(inputs=..., outputs=...)"
    )


# --- memory ---------------------------------------------------------------------------------------


def _nbytes(shape: Sequence[Size], node: Node) -> Size:
    return product(shape) * node.dtype.itemsize


def _shared_buffers(lives: Sequence[Life]) -> tuple[list[tuple[Size, ...]], dict[Node, int]]:
    """Sizes of buffers, and which each value lies in: one that nobody needs any more, or a new one."""
    buffers: list[list[Life]] = []
    places: dict[Node, int] = {}
    for life in lives:  # in the order of phases
        free = [k for k, held in enumerate(buffers) if held[-1].last < life.first]
        if free:
            number = min(free, key=lambda k: abs(_largest(buffers[k]) - life.nbytes))
            buffers[number].append(life)
        else:
            number = len(buffers)
            buffers.append([life])
        places[life.node] = number
    return [tuple(_nbytes(h.node.shape, h.node) for h in held) for held in buffers], places


def _largest(lives: Sequence[Life]) -> int:
    return max(life.nbytes for life in lives)
