"""From the kernels of a plan to a `Chain`: products by their places in the network, all else as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from magmadnn.compiler.cuda.clusters.dense_chain import (
    COPIED,
    MOST_HIDDEN,
    MOST_OUTPUTS,
    MOST_SUMS,
    MOST_WIDTH,
    WEIGHTS,
    Chain,
    Ending,
    RowStep,
    Scalar,
)
from magmadnn.compiler.cuda.text.formulas import is_float
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import DTYPES, Formula
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, SCALAR, Operand, Result
from magmadnn.compiler.kernels.rows import COMBINED, Rows, pointwise
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Lowered, Work
from magmadnn.graph.dim import product, substitute
from magmadnn.graph.node import CONSTANT, VARIABLE, Node, follows_sizes, value_for

_QUAD = 4  # features that are copied together
_SUM = COMBINED[0]


class Found(NamedTuple):
    """A chain, and what its parameters are.

    Attributes:
        chain: the kernel.
        weights: number of each of `WEIGHTS` among `NativePlan.variables`; None where there is none.
        variables: likewise of the scalars.
        x: number of the features among the data,
        data: and of what a batch is taken from besides.
        settings: numbers of those that are read.
    """

    chain: Chain
    weights: tuple[int | None, ...]
    variables: tuple[int, ...]
    x: int
    data: tuple[int, ...]
    settings: tuple[int, ...]


class OtherError(Exception):
    """The plan is no chain."""


def _need(truth: object) -> None:
    if not truth:
        raise OtherError


@dataclass
class Matching:
    """A plan on its way to a chain: what values are called, what has been found.

    `found` raises `OtherError` where the plan is no chain.

    Attributes:
        plan: whose kernels are looked at.
        dtypes_of_data: of the arrays that a batch is taken from, by placeholder.
        settings: other placeholders.
        sizes: of symbolic dimensions.
        batch: rows of a batch.
    """

    plan: NativePlan
    dtypes_of_data: Mapping[Node, np.dtype[Any]]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch: int
    names: dict[Node, str] = field(default_factory=dict)
    scalars: dict[Node, Scalar] = field(default_factory=dict)
    data: dict[Node, tuple[str, str, int]] = field(default_factory=dict)
    weights: dict[str, Node] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    updates: dict[Node, str] = field(default_factory=dict)  # new values of weights
    steps: list[RowStep] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)  # of values: scalar, row or last
    columns: dict[str, int] = field(default_factory=dict)  # of values of rows
    dtypes: dict[str, str] = field(default_factory=dict)
    roles: dict[str, Node] = field(default_factory=dict)  # x, h, kept, logits, error, slope
    units: dict[Node, Ending] = field(
        default_factory=dict
    )  # what the first layer gives, until it is known

    def found(self) -> Found:
        """The chain."""
        plan = self.plan
        _need(not plan.loops and plan.program.updates)
        for work in plan.work:
            _need(work.lowered is not None)
            assert work.lowered is not None
            kernel = work.lowered.kernel
            _need(type(kernel) in _HOW)
            _HOW[type(kernel)](self, work, work.lowered)
        _need({"x", "h", "logits", "error", "slope"} <= self.roles.keys())
        return self._assembled()

    # --- values -----------------------------------------------------------------------------------

    def _base(self, node: Node) -> Node:
        return self.plan.layouts.bases[node]

    def _shape(self, node: Node) -> tuple[int, ...]:
        return tuple(int(n) for n in substitute(node.shape, self.sizes) if isinstance(n, int))

    def _size(self, node: Node) -> int:
        return int(np.prod(self._shape(node), dtype=np.int64))

    def _name(self, node: Node, spread: str = "") -> str:
        """The name of a value of rows, or of a scalar."""
        base = self._base(node)
        if base not in self.names:
            self._take_leaf(base)
        name = self.names[base]
        if self.kinds[name] == "row":
            _need(spread != SCALAR and not self.plan.layouts.digits(node))
            _need(
                self._size(node) == self._size(base)
                or (spread == COLUMN and self.columns[name] == 1)
            )
        return name

    def _take_leaf(self, base: Node) -> None:
        size, dtype = self._size(base), base.dtype.name
        _need(dtype in DTYPES)
        name, known = f"v{len(self.names)}", None
        if base.op is CONSTANT and 1 <= size <= MOST_OUTPUTS:
            known = Scalar(name, dtype, "constant", _numbers(base.value))
        elif follows_sizes(base) and size == 1:
            known = Scalar(name, dtype, "constant", _numbers(value_for(base, self.sizes)))
        elif base.op is VARIABLE and not base.shape:
            _need(dtype in COPIED)
            known = Scalar(name, dtype, "variable")
        elif base in self.settings:
            _need(size == 1 and dtype == "float64")
            known = Scalar(name, dtype, "setting")
        if known is not None:
            self.scalars[base] = known
            self._know(base, name, "scalar", size)
            return
        _need(self.dtypes_of_data.get(base) == base.dtype and self._rows_of(base))
        columns = size // self.batch
        _need(dtype in COPIED and columns <= MOST_OUTPUTS)
        self.data[base] = (name, dtype, columns)
        self._know(base, name, "row", columns)

    def _rows_of(self, node: Node) -> bool:
        """Whether a value has rows of the batch."""
        shape = self._shape(node)
        return bool(shape) and shape[0] == self.batch and product(node.shape) != 0

    def _know(self, node: Node, name: str, kind: str, columns: int) -> None:
        self.names[node], self.kinds[name], self.columns[name] = name, kind, columns
        self.dtypes[name] = node.dtype.name

    # --- products ---------------------------------------------------------------------------------

    def gemm(self, work: Work, lowered: Lowered) -> None:
        """One of the five products."""
        kernel = lowered.kernel
        assert isinstance(kernel, Gemm)
        plain = (kernel.load_a, kernel.load_b, kernel.shared, kernel.joined)
        _need(kernel.dtype == "float32" and not any(plain))
        _need(kernel.epilogue is None or isinstance(kernel.epilogue, Finish))
        reads = {slot: node for slot, node, _ in lowered.reads}
        writes = {slot: self._base(node) for slot, node, _ in lowered.writes}
        finish = kernel.epilogue or Finish((), (), ("product",))
        assert isinstance(finish, Finish)
        a, b = self._base(reads["a"]), self._base(reads["b"])
        _need(self._size(a) == self._size(reads["a"]) and self._size(b) == self._size(reads["b"]))
        if kernel.transpose_a:
            _need(not kernel.transpose_b)
            self._gradient(finish, reads, writes, a, b)
            return
        formulas = {result.name: result.formula for result in finish.results}
        formulas |= {} if kernel.unread else {"c": finish.formula}
        if kernel.transpose_b:
            self._is("error", a)
            _need(b is self.weights.get("w2") and list(formulas) == ["c"])
            full = {role: node for role, node in self.roles.items() if role in ("h", "kept")}
            self._take("slope", writes["c"], self._ending(finish, finish.formula, reads, full))
        elif "w1" not in self.weights:
            _need(self.dtypes_of_data.get(a) == np.float32)
            self._is("x", a)
            self._weigh("w1", b)
            for slot, formula in formulas.items():
                _need(self._shape(writes[slot]) == self._shape(writes[next(iter(formulas))]))
                self.units[writes[slot]] = self._ending(finish, formula, reads, {}, "b1")
        else:
            self._second(finish, formulas, lowered, b, a)

    def _second(
        self, finish: Finish, formulas: dict[str, Formula], lowered: Lowered, b: Node, a: Node
    ) -> None:
        """The second layer's product: what is made of it is computed as other values of rows are."""
        _need("w2" not in self.weights and a in self.units and len(self.units) <= 2)
        self._weigh("w2", b)
        self._take("h", a, self.units.pop(a), "activation")
        for node, ending in self.units.items():
            self._take("kept", node, ending)
        self.roles["logits"] = self._base(lowered.writes[0][1])
        spreads = {slot: (node, spread) for slot, node, spread in lowered.reads}
        columns, names = self._shape(self.roles["logits"])[-1], []
        for operand in finish.operands:
            node, spread = spreads[operand.name]
            if operand.spread == ROW:
                self._weigh("b2", self._base(node))
                names.append("b2")
            else:
                names.append(self._name(node, spread))
        dtypes = {result.name: result.dtype for result in finish.results} | {"c": "float32"}
        results = tuple(Result(slot, dtypes[slot], formula) for slot, formula in formulas.items())
        others = [(o, n) for o, n in zip(finish.operands, names, strict=True) if n != "b2"]
        self._check_spreads(others, "rows", columns)
        writes = tuple(write for write in lowered.writes if write[0] in formulas)
        self._add(pointwise(finish.operands, *results), "rows", columns, tuple(names), writes)

    def _gradient(
        self, finish: Finish, reads: dict[str, Node], writes: dict[str, Node], a: Node, b: Node
    ) -> None:
        """The gradient of weights, with their update."""
        weight = "w1" if a is self.roles.get("x") else "w2"
        _need(a is self.roles.get("x" if weight == "w1" else "h") and weight in self.weights)
        if weight == "w1":
            _need(b is self.roles.get("slope"))
        else:
            self._is("error", b)
        formulas = {result.name: result.formula for result in finish.results}
        formulas = formulas or {"c": finish.formula}
        _need(len(formulas) == 1)
        ((slot, formula),) = formulas.items()
        self._update(
            weight,
            writes[slot],
            self._ending(finish, formula, reads, {weight: self.weights[weight]}),
        )

    def _ending(
        self, kernel: Finish | Columns, formula: Formula, reads: dict[str, Node], full: dict[str, Node],
        bias: str = "",
    ) -> Ending:  # fmt: skip
        """An ending, whose operands are scalars, `full` ones of the same place, and a bias."""
        names = []
        for operand in kernel.operands:
            node = reads[operand.name]
            base = self._base(node)
            own = next((name for name, given in full.items() if given is base), None)
            if own is not None:
                _need(operand.spread in (FULL, ROW) and self._size(node) == self._size(base))
                names.append(own)
            elif operand.spread == ROW and bias:
                self._weigh(bias, base)
                names.append(bias)
            else:
                name = self._name(node, SCALAR)
                _need(operand.spread == SCALAR and self.kinds[name] == "scalar")
                names.append(name)
        return Ending(formula, tuple(names))

    def _is(self, role: str, node: Node) -> None:
        _need(self.roles.setdefault(role, node) is node)

    def _take(self, role: str, node: Node, ending: Ending, key: str = "") -> None:
        _need(role not in self.roles and node not in self.names)
        self.roles[role] = node
        self.endings[key or role] = ending

    def _weigh(self, name: str, node: Node) -> None:
        _need(node.op is VARIABLE and node.dtype.name == "float32")
        _need(self.weights.setdefault(name, node) is node)

    def _update(self, weight: str, value: Node, ending: Ending) -> None:
        _need(weight not in self.endings and value not in self.updates)
        self.endings[weight] = ending
        self.updates[value] = weight

    # --- fused kernels ----------------------------------------------------------------------------

    def bias(self, work: Work, lowered: Lowered) -> None:
        """The update of a bias, by a sum over the batch's rows."""
        kernel = lowered.kernel
        assert isinstance(kernel, Columns)
        _need(
            not (kernel.in_pieces or kernel.joins) and len(kernel.reduce) == len(kernel.store) == 1
        )
        (reduction,), (result,) = kernel.reduce, kernel.store
        _need(
            reduction.kind == _SUM
            and reduction.dtype == "float32"
            and reduction.formula[0] == "argument"
        )
        reads = {slot: node for slot, node, _ in lowered.reads}
        summed = kernel.operands[reduction.formula[1]]
        node = reads[summed.name]
        base = self._base(node)
        _need(summed.spread == FULL and self._size(node) == self._size(base))
        weight = "b1" if base is self.roles.get("slope") else "b2"
        if weight == "b2":
            self._is("error", base)
        _need(weight in self.weights)
        full = {weight: self.weights[weight], "product": base}
        ending = self._ending(kernel, result.formula, reads, full)
        self._update(weight, self._base(lowered.writes[0][1]), ending)

    def rows(self, work: Work, lowered: Lowered) -> None:
        """What is computed of rows, of scalars, or of all rows as one."""
        kernel = lowered.kernel
        assert isinstance(kernel, Rows)
        _need(
            not kernel.blocked
            and all(o.spread in (FULL, ROW, COLUMN, SCALAR) for o in kernel.operands)
        )
        region = substitute((*work.region.rows, work.region.columns), self.sizes)
        *outer, last = (int(n) for n in region if isinstance(n, int))
        rows, columns = int(np.prod(outer, dtype=np.int64)), last
        reads = {slot: (node, spread) for slot, node, spread in lowered.reads}
        names = tuple(self._name(*reads[operand.name]) for operand in kernel.operands)
        kinds = {self.kinds[name] for name in names}
        if rows == 1 and columns <= MOST_OUTPUTS:
            kind = "last" if "last" in kinds else "scalars"
            _need("row" not in kinds and (columns == 1 or kind == "last"))
        elif rows == self.batch:
            kind = "rows"
        else:
            kind = "batch"
            _need(rows == 1 and columns % self.batch == 0)
            columns //= self.batch
            _need(("columns",) not in _leaves(kernel) and ("column",) not in _leaves(kernel))
            stages = kernel.stages
            _need(len(stages) == 1 or not any(stage.reduce for stage in stages))
            _need(all(r.kind == _SUM and is_float(r.dtype) for s in stages for r in s.reduce))
            _need(not (stages[0].reduce and stages[0].store))
        _need(kind == "last" or "last" not in kinds)
        _need(columns <= MOST_OUTPUTS)
        self._check_spreads(list(zip(kernel.operands, names, strict=True)), kind, columns)
        self._add(kernel, kind, columns, names, lowered.writes)

    def _add(
        self, kernel: Rows, kind: str, columns: int, reads: tuple[str, ...],
        written: Sequence[tuple[str, Node, str]],
    ) -> None:  # fmt: skip
        writes = []
        for slot, node, spread in written:
            base, name = self._base(node), f"v{len(self.names)}"
            _need(base not in self.names and base.dtype.name in DTYPES)
            summed = kind == "batch" and spread == COLUMN
            own = "last" if summed or kind == "last" else "scalar" if kind == "scalars" else "row"
            self._know(base, name, own, 1 if spread == COLUMN else columns)
            writes.append((slot, name))
        self.steps.append(RowStep(kernel, kind, columns, reads, tuple(writes)))

    def _check_spreads(self, operands: list[tuple[Operand, str]], kind: str, columns: int) -> None:
        """Whether values have an element for each element of the kernel, or for each row."""
        for operand, name in operands:
            if self.kinds[name] != "row":
                _need(operand.spread == SCALAR or kind in ("scalars", "last"))
                _need(self.columns[name] in (1, columns if operand.spread == FULL else 1))
                continue
            wide = operand.spread == FULL or (operand.spread == ROW and kind == "batch")
            _need(wide or (operand.spread == COLUMN and kind == "rows"))
            _need(self.columns[name] == (columns if wide else 1))

    # --- the result -------------------------------------------------------------------------------

    def _assembled(self) -> Found:
        plan, roles = self.plan, self.roles
        weights = {node: name for name, node in self.weights.items()}
        for target, value in plan.program.updates:
            base = self._base(value)
            if target in weights:
                _need(self.updates.pop(base, None) == weights[target])
                continue
            if target not in self.scalars:
                self._name(target)
            name = self._name(value)
            _need(self.kinds[name] == "scalar" and self.dtypes[name] == target.dtype.name)
            known = self.scalars[target]
            _need(known.kind == "variable")
            self.scalars[target] = Scalar(known.name, known.dtype, "variable", update=name)
        _need(not self.updates and "w1" in self.endings and "w2" in self.endings)
        found = tuple((self._name(o), o.dtype.name, self._size(o)) for o in plan.program.outputs)
        for name, dtype, count in found:
            _need(
                self.kinds[name] in ("last", "scalar")
                and dtype in COPIED
                and self.columns[name] == count
            )
        _need(roles["error"] in self.names)
        (_, width), (_, hidden) = self._shape(roles["x"]), self._shape(roles["h"])
        outputs = self._shape(roles["logits"])[-1]
        chain = Chain(
            width, hidden, outputs, self.batch, tuple(self.data.values()), tuple(self.scalars.values()),
            tuple(self.steps), self.endings["activation"], self.endings.get("kept"),
            self.names[roles["error"]], self.endings["slope"],
            tuple(self.endings.get(name) for name in WEIGHTS), found,
        )  # fmt: skip
        _need(
            not width % _QUAD
            and width <= MOST_WIDTH
            and hidden <= MOST_HIDDEN
            and outputs <= MOST_OUTPUTS
        )
        _need(self.columns[chain.error] == outputs and self.dtypes[chain.error] == "float32")
        _need(chain.sums <= MOST_SUMS)
        return self._bound(chain)

    def _bound(self, chain: Chain) -> Found:
        variables, data = list(self.plan.variables), list(self.dtypes_of_data)
        numbers = {name: variables.index(node) for name, node in self.weights.items()}
        scalars = [node for node, scalar in self.scalars.items() if scalar.kind == "variable"]
        settings = [node for node, scalar in self.scalars.items() if scalar.kind == "setting"]
        known = list(self.settings)
        return Found(
            chain, tuple(numbers.get(name) for name in WEIGHTS),
            tuple(variables.index(node) for node in scalars), data.index(self.roles["x"]),
            tuple(data.index(node) for node in self.data), tuple(known.index(node) for node in settings),
        )  # fmt: skip


_HOW: dict[type, Callable[[Matching, Work, Lowered], None]] = {
    Gemm: Matching.gemm,
    Rows: Matching.rows,
    Columns: Matching.bias,
}


def _numbers(value: object) -> tuple[float, ...]:
    return tuple(number.item() for number in np.asarray(value).reshape(-1))


def _leaves(kernel: Rows) -> set[Formula]:
    """All parts of its formulas."""
    found: set[Formula] = set()
    for stage in kernel.stages:
        reduced = [reduction.formula for reduction in stage.reduce]
        stored = [result.formula for result in (*stage.store, *stage.store_row)]
        for formula in [*reduced, *stored, *(f for _, f in stage.then)]:
            _gather(formula, found)
    return found


def _gather(formula: Formula, found: set[Formula]) -> None:
    found.add(formula)
    for part in formula[1:]:
        if isinstance(part, tuple):
            _gather(part, found)
