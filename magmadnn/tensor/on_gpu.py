"""Functions of arrays whose eager calls are computed on the GPU where their operands lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from magmadnn.errors import MagmaDNNError
from magmadnn.graph.node import Node, handle_node
from magmadnn.memory.foreign import is_foreign

from .conversion import asarray
from .eager.known import Known, known_call, with_types
from .eager.operands import lies_on_gpu
from .eager.programs import PROGRAMS, Traced
from .tensor import Tensor, holding_results

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN = (np.ndarray, list, str, bool, int, float, complex, type(None))


class _Operand:
    """Stands for an operand among arguments that programs are known by."""


_OPERAND = _Operand()


def on_gpu(*names: str, finite: bool = False) -> Callable[[F], F]:
    """A function of arrays whose eager calls run where their operands lie, if that is a GPU.

    The first Tensor says where: results are in memory of its kind, on its device. Other arrays, and Tensors
    on the host, are copied there. What a program on the device cannot do, and what is wrong, is
    computed by the function itself, on the host.

    Args:
        *names: arguments that may be arrays, or tuples with some.
        finite: whether operands with NaN or infinity are the host's.
    """

    def decorated(function: F) -> F:
        taken = signature(function)

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if _lies_well(args) or _may_lie(args) or (named and _may_lie(named.values())):
                known = known_call(function, args, named, Tensor)
                if known is not None and (found := PROGRAMS.again(known)) is not None:
                    return _formed(holding_results(found), found.form)
                bound = taken.bind(*args, **named).arguments  # a TypeError as that of the function
                given = _Call.of(function, bound, names)
                if given is not None:
                    return given.computed(finite, known)
            return function(*args, **named)

        return call  # type: ignore[return-value]  # of the same signature

    return decorated


def _lies_well(args: tuple[Any, ...]) -> bool:
    """Whether the first argument is a Tensor on a GPU, as it most often is then."""
    return bool(args) and type(args[0]) is Tensor and args[0]._device_layout() is not None


def _may_lie(values: Any) -> bool:
    """Whether there is a Tensor on a GPU among arguments, or something that is not known."""
    for value in values:
        kind = type(value)
        if kind in _PLAIN or kind is Node:
            continue
        if kind is Tensor:
            if lies_on_gpu(value.memory):
                return True
        elif kind is tuple:
            if _may_lie(value):
                return True
        elif handle_node(value) is None:
            return True
    return False


@dataclass(frozen=True)
class _Call:
    """A call whose first Tensor lies on a GPU.

    Attributes:
        function: what is called,
        arguments: with these, in which marks stand where arrays were,
        names: of the arguments that have some.
        operands: the arrays and Tensors.
        first: the first Tensor.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    names: Sequence[str]
    operands: Sequence[Any]
    first: Tensor

    @classmethod
    def of(
        cls, function: Callable[..., Any], arguments: Mapping[str, Any], names: Sequence[str]
    ) -> _Call | None:
        """None for what the function has to look at itself, and for operands that lie elsewhere."""
        operands: list[Any] = []
        try:
            marked = {k: _parted(v, operands) if k in names else v for k, v in arguments.items()}
        except (MagmaDNNError, ValueError, TypeError):  # no arrays: the function says so
            return None
        first = next((x for x in operands if isinstance(x, Tensor)), None)
        if first is None or not lies_on_gpu(first.memory) or any(map(_is_lazy, operands)):
            return None
        return cls(function, marked, names, operands, first)

    def computed(self, finite: bool, known_at_once: Known | None) -> Any:
        """The results, in memory like that of the first Tensor; by the host where programs cannot."""
        known = tuple((k, with_types(v)) for k, v in self.arguments.items())
        place = self.first.kind, self.first.device
        results = PROGRAMS.call(
            (self.function, known), self.operands, place, self._traced,
            finite=finite, known=known_at_once,
        )  # fmt: skip
        if results is not None:
            return _formed(holding_results(results), results.form)
        found = self._of([asarray(_on_host(x)) for x in self.operands])
        parts = [Tensor.holding(y.read(), *place) for y in _listed(found)]
        return _formed(parts, type(found))

    def _traced(self, nodes: list[Any]) -> Traced | None:
        found = self._of(nodes)
        made = _listed(found)
        return Traced(made, type(found)) if all(type(y) is Node for y in made) else None

    def _of(self, operands: Sequence[Any]) -> Any:
        """What the function gives of others in place of the operands."""
        left = iter(operands)
        return self.function(
            **{k: _whole(v, left) if k in self.names else v for k, v in self.arguments.items()}
        )


def _on_host(operand: Any) -> Any:
    return operand.read() if isinstance(operand, Tensor) else operand


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _parted(value: Any, operands: list[Any]) -> Any:
    """An argument with marks where arrays were, which are put to `operands`."""
    if isinstance(value, tuple):
        return tuple(_parted(part, operands) for part in value)
    if isinstance(value, Tensor | np.ndarray) or _is_lazy(value):
        operands.append(value)
    elif isinstance(value, list):
        operands.append(asarray(value).read())
    elif is_foreign(value):
        operands.append(asarray(value))
    else:
        return value
    return _OPERAND


def _is_lazy(value: Any) -> bool:
    return handle_node(value) is not None


def _whole(part: Any, nodes: Any) -> Any:
    """An argument with nodes in place of marks."""
    if isinstance(part, tuple):
        return tuple(_whole(one, nodes) for one in part)
    return next(nodes) if part is _OPERAND else part


def _formed(parts: Sequence[Tensor], form: type) -> Any:
    """Tensors as the function gives them: one, a tuple, or one with names."""
    if not issubclass(form, tuple):
        return parts[0]
    return tuple(parts) if form is tuple else form(*parts)
