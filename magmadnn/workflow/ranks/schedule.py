"""Which module runs come next: no MPI and no clock, so that a replay of what happened gives the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from magmadnn.workflow.description.dependencies import Step, steps_of
from magmadnn.workflow.description.reading import Description

WAITING, RUNNING, ASKING, DONE, SKIPPED, FAILED = (
    "waiting",
    "running",
    "asking",
    "done",
    "skipped",
    "failed",
)


@dataclass(frozen=True)
class Run:
    """One copy of a module in one iteration, in one attempt.

    Attributes:
        step: the group, or the module itself.
        iteration: of the step, from 0.
        module: its name.
        copy: its number.
        attempt: from 0.
        losses: attempts that ended as a rank was lost, which is no failure of the module's.
        in_group: whether the step is a group.
    """

    step: str
    iteration: int
    module: str
    copy: int
    attempt: int = 0
    in_group: bool = False
    losses: int = 0

    @property
    def key(self) -> str:
        """Its name whatever the attempt: `loop.3/simulate.1`."""
        own = f"{self.module}.{self.copy}"
        return f"{self.step}.{self.iteration}/{own}" if self.in_group else own


@dataclass
class _State:
    step: Step
    state: str = WAITING
    iteration: int = -1
    open: dict[str, set[int]] = field(default_factory=dict)  # copies that have not ended
    begun: set[str] = field(default_factory=set)
    failed: bool = False


class Schedule:
    """The state of a workflow: what is done, what runs, what comes.

    Args:
        description: the workflow.
        done: keys of runs that were done before.
        goes_on: for groups with `until`, what was found after iterations before: `loop.3` -> False.

    Attributes:
        gangs: runs that begin together, as soon as there are ranks, oldest first.
        failures: keys of runs that have failed for good.
        stopping: whether nothing begins any more.
    """

    def __init__(
        self,
        description: Description,
        done: Iterable[str] = (),
        goes_on: dict[str, bool] | None = None,
    ) -> None:
        self.gangs: list[list[Run]] = []
        self.failures: list[str] = []
        self.stopping = False
        self._description, self._done = description, set(done)
        self._goes_on = dict(goes_on or {})
        self._states = {step.name: _State(step) for step in steps_of(description)}
        self._advance()

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return all(s.state in (DONE, SKIPPED, FAILED) for s in self._states.values())

    @property
    def asking(self) -> list[tuple[str, int, str]]:
        """Groups whose iteration has ended, its number, and the tag that decides whether there is another."""
        return [
            (name, one.iteration, one.step.until or "")
            for name, one in self._states.items()
            if one.state == ASKING
        ]

    def state(self, step: str) -> str:
        """What a step does."""
        return self._states[step].state

    def step(self, name: str) -> Step:
        """The step of a name."""
        return self._states[name].step

    def to_come(self, step: str) -> set[str]:
        """Modules of a step that have not begun in this iteration."""
        return set(self._states[step].step.modules) - self._states[step].begun

    def states(self) -> dict[str, tuple[str, int]]:
        """What each step does, and in which iteration it is."""
        return {name: (one.state, one.iteration) for name, one in self._states.items()}

    def begun(self, gang: list[Run]) -> None:
        """A gang has got its ranks."""
        self.gangs.remove(gang)

    def ended(self, run: Run, good: bool) -> bool:
        """A run has ended; True where it is tried again."""
        state = self._states[run.step]
        module = self._description.module(run.module)
        if not good:
            tried = run.attempt - run.losses
            if module.on_failure == "retry" and tried < module.retries and not self.stopping:
                self.gangs.append([replace(run, attempt=run.attempt + 1)])
                return True
            self.failures.append(run.key)
            state.failed = True
            if module.on_failure != "skip":
                self.stopping = True
        state.open[run.module].discard(run.copy)
        self._advance()
        return False

    def again(self, run: Run) -> None:
        """A run lost a rank: it is to be done again, before what has not begun."""
        self.gangs.insert(0, [replace(run, attempt=run.attempt + 1, losses=run.losses + 1)])

    def told(self, step: str, there: bool) -> None:
        """Whether the tag that ends a group has been put."""
        self._next_iteration(self._states[step], ends=there)
        self._advance()

    # --- what follows --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin whatever may."""
        changed = True
        while changed:
            changed = False
            for one in self._states.values():
                changed = self._look_at(one) or changed

    def _look_at(self, one: _State) -> bool:
        """Whether anything about a step is different now."""
        if one.state == WAITING:
            parents = [self._states[name].state for name in one.step.after]
            if any(p in (FAILED, SKIPPED) for p in parents):
                one.state = SKIPPED
                return True
            if not self.stopping and all(p == DONE for p in parents):
                one.state, one.iteration = RUNNING, 0
                self._open(one)
                return True
            return False
        return self._look_inside(one) if one.state == RUNNING else False

    def _open(self, one: _State) -> None:
        one.begun = set()
        one.open = {m: set(range(self._description.module(m).copies)) for m in one.step.modules}

    def _look_inside(self, one: _State) -> bool:
        if one.failed:  # nothing more begins in it; it has ended once what runs has
            for module in set(one.step.modules) - one.begun:
                one.open[module] = set()
        elif not self.stopping:
            gang: list[Run] = []
            for module in one.step.modules:
                if module not in one.begun and all(not one.open[p] for p in one.step.inner[module]):
                    one.begun.add(module)
                    gang += self._runs(one, module)
            if gang:
                self.gangs.append(gang)
                return True
        if any(one.open.values()):
            return len(one.begun) < len(one.step.modules) and self._skip_done(one)
        self._end_iteration(one)
        return True

    def _skip_done(self, one: _State) -> bool:
        return any(
            m not in one.begun and all(not one.open[p] for p in one.step.inner[m])
            for m in one.step.modules
            if not self.stopping
        )

    def _runs(self, one: _State, module: str) -> list[Run]:
        """The runs of a module in this iteration that were not done before."""
        found = []
        for copy in sorted(one.open[module]):
            run = Run(one.step.name, one.iteration, module, copy, 0, one.step.is_group)
            if run.key in self._done:
                one.open[module].discard(copy)
            else:
                found.append(run)
        return found

    def _end_iteration(self, one: _State) -> None:
        if one.failed:
            one.state = FAILED
        elif one.step.until is not None:
            known = self._goes_on.pop(f"{one.step.name}.{one.iteration}", None)
            if known is None:
                one.state = ASKING
            else:
                self._next_iteration(one, ends=not known)
        else:
            self._next_iteration(one, ends=False)

    def _next_iteration(self, one: _State, ends: bool) -> None:
        most = one.step.iterations
        if ends or (most is not None and one.iteration + 1 >= most):
            one.state = DONE
        else:
            one.state = RUNNING
            one.iteration += 1
            self._open(one)
