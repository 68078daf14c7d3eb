"""Optimisers: what all have in common, and the chain of one's own parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError
from magmadnn.tensor import Operation, Tensor
from magmadnn.tensor.operation import Feeds

from .building.accumulation import Accumulation
from .building.alike import Roots
from .inputs import with_settings
from .parts import Transform, checked_parts
from .records import COUNT, Record, Setting, named, refuse_class, restore
from .step import Step


@dataclass(frozen=True)
class Optimizer(Record, ExplainsAttributes, ABC, family="optimiser"):
    """A rule for updating parameters; a frozen record that can be used for many steps and models.

    The state (moments, the count) is in the `Step`, not here.
    """

    @abstractmethod
    def parts(self) -> tuple[Transform, ...]:
        """The parts in order; what comes out of the last one is subtracted from the parameters."""

    def with_settings(self, settings: Mapping[str, Setting]) -> Optimizer:
        """The optimiser with other settings, by the names that `Step.set` takes; a chain if it must be."""
        if not settings:
            return self
        parts = tuple(with_settings(self.parts(), settings))
        if settings.keys() <= {f.name for f in fields(self)}:
            try:
                found = replace(self, **settings)
                if found.parts() == parts:
                    return found
            except ArgumentError:  # of a field that may be less than the part's
                pass
        return Chain(parts)

    def step(
        self,
        loss: Operation | Roots,
        parameters: Sequence[Operation],
        *,
        outputs: Sequence[Operation] = (),
        executor: str = "native",
        precision: str = "float32",
        device: str = "cpu",
        kept: Sequence[Operation] = (),
        more: Sequence[Transform] = (),
        accumulation: Accumulation | None = None,
    ) -> Step:
        """The training step that lowers `loss`.

        Args:
            loss: a scalar; computed as in training (dropout, batch statistics).
            parameters: variables to update. One that the loss does not depend on is left as it is.
            outputs: more to compute in the same run.
            executor: "native" for compiled kernels, "reference" for NumPy, op by op.
            precision: of matrix products; see `Model`. With "mixed_fp16" the loss is scaled, and steps whose
                gradients are not finite change nothing: see `Step.skipped`.
            device: where kernels run: "cpu", "cuda", "cuda:1" or "auto"; see `Model`.
            kept: variables that stay as they are although layers would update them (running statistics).
            more: parts that come after the optimiser's own.
            accumulation: of gradients of several batches for one update.

        Raises:
            GraphError, ShapeError, DTypeError, ArgumentError: if the loss is no scalar or does not depend
                on any parameter, or if parameters are not floating-point variables, each given once.
        """
        how = (executor, precision, device, kept, more, accumulation)
        return Step(self, loss, parameters, outputs, *how)

    def minimize(
        self,
        operation: Operation,
        variables: Sequence[Operation],
        steps: int = 100,
        feeds: Feeds | None = None,
    ) -> Tensor:
        """Do `steps` steps on `variables`, and give the operation's value where they end.

        Args:
            operation: a scalar.
            variables: what it may change.
            steps: how many steps, at least 1.
            feeds: arrays for the placeholders, the same at each step.

        Raises:
            ArgumentError: if steps is not a whole number of at least 1; else as for `step`.
        """
        count = int(COUNT.check(f"{type(self).__name__}.minimize", "steps", steps))
        step = self.step(operation, variables)
        for _ in range(count):
            step.run(feeds)
        return operation.eval(feeds)


@dataclass(frozen=True)
class Chain(Optimizer):
    """Parts of one's own choice, made by `chain`."""

    chained: tuple[Transform, ...]

    def __post_init__(self) -> None:
        """Check."""
        object.__setattr__(self, "chained", checked_parts(self.chained))

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return self.chained


def chain(*parts: Transform) -> Optimizer:
    """An optimiser of one's own: the gradients go through the parts in order.

    What comes out of the last part is subtracted from the parameters, so end with `LearningRate`, as in
    `chain(ClipNorm(1.0), Momentum(0.9), LearningRate(0.1))`.

    Raises:
        ArgumentError: if there is no part, or something else among them.
    """
    return Chain(parts)


def by_name(name: str, **settings: Any) -> Optimizer:
    """The optimiser called `name` (in any case), with its defaults where a setting is left out.

    Raises:
        UnknownNameError: if there is none of that name, or it has no such setting.
        ArgumentError: if a setting is wrong.
    """
    return named(Optimizer, name, settings)  # type: ignore[type-abstract]  # only subclasses are made


def from_config(config: dict[str, Any]) -> Optimizer:
    """The optimiser that `Optimizer.config` describes; errors as for `by_name`.

    A class of one's own must have been defined before.
    """
    return restore(Optimizer, config)  # type: ignore[type-abstract]  # only subclasses are made


def of(optimizer: Optimizer | str) -> Optimizer:
    """An optimiser, given itself or its name.

    Raises:
        UnknownNameError: if there is none of that name.
        ArgumentError: if it is neither.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        return by_name(optimizer)
    refuse_class("optimizer", optimizer)
    raise ArgumentError(
        f"optimizer: expected an optimiser such as md.optim.Adam() or its name, got {optimizer!r}"
    )
