"""The door to running: graph, plan, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magmadnn.backends.cpu.forks import ProcessLock, cached_property
from magmadnn.backends.cuda import device_memory
from magmadnn.compiler import Plan, compile_program
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.errors import ArgumentError, NumericError, UnknownNameError
from magmadnn.graph.drawing.diagram import Diagram, diagram_of_program
from magmadnn.graph.node import VARIABLE, Node, Updated
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program
from magmadnn.memory import Kind
from magmadnn.memory.pool import POOLS
from magmadnn.memory.room import Room
from magmadnn.storage.machine_memory import available_bytes

from .agreement import ALONE, Agreement, agreement
from .binding import Bindings, bind
from .indices import Indices
from .places import device_of
from .reference import Watch, compute, run
from .step_memory import StepMemory
from .variables import tensor_of
from .watch import FiniteWatch

if TYPE_CHECKING:
    from .cpu.native import NativeRunner
    from .cuda.running.runner import CudaRunner
    from .profile.text import Profile


EXECUTORS = ("native", "reference")


class Executable:
    """A program that is compiled once, at its first run, and then run many times.

    Args:
        outputs: what a run gives; or a program, in its phase and precision.
        updates: (variable, its new value): written when everything is computed.
        training: the phase (dropout, batch statistics).
        executor: "native" runs compiled kernels, "reference" NumPy, op by op.
        precision: of matrix products; see `magmadnn.compiler.program.precision`.
        device: where compiled kernels run: "cpu", "cuda", "cuda:1", "auto"; see `device_of`.
        check: verify the graph after each pass, and each value against its shape and dtype; for tests.

    Raises:
        UnknownNameError: if there is no such executor, precision or device.
        ArgumentError: if the reference executor shall run on a GPU.
        DeviceError: if there is no such GPU.
    """

    def __init__(
        self,
        outputs: Sequence[Node] | Program,
        updates: Sequence[Updated] = (),
        *,
        training: bool = False,
        executor: str = "reference",
        precision: str = "float32",
        device: str = "cpu",
        check: bool = False,
    ) -> None:
        if executor not in EXECUTORS:
            raise UnknownNameError.of("executor", executor, EXECUTORS)
        if isinstance(outputs, Program):
            self.program = outputs
        else:
            program = Program.of(outputs, updates, training=training)
            self.program = program if precision == "float32" else rounded(program, precision)
        self.executor, self.precision = executor, precision
        self.device = None if device == "cpu" else device_of(device, executor)
        self._check = check
        self._plan: Plan | None = None
        self._native: NativeRunner | None = None
        self._cuda: CudaRunner | None = None
        # runs use one memory; not guarded ones, in which workers that are threads may agree
        self._one_at_a_time = ProcessLock(reentrant=True)

    @property
    def plan(self) -> Plan:
        """The plan that NumPy runs."""
        if self._plan is None:
            self._plan = compile_program(self.program, check=self._check)
        return self._plan

    @property
    def native(self) -> NativeRunner:
        """The compiled kernels and the memory that they run in."""
        if self._native is None:
            from magmadnn.compiler.plan.planning import ON_CPUS

            self._native = self._made_native(ON_CPUS)
        return self._native

    def _made_native(self, libraries: frozenset[str]) -> NativeRunner:
        from magmadnn.compiler.llvm.driver.driver import prepare
        from magmadnn.compiler.llvm.object.cache import kernel_cache
        from magmadnn.compiler.plan.native_plan import LaterPlan
        from magmadnn.compiler.plan.planning import native_plan

        from .cpu.alike import AlikeNative
        from .cpu.native import NativeRunner

        prepare(kernel_cache())
        plan = native_plan(self.program, check=self._check, libraries=libraries)
        return AlikeNative(plan) if isinstance(plan, LaterPlan) else NativeRunner(plan)

    @cached_property
    def _for_one_sample(self) -> NativeRunner | None:
        """The same for a run of one sample, where an op is computed in another way then."""
        from magmadnn.compiler.plan.planning import ON_CPUS, ONE_SAMPLE
        from magmadnn.compiler.program.simplify import offers

        if self.device is not None or self.program.updates or not offers(self.program, ONE_SAMPLE):
            return None
        return self._made_native(ON_CPUS | {ONE_SAMPLE})

    @property
    def cuda(self) -> CudaRunner:
        """The compiled kernels and the memory that they run in on a GPU."""
        if self._cuda is None:
            from .cuda.running.planned import runner_of

            assert self.device is not None
            tensor_float = self.precision == "tf32"
            self._cuda = runner_of(self.program, self.device, tensor_float, self._check)
        return self._cuda

    @cached_property
    def _runner(self) -> NativeRunner | CudaRunner:
        return self.native if self.device is None else self.cuda

    def _runner_for(self, sizes: Mapping[str, int]) -> NativeRunner | CudaRunner:
        """What runs these sizes."""
        found = self._for_one_sample if set(sizes.values()) == {1} else None
        return self._runner if found is None else found

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan of the executor in use, as text, for these sizes of symbolic dimensions."""
        if self.executor != "native":
            return str(self.plan)
        text = self._runner_for(sizes).text(sizes)
        if self.device is None:
            return text
        from .cuda.many.chains import text_of_many

        return "\n".join(filter(None, (text, text_of_many(self.cuda, sizes))))

    def expected_text(self, sizes: Mapping[str, int]) -> str:
        """The plan with the least time of each step, at limits of a core that are measured now.

        Raises:
            ArgumentError: if it does not run on this machine's cores.
        """
        from magmadnn.compiler.plan.listing import describe

        from .profile.measure import measured_rates

        self._need_cores("expected times")
        plan: Any = self._runner_for(sizes).plan
        return describe(plan, sizes, measured_rates())

    def diagram(self, sizes: Mapping[str, int], optimised: bool) -> Diagram:
        """What is compiled, or what became of it, for `to_svg`."""
        if not optimised:
            return diagram_of_program(self.program)
        if self.executor != "native":
            return diagram_of_program(self.plan.program)
        from magmadnn.compiler.plan.diagram import diagram_of_plan

        return diagram_of_plan(self._runner_for(sizes).plan, sizes)

    def profile(self, feeds: Mapping[Node, Any]) -> Profile:
        """Measured times of all steps; variables keep their values.

        Raises:
            ArgumentError: if it does not run compiled kernels.
        """
        if self.executor == "native" and self.device is not None:
            from .cuda.running.profiling import profile_on_device

            return profile_on_device(self.cuda, *bind(self.program, feeds), self.precision)
        from .profile.profiling import profile

        self._need_cores("profile")
        fed, sizes = bind(self.program, feeds)
        return profile(self._runner_for(sizes).plan, fed, sizes)

    def _need_cores(self, what: str) -> None:
        if self.executor != "native" or self.device is not None:
            way = (
                f"executor {self.executor!r}"
                if self.device is None
                else f"device cuda:{self.device}"
            )
            raise ArgumentError(f"{what}: measures compiled kernels on the CPU, got {way}")

    def sizes(self, feeds: Mapping[Node, Any]) -> dict[str, int]:
        """The sizes of symbolic dimensions for these feeds."""
        return bind(self.program, feeds, self.device)[1]

    @property
    def room(self) -> Room | None:
        """What a GPU has for data; None on the processor."""
        if self.device is None:
            return None
        from .cuda.running.sliced.kept_slices import held_bytes

        return Room(self.device, lambda: held_bytes(self.cuda))

    def memory(self, sizes: Mapping[str, int], workspace: bool = True) -> StepMemory | None:
        """The memory that a run takes for these sizes, that of kernels too; None where NumPy runs it."""
        return (
            self._runner_for(sizes).memory(sizes, workspace) if self.executor == "native" else None
        )

    def missing_bytes(self, sizes: Mapping[str, int]) -> int:
        """What a run takes beside what is there, at least; 0 where it was laid out before, and for NumPy."""
        if self.executor != "native" or self._has_run(sizes):
            return 0
        found = self._runner_for(sizes).memory(sizes, workspace=False)
        variables = [node for node in self.program.leaves if node.op is VARIABLE]
        there = self.device is None or all(tensor_of(n).memory.device_valid for n in variables)
        return found.total - (found.parameters if there else 0)

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """On a device: compile, and choose the libraries' algorithms, for these sizes before they are run."""
        if self.executor == "native" and self.device is not None:
            self.cuda.prepare(sizes)

    def _has_run(self, sizes: Mapping[str, int]) -> bool:
        if self.device is None or self._runner.has_run(sizes):
            return self._runner_for(sizes).has_run(sizes)
        from .cuda.running.sliced.kept_slices import has_sliced

        return has_sliced(self.cuda, sizes)

    def free_bytes(self, sharers: int = 1) -> int:
        """Memory that is left where it runs; on a device the part of one of so many who plan on it."""
        if self.device is None:
            return available_bytes()
        free, total = device_memory(self.device).free_and_total()
        return (total if free is None else free) // sharers + POOLS[Kind.DEVICE].report().pooled

    def run(
        self, feeds: Mapping[Node, Any], watch: Watch | None = None, guard: bool = False
    ) -> list[Array]:
        """One run: outputs as arrays; updated variables have their new values afterwards.

        Several threads may ask for runs without `guard`: one waits for the other.

        Args:
            feeds: arrays for the placeholders.
            watch: called with every value; the reference executor computes then.
            guard: look whether the outputs are finite before any variable is written.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
            NumericError: with `guard`, if NaN or infinity appears, naming where; nothing is updated then.
        """
        if guard:  # which is the same for all workers
            return self._run(feeds, watch, True, agreement())
        with self._one_at_a_time:
            return self._run(feeds, watch, False, ALONE)

    def _run(
        self, feeds: Mapping[Node, Any], watch: Watch | None, guard: bool, workers: Agreement
    ) -> list[Array]:
        if self.executor == "native" and watch is None:
            fed, sizes = self._bindings(feeds)
            runner = self._runner_for(sizes)
            guarded = guard or (self._indices.some and self._may_be_wrong(fed, sizes))
            outputs = runner.run(fed, sizes, guarded, workers)
            if outputs is not None:
                return outputs
            if not workers.is_alone:
                raise self._fault(feeds)
            if not guard:
                compute(self.plan, feeds)  # raises where kernels gave NaN
                again = runner.run(fed, sizes)
                if again is not None:
                    return again  # else a library found wrong what NumPy's does not: NumPy's result counts
        if not workers.is_alone:
            self._agree(feeds, workers)
        return run(self.plan, feeds, watch=watch, guard=guard, check=self._check)

    def run_into(self, feeds: Mapping[Node, Any], goals: Sequence[int]) -> bool:
        """One run on a device whose outputs are written to addresses there; none of them comes to the host.

        For programs of which all stays on the device. Variables are updated as by `run`. It returns before
        all of that is done: operands of the device are read where they lie until then.

        Args:
            feeds: arrays for the placeholders, of the host or of the device.
            goals: an address for each output.

        Returns:
            False where a row was asked for that is not there: nothing is updated then, and `run` says what.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
        """
        return self.into(feeds, goals)()

    def into(self, feeds: Mapping[Node, Any], goals: Sequence[int]) -> Callable[[], bool]:
        """`run_into` but for the run: what is called, once, when operands have their values.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
        """
        fed, sizes = self._bindings(feeds)
        return self.cuda.into(fed, sizes, goals)

    def update(self, feeds: Mapping[Node, Array]) -> None:
        """A guarded run on a device whose outputs nobody needs, of a program that `can_update` says yes of.

        Args:
            feeds: scalars for the placeholders, in their dtypes.

        Raises:
            NumericError: if a new value is NaN or infinite, here or at another worker; nothing is updated
                then.
        """
        workers, laid_out = agreement(), self.cuda.instance({})
        well = laid_out.update(feeds, lambda: None)
        if workers.all(well, "new values are finite"):
            return
        if well:
            laid_out.restore()
        raise self._fault(feeds)

    @property
    def can_update(self) -> bool:
        """Whether `update` can be."""
        return self.device is not None and self.cuda.instance({}).can_update

    def _fault(self, feeds: Mapping[Node, Any]) -> Exception:
        """Why all workers gave a step up: what is wrong here, or that it is wrong elsewhere."""
        try:
            compute(self.plan, feeds, FiniteWatch())
        except Exception as error:
            return error
        return NumericError(
            "this step made NaN or infinity on another worker, which says where; nothing was updated on any"
        )

    def _agree(self, feeds: Mapping[Node, Any], workers: Agreement) -> None:
        """Look before NumPy writes variables whether the step is right on all workers.

        Raises:
            what is wrong here, or NumericError if it is wrong elsewhere.
        """
        wrong: Exception | None = None
        try:
            compute(self.plan, feeds, FiniteWatch())
        except Exception as error:
            wrong = error
        if not workers.all(wrong is None, "outputs are finite"):
            raise wrong or self._fault(feeds)

    def _may_be_wrong(self, fed: Mapping[Node, Any], sizes: Mapping[str, int]) -> bool:
        """Whether an index may be out of range."""
        look = None if self.device is None else self.cuda.are_within
        return self._indices.may_be_wrong(fed, sizes, look)

    @cached_property
    def _bindings(self) -> Bindings:
        return Bindings(self.program, self.device)

    @cached_property
    def _indices(self) -> Indices:
        return Indices(self.program)
