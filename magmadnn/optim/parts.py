"""The parts that optimisers are made of: each turns gradients into something nearer to the step.

A chain hands the gradients through its parts; what comes out of the last one is subtracted from the
parameters. A part is a frozen record whose numbers (or schedules) are inputs of the step, and its formula
is written in ops, once for all parameters or, as most are, for one parameter at a time.

Fading means (velocity, m, v) hold 0 in place of what is below the smallest normal number: see `faded`.
In the formulas g is the gradient as the part gets it, w the parameter, t the number of the step from 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.op import Array
from magmadnn.graph.spec import Spec
from magmadnn.ops import arithmetic

from .records import ABOVE_0, AT_LEAST_0, FRACTION, Record, Setting

Values = Mapping[str, Any]  # Operations or Scalars, by name


@dataclass(frozen=True)
class Transform(Record, ABC, family="optimiser part"):
    """A part that sees the gradients of all parameters at once (for a norm over all of them, say).

    Attributes:
        spreads: whether it may be given some of the parameters only, where ranks have different ones: a
            `Part` may, and one that needs of others only sums that it has from `over_parameters`.
        by_element: whether each element of a gradient becomes what it would become alone, so that ranks may
            have different elements of a parameter.
    """

    spreads: ClassVar[bool] = False
    by_element: ClassVar[bool] = False

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """What is kept from step to step for one parameter: initial values, by name.

        Args:
            parameter: shape of the parameter, and the dtype that the update computes in: float32, or
                float64 for a float64 parameter.
        """
        return {}

    @abstractmethod
    def transform(
        self,
        gradients: Sequence[Any],
        parameters: Sequence[Any],
        slots: Sequence[Values],
        settings: Values,
        count: Any,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """New gradients, and the new values of the slots, in the order of the parameters.

        Args:
            gradients: one Operation for each parameter, in the parameter's shape.
            parameters: their values before the step.
            slots: the values that `slots` began, by name.
            settings: this record's numbers as scalars, by the names of its fields. Beside an Operation they
                take its dtype; among themselves they are float64.
            count: the number of this step, counted from 1, likewise.
        """


@dataclass(frozen=True)
class Part(Transform, abstract=True):
    """A part with one formula for each parameter. Derive from it, as a frozen dataclass, for your own."""

    spreads: ClassVar[bool] = True

    @abstractmethod
    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The new gradient and the new values of all slots; arguments as for `Transform.transform`."""

    def transform(
        self,
        gradients: Sequence[Any],
        parameters: Sequence[Any],
        slots: Sequence[Values],
        settings: Values,
        count: Any,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """`update` for each parameter."""
        each = zip(gradients, parameters, slots, strict=True)
        done = [self.update(g, w, s, settings, count) for g, w, s in each]
        return [g for g, _ in done], [s for _, s in done]


_adding: ContextVar[Callable[[Sequence[Any]], Any] | None] = ContextVar("adding", default=None)


def over_parameters(terms: Sequence[Any]) -> Any:
    """The sum of one scalar for each parameter, over those of other ranks too.

    Args:
        terms: Operations, in the order of the parameters.
    """
    adding = _adding.get()
    return sum(terms[1:], terms[0]) if adding is None else adding(terms)


@contextmanager
def adding_up(adding: Callable[[Sequence[Any]], Any]) -> Iterator[None]:
    """Inside, `over_parameters` is `adding`."""
    token = _adding.set(adding)
    try:
        yield
    finally:
        _adding.reset(token)


def zeros(parameter: Spec, *names: str) -> dict[str, Array]:
    """Slots that begin at 0."""
    shape = bind_shape(parameter.shape, {})
    return {name: np.zeros(shape, parameter.dtype) for name in names}


def faded(mean: Any) -> Any:
    """A fading mean, with 0 in place of elements that are below the smallest normal number; NaN stays.

    Where gradients stay 0, as those of dead units, a mean would come to rest at 4 or 5 times the smallest
    number there is (0.9 of which is rounded to itself), and CPUs take some 150 cycles for each such number.
    """
    return arithmetic.faded(mean)


# --- clipping and decay ------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipValue(Part):
    """Each element of g brought into -clip_value .. clip_value."""

    by_element: ClassVar[bool] = True

    clip_value: Setting = field(metadata=ABOVE_0)

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        limit = settings["clip_value"]
        return ops.clip(g, -limit, limit), {}


@dataclass(frozen=True)
class ClipNorm(Transform):
    """g * clip_norm / norm where norm > clip_norm; norm is that of all gradients as one vector.

    Pascanu, Mikolov, Bengio, ICML 2013, algorithm 1. PyTorch adds 1e-6 to the norm; here it is exact. Where
    squares of gradients are beyond the dtype's range (norms above 1.8e19 in float32) all becomes NaN, which
    ends a training, and not 0, with which it would stand still.
    """

    spreads: ClassVar[bool] = True

    clip_norm: Setting = field(metadata=ABOVE_0)

    def transform(
        self,
        gradients: Sequence[Any],
        parameters: Sequence[Any],
        slots: Sequence[Values],
        settings: Values,
        count: Any,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """See `Transform`."""
        norm = _within_range(ops.sqrt(over_parameters([ops.sum(g * g) for g in gradients])))
        limit = settings["clip_norm"]
        factor = limit / ops.maximum(norm, limit)
        return [g * ops.cast(factor, g.dtype) for g in gradients], [{} for _ in gradients]


@dataclass(frozen=True)
class WeightDecay(Part):
    """g + weight_decay * w.

    Before the part that scales gradients this is the gradient of weight_decay / 2 * sum(w**2) (coupled);
    after it, the decay is decoupled: Loshchilov, Hutter, ICLR 2019, algorithm 2, line 12.
    """

    by_element: ClassVar[bool] = True

    weight_decay: Setting = field(metadata=AT_LEAST_0)

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        return g + settings["weight_decay"] * w, {}


# --- directions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Momentum(Part):
    """velocity = momentum * velocity + g; gives velocity, or g + momentum * velocity for Nesterov's.

    Polyak, USSR Comp. Math. 4 (1964); Sutskever, Martens, Dahl, Hinton, ICML 2013, eq. (1)-(4),
    in PyTorch's form: the learning rate is outside of the velocity, and Nesterov's look-ahead is expressed
    in the parameters that are kept.

    Attributes:
        momentum: from 0 up to but not including 1.
        nesterov: whether the gradient is taken ahead.
    """

    by_element: ClassVar[bool] = True

    momentum: Setting = field(default=0.9, metadata=FRACTION)
    nesterov: bool = False

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """See `Transform`."""
        return zeros(parameter, "velocity")

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        velocity = faded(settings["momentum"] * slots["velocity"] + g)
        step = g + settings["momentum"] * velocity if self.nesterov else velocity
        return step, {"velocity": velocity}


@dataclass(frozen=True)
class RootSum(Part):
    """sum_of_squares += g**2; gives g / (sqrt(sum_of_squares) + eps).

    Duchi, Hazan, Singer, JMLR 12 (2011), figure 1, with a diagonal matrix.
    """

    by_element: ClassVar[bool] = True

    eps: Setting = field(default=1e-10, metadata=ABOVE_0)

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """See `Transform`."""
        return zeros(parameter, "sum_of_squares")

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        total = slots["sum_of_squares"] + g * g
        return g / (ops.sqrt(total) + settings["eps"]), {"sum_of_squares": total}


@dataclass(frozen=True)
class RootMeanSquare(Part):
    """mean_square = decay * mean_square + (1 - decay) * g**2; gives g / (sqrt(mean_square) + eps).

    Tieleman, Hinton, "Neural networks for machine learning", lecture 6e (2012), slide 29.
    """

    by_element: ClassVar[bool] = True

    decay: Setting = field(default=0.9, metadata=FRACTION)
    eps: Setting = field(default=1e-8, metadata=ABOVE_0)

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """See `Transform`."""
        return zeros(parameter, "mean_square")

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        decay = settings["decay"]
        mean = faded(decay * slots["mean_square"] + (1 - decay) * (g * g))
        return g / (ops.sqrt(mean) + settings["eps"]), {"mean_square": mean}


@dataclass(frozen=True)
class AdamMoments(Part):
    """m_hat / (sqrt(v_hat) + eps), with the bias-corrected means of g and g**2.

    m = beta1 * m + (1 - beta1) * g,       m_hat = m / (1 - beta1**t),
    v = beta2 * v + (1 - beta2) * g**2,    v_hat = v / (1 - beta2**t).

    Kingma, Ba, ICLR 2015, algorithm 1. The corrections are computed in float64.
    """

    by_element: ClassVar[bool] = True

    beta1: Setting = field(default=0.9, metadata=FRACTION)
    beta2: Setting = field(default=0.999, metadata=FRACTION)
    eps: Setting = field(default=1e-8, metadata=ABOVE_0)

    def slots(self, parameter: Spec) -> dict[str, Array]:
        """See `Transform`."""
        return zeros(parameter, "m", "v")

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        beta1, beta2 = settings["beta1"], settings["beta2"]
        m = faded(beta1 * slots["m"] + (1 - beta1) * g)
        v = faded(beta2 * slots["v"] + (1 - beta2) * (g * g))
        m_hat = m / (1 - beta1**count)
        v_hat = v / (1 - beta2**count)
        return m_hat / (ops.sqrt(v_hat) + settings["eps"]), {"m": m, "v": v}


# --- lengths -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearningRate(Part):
    """learning_rate * g."""

    by_element: ClassVar[bool] = True

    learning_rate: Setting = field(metadata=AT_LEAST_0)

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        return settings["learning_rate"] * g, {}


@dataclass(frozen=True)
class LayerRate(Part):
    """rate * (g + weight_decay * w), where each parameter has a rate of its own.

    rate = trust_coefficient * norm(w) / (norm(g) + weight_decay * norm(w)).

    You, Gitman, Ginsburg, arXiv:1708.03888, algorithm 1 (LARS). The rate is 1 where a norm is 0, which the
    paper leaves open: a bias that begins at 0 would never move.
    """

    trust_coefficient: Setting = field(default=0.001, metadata=ABOVE_0)
    weight_decay: Setting = field(default=0.0, metadata=AT_LEAST_0)

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        decay, of_w, of_g = settings["weight_decay"], ops.norm(w), _within_range(ops.norm(g))
        both = ops.logical_and(of_w > 0, ops.not_equal(of_g, 0))
        rate = _ratio(settings["trust_coefficient"] * of_w, of_g + decay * of_w, both)
        return rate * (g + decay * w), {}


@dataclass(frozen=True)
class LayerNormRatio(Part):
    """g * norm(w) / norm(g) for each parameter; g where a norm is 0.

    You et al., ICLR 2020 (arXiv:1904.00962), algorithm 2 (LAMB), with phi(x) = x.
    """

    def update(
        self, g: Any, w: Any, slots: Values, settings: Values, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """See `Part`."""
        of_w, of_g = ops.norm(w), _within_range(ops.norm(g))
        return _ratio(of_w, of_g, ops.logical_and(of_w > 0, ops.not_equal(of_g, 0))) * g, {}


def _within_range(norm: Any) -> Any:
    """A norm that is divided by: NaN where it is infinite, so that no quotient is 0 unnoticed."""
    return ops.where(norm < np.inf, norm, np.nan)


def _ratio(top: Any, bottom: Any, condition: Any) -> Any:
    """top / bottom where the condition holds, 1 elsewhere; nothing is ever divided by 0."""
    return ops.where(condition, top, 1.0) / ops.where(condition, bottom, 1.0)


def used(part: Any, value: Any, *more: Any) -> tuple[Transform, ...]:
    """`part(value, *more)`, or nothing where the value is None or 0: then it would change nothing."""
    return () if value is None or value == 0 else (part(value, *more),)


def checked_parts(parts: Sequence[Any]) -> tuple[Transform, ...]:
    """The parts of a chain.

    Raises:
        ArgumentError: if there is none, or something else among them.
    """
    if not parts:
        raise ArgumentError(
            "chain: expected at least one part, for instance md.optim.LearningRate(0.01)"
        )
    for part in parts:
        if not isinstance(part, Transform):
            raise ArgumentError(
                f"chain: expected parts such as md.optim.Momentum(0.9), got {part!r}"
            )
    return tuple(parts)
