"""Calls with wrong arguments, and attributes that are not there: our errors in place of Python's.

`checked_call` wraps a function, `check_calls` the constructors of classes. A call that fits costs nothing
more than one Python call; the signature is looked at only after a TypeError. `ExplainsAttributes` and
`missing_name` say what to write in place of a name that an object or a module does not have. `FixedList` and
`FixedDict` refuse changes that nobody would heed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from magmadnn.errors import (
    ArgumentError,
    CallError,
    FrozenError,
    UnknownArgumentError,
    UnknownAttributeError,
    quoted,
)
from magmadnn.hints import hint

_CHECKED: set[Callable[..., Any]] = set()  # constructors, which are wrapped once
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def checked_call(function: F) -> F:
    """The function; a call that does not fit its signature raises ours with the way out."""
    return _checked(function, function.__name__, method=False)


def checked_method(function: F) -> F:
    """The same of a method, whose first argument the caller does not write."""
    name = function.__name__
    if name == "__call__":
        name = function.__qualname__.split(".")[-2]
    return _checked(function, name, method=True)


def check_calls(*classes: type, kinds: Sequence[str] = ()) -> None:
    """Check the calls of these classes' own constructors; see `check_public` for the kinds."""
    for cls in classes:
        _explain_frozen(cls)
        own = vars(cls).get("__init__")
        if own is not None and (own not in _CHECKED or kinds):
            made = _checked(own, cls.__name__, method=True)
            made = _kinds_checked(made, cls.__name__, kinds)
            cls.__init__ = made  # type: ignore[misc]  # of a class, on purpose
            _CHECKED.add(made)


def check_methods(cls: type, *names: str) -> None:
    """Check the calls of these methods of a class, inherited ones among them."""
    for name in names:
        setattr(cls, name, checked_method(getattr(cls, name)))


def check_public(names: Mapping[str, Any], *kinds: str) -> None:
    """Check the calls of the constructors that a folder exports: `check_public(vars())`.

    Args:
        names: of the folder.
        kinds: annotations whose arguments must be what they say, unless the constructor looks itself:
            "bool", "int", "float", "str | None".
    """
    classes = [names[n] for n in names["__all__"] if isinstance(names[n], type)]
    check_calls(*classes, kinds=kinds)


def _kinds_checked(function: F, name: str, kinds: Sequence[str]) -> F:
    """The constructor; a value of another type than the argument's raises ours before it runs."""
    parameters = signature(function).parameters.values()
    annotations = {p.name: p.annotation for p in parameters}
    order = [p.name for p in parameters if p.kind in _BY_PLACE]
    checked = {key: text for key, text in annotations.items() if text in kinds}
    if not checked:
        return function
    usual = {key: _USUAL[text] for key, text in checked.items()}

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for key, value in (*zip(order, args, strict=False), *named.items()):
            if key not in usual or type(value) is usual[key]:
                continue
            if not _fits(checked[key], value):
                way_out = ""
                if isinstance(value, str) and checked[key] == "int" and "activation" in order:
                    way_out = f"; an activation is named: {name}({order[1]}, activation={value!r})"
                raise ArgumentError(
                    f"{name}: {key} must be {_KINDS[checked[key]]}, got {quoted(value)}{way_out}"
                )
        return function(*args, **named)

    return call  # type: ignore[return-value]  # of the same signature


_USUAL = {"bool": bool, "int": int, "float": float, "str | None": str}
_KINDS = {
    "bool": "True or False",
    "int": "an integer",
    "float": "a number",
    "str | None": "text or None",
}


def _fits(kind: str, value: Any) -> bool:
    """Whether a value, also one of NumPy, is of a kind."""
    truth = isinstance(value, bool) or type(value).__name__ == "bool"
    if kind == "bool":
        return truth
    if kind == "str | None":
        return value is None or isinstance(value, str)
    return isinstance(value, Integral if kind == "int" else Real) and not truth


def _checked(function: F, name: str, method: bool) -> F:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except TypeError:
            wrong = _wrong_call(name, function, args, named, method)
            if wrong is None:
                raise
        raise wrong

    return call  # type: ignore[return-value]  # of the same signature


def _wrong_call(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    method: bool,
) -> CallError | None:
    """What is wrong with a call; None where it fits, so that the error came from within."""
    taken = signature(function)
    try:
        taken.bind(*args, **named)
    except TypeError as error:
        parameters = list(taken.parameters.values())[method:]
        return (
            _unknown(name, parameters, named)
            or _too_many(name, parameters, args[method:], named)
            or _missing(name, parameters, args[method:], named)
            or CallError(f"{name}: {error}")
        )
    return None


def _unknown(
    name: str, parameters: Sequence[Parameter], named: Mapping[str, Any]
) -> CallError | None:
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        return None
    known = [p.name for p in parameters if p.kind in _BY_NAME]
    for key in named:
        if key not in known:
            found = hint((f"{name} argument", "argument"), key, known)
            return UnknownArgumentError.of(f"{name}: argument", key, known, found)
    return None


def _too_many(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], named: Mapping[str, Any]
) -> CallError | None:
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return None
    placed = [p.name for p in parameters if p.kind in _BY_PLACE]
    if len(args) > len(placed):
        rest = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
        names = (
            f"; write names before values: {', '.join(f'{n}=...' for n in rest)}" if rest else ""
        )
        taken = f"the arguments ({', '.join(placed)})" if placed else "no arguments"
        return CallError(f"{name}: takes {taken} without a name, got {len(args)}{names}")
    if twice := [key for key in placed[: len(args)] if key in named]:
        return CallError(f"{name}: argument {twice[0]!r} is given twice, in its place and by name")
    return None


def _missing(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], named: Mapping[str, Any]
) -> CallError | None:
    placed = [p.name for p in parameters if p.kind in _BY_PLACE][: len(args)]
    for p in parameters:
        given = p.name in placed or p.name in named or p.default is not Parameter.empty
        if not given and p.kind in (*_BY_PLACE, Parameter.KEYWORD_ONLY):
            return CallError(f"{name}: argument {p.name!r} is missing: {name}{_shown(parameters)}")
    return None


def _shown(parameters: Sequence[Parameter]) -> str:
    """`(units, activation=None)`: the first few, without types."""
    bare = [p.replace(annotation=Parameter.empty) for p in parameters[:4]]
    text = str(Signature(bare))
    return f"{text[:-1]}, ...)" if len(parameters) > 4 else text


# --- attributes -----------------------------------------------------------------------------------

ADDED: dict[str, Callable[[Any], Any]] = {}
"""For a class of a folder below, what makes the object whose attributes its instances have beside their own:
how a folder above adds to it. The package, which stands above all, fills this in.
"""


def missing_name(
    owner: str, kinds: Sequence[str], name: str, known: Callable[[], Iterable[str]]
) -> AttributeError:
    """The error for an attribute that an owner, such as "module magmadnn", does not have.

    Names that begin with _ are asked for by Python and by tools, which look for nothing but the error.
    """
    text = f"{owner} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(text)

    def way_out() -> str | None:
        names = [n for n in known() if not n.startswith("_")]
        if found := hint(kinds, name, names):
            return found
        import difflib  # rarely needed

        near = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.7)
        return f"did you mean {near[0]!r}?" if near else None

    return UnknownAttributeError(text, way_out)


class ExplainsAttributes:
    """Base of classes whose missing attributes say what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Asked only for what is not there; often by NumPy, for names with underscores."""
            cls = type(self)
            if name.startswith("_"):
                raise AttributeError(f"{cls.__name__} has no attribute {name!r}")
            kinds = [base.__name__ for base in cls.__mro__]
            raise missing_name(cls.__name__, kinds, name, lambda: dir(cls))


def _explain_frozen(cls: type) -> None:
    """Let a frozen dataclass say what to write where somebody assigns one of its settings."""
    for name in ("__setattr__", "__delattr__"):
        own = vars(cls).get(name)
        if own is not None and is_dataclass(cls) and own not in _EXPLAINED:
            made = _explained(own)
            setattr(cls, name, made)
            _EXPLAINED.add(made)


_EXPLAINED: set[Callable[..., Any]] = set()


def _explained(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def change(self: Any, name: str, *value: Any) -> None:
        try:
            function(self, name, *value)
        except FrozenInstanceError as error:
            if isinstance(error, FrozenError):
                raise
        else:
            return
        raise FrozenError(_of_frozen(type(self), name, *value))

    return change


def _of_frozen(cls: type, name: str, *value: Any) -> str:
    known = [field.name for field in fields(cls) if field.init]
    kinds = [base.__name__ for base in cls.__mro__]
    if name not in known:
        way_out = hint((*kinds, "attribute"), name, known) or f"settings are {', '.join(known)}"
    else:
        given = quoted(value[0]) if value else "..."
        way_out = f"make another one, {cls.__name__}({name}={given})"
        if found := hint(kinds, "a setting"):
            way_out += f"; {found}"
    return f"{cls.__name__}: {name} cannot be set, what it was made with stays: {way_out}"


def explains_names(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module, which is asked only for what is not there."""

    def of_module(name: str) -> Any:
        raise missing_name(f"module {module}", (module,), name, lambda: known)

    return of_module


class Keeper(Protocol):
    """Whose list or dict it is: it says whether that may be changed."""

    def check_change(self, name: str) -> None:
        """Raise FrozenError, unless what the object keeps under `name` may be changed now."""


@dataclass(frozen=True)
class Unchanging:
    """The keeper of what is never changed.

    Attributes:
        text: of the error.
    """

    text: str

    def check_change(self, name: str) -> None:
        """Raise FrozenError with this text, whatever `name` is: nothing of it may be changed."""
        raise FrozenError(self.text)


class FixedList(list[T]):
    """A list whose keeper refuses changes in place, which would change nothing else; a copy is one's own."""

    __slots__ = ("_keeper", "_name")

    def __init__(self, values: Iterable[T], keeper: Keeper, name: str) -> None:
        super().__init__(values)
        self._keeper, self._name = keeper, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self._keeper, self._name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class FixedDict(dict[str, T]):
    """A dict whose keeper refuses changes in place, which would change nothing else; a copy is one's own."""

    __slots__ = ("_keeper", "_name")

    def __init__(self, values: Mapping[str, T], keeper: Keeper, name: str) -> None:
        super().__init__(values)
        self._keeper, self._name = keeper, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self._keeper, self._name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def _asking(base: type, name: str) -> Callable[..., Any]:
    """A method that changes a list or a dict, once the keeper was asked."""
    change = getattr(base, name)

    @wraps(change)
    def asking(self: Any, *given: Any, **named: Any) -> Any:
        self._keeper.check_change(self._name)
        return change(self, *given, **named)

    return asking


for _fixed, _changes in (
    (FixedList, "append extend insert remove pop clear sort reverse __iadd__ __imul__"),
    (FixedDict, "update setdefault pop popitem clear __ior__"),
):
    for _change in (*_changes.split(), "__setitem__", "__delitem__"):
        setattr(_fixed, _change, _asking(_fixed.__mro__[1], _change))
