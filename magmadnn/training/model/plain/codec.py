"""Settings as plain JSON data, and back.

Numbers, texts, tuples and lists stay; initialisers, regularisers, losses, metrics, optimisers, schedules
and layers are records of settings and become their class's name and those settings. Names are looked up
in a closed list: magmadnn's own classes, and what the caller hands over as `custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, CheckpointError, GraphError, UnknownNameError
from magmadnn.graph.dim import Dim, Factor, Quotient
from magmadnn.graph.op import REGISTRY, Op
from magmadnn.graph.origins import DEFINED_IN, is_ours
from magmadnn.memory.dtypes import as_dtype

# What is encoded by its name alone, by id; None where nobody asks.
_others: ContextVar[dict[int, Any] | None] = ContextVar("magmadnn_items_of_others", default=None)


class Custom:
    """What a caller hands over for loading: own layers, ops, functions, each under its name."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        if not isinstance(items, Iterable):
            raise ArgumentError(f"custom must be a list such as [MyLayer], got {items!r}")
        self.items: dict[str, Any] = {}
        for item in items:
            name = item.name if isinstance(item, Op) else getattr(item, "__name__", None)
            if name is None:
                raise ArgumentError(f"custom: expected classes, ops or functions, got {item!r}")
            if self.items.setdefault(name, item) is not item:
                raise ArgumentError(
                    f"custom: two of the items are called {name}, and a saved model names one; hand over the "
                    "one it was saved with"
                )

    def op(self, name: str) -> Op | None:
        """The op called `name`, if there is one."""
        item = self.items.get(name)
        return item if isinstance(item, Op) else None


@cache
def _known() -> dict[str, type[Any]]:
    """Every class of magmadnn whose instances are settings, by family and name: `init.uniform`."""
    from magmadnn import layers, losses, metrics, optim
    from magmadnn.tensor import init

    families = {
        "init": init,
        "layers": layers,
        "losses": losses,
        "metrics": metrics,
        "optim": optim,
    }
    return {
        f"{family}.{name}": item
        for family, module in families.items()
        for name, item in vars(module).items()
        if isinstance(item, type) and is_dataclass(item) and not name.startswith("_")
    }


@cache
def _named() -> dict[str, Any]:
    """What of magmadnn may be given as itself, by family and name: classes of settings, losses' functions."""
    from magmadnn.losses.conversion import LOSS_FUNCTIONS

    return _known() | {f"losses.{function.__name__}": function for function, _ in LOSS_FUNCTIONS}


@contextmanager
def items_of_others() -> Iterator[dict[int, Any]]:
    """Classes, functions and ops that are not magmadnn's, of all that is encoded meanwhile."""
    found: dict[int, Any] = {}
    token = _others.set(found)
    try:
        yield found
    finally:
        _others.reset(token)


def note_item(item: Any) -> None:
    """Keep something that is encoded by its name, if it is not magmadnn's."""
    found = _others.get()
    if found is not None and not is_ours(module_of(item)):
        found[id(item)] = item


def module_of(item: Any) -> str:
    """The module that defines a class, a function or an op; empty where it does not say."""
    if isinstance(item, Op):
        return DEFINED_IN[item.name]
    return getattr(item, "__module__", None) or ""


def encode(value: Any) -> Any:
    """`value` as JSON data.

    Raises:
        GraphError: if it has no such form.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [encode(v) for v in value]}
    if isinstance(value, dict) and all(isinstance(k, (str, int)) for k in value):
        return {"dict": [[k, encode(v)] for k, v in value.items()]}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, Dim):
        terms = value.terms.items()
        return {"dim": [[list(map(_encode_factor, factors)), number] for factors, number in terms]}
    if isinstance(value, Op):
        note_item(value)
        return {"op": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_record(value)
    own = next((name for name, item in _named().items() if item is value), None)
    if own is not None:
        return {"magmadnn": own}
    if callable(value) and getattr(value, "__name__", "<lambda>") != "<lambda>":
        note_item(value)
        return {"custom": value.__name__}
    raise GraphError(
        f"save: {value!r} cannot be written down; use a named function, and hand it over when loading: "
        "load(folder, custom=[function])"
    )


def _encode_factor(factor: Factor) -> Any:
    """A symbol, or a quotient that is rounded down."""
    if isinstance(factor, str):
        return factor
    return {"quotient": [encode(factor.numerator), factor.divisor]}


def _decode_factor(data: Any) -> Factor:
    if isinstance(data, str):
        return data
    numerator, divisor = data["quotient"]
    if not isinstance(divisor, int) or divisor < 2:
        raise CheckpointError(f"the description is damaged: a size is divided by {divisor!r}")
    return Quotient(_decode_dim(numerator["dim"]), divisor)


def _decode_dim(terms: Any) -> Dim:
    dim = Dim({tuple(map(_decode_factor, factors)): number for factors, number in terms})
    if not dim.symbols:  # a size that is known is written down as a number
        raise CheckpointError("the description is damaged: a symbolic size has no symbol")
    return dim


def _encode_record(value: Any) -> dict[str, Any]:
    cls = type(value)
    settings = {f.name: encode(getattr(value, f.name)) for f in fields(cls) if f.init}
    for name, known in _known().items():
        if known is cls:
            return {"class": name, "settings": settings}
    note_item(cls)
    return {"class": cls.__name__, "settings": settings}


def decode(data: Any, custom: Custom) -> Any:
    """The value that `encode` wrote down.

    Raises:
        CheckpointError: if the data is damaged, or names something that is not known.
    """
    if not isinstance(data, dict):
        return data
    if "class" in data:
        return _decode_record(data, custom)
    (form, content), *rest = data.items()
    if form not in _DECODERS or rest:
        raise CheckpointError(f"the description is damaged: {form!r} is no form of a value")
    return _DECODERS[form](content, custom)


def _decode_record(data: dict[str, Any], custom: Custom) -> Any:
    name = data["class"]
    cls = _known().get(name) or custom.items.get(name)
    if cls is None:
        hint = UnknownNameError.of("class", name, _known()) if "." in name else ""
        raise CheckpointError(
            f"the model needs {name}; hand it over: load(folder, custom=[{name}]) {hint}".rstrip()
        )
    known = {f.name for f in fields(cls) if f.init}
    settings = {k: decode(v, custom) for k, v in data["settings"].items()}
    if unknown := set(settings) - known:
        raise CheckpointError(
            f"{name} has no setting {min(unknown)!r}; was it saved by a newer version?"
        )
    return cls(**settings)


def _decode_named(name: str, custom: Custom) -> Any:
    if name not in custom.items:
        raise CheckpointError(
            f"the model needs the function {name}; hand it over: load(folder, custom=[{name}])"
        )
    return custom.items[name]


def _decode_own(name: str, custom: Custom) -> Any:
    if name not in _named():
        raise CheckpointError(
            f"the model needs magmadnn's {name}, which this version does not have; update magmadnn"
        )
    return _named()[name]


def _decode_op(name: str, custom: Custom) -> Any:
    op = custom.op(name) or REGISTRY.get(name)
    if op is None:
        raise CheckpointError(
            f"the model needs the op {name}; hand it over: load(folder, custom=[{name}])"
        )
    return op


_DECODERS: dict[str, Callable[[Any, Custom], Any]] = {
    "tuple": lambda items, custom: tuple(decode(i, custom) for i in items),
    "list": lambda items, custom: [decode(i, custom) for i in items],
    "dict": lambda items, custom: {k: decode(v, custom) for k, v in items},
    "float": lambda text, custom: float(text),
    "dtype": lambda name, custom: as_dtype(name),
    "dim": lambda terms, custom: _decode_dim(terms),
    "op": _decode_op,
    "magmadnn": _decode_own,
    "custom": _decode_named,
}
