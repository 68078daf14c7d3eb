"""From a point to a model: which parameters `build` takes, which go to `fit`, and the refusal of others."""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS, Parameter, signature
from types import CodeType, FunctionType, MethodType
from typing import Any

from magmadnn.errors import ArgumentError, UnknownNameError, quoted
from magmadnn.training import Model
from magmadnn.training.arguments import at_least

from .space import Point, Space

OF_FIT = ("batch_size", "epochs")
_ALIASES = {"lr": "learning_rate", "learning_rate": "lr"}
_WRITES = ("STORE_FAST", "DELETE_FAST", "STORE_FAST_STORE_FAST")
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Builder:
    """Makes the model of a point.

    Attributes:
        build: the user's function.
        named: parameters that it has by name.
        takes_all: whether it takes any name.
    """

    build: Callable[..., Model]
    named: tuple[str, ...]
    takes_all: bool

    @classmethod
    def of(cls, build: Any) -> Builder:
        """What a user's function takes.

        Raises:
            ArgumentError: if it cannot be called.
        """
        if isinstance(build, Model):
            raise ArgumentError(
                "search: build must be a function that makes a new model of the parameters of a point, got a "
                "Model: write def build(learning_rate): return md.Model(...)"
            )
        if not callable(build):
            raise ArgumentError(f"search: build must be a function, got {quoted(build)}")
        parameters = signature(build).parameters.values()
        return cls(
            build,
            tuple(p.name for p in parameters if p.kind in _NAMED),
            any(p.kind is Parameter.VAR_KEYWORD for p in parameters),
        )

    def fitting(self, space: Space) -> Space:
        """The space with parameters named as `build` names them: `lr` means `learning_rate`.

        Raises:
            ArgumentError: if `build` ignores one, or wants one that the space does not have.
            UnknownNameError: if it lacks one; says the nearest name.
        """
        names = {
            name: _ALIASES[name]
            for name in space.dimensions
            if name in _ALIASES and name not in self.named and _ALIASES[name] in self.named
        }
        if twice := [new for new in names.values() if new in space.dimensions]:
            raise ArgumentError(
                f"search: lr and learning_rate are both in the space, but build takes {twice[0]} only"
            )
        space = space.renamed(names) if names else space
        self._check_taken(space)
        self._check_used(space)
        self._check_given(space)
        return space

    def model(self, point: Point, seed: int) -> Model:
        """The model of a point.

        A `seed` is given where `build` takes one that is not searched; `batch_size` and `epochs`, which are
        arguments of `fit`, where it names them too.

        Raises:
            ArgumentError: if `build` gives something else.
        """
        options = {k: v for k, v in point.items() if k not in OF_FIT or k in self.named}
        if "seed" in self.named:
            options.setdefault("seed", seed)
        model = self.build(**options)
        if not isinstance(model, Model):
            raise ArgumentError(
                f"search: build must return a Model, got {quoted(model)}"
                + ("; is its return missing?" if model is None else "")
            )
        return model

    def _check_taken(self, space: Space) -> None:
        for name in space.dimensions:
            if name not in self.named and name not in OF_FIT and not self.takes_all:
                known = [*self.named, *(n for n in OF_FIT if n not in self.named)]
                raise UnknownNameError.of(
                    "search: build takes no parameter: parameter", name, known
                )

    def _check_used(self, space: Space) -> None:
        unused, others = _unread(self.build)
        for name in space.dimensions:
            if name not in self.named and name not in OF_FIT and others:
                raise ArgumentError(
                    f"search: build takes {name} in **{others} and never uses these, so all its values would "
                    "give the same network; give it a parameter of this name, or leave it out of the space"
                )
            if name in unused:
                raise ArgumentError(
                    f"search: build takes {name} and never uses it, so all its values would give the same "
                    "network; use it, or leave it out of the space"
                )

    def _check_given(self, space: Space) -> None:
        for name, parameter in signature(self.build).parameters.items():
            if parameter.kind not in (*_NAMED, Parameter.POSITIONAL_ONLY) or name == "seed":
                continue
            missing = parameter.default is Parameter.empty and name not in space.dimensions
            if missing or parameter.kind is Parameter.POSITIONAL_ONLY:
                raise ArgumentError(
                    f"search: build needs {name}, which the space does not have; give it a default value, or "
                    f"add it to the space"
                )
            one = space.dimensions.get(name)
            if one is not None and one.conditions and parameter.default is Parameter.empty:
                raise ArgumentError(
                    f"search: {name} is not there at all points, so build needs a default value for it"
                )


def as_named(point: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """A point that a user wrote, with `lr` and `learning_rate` called as the space calls them.

    Raises:
        ArgumentError: if it has both, and the space one of them.
    """
    if all(name in point for name in _ALIASES) and not all(n in space.dimensions for n in _ALIASES):
        raise ArgumentError("search: first: a point has lr and learning_rate, which are the same")
    return {
        _ALIASES[n] if n in _ALIASES and n not in space.dimensions else n: v
        for n, v in point.items()
    }


def fit_arguments(point: Point, default: Mapping[str, int]) -> dict[str, int]:
    """`batch_size` and `epochs` of a point, over those that hold for all.

    Raises:
        ArgumentError: if one is no positive integer.
    """
    found = {name: point.get(name, default[name]) for name in OF_FIT}
    for name, value in found.items():
        at_least(f"search: {name}", value, 1)
    return found


def check_fit_parameters(space: Space) -> None:
    """Look, before anything is trained, whether `batch_size` and `epochs` of a space can be only integers.

    Raises:
        ArgumentError: if not.
    """
    for name in OF_FIT:
        one = space.dimensions.get(name)
        if one is None:
            continue
        ends = one.values() if one.count is not None and one.count < 10_000 else [one.at(0.0)]
        for value in ends:
            at_least(f"search: space: {name}", value, 1)


def _unread(function: Any) -> tuple[set[str], str]:
    """The parameters of a Python function that its code never reads; and `kw` of its `**kw` likewise."""
    plain = _plain(function)
    if plain is None:
        return set(), ""
    code: CodeType = plain.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    read = {
        name
        for instruction in dis.get_instructions(code)
        if "FAST" in instruction.opname and instruction.opname not in _WRITES
        for name in (
            instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        )
        if isinstance(name, str)
    }
    if "locals" in code.co_names:
        return set(), ""
    read |= set(code.co_cellvars)
    others = count + bool(code.co_flags & CO_VARARGS)
    keywords = code.co_varnames[others] if code.co_flags & CO_VARKEYWORDS else ""
    return set(code.co_varnames[:count]) - read, "" if keywords in read else keywords


def _plain(function: Any) -> FunctionType | None:
    """The Python function that a call runs; None where that is not known."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    if not isinstance(function, (FunctionType, type)) and not hasattr(function, "__wrapped__"):
        function = type(function).__call__
    function = getattr(function, "__wrapped__", function)
    return function if isinstance(function, FunctionType) else None
