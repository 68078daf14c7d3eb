"""How much memory a step takes, known before it runs: `StepMemory`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, fields, replace

from magmadnn.compiler.plan.arena import Arena, bytes_alive
from magmadnn.compiler.plan.memory import arena_of, nbytes_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node, follows_sizes
from magmadnn.memory.usage import in_units

_KEPT = 4  # sizes of plans that are alike
_TITLES = {
    "parameters": "parameters and states of layers",
    "optimizer": "state of the optimiser",
    "activations": "activations and other values",
    "gradients": "gradients",
    "batch": "the batch",
    "copies": "variables as they were, to go back to",
    "workspace": "workspace of kernels",
}


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step takes where it runs, at most.

    Data of which batches are taken is not in it, nor what validation and a last, smaller batch take, nor the
    runs of single products by which a GPU's algorithms are measured (`magmadnn tune`).

    Attributes:
        parameters: what layers hold: parameters and running statistics.
        optimizer: moments and counts.
        activations: values that one kernel leaves to another, where they need the most memory,
        gradients: and gradients at the same time. Weights' may become an update as they are computed, and are
            stored nowhere.
        batch: inputs, targets and weights of a batch.
        copies: of what a step writes, since one that makes NaN or infinity is taken back, and of variables
            that steps are kept for (`compiler/plan/lasting.py`).
        workspace: what kernels need beside their operands, on all threads.
    """

    parameters: int
    optimizer: int
    activations: int
    gradients: int
    batch: int
    copies: int
    workspace: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        lines = [f"# memory of a step: {in_units(self.total)}"]
        for name, title in _TITLES.items():
            lines.append(f"#   {in_units(getattr(self, name)):>10}  {title}")
        return "\n".join(lines)

    def with_state(self, state: Collection[Node]) -> StepMemory:
        """With those variables as the optimiser's."""
        nbytes = sum(nbytes_of(node, {}) for node in state)
        return replace(self, parameters=self.parameters - nbytes, optimizer=nbytes)


def step_memory(plan: NativePlan, sizes: Mapping[str, int], workspace: int = 0) -> StepMemory:
    """What a step of a plan takes where values lie as `arena_of` says.

    Args:
        plan: what is run.
        sizes: of symbolic dimensions.
        workspace: of kernels.
    """
    kept = {} if plan.alike is None else plan.alike.memory
    key = tuple(sorted(sizes.items()))
    if key not in kept:
        found = _measured(plan, sizes)
        while len(kept) >= _KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = astuple(found)
    return replace(StepMemory(*kept[key]), workspace=workspace)


def _measured(plan: NativePlan, sizes: Mapping[str, int]) -> StepMemory:
    """The same without workspace."""
    arena = arena_of(plan, sizes)
    gradients = _gradients_of(arena)
    nodes = plan.program.nodes()
    targets = [target for target, _ in plan.program.updates]
    variables = dict.fromkeys([*(n for n in nodes if n.op is VARIABLE), *targets])
    fed = [n for n in nodes if n.op is PLACEHOLDER or follows_sizes(n)]
    return StepMemory(
        parameters=sum(nbytes_of(n, sizes) for n in variables),
        optimizer=0,
        activations=arena.nbytes - gradients + loop_bytes(plan, sizes),
        gradients=gradients,
        batch=sum(nbytes_of(n, sizes) for n in fed),
        copies=sum(nbytes_of(n, sizes) for n in (*targets, *plan.lasting.variables)),
        workspace=0,
    )


def _gradients_of(arena: Arena) -> int:
    """Bytes of gradients in the phase in which the most is alive."""
    alive = bytes_alive((*arena.lives, *arena.rooms))
    fullest = alive.index(max(alive))
    return sum(
        life.nbytes
        for life in arena.lives
        if life.first <= fullest <= life.last and life.node.scope.endswith("gradient")
    )


def loop_bytes(plan: NativePlan, sizes: Mapping[str, int]) -> int:
    """Memory that loops have for a step of theirs, and for what they carry."""
    return sum(
        arena_of(loop.step, sizes).nbytes
        + loop_bytes(loop.step, sizes)
        + sum(nbytes_of(n, sizes) for n in loop.carried.values())
        for loop in plan.loops.values()
    )
