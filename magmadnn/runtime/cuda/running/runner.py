"""Running a NativePlan on a device: laid out once for each set of sizes, then graphs are launched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import Engine
from magmadnn.backends.cuda.nodes.stand_ins import ALIGNMENT
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import ALONE, Agreement
from magmadnn.runtime.cuda.schedule.launches import runs_on_device
from magmadnn.runtime.step_memory import StepMemory

from .direct import Direct, Fed, are_finite, direct, lies_well
from .instance import Instance, Limits
from .memory_needs import memory_on_device

Value = TypeVar("Value")

# sets of sizes whose memory is kept: whole and partial batch, validation, prediction
_LAYOUTS_KEPT = 8


class CudaRunner:
    """A plan and the layouts that it was run with lately.

    Args:
        plan: what is run.
        device: number of the device.
        tensor_float: whether products of float32 may be computed in TF32.
    """

    def __init__(self, plan: NativePlan, device: int, tensor_float: bool = False) -> None:
        self.plan, self.device, self.tensor_float = plan, device, tensor_float
        self._instances: OrderedDict[tuple[tuple[str, int], ...], Instance] = OrderedDict()
        self._latest: Instance | None = None
        self._directs: dict[tuple[bool, ...], Direct | None] = {}  # by which operands lie well
        # the same of runs with sizes, by these and by which operands lie well
        self._sized: OrderedDict[tuple[Any, ...], Direct | None] = OrderedDict()
        self.direct_runs = 0  # of those

    @property
    def engine(self) -> Engine:
        """The device."""
        return device_engine(self.device)

    def instance(self, sizes: Mapping[str, int]) -> Instance:
        """The layout for these sizes."""
        if self._latest is not None and self._latest.layout.sizes == sizes:
            return self._latest
        key = tuple(sorted(sizes.items()))
        if key not in self._instances:
            self._instances[key] = Instance(self.plan, sizes, self.device, self.tensor_float)
            if len(self._instances) > _LAYOUTS_KEPT:
                self._instances.popitem(last=False)
        self._instances.move_to_end(key)
        self._latest = self._instances[key]
        return self._latest

    @property
    def instances(self) -> list[Instance]:
        """All layouts that it has."""
        return list(self._instances.values())

    @property
    def inner(self) -> CudaRunner:
        """What slices run with in its place: itself."""
        return self

    def inside(self, values: Mapping[Node, Value]) -> Mapping[Node, Value]:
        """Values of placeholders by the nodes that these are there: the same."""
        return values

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Compile, choose algorithms and make graphs for these sizes now, in place of at the first run."""
        self.instance(sizes).prepare()

    def run(
        self,
        fed: Mapping[Node, Array],
        sizes: Mapping[str, int],
        guard: bool = False,
        workers: Agreement = ALONE,
    ) -> list[Array] | None:
        """One run; None where `guard` finds NaN or infinity, and then nothing is updated."""
        return self.instance(sizes).run(fed, guard, workers)

    def run_into(self, fed: Fed, goals: Sequence[int], finite: bool = False) -> bool:
        """A run of a plan of fixed sizes, without updates, whose outputs are written to addresses there.

        Nothing of them comes to the host. False where something is wrong.

        Args:
            fed: its operands; where these lie on the device they are not copied, if they lie well.
            goals: the addresses.
            finite: whether NaN and infinity in operands are wrong; the same in all runs.
        """
        made = self.direct({node: lies_well(values) for node, values in fed.items()}, finite)
        if made is not None:
            return made.run(fed, goals)
        if finite and not all(map(are_finite, fed.values())):
            return False
        return self.instance({}).run_into(fed, goals)

    def into(self, fed: Fed, sizes: Mapping[str, int], goals: Sequence[int]) -> Callable[[], bool]:
        """A run whose outputs are written to addresses there, on operands where they lie if that can be.

        It begins when what this gives is called, once, which says False where something is wrong: nothing is
        updated then. Nothing of the outputs comes to the host.
        """
        if not any(goal % ALIGNMENT for goal in goals):
            there = [lies_well(values) for values in fed.values()]
            key = (*sizes.items(), *fed, *there)
            if key not in self._sized:
                how = self.plan, self.device, self.tensor_float
                operands = dict(zip(fed, there, strict=True))
                can = any(there) or not there
                self._sized[key] = direct(*how, operands, False, sizes) if can else None
                if len(self._sized) > _LAYOUTS_KEPT:
                    self._sized.popitem(last=False)
            if (made := self._sized[key]) is not None:
                self.direct_runs += 1
                return made.prepared(fed, goals)
        return partial(self.instance(sizes).run_into, fed, goals)

    def direct(self, operands: Mapping[Node, bool], finite: bool) -> Direct | None:
        """What computes with those operands where they lie of which this is said; None where nothing can."""
        there = tuple(operands.values())
        if there not in self._directs:
            self._directs[there] = direct(
                self.plan, self.device, self.tensor_float, operands, finite
            )
        return self._directs[there]

    def all_direct(self) -> Direct | None:
        """What was made for operands that all lie well, if it copies none."""
        found = next((made for there, made in self._directs.items() if all(there)), None)
        return found if found is not None and found.is_whole else None

    @property
    def are_whole(self) -> list[bool]:
        """Of each output whether it is one block of memory, as it is: what `run_into` can copy."""
        layouts = self.plan.layouts
        outputs = self.plan.program.outputs
        return [layouts.is_whole(n) and layouts.bases[n].dtype == n.dtype for n in outputs]

    @property
    def stays_on_device(self) -> bool:
        """Whether nothing is computed by NumPy, and `run_into` can copy all outputs."""
        works = self.plan.work
        return all(self.are_whole) and all(runs_on_device(self.plan, work) for work in works)

    @property
    def nbytes(self) -> int:
        """Memory on the device that is kept for the next run."""
        layouts = [
            one.layout
            for some in (self._instances, self._directs, self._sized)
            for one in some.values()
            if one
        ]
        return sum(layout.nbytes for layout in layouts)

    def give_back(self) -> None:
        """Give that memory back; the next run lays it out anew, with its graphs."""
        self._instances.clear()
        self._directs.clear()
        self._sized.clear()
        self._latest = None

    def are_within(self, limits: Limits, sizes: Mapping[str, int]) -> bool:
        """Whether integers in variables are known to be at least 0 and below a limit."""
        return self.instance(sizes).are_within(limits)

    def memory(self, sizes: Mapping[str, int], workspace: bool = True) -> StepMemory:
        """What a step takes: in slices, for `workspace`; else the least."""
        how = (self.engine, self.tensor_float, workspace)
        return memory_on_device(self.plan, sizes, *how)

    def has_run(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is memory for a step of these sizes already."""
        made = [one for one in self._sized.values() if one]
        known = tuple(sorted(sizes.items()))
        return known in self._instances or any(one.layout.sizes == sizes for one in made)

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan as text, what of it NumPy computes, as it has no code for the device, and all launches."""
        plan = self.plan
        by_numpy = [w for w in plan.work if w.lowered is not None and not runs_on_device(plan, w)]
        lines = [f"# device {self.device}; by NumPy, on copies: {w.region}" for w in by_numpy]
        launches = f"# launches of a run on device {self.device}\n{self.instance(sizes).listing()}"
        return "\n".join([describe(plan, sizes), *lines, launches])
