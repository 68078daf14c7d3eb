"""One training step: loss, gradients and updates as one program that is compiled once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from magmadnn.calls import FixedDict, Unchanging
from magmadnn.compiler import Plan
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.errors import ArgumentError, CheckpointError, FrozenError
from magmadnn.graph.drawing.diagram import Diagram
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program
from magmadnn.graph.signature import shape_text
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation, Tensor, Variable
from magmadnn.tensor.operation import Feeds, as_feeds

from .building.accumulation import Accumulation
from .building.alike import Known, Roots, known_of, later, noted, origin_of
from .building.loss_scaling import LossScale
from .building.update import Update, node_of_loss, nodes_of_outputs, nodes_of_parameters
from .courses import Looked, StepCourse
from .inputs import Settings
from .memory_check import BATCH, refuse_too_large
from .parts import Transform
from .records import Setting
from .slices import StepSlices, sizes_in_batches

if TYPE_CHECKING:
    from magmadnn.memory.room import Room
    from magmadnn.runtime.profile.text import Profile
    from magmadnn.runtime.reference import Watch

    from .optimizer import Optimizer

COUNT = "count"  # the name of the step count in the state; slots' names have a slash
_MOST_STEPS = 2**53  # what anybody can do, and exact in float64


class Step:
    """One training step: `loss = step({x: batch, target: labels})`. Made by `Optimizer.step`.

    A run computes the loss and the outputs with the parameters as they are, then gives parameters, slots
    and the count their new values. Settings (learning rate and the like) are inputs of each run.

    Args:
        optimizer: the rule.
        loss: a scalar Operation; or `Roots`, which stand for the outputs too.
        parameters: the variables that are trained.
        outputs: Operations whose values `run` gives after the loss.
        executor, precision, device: as for `md.Model`.
        kept: variables whose updates in the graph are left out, such as statistics of frozen layers.
        more: parts that come after the optimiser's own.
        accumulation: of gradients of several batches for one update.

    Attributes:
        accumulation: as given; whoever runs batches tells it which is next.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        loss: Any,
        parameters: Any,
        outputs: Sequence[Any] = (),
        executor: str = "native",
        precision: str = "float32",
        device: str = "cpu",
        kept: Sequence[Any] = (),
        more: Sequence[Transform] = (),
        accumulation: Accumulation | None = None,
    ) -> None:
        name, parts = type(optimizer).__name__, (*optimizer.parts(), *more)
        where = f"{name}.step"
        nodes = nodes_of_parameters(where, parameters)
        roots: Sequence[Node] = loss
        if not isinstance(loss, Roots):
            roots = [node_of_loss(where, loss), *nodes_of_outputs(where, outputs)]
        self.optimizer = optimizer
        self._settings = Settings(optimizer, parts)
        held = {variable.node for variable in kept}
        self._scaling = LossScale() if precision == "mixed_fp16" else None
        self.accumulation = accumulation
        around = (self._scaling, held, accumulation)
        origin = known = None
        is_plain = self._scaling is None and accumulation is None and type(self) is Step
        if executor == "native" and is_plain:
            roots = roots if isinstance(roots, Roots) else Roots.of(roots)
            origin = origin_of(roots, nodes, held, parts, (name, precision))
            known = None if origin is None else known_of(origin)
        update = self._updating(name, parts, roots, nodes, *around, known)
        if accumulation is not None:
            update.make()  # the sums belong to the state
        given = dict(zip(nodes, parameters, strict=True))
        self.parameters: tuple[Operation, ...] = tuple(given[n] for n in update.parameters)
        self._slots: dict[str, Variable] = dict(update.slots)
        for part in (self._scaling, accumulation):
            self._slots |= {} if part is None else part.slots
        self._count = update.count
        self.batch_seconds: dict[int, float] = {}  # of a batch in the last slice, by its size
        self.sizes: dict[Any, dict[str, int]] = {}  # of dimensions, by what data looks like
        way: dict[str, Any] = {"executor": executor, "precision": precision, "device": device}
        if origin is None:
            self._executable = self._compiled(update, way)
            return

        def made() -> Program:
            program = Program.of(update.outputs, update.updates, training=True)
            return program if precision == "float32" else rounded(program, precision)

        names = self._settings.names | update.names
        if known is None:
            program = noted(origin, made(), nodes, update.parameters, names)
        else:
            program = later(origin, known, names, made)
        self._executable = Executable(program, **way)

    def _updating(
        self, name: str, parts: Sequence[Transform], roots: Sequence[Node], nodes: Sequence[Node],
        scaling: LossScale | None, kept: Collection[Node], accumulation: Accumulation | None,
        known: Known | None,
    ) -> Update:  # fmt: skip
        """The graph of a step."""
        around = (scaling, kept, accumulation, known)
        return Update(name, parts, self._settings.scalars, roots, nodes, *around)

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """What runs the graph of a step that has to be made."""
        return Executable(update.outputs, update.updates, training=True, **way)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what the step was compiled for."""
        if name == "optimizer" and name in vars(self):
            raise FrozenError(
                "Step: optimizer cannot be set, the step is compiled: make another one, optimizer.step(loss, "
                "parameters), and give it what this one knows, load_state(step.state())"
            )
        object.__setattr__(self, name, value)

    def __call__(self, feeds: Feeds | None = None) -> Tensor:
        """Do one step and give the loss, as it was before the update.

        Args:
            feeds: arrays for the placeholders: `{x: batch}`.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
        """
        return Tensor.wrap(self.run(feeds)[0])

    def run(
        self, feeds: Feeds | None = None, watch: Watch | None = None, guard: bool = False
    ) -> list[Array]:
        """Do one step and give the loss and the outputs, as they were before the update.

        Args:
            feeds: arrays for the placeholders.
            watch: called with every value that is computed (see `magmadnn.runtime.FiniteWatch`).
            guard: raise NumericError, and update nothing, where NaN or infinity appears.
        """
        fed = as_feeds(feeds)
        for node, value in self.scalars().items():
            fed[node] = np.array(value)  # as arrays they need no look at a second time
        return self._executable.run(fed, watch=watch, guard=guard)

    def scalars(self) -> dict[Node, Any]:
        """What is fed to the next step beside data: settings, and where in a group it is."""
        fed: dict[Node, Any] = dict(self._settings.feeds(self.counted))
        if self.accumulation is not None:
            fed |= {node: flags[0] for node, flags in self.accumulation.feeds(1).items()}
        return fed

    def slices(
        self,
        data: Mapping[Node, Array],
        batch_size: int,
        streams: bool = False,
        ring_bytes: int | None = None,
    ) -> StepSlices | None:
        """This step for many batches in one call, over rows of arrays in memory.

        Args:
            data: an array of rows for each placeholder.
            batch_size: rows of a batch.
            streams: whether rows hold something only once `StepSlices.changed` was told of them.
            ring_bytes: of a ring on the device that rows pass through, where there is no room for all.

        Returns:
            None where a part of the step has to run in Python.
        """
        if self._executable.executor != "native":
            return None
        how = (batch_size, streams, ring_bytes)
        return StepSlices.made(self, self._executable, self._settings, data, *how)

    def course(
        self, data: Mapping[Node, Array], batch_sizes: Sequence[int], looked: Looked | None = None
    ) -> StepCourse | None:
        """This step for epochs of batches, as a program for a thread, or a block of a device; or None.

        Args:
            data: an array of rows for each placeholder.
            batch_sizes: of the batches in an epoch: all but the last one, and the last one if it is smaller.
            looked: what is evaluated after each epoch.

        Returns:
            None where a part runs in Python, and where it is too large for a block.
        """
        if self._executable.executor != "native":
            return None
        how = (batch_sizes, looked)
        return StepCourse.made(self, self._executable, self._settings, data, *how)

    @property
    def room(self) -> Room | None:
        """What there is for data where the step runs; None where it reads the host's memory."""
        return self._executable.room

    def memory(self, sizes: Mapping[str, int]) -> StepMemory | None:
        """The memory that a step takes for these sizes of dimensions; None where NumPy runs it."""
        return self._memory_of(self._executable, sizes)

    def _memory_of(self, executable: Executable, sizes: Mapping[str, int]) -> StepMemory | None:
        found = executable.memory(sizes)
        held = [self._count, *self._slots.values()]
        return None if found is None else found.with_state([slot.node for slot in held])

    def memory_of(self, feeds: Mapping[Node, Array], batch_size: int) -> StepMemory | None:
        """The memory that a step of a batch takes; None where NumPy runs it.

        Args:
            feeds: arrays of one row for the placeholders.
            batch_size: rows of a batch.
        """
        if self._executable.executor != "native":
            return None
        sizes = sizes_in_batches(self, self._executable, feeds, 1)
        return self.memory({**sizes, BATCH: batch_size})

    def check_memory(self, what: str, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """Look whether a step of a batch has room where it runs.

        Args:
            what: for the message.
            feeds: arrays of one row for the placeholders.
            batch_size: rows of a batch.

        Raises:
            OutOfMemoryError: if not; says which batch has.
        """
        sizes = sizes_in_batches(self, self._executable, feeds, 1)
        needs = self._executable.missing_bytes({**sizes, BATCH: batch_size})
        if not agreement().all(not needs, "the step needs no more memory"):
            refuse_too_large(self._executable, what, sizes, batch_size)

    def prepare(self, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """On a device: do now what the first step of a batch of so many rows would do before it is run.

        Args:
            feeds: arrays of one row for the placeholders.
            batch_size: rows of a batch.
        """
        sizes = sizes_in_batches(self, self._executable, feeds, 1)
        self._executable.prepare({**sizes, BATCH: batch_size})

    @property
    def state_variables(self) -> dict[str, Node]:
        """The variables of the state, by the names that `state` has."""
        return {name: slot.node for name, slot in (*self._slots.items(), (COUNT, self._count))}

    @property
    def setting_nodes(self) -> dict[str, Node]:
        """The inputs by the names of the settings."""
        return {name.removeprefix(":"): node for node, name in self._settings.names.items()}

    @property
    def count(self) -> int:
        """How many steps were done."""
        return int(self._count.value.item())

    @property
    def counted(self) -> int:
        """The count, if a setting depends on it; else 0: it lies on the device, if the step runs there."""
        return 0 if self._settings.fixed else self.count

    @property
    def skipped(self) -> int:
        """How many of them changed nothing, because a gradient in float16 was not finite."""
        return 0 if self._scaling is None else int(self._scaling.skipped.value.item())

    @property
    def settings(self) -> dict[str, float]:
        """The values of all settings that the next step will use."""
        return FixedDict(self._settings.values(self.counted), _TOLD, "settings")

    @property
    def settings_before(self) -> dict[str, float]:
        """The values that the last step would have used, had none been set since."""
        return self.settings_of(max(self.counted - 1, 0))

    def settings_of(self, number: int) -> dict[str, float]:
        """The values of all settings for the step after `number` steps."""
        return self._settings.values(0 if self._settings.fixed else number)

    @property
    def overrides(self) -> dict[str, Setting]:
        """What `set` has set; not part of the state."""
        return FixedDict(self._settings.overrides, _TOLD, "overrides")

    @property
    def touched(self) -> set[str]:
        """Names of the settings that were set since somebody emptied this."""
        return self._settings.touched

    def source(self, setting: str) -> Setting | None:
        """The number or schedule that a setting has now; None if there is no such setting."""
        return self._settings.source(setting)

    def set(self, **settings: Setting | None) -> None:
        """Use other numbers or schedules from the next step on: `step.set(learning_rate=0.01)`.

        Nothing is rebuilt. None goes back to the optimiser's own value.

        Raises:
            UnknownNameError: if there is no such setting.
            ArgumentError: if a number is out of range, or the setting has no part in this step.
        """
        self._settings.set(settings)

    @property
    def plan(self) -> Plan:
        """The compiled program."""
        return self._executable.plan

    def text(self, sizes: Mapping[str, int]) -> str:
        """What a step runs, as text: kernels, memory, operations; see `Model.plan`."""
        return self._executable.text(sizes)

    def expected_text(self, sizes: Mapping[str, int]) -> str:
        """The plan with the least time of each kernel; see `Model.plan`."""
        return self._executable.expected_text(sizes)

    def diagram(self, sizes: Mapping[str, int], optimised: bool) -> Diagram:
        """What a step computes, or the kernels that it became; see `Model.diagram`."""
        return self._executable.diagram(sizes, optimised)

    def profile(self, feeds: Feeds | None = None) -> Profile:
        """Measured times of all kernels of a step; see `Model.profile`. Nothing is trained by it."""
        fed = as_feeds(feeds)
        fed.update(self.scalars())
        return self._executable.profile(fed)

    def state(self) -> dict[str, Tensor]:
        """Copies of all that the step keeps: slots as "<parameter>/<slot>", and "count".

        <parameter> is the parameter's name, or its index in the list where two have one name.
        """
        held = {**self._slots, COUNT: self._count}
        return {name: slot.value.copy() for name, slot in held.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave: the following steps are the same, bit for bit.

        Args:
            state: Tensors or arrays by name.

        Raises:
            CheckpointError: if names, shapes or dtypes do not fit; nothing is changed then.
        """
        arrays = self.check_state(state)
        for name, slot in {**self._slots, COUNT: self._count}.items():
            slot.value.write(arrays[name])

    def check_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Look whether `load_state` takes this; gives the arrays.

        Raises:
            CheckpointError: if names, shapes or dtypes do not fit.
        """
        held = {**self._slots, COUNT: self._count}
        where = f"state of {type(self.optimizer).__name__}"
        if missing := sorted(held.keys() - state.keys()):
            raise CheckpointError(f"{where}: {_some(missing)} missing; is it of another optimiser?")
        if extra := sorted(state.keys() - held.keys()):
            raise CheckpointError(f"{where}: {_some(extra)} unknown; is it of another optimiser?")
        arrays = {name: np.asarray(value) for name, value in state.items()}
        for name, slot in held.items():
            got = arrays[name]
            if got.shape != slot.shape or got.dtype != slot.dtype:
                raise CheckpointError(
                    f"{where}: {name} must be {slot.dtype.name} of shape {shape_text(slot.shape)}, "
                    f"got {got.dtype.name} of shape {shape_text(got.shape)}"
                )
        if not 0 <= arrays[COUNT] <= _MOST_STEPS:
            raise CheckpointError(
                f"{where}: count must be from 0 to {_MOST_STEPS}, got {arrays[COUNT]}"
            )
        return arrays

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "Step: a compiled step is not copied or pickled; keep step.state(), and give it to another "
            "step of the same optimiser: load_state"
        )

    def __repr__(self) -> str:
        return (
            f"<Step {self.count} of {self.optimizer!r} for {len(self.parameters)} parameters "
            f"with {len(self._slots)} slots>"
        )


_TOLD = Unchanging(
    "Step: settings are told here, and not set: write step.set(learning_rate=0.01), which the next step heeds"
)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"
