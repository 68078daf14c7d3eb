"""Plans that compute on operands where they lie, and write results where these are wanted.

No graph, which would hold addresses: what there is to launch is begun call by call, in order, with the
addresses of now (`nodes/stand_ins.py`). Operands are not copied. A result is, if it is an operand or a
constant, or shares memory with another value. Variables are updated behind that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.backends.cuda.engine import (
    ArrayNode,
    CopyNode,
    HostNode,
    MatrixNode,
    ProductNode,
    Replay,
    ReplayNode,
)
from magmadnn.backends.cuda.nodes.stand_ins import (
    ALIGNMENT,
    MOST_STAND_INS,
    number_of,
    stand_in,
)
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.data.arrays import finite_launches, is_finite
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.launches import may_fault
from magmadnn.runtime.variables import tensor_of

from .graphs import cut_at_calls, merged, nodes_of
from .instance import Instance

Fed = Mapping[Node, Array | OnDevice]
_WORD = 8  # bytes: whether something is wrong
# launches of a plan with sizes: beside more of them copies of operands around a graph are little
_MOST_LAUNCHES = 64


def lies_well(values: Array | OnDevice) -> bool:
    """Whether an operand can be computed with where it lies."""
    return isinstance(values, OnDevice) and values.address % ALIGNMENT == 0


def are_finite(values: Array | OnDevice) -> bool:
    """Whether no element is NaN or infinite, on whichever side."""
    return is_finite(values) if isinstance(values, OnDevice) else bool(np.isfinite(values).all())


def direct(
    plan: NativePlan,
    device: int,
    tensor_float: bool,
    operands: Mapping[Node, bool],
    finite: bool,
    sizes: Mapping[str, int] | None = None,
) -> Direct | None:
    """A plan that computes so; None for one that cannot.

    Args:
        plan: what is computed.
        device: number of the device.
        tensor_float: whether products of float32 may be computed in TF32.
        operands: what it is fed with, and whether that lies well; others are copied.
        finite: whether NaN and infinity in operands are wrong.
        sizes: of symbolic dimensions; None for a plan of fixed sizes that has no variables.

    Raises:
        OutOfMemoryError: if there is no room for what it needs in between.
    """
    count = len(operands) + len(plan.program.outputs)
    if plan.loops or count > MOST_STAND_INS or not _can_write(plan, sizes is not None):
        return None
    apart = frozenset[int]()
    while True:
        made = Direct(plan, device, tensor_float, operands, finite, apart, sizes or {})
        if made.layout.variables and sizes is None:
            return None
        if not made.can_replay or (sizes is not None and made.launches > _MOST_LAUNCHES):
            return None
        if not made.fixed:
            return made
        apart |= made.fixed
        del made  # and its memory


class Direct:
    """See `direct`. Operands are numbered from 0 on, then results.

    Attributes:
        layout: where what is in between lies.
        can_replay: whether all that is launched can be begun so.
        launches: how many there are.
        fixed: numbers of those whose addresses a launch takes from the device's memory.

    Args:
        plan, device, tensor_float, operands, finite: as for `direct`.
        apart: numbers of those that are to have memory of the plan.
        sizes: of symbolic dimensions.
    """

    def __init__(
        self,
        plan: NativePlan,
        device: int,
        tensor_float: bool,
        operands: Mapping[Node, bool],
        finite: bool,
        apart: frozenset[int],
        sizes: Mapping[str, int],
    ) -> None:
        self._plan, self._first = plan, len(operands)
        elsewhere = {
            node: stand_in(k)
            for k, (node, is_there) in enumerate(operands.items())
            if is_there and k not in apart
        }
        self._operands = [(node, node in elsewhere) for node in operands]
        for number, base in self._own_memory():
            if self._first + number not in apart:
                elsewhere[base] = stand_in(self._first + number)
        self._instance = Instance(plan, sizes, device, tensor_float, elsewhere)
        self.layout, self._engine = self._instance.layout, self._instance.engine
        used = self.layout.frames
        self._looked = [n for n, is_there in operands.items() if is_there and finite and n in used]
        self._checked = {n for n in operands if finite and n not in self._looked}
        self._copied = {n for n in operands if n in used and n not in elsewhere}
        self.is_whole = not (self._checked or self._copied)
        self._faulty = may_fault(plan) or bool(self._looked)
        self._word = device_memory(device).pinned(_WORD).view(np.int64)
        self._variables = self.layout.begin()
        nodes = self._nodes()
        fresh = self._instance.fresh
        self.can_replay = all(isinstance(node, ReplayNode) for node in nodes)
        self.launches = len(nodes)
        self.can_replay &= all(self._instance.can_copy(t, v) for t, v in fresh)
        self.fixed = frozenset[int]().union(*map(_fixed_in, nodes))
        self._replay: Replay | None = None
        if self.can_replay and not self.fixed:
            self._replay = self._engine.replay(nodes)

    def run(self, fed: Fed, goals: Sequence[int]) -> bool:
        """Compute, with results at addresses on the device; False where something is wrong.

        Args:
            fed: the operands, those that lie well as when this was made.
            goals: where results are wanted, at multiples of `ALIGNMENT`.
        """
        if self._checked and not all(are_finite(fed[node]) for node in self._checked):
            return False
        return self.prepared(fed, goals)()

    def prepared(self, fed: Fed, goals: Sequence[int]) -> Callable[[], bool]:
        """The same but for looks at operands on the host, to be called when operands have their values."""
        there: Mapping[Node, Any] = fed
        places = [there[node].address if is_there else 0 for node, is_there in self._operands]
        places += goals
        if not self._copied:
            return partial(self.launch, places)

        def run() -> bool:
            for node in self._copied:
                self.layout.write(node, fed[node])
            return self.launch(places)

        return run

    def launch(self, places: Sequence[int]) -> bool:
        """The same where `is_whole`: all operands are computed with where they lie.

        Args:
            places: addresses of operands and results.
        """
        if self._variables and (now := self.layout.begin()) != self._variables:
            self._replay, self._variables = None, now
        if self._replay is None or self._instance.can_specialise():
            self._replay = self._engine.replay(self._nodes())
        self._replay.launch(places)
        if self._plan.program.updates:
            self.layout.written()
            for target, _ in self._instance.fresh:
                tensor_of(target).memory.device_pointer(write=True)
        if not self._faulty:
            return True
        self._engine.wait()
        if not self._word[0]:
            return True
        self.layout.copy_in(self.layout.faults, np.zeros(1, np.int64))
        return False

    def _own_memory(self) -> Iterator[tuple[int, Node]]:
        """Results, by their numbers among them, that are computed, in memory that is theirs; and its value.

        Of several with the same memory the last one has it.
        """
        plan = self._plan
        for number, node in enumerate(plan.program.outputs):
            base = plan.layouts.bases[node]
            if isinstance(base.op, Op) and base not in plan.inside:
                yield number, base

    def _nodes(self) -> list[ReplayNode]:
        """What is launched, in order: looks at operands, the plan, copies of results and of the word."""
        layout, engine, items = self.layout, self._engine, self._instance.items
        looks = [
            Item(launch, (), ())
            for node in self._looked
            for launch in finite_launches(self._seen(node), layout.faults)
        ]
        parts = [looks]
        for part in cut_at_calls(self._instance.all_launches()):
            parts.append(list(part) if items.small else merged(part, items.chip).items)
        nodes = list[Any]()  # of another kind as well where not `can_replay`
        for some in parts:
            if some and isinstance(some[0].what, ArrayNode | HostNode):
                nodes.append(some[0].what)
            else:
                nodes += nodes_of(engine, some, [()] * len(some))
        for number, node in enumerate(self._plan.program.outputs, self._first):
            base = self._plan.layouts.bases[node]
            source, nbytes = layout.base_address(base), layout.frames[base].nbytes
            if number_of(source) != number and nbytes:
                nodes.append(CopyNode(stand_in(number), source, nbytes))
        if self._faulty:
            nodes.append(CopyNode(self._word.ctypes.data, layout.faults, _WORD))
        for target, value in self._instance.fresh:
            base = self._plan.layouts.bases[value]
            if nbytes := layout.frames[base].nbytes:
                goal = layout.variable(target)
                nodes.append(CopyNode(goal, layout.base_address(base), nbytes))
        return nodes

    def _seen(self, node: Node) -> OnDevice:
        """An operand, where it lies or is copied to."""
        layout = self.layout
        frame = layout.frames[node]
        return OnDevice(frame.shape, node.dtype, layout.base_address(node), layout.device, None)


def _can_write(plan: NativePlan, has_variables: bool) -> bool:
    """Whether results can be copied, and new values written, behind all that is computed."""
    updates, bases = plan.program.updates, plan.layouts.bases
    if not updates:
        return True
    if not has_variables or may_fault(plan):  # which is known too late then
        return False
    written = {target for target, _ in updates}
    given = [bases[node] for node in plan.program.outputs]
    return not any(node in written or node in plan.in_place for node in given)


def _fixed_in(node: Any) -> set[int]:
    """The numbers of memory whose address a node takes from the device's memory, where nobody can change it.

    So it is with tables of matrices, and with what is added to a product.
    """
    if isinstance(node, MatrixNode):
        return _numbers(node.operands) if node.count > 1 else set()
    if isinstance(node, ProductNode):
        return _numbers((node.bias, node.scales))
    return set()


def _numbers(value: Any) -> set[int]:
    """The numbers of all memory that addresses, in tuples of any depth, stand for."""
    if isinstance(value, tuple):
        return set[int]().union(*map(_numbers, value))
    number = number_of(value)
    return set() if number is None else {number}
