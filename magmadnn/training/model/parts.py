"""What a model is made of: layers, parameters and states, their values, what of it is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.calls import FixedList
from magmadnn.errors import ArgumentError, CheckpointError, UnknownNameError
from magmadnn.graph.op import Array
from magmadnn.graph.spec import Spec
from magmadnn.layers.layer import Layer, Parameter, number_layers
from magmadnn.layers.settings import Changes
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Operation, Variable

from .assigning import PARTS

Trained = Parameter | Variable


def penalties_of(variables: Sequence[Trained]) -> list[Operation]:
    """The terms that regularisers of those that are trained add to the loss."""
    held = [p for p in variables if isinstance(p, Parameter) and p.regularizer is not None]
    return [
        p.regularizer(p)
        for p in trained_of(held)
        if isinstance(p, Parameter) and p.regularizer is not None
    ]


class ModelParts:
    """The part of `Model` that knows its layers and variables."""

    _layers: list[Layer]
    _free: list[Variable]  # variables that belong to no layer
    _names: tuple[int, tuple[str, ...]] | None = None  # of the variables, and `Changes.names` then
    _names_at: int  # of `Changes.names`, when layers were looked at last
    _trained_at: tuple[int, int] = (0, 0)  # of `Changes`, when the step was looked at last
    _step: Any
    _origin: str | None  # digest of the values that the training began with which left those of now

    @property
    def layers(self) -> list[Layer]:
        """In order of computation, each once."""
        return FixedList(self._layers, PARTS, "layers")

    def variables(self) -> list[Trained]:
        """Everything that is kept: parameters and states, in order of the layers.

        Raises:
            ArgumentError: if layers were given one name since they were called.
        """
        if self._names_at != Changes.names:
            number_layers(self._layers)
            self._names_at = Changes.names
        return [p for layer in self._layers for p in layer.parameters()] + list(self._free)

    def parameters(self) -> list[Trained]:
        """What is trained, in order of the layers; frozen layers are left out."""
        return trained_of(self.variables())

    def named(self) -> dict[str, Trained]:
        """All parameters and states by name.

        Raises:
            ArgumentError: if two have one name, so that the values of one would be taken for the other's.
        """
        found: dict[str, Trained] = {}
        for variable in self.variables():
            if found.setdefault(variable.name, variable) is not variable:
                raise ArgumentError(
                    f"Model: two of its variables are named {variable.name!r}; give each variable, and each "
                    "layer, a name of its own"
                )
        return found

    def values(self) -> dict[str, Array]:
        """Copies of all parameters and states, by name."""
        return {name: np.array(p.node.value.read()) for name, p in self.named().items()}

    def made_for(self) -> tuple[tuple[Any, ...], ...]:
        """What a step is made for: what is trained, what is kept as it is, and the names of all variables."""
        variables = self.variables()
        trained = tuple(p.node for p in trained_of(variables))
        kept = tuple(p.node for p in kept_states(variables))
        return trained, kept, tuple([str(p.name) for p in variables])

    def check_still_trained(self, before: tuple[tuple[Any, ...], ...] | None = None) -> None:
        """Look, while a training is under way, whether its step is still for what is trained, by these names.

        Args:
            before: what `made_for` gave when the training began; None: as the model's step says.

        Raises:
            ArgumentError: a callback has frozen, unfrozen or renamed layers.
        """
        if (now := (Changes.names, Changes.trainable)) == self._trained_at:
            return
        if before is None:
            if self._step is None:
                return
            before = (*self._step[0][:2], self._step[0][-1])
        self._trained_at = now
        if self.made_for() != before:
            raise ArgumentError(
                "fit: a callback has frozen, unfrozen or renamed a layer, which changes nothing while a fit "
                "is under way: end it, model.unfreeze(...), and call fit once more, which goes on from there"
            )

    def check(self, values: Mapping[str, Array]) -> None:
        """Look whether `values` fit this model in names, shapes and dtypes.

        Raises:
            CheckpointError: naming the first that does not.
        """
        expected = {name: p.node.spec for name, p in self.named().items()}
        for name, spec in expected.items():
            if name not in values:
                raise CheckpointError(f"{name} is missing; the values belong to another model")
            found = Spec(values[name].shape, values[name].dtype)
            if found != spec:
                way_out = "the values belong to another model"
                if found.shape == spec.shape:
                    way_out = f"write values[{name!r}].astype({spec.dtype.name!r})"
                raise CheckpointError(f"{name} is {found}, expected {spec}; {way_out}")
        if extra := set(values) - set(expected):
            raise CheckpointError(f"{min(extra)} is not in the model; the values belong to another")

    def assign(self, values: Mapping[str, Array]) -> None:
        """Give all parameters and states the values that `values()` gave; all or none.

        Raises:
            CheckpointError: if they do not fit.
        """
        self.check(values)
        self._origin = None
        for name, parameter in self.named().items():
            parameter.assign(values[name])

    def penalties(self) -> list[Operation]:
        """The terms that regularisers add to the loss."""
        return penalties_of(self.variables())

    def layer(self, name: str) -> Layer:
        """The layer of that name.

        Raises:
            UnknownNameError: if there is none.
        """
        named = {layer.label: layer for layer in self.layers}
        if name not in named:
            raise UnknownNameError.of("layer", name, named)
        return named[name]

    def freeze(self, *names: str) -> None:
        """Keep the parameters of these layers (all where none is named) as they are from now on."""
        self._set_trainable(names, False)

    def unfreeze(self, *names: str) -> None:
        """Train the parameters of these layers (all where none is named) again."""
        self._set_trainable(names, True)

    def _set_trainable(self, names: Sequence[str], value: bool) -> None:
        for layer in [self.layer(n) for n in names] or self.layers:
            layer.trainable = value


def trained_of(variables: Iterable[Trained]) -> list[Trained]:
    """What is trained; parameters of frozen layers are left out."""
    return [
        p for p in variables if not isinstance(p, Parameter) or (p.trained and p.layer.is_trainable)
    ]


def kept_states(variables: Iterable[Trained]) -> list[Parameter]:
    """What frozen layers have learnt without being trained: running statistics, but no counters."""
    states = [p for p in variables if isinstance(p, Parameter) and not p.trained]
    return [p for p in states if not p.layer.is_trainable and is_floating(p.dtype)]
