"""What is handed to the compiler: values to compute, and variables to give new values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from magmadnn.backends.cpu.forks import cached_property

from .dim import Dim, dims_of
from .node import PLACEHOLDER, VARIABLE, Node, Updated, differs_by_phase, resolve_phase, topological
from .text import describe


@dataclass(frozen=True)
class Program:
    """Outputs, and updates that all take place after everything is computed.

    Attributes:
        outputs: what a run gives back.
        updates: (variable, its new value).
    """

    outputs: tuple[Node, ...]
    updates: tuple[Updated, ...] = ()

    @classmethod
    def of(
        cls, outputs: Sequence[Node], updates: Sequence[Updated] = (), *, training: bool = False
    ) -> Program:
        """The program of one phase: `phase` and `update` nodes are resolved.

        Updates of the graph itself (running statistics) come after `updates`.
        """
        roots = [*outputs, *(value for _, value in updates)]
        order = topological(roots)
        if not any(map(differs_by_phase, order)):
            whole = cls(tuple(outputs), tuple(updates))
            whole.__dict__["_nodes"] = order
            return whole
        resolved, found = resolve_phase(roots, training)
        targets = [target for target, _ in updates]
        given = list(zip(targets, resolved[len(outputs) :], strict=True))
        return cls(tuple(resolved[: len(outputs)]), (*given, *found))

    @property
    def roots(self) -> list[Node]:
        """Every node that must be computed for its own sake."""
        return [*self.outputs, *(value for _, value in self.updates)]

    def renewed(self, new: Mapping[Node, Node]) -> Program:
        """The same program of other nodes, whose order is known then.

        Args:
            new: what stands for each node.
        """
        updates = tuple((new[target], new[value]) for target, value in self.updates)
        other = Program(tuple([new[n] for n in self.outputs]), updates)
        other.__dict__["_nodes"] = [new[n] for n in self._nodes]
        return other

    def nodes(self) -> list[Node]:
        """Everything that is computed, inputs before users."""
        return list(self._nodes)

    @cached_property
    def _nodes(self) -> list[Node]:
        return topological(self.roots)

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        """Variables that are read, and what must be fed, in the order of `nodes`."""
        return tuple(node for node in self._nodes if node.op is VARIABLE or node.op is PLACEHOLDER)

    @cached_property
    def placeholders(self) -> tuple[Node, ...]:
        """What must be fed."""
        return tuple(node for node in self.leaves if node.op is PLACEHOLDER)

    @cached_property
    def open_sizes(self) -> tuple[Dim, ...]:
        """Symbolic dimensions that must not turn out negative, such as `batch - 3`, each once."""
        shapes = {id(node.shape): node.shape for node in self._nodes}  # most nodes share theirs
        found = [dim for shape in shapes.values() for dim in shape if isinstance(dim, Dim)]
        found += [
            dim for node in self._nodes for v in node.attributes.values() for dim in dims_of(v)
        ]
        each = {id(dim): dim for dim in found}
        return tuple(dict.fromkeys(dim for dim in each.values() if not dim.never_negative))

    @cached_property
    def readers(self) -> dict[Node, list[Node]]:
        """For each node those that read it, each once, in the order of `nodes`; nobody changes it."""
        return readers_of(self._nodes)

    def with_roots(self, roots: Sequence[Node]) -> Program:
        """The same program with its roots replaced, as a pass does; itself where they are its own."""
        if all(map(operator.is_, roots, self.roots)):
            return self
        count = len(self.outputs)
        targets = [target for target, _ in self.updates]
        return Program(tuple(roots[:count]), tuple(zip(targets, roots[count:], strict=True)))

    def __str__(self) -> str:
        numbers = {node: i for i, node in enumerate(self.nodes())}
        lines = [f"%{i} = {describe(n, numbers)}: {n.spec}" for n, i in numbers.items()]
        lines += [f"{t.name} := %{numbers[v]}" for t, v in self.updates]
        lines.append("return " + ", ".join(f"%{numbers[n]}" for n in self.outputs))
        return "\n".join(lines)


def readers_of(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each node those that read it, each once, in this order; `order` has all that its nodes read."""
    readers: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for operand in dict.fromkeys(node.inputs):
            readers[operand].append(node)
    return readers


class LaterProgram(Program):
    """A program that is built like an earlier one, and is made when somebody looks into it.

    To run it, its leaves are enough: what was compiled for the earlier one is taken for these.

    Args:
        make: makes it.
        like: equal for programs that are built alike.
        sizes: numbers that it has in place of those of others, which `like` leaves out.
        leaves: as `Program.leaves` of what is made. No size of it may turn out negative.
    """

    like: Hashable
    sizes: tuple[int, ...]

    def __init__(
        self,
        make: Callable[[], Program],
        like: Hashable,
        sizes: tuple[int, ...],
        leaves: tuple[Node, ...],
    ) -> None:
        known = {"_make": make, "like": like, "sizes": sizes, "leaves": leaves, "open_sizes": ()}
        self.__dict__.update(known)

    @cached_property
    def made(self) -> Program:
        """The program as it was made."""
        make: Callable[[], Program] = self.__dict__["_make"]
        return make()

    @cached_property
    def outputs(self) -> tuple[Node, ...]:
        """See `Program`."""
        return self.made.outputs

    @cached_property
    def updates(self) -> tuple[Updated, ...]:
        """See `Program`."""
        return self.made.updates
