"""The graph of dependencies: steps, their order, circles, and how many ranks may be busy at once.

A step is a group, or a module that is in none. Steps begin when all steps that they come after have ended;
within a group the same holds of its modules, in each iteration anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from .reading import Description


@dataclass(frozen=True)
class Step:
    """A group, or a module by itself.

    Attributes:
        name: of the group or module.
        modules: their names.
        after: steps that end before it begins.
        inner: for each module those of the same step that end before it begins.
        iterations: how often; None: until a tag has been put.
        until: that tag.
        is_group: whether the file calls it one.
    """

    name: str
    modules: tuple[str, ...]
    after: tuple[str, ...]
    inner: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    iterations: int | None = 1
    until: str | None = None
    is_group: bool = False


def steps_of(description: Description) -> list[Step]:
    """The steps of a workflow whose names are known to be right."""
    model = description.model
    home = home_steps(description)
    found = []
    for group in model.groups:
        after = {home.get(name, name) for name in group.after}
        inner: dict[str, tuple[str, ...]] = {}
        for name in group.modules:
            parents = description.module(name).after
            inner[name] = tuple(p for p in parents if home.get(p) == group.name and p != group.name)
            after |= {home.get(p, p) for p in parents if home.get(p, p) != group.name}
        often = group.iterations if group.until or group.iterations else 1
        found.append(
            Step(
                group.name,
                tuple(group.modules),
                tuple(sorted(after)),
                inner,
                often,
                group.until,
                True,
            )
        )
    grouped = {name for group in model.groups for name in group.modules}
    for module in model.modules:
        if module.name not in grouped:
            after = {home.get(p, p) for p in module.after}
            found.append(Step(module.name, (module.name,), tuple(sorted(after)), {module.name: ()}))
    return found


def home_steps(description: Description) -> dict[str, str]:
    """The step that each module belongs to; groups are their own."""
    home = {m.name: m.name for m in description.model.modules}
    home |= {name: g.name for g in description.model.groups for name in g.modules}
    return home | {g.name: g.name for g in description.model.groups}


def circle(parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that come after each other in a circle, the first one twice; empty where there is none."""
    state: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> list[str]:
        state[name] = 1
        path.append(name)
        for parent in parents.get(name, ()):
            if state.get(parent) == 1:
                return [*path[path.index(parent) :], parent]
            if parent not in state and parent in parents and (found := visit(parent)):
                return found
        state[name] = 2
        path.pop()
        return []

    for name in parents:
        if name not in state and (found := visit(name)):
            return found
    return []


def earlier(parents: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """For each name all that end before it begins; there are no circles."""
    found: dict[str, set[str]] = {}

    def visit(name: str) -> set[str]:
        if name not in found:
            found[name] = set()
            for parent in parents.get(name, ()):
                found[name] |= {parent} | visit(parent)
        return found[name]

    for name in parents:
        visit(name)
    return found


def most_together(weights: Mapping[str, int], before: Mapping[str, set[str]]) -> int:
    """The largest sum of weights of names none of which comes before another.

    By Dilworth's theorem, with weights: the sum of all, less the largest flow from names to names that come
    later, where each name takes and gives at most its weight.
    """
    left, right = dict(weights), dict(weights)
    flow: dict[tuple[str, str], int] = {}
    later = {name: [n for n in weights if name in before.get(n, ())] for name in weights}

    def push(name: str, amount: int, seen: set[str]) -> int:
        """Send up to `amount` from a name to one later, moving what others send."""
        for target in later[name]:
            if target in seen:
                continue
            seen.add(target)
            sent = min(amount, right[target])
            if sent:
                right[target] -= sent
            else:
                for other in weights:
                    moved = min(amount, flow.get((other, target), 0))
                    if moved and other != name and (sent := push(other, moved, seen)):
                        flow[other, target] -= sent
                        break
            if sent:
                flow[name, target] = flow.get((name, target), 0) + sent
                return sent
        return 0

    total = 0
    for name in weights:
        while left[name] and (sent := push(name, left[name], set())):
            left[name] -= sent
            total += sent
    return sum(weights.values()) - total


def ranks_needed(description: Description) -> int:
    """Ranks of all modules that may run at the same time, and enough for those that keep to their GPUs.

    A rank that has run a function with some GPUs runs none with other GPUs (`gpus.py`), so that functions and
    libraries of each number of GPUs have ranks of their own.
    """
    modules = [m for m in description.model.modules if m.command is None and m.gpus]
    of_gpus = (
        _most_ranks(description, {m.name for m in modules if m.gpus == count})
        for count in {m.gpus for m in modules}
    )
    return max(_most_ranks(description), sum(of_gpus))


def _most_ranks(description: Description, only: Set[str] | None = None) -> int:
    """Ranks of modules, or of `only` these, that may run at the same time."""

    def inside(step: Step, weight: Callable[[str], int]) -> int:
        return most_together({m: weight(m) for m in step.modules}, earlier(step.inner))

    def weight(name: str) -> int:
        module = description.module(name)
        return module.ranks * module.copies if only is None or name in only else 0

    steps = steps_of(description)
    weights = {step.name: inside(step, weight) for step in steps}
    return most_together(weights, earlier({s.name: s.after for s in steps}))


def gang_ranks(description: Description, step: Step) -> int:
    """Ranks of the modules that begin an iteration of a step together."""
    first = [description.module(m) for m in step.modules if not step.inner.get(m)]
    return sum(m.ranks * m.copies for m in first)
