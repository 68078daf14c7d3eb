"""Optimisers: what all have in common, the chain of one's own parts, and those with a name.

Each of these states its settings, then the parts that it is made of. All settings are inputs of the step. A
setting that is 0 or None when the optimiser is made leaves its part out: give a schedule, or a small value,
for one that is to change later. Clipping comes first, by value and then by norm; weight decay is coupled
(part of the gradient) where it stands before the direction, and decoupled where it stands after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.alike import Roots
from magmadnn.optim.inputs import with_settings
from magmadnn.optim.parts import (
    AdamMoments,
    ClipNorm,
    ClipValue,
    LayerNormRatio,
    LayerRate,
    LearningRate,
    Momentum,
    RootMeanSquare,
    RootSum,
    Transform,
    WeightDecay,
    checked_parts,
    used,
)
from magmadnn.optim.records import (
    ABOVE_0,
    AT_LEAST_0,
    COUNT,
    FRACTION,
    Record,
    Setting,
    named,
    refuse_class,
    restore,
)
from magmadnn.optim.step import Step
from magmadnn.tensor import Operation, Tensor
from magmadnn.tensor.operation import Feeds


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


# --- those with a name ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= learning_rate * v, where v = momentum * v + g (Nesterov's: g + momentum * v in place of v).

    Robbins, Monro, Ann. Math. Stat. 22 (1951); Polyak, USSR Comp. Math. 4 (1964); Sutskever, Martens, Dahl,
    Hinton, ICML 2013, eq. (1)-(4). As PyTorch's SGD. The original's factor (1 - momentum) on g is left out.

    Args:
        learning_rate: of at least 0.
        momentum: at least 0, below 1.
        nesterov: whether to look ahead; needs a momentum.
        weight_decay: coupled: g + weight_decay * w in place of g.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.01, metadata=AT_LEAST_0)
    momentum: Setting = field(default=0.0, metadata=FRACTION)
    nesterov: bool = False
    weight_decay: Setting = field(default=0.0, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def __post_init__(self) -> None:
        """Check."""
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise ArgumentError("SGD: nesterov needs a momentum above 0, got 0.0; take 0.9, say")

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            *used(WeightDecay, self.weight_decay),
            *used(Momentum, self.momentum, self.nesterov),
            LearningRate(self.learning_rate),
        )


@dataclass(frozen=True)
class AdaGrad(Optimizer):
    """w -= learning_rate * g / (sqrt(s) + eps), where s is the sum of all g**2 so far.

    Duchi, Hazan, Singer, JMLR 12 (2011), figure 1 with a diagonal matrix. As PyTorch's Adagrad; the
    original has 1e-8 inside the root.

    Args:
        learning_rate: of at least 0.
        eps: above 0; outside the root.
        weight_decay: coupled: g + weight_decay * w in place of g.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.01, metadata=AT_LEAST_0)
    eps: Setting = field(default=1e-10, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.0, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            *used(WeightDecay, self.weight_decay),
            RootSum(self.eps),
            LearningRate(self.learning_rate),
        )


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """w -= learning_rate * g / (sqrt(s) + eps), where s = decay * s + (1 - decay) * g**2.

    Tieleman, Hinton, "Neural networks for machine learning", lecture 6e (2012), slide 29. As PyTorch's
    RMSprop, whose default decay is 0.99; the original has 1e-8 inside the root.

    Args:
        learning_rate: of at least 0.
        decay: at least 0, below 1; the lecture's value by default.
        momentum: of the scaled gradients, as in `SGD`.
        eps: above 0; outside the root.
        weight_decay: coupled: g + weight_decay * w in place of g.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.001, metadata=AT_LEAST_0)
    decay: Setting = field(default=0.9, metadata=FRACTION)
    momentum: Setting = field(default=0.0, metadata=FRACTION)
    eps: Setting = field(default=1e-8, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.0, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            *used(WeightDecay, self.weight_decay),
            RootMeanSquare(self.decay, self.eps),
            *used(Momentum, self.momentum),
            LearningRate(self.learning_rate),
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """w -= learning_rate * m_hat / (sqrt(v_hat) + eps), with the bias-corrected moments of g and g**2.

    Kingma, Ba, ICLR 2015, algorithm 1. As PyTorch's Adam.

    Args:
        learning_rate: of at least 0.
        beta1: of the mean of g; at least 0, below 1.
        beta2: of the mean of g**2; at least 0, below 1.
        eps: above 0; outside the root.
        weight_decay: coupled: g + weight_decay * w in place of g. `AdamW` has the decoupled one.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.001, metadata=AT_LEAST_0)
    beta1: Setting = field(default=0.9, metadata=FRACTION)
    beta2: Setting = field(default=0.999, metadata=FRACTION)
    eps: Setting = field(default=1e-8, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.0, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            *used(WeightDecay, self.weight_decay),
            AdamMoments(self.beta1, self.beta2, self.eps),
            LearningRate(self.learning_rate),
        )


@dataclass(frozen=True)
class AdamW(Optimizer):
    """w -= learning_rate * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w): Adam with decoupled decay.

    Loshchilov, Hutter, ICLR 2019, algorithm 2, line 12. As in PyTorch's AdamW, the learning rate also
    scales the decay; the paper has a separate schedule factor for both.

    Args:
        learning_rate: of at least 0.
        beta1: of the mean of g; at least 0, below 1.
        beta2: of the mean of g**2; at least 0, below 1.
        eps: above 0; outside the root.
        weight_decay: decoupled.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.001, metadata=AT_LEAST_0)
    beta1: Setting = field(default=0.9, metadata=FRACTION)
    beta2: Setting = field(default=0.999, metadata=FRACTION)
    eps: Setting = field(default=1e-8, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.01, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            AdamMoments(self.beta1, self.beta2, self.eps),
            *used(WeightDecay, self.weight_decay),
            LearningRate(self.learning_rate),
        )


@dataclass(frozen=True)
class LARS(Optimizer):
    """v = momentum * v + learning_rate * rate * (g + weight_decay * w); w -= v. For large batches.

    Each parameter has a rate of its own:
    rate = trust_coefficient * norm(w) / (norm(g) + weight_decay * norm(w)), or 1 where a norm is 0.
    You, Gitman, Ginsburg, arXiv:1708.03888, algorithm 1. Not in PyTorch.

    Args:
        learning_rate: of at least 0. It is far larger than for SGD, since the trust coefficient scales it.
        momentum: at least 0, below 1.
        weight_decay: at least 0.
        trust_coefficient: above 0.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=1.0, metadata=AT_LEAST_0)
    momentum: Setting = field(default=0.9, metadata=FRACTION)
    weight_decay: Setting = field(default=0.0005, metadata=AT_LEAST_0)
    trust_coefficient: Setting = field(default=0.001, metadata=ABOVE_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            LayerRate(self.trust_coefficient, self.weight_decay),
            LearningRate(self.learning_rate),
            *used(Momentum, self.momentum),
        )


@dataclass(frozen=True)
class LAMB(Optimizer):
    """w -= learning_rate * norm(w) / norm(u) * u, where u is the direction of `AdamW`. For large batches.

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * w; the ratio is 1 where a norm is 0.
    You et al., ICLR 2020 (arXiv:1904.00962), algorithm 2, with phi(x) = x. Not in PyTorch.

    Args:
        learning_rate: of at least 0.
        beta1: of the mean of g; at least 0, below 1.
        beta2: of the mean of g**2; at least 0, below 1.
        eps: above 0; outside the root.
        weight_decay: at least 0.
        clip_value: bound of each element of the gradients.
        clip_norm: bound of the norm of all gradients together.

    Raises:
        ArgumentError: if a setting is out of range.
    """

    learning_rate: Setting = field(default=0.001, metadata=AT_LEAST_0)
    beta1: Setting = field(default=0.9, metadata=FRACTION)
    beta2: Setting = field(default=0.999, metadata=FRACTION)
    eps: Setting = field(default=1e-6, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.01, metadata=AT_LEAST_0)
    clip_value: Setting | None = field(default=None, metadata=ABOVE_0)
    clip_norm: Setting | None = field(default=None, metadata=ABOVE_0)

    def parts(self) -> tuple[Transform, ...]:
        """See `Optimizer`."""
        return (
            *used(ClipValue, self.clip_value),
            *used(ClipNorm, self.clip_norm),
            AdamMoments(self.beta1, self.beta2, self.eps),
            *used(WeightDecay, self.weight_decay),
            LayerNormRatio(),
            LearningRate(self.learning_rate),
        )
