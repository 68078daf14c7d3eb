"""From a plan to what an object file needs: every size as a polynomial, every address as a place.

A plan is laid out for given sizes. What an argument block holds is therefore looked up for several sets of
sizes, and the polynomials through them are found and checked on further sets. So this file knows how
layouts behave, and not what any kernel's arguments mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.moves import FAULTS
from magmadnn.compiler.lower import product_of
from magmadnn.compiler.native import NativePlan, Work
from magmadnn.compiler.passes.plan_memory import Life
from magmadnn.compiler.regions import RegionKind
from magmadnn.compiler.select import selected
from magmadnn.compiler.standalone import Call, Copy, Fact, Place, Standalone
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Dim, Size, dims_of, product, substitute
from magmadnn.graph.node import PLACEHOLDER, SIZE, VARIABLE, Node
from magmadnn.graph.op import Array, Op

from .native import Instance
from .tasks import slot_values

_DEGREE = 3  # of polynomials: a product of three unknown sizes
_CHECKS = 4  # sets of sizes beyond those that determine the polynomials
_FIRST_SIZE = 11  # sizes of 1 and 2 are laid out like others by chance


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
        self.plan, self.inputs = plan, list(inputs)
        self.outputs = list(plan.program.outputs)
        self.batch = _batch_of(self.inputs, self.outputs)
        _check_kernels(plan)
        found = {s for n in self.inputs for d in dims_of(n.shape) for s in d.symbols}
        self.symbols = tuple(sorted(found - {self.batch}))
        self._samples = _Samples(plan, (self.batch, *self.symbols))
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
        calls = tuple(self._call(work) for work in self.plan.work)
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
            tuple(dim for dim in dims if not dim.never_negative),
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

    def _call(self, work: Work) -> Call | Copy:
        lowered = work.lowered
        assert lowered is not None
        if work.region.kind is RegionKind.MOVE:
            return self._movement(work.region.nodes[0])
        nodes = {slot: node for slot, node, _ in (*lowered.reads, *lowered.writes)}
        places = {slot: self._place(node) for slot, node in nodes.items()}
        if FAULTS in lowered.kernel.slots:
            places[FAULTS] = self._wrong_rows()
        numbers = {
            slot: self._samples.size(partial(_slot, work=work, slot=slot))
            for slot in lowered.kernel.slots
            if slot not in places
        }
        # A size that the caller gives counts as many: the kernel must do for all of them.
        kernel = lowered.kernel
        if isinstance(kernel, Gemm):
            kernel = selected(kernel, numbers)
        return Call(kernel, numbers, places)

    def _movement(self, node: Node) -> Copy:
        """A copy of one value in another layout."""
        source = node.inputs[0] if node.inputs else node
        seen = self._samples.first.walked(node)
        if seen is None:
            raise _made_for_one_size(node)
        place = self._place(source)
        offset = self._samples.size(partial(_walk_offset, node=node))
        shape = node.shape if seen.shape == self._samples.first.arrays[node].shape else source.shape
        strides = tuple(
            self._samples.size(partial(_walk_stride, node=node, axis=axis))
            for axis in range(seen.ndim)
        )
        origin = replace(place, offset=place.offset + offset)
        return Copy(origin, self._place(node), shape, strides, node.dtype.itemsize)

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
                self._samples.size(partial(_stride, node=node, axis=axis))
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
        if work.lowered is None:
            raise GraphError(
                f"export: op {node.label}{where} has no native kernel for {node.spec} (predict calls "
                "NumPy there), so it cannot be in an object file; replace it, or export the part of "
                "the model without it: md.Model(inputs=..., outputs=...)"
            )
        if work.region.kind is RegionKind.GEMM and product_of(work.region).ndim > 2:
            raise _made_for_one_size(node)
    for target, _ in plan.program.updates:
        raise GraphError(
            f"export: a prediction gives {target.label} a new value, but an exported function keeps "
            "nothing between calls; export a model without that update"
        )


def _made_for_one_size(node: Node) -> GraphError:
    where = f" of layer {node.scope}" if node.scope else ""
    return GraphError(
        f"export: op {node.label}{where} runs by a table that is made for one batch size, so it cannot be in "
        "an object file; replace it, or export the part of the model without it: "
        "md.Model(inputs=..., outputs=...)"
    )


# --- sizes ----------------------------------------------------------------------------------------


class _Sample:
    """The plan laid out for one set of sizes."""

    def __init__(self, plan: NativePlan, sizes: Mapping[str, int]) -> None:
        self.plan, self.sizes = plan, sizes
        self.arrays = Instance(plan, sizes, prepared=False).arrays
        self.values = {work: slot_values(work, self.arrays, sizes) for work in plan.work}

    def offset(self, node: Node) -> int:
        """Bytes from the beginning of the memory in which a value lies to the value."""
        base = self.plan.layouts.bases[node]
        return int(self.arrays[node].ctypes.data - self.arrays[base].ctypes.data)

    def walked(self, node: Node) -> Array | None:
        """The operand of a movement, seen so that its elements come in the order of the result's."""
        if len(node.inputs) != 1:
            return None
        assert isinstance(node.op, Op)
        source = self.arrays[node.inputs[0]]
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        result = np.asarray(node.op.numpy(source, **attributes))
        if np.may_share_memory(result, source):
            return result
        numbers = np.arange(source.size).reshape(source.shape)
        same = np.array_equal(np.ravel(node.op.numpy(numbers, **attributes)), numbers.ravel())
        return source if same else None


def _walk_offset(sample: _Sample, node: Node) -> int:
    seen = sample.walked(node)
    assert seen is not None
    return int(seen.ctypes.data - sample.arrays[node.inputs[0]].ctypes.data)


def _walk_stride(sample: _Sample, node: Node, axis: int) -> int:
    seen = sample.walked(node)
    assert seen is not None
    return int(seen.strides[axis])


def _slot(sample: _Sample, work: Work, slot: str) -> int:
    return int(sample.values[work][slot])


def _stride(sample: _Sample, node: Node, axis: int) -> int:
    return int(sample.arrays[node].strides[axis])


class _Samples:
    """Layouts for several sets of sizes, and the polynomials through numbers that they give."""

    def __init__(self, plan: NativePlan, symbols: Sequence[str]) -> None:
        degrees = range(_DEGREE + 1)
        self._monomials = [
            tuple(itertools.chain.from_iterable([s] * d for s, d in zip(symbols, ds, strict=True)))
            for ds in itertools.product(degrees, repeat=len(symbols))
            if sum(ds) <= _DEGREE
        ]
        count = len(self._monomials) + _CHECKS
        draw = np.random.default_rng(1)
        first = _FIRST_SIZE + _shortest(plan)
        columns = {s: first + draw.permutation(3 * count)[:count] for s in symbols}
        self._sizes = [{s: int(columns[s][k]) for s in symbols} for k in range(count)]
        self._layouts = [_Sample(plan, sizes) for sizes in self._sizes]
        self.first = self._layouts[0]
        self._inverse = _inverted(self._rows(len(self._monomials)))
        self.lives = plan.arena(self._sizes[0]).lives

    def _rows(self, count: int) -> list[list[int]]:
        """The value of each monomial for the first so many sets of sizes."""
        return [
            [int(np.prod([sizes[s] for s in m], dtype=np.int64)) for m in self._monomials]
            for sizes in self._sizes[:count]
        ]

    def size(self, number: Any) -> Size:
        """`number(layout)` as a polynomial.

        Raises:
            GraphError: if it is none.
        """
        found = [int(number(layout)) for layout in self._layouts]
        if len(set(found)) == 1:
            return found[0]
        terms = {
            monomial: sum(a * b for a, b in zip(row, found, strict=False))
            for monomial, row in zip(self._monomials, self._inverse, strict=True)
        }
        if any(c.denominator != 1 for c in terms.values()):
            raise _no_polynomial()
        total: Size = 0
        for monomial, coefficient in terms.items():
            total = total + int(coefficient) * product([Dim.symbol(s) for s in monomial])
        if any(_bound(total, s) != f for s, f in zip(self._sizes, found, strict=True)):
            raise _no_polynomial()
        return total


def _shortest(plan: NativePlan) -> int:
    """What sizes must be above, so that no dimension such as `time - 3` is negative."""
    nodes = plan.program.nodes()
    dims = (d for n in nodes for d in dims_of((n.shape, *n.attributes.values())))
    return max((-c for d in dims for c in d.terms.values() if c < 0), default=0)


def _bound(size: Size, sizes: Mapping[str, int]) -> int:
    return size.bind(sizes) if isinstance(size, Dim) else size


def _no_polynomial() -> GraphError:
    return GraphError(
        "export: memory is laid out in a way that no polynomial over the sizes tells; give the Input a "
        "fixed shape"
    )


def _inverted(rows: list[list[int]]) -> list[list[Fraction]]:
    """The inverse of a matrix, exactly."""
    n = len(rows)
    work = [
        [Fraction(x) for x in row] + [Fraction(i == k) for i in range(n)]
        for k, row in enumerate(rows)
    ]
    for k in range(n):
        pivot = next(i for i in range(k, n) if work[i][k])
        work[k], work[pivot] = work[pivot], work[k]
        work[k] = [x / work[k][k] for x in work[k]]
        for i in range(n):
            if i != k and work[i][k]:
                factor = work[i][k]
                work[i] = [x - factor * y for x, y in zip(work[i], work[k], strict=True)]
    return [row[n:] for row in work]


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
