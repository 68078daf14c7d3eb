"""Methods by name, and whether they fit what else a search was told."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from magmadnn.errors import ArgumentError, UnknownNameError, quoted
from magmadnn.search.spaces.space import Space
from magmadnn.search.spelling import RUN, Spelling

from .learning_distribution import CrossEntropy
from .method import Method
from .parzen import Parzen
from .plain_methods import GridSearch, RandomSearch
from .stopping import Asha, Halving, MedianStop

METHODS: dict[str, type[Method]] = {
    "grid": GridSearch,
    "random": RandomSearch,
    "cem": CrossEntropy,
    "halving": Halving,
    "asha": Asha,
    "median": MedianStop,
    "tpe": Parzen,
}


BY_RUNGS = ("halving", "asha", "median")  # they decide on epochs


def method_of(
    name: str,
    space: Space,
    seed: int,
    trials: int | None,
    options: Mapping[str, Any],
    spelled: Spelling = RUN,
) -> Method:
    """The method called `name`.

    Args:
        name: of the method.
        space: what is searched.
        seed: of all that is drawn.
        trials: most trials, which halving plans for.
        options: of the method.
        spelled: how messages spell arguments.

    Raises:
        UnknownNameError: if there is none of that name, or it has no such option.
        ArgumentError: if it cannot search this space, or an option is out of range.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"search: method must be a name such as 'random', got {quoted(name)}")
    if name not in METHODS:
        raise UnknownNameError.of("search: method", name, METHODS)
    for option, value in options.items():
        _check_option(name, option, value, spelled)
    if name == "halving" and trials is not None:
        options = {"trials": trials, **options}
    if name == "halving" and options.get("trials") is None:
        raise ArgumentError(
            f"{spelled.begin}{spelled.method(name)} compares all trials with each other, so their number has "
            f"to be known; give {spelled.told('trials', 81)}"
        )
    if name in BY_RUNGS and "epochs" in space.dimensions:
        raise ArgumentError(
            f"{spelled.begin}{spelled.parameter('epochs')}: {spelled.method(name)} decides how many epochs a "
            f"trial has; leave epochs out of the space, and give {spelled.told('epochs')} for those that go "
            "to the end"
        )
    for parameter, one in space.dimensions.items():
        if name == "grid" and one.gridded.count is None:
            raise ArgumentError(
                f"{spelled.begin}{spelled.parameter(parameter)} is a range of real numbers, {one.text}, "
                f"which has no points for {spelled.method(name)}; give {spelled.steps(parameter)}, or "
                f"{spelled.told('method', 'random')}"
            )
    return METHODS[name](space, seed, **options)


def check_ends(
    method: str,
    trials: int | None,
    others: Mapping[str, Any],
    spelled: Spelling = RUN,
) -> None:
    """Look whether a search has an end.

    Args:
        method: its name.
        trials: most trials.
        others: further ends, by the names of their arguments; None for those that were not given.
        spelled: how messages spell arguments.

    Raises:
        ArgumentError: if it has none, by itself or told.
    """
    if method != "grid" and trials is None and all(one is None for one in others.values()):
        *most, last = [spelled.told(name) for name in others]
        raise ArgumentError(
            f"{spelled.begin}{spelled.method(method)} has no end of its own; give "
            f"{spelled.told('trials', 100)}, or {', '.join(most)} or {last}"
        )


def _check_option(method: str, option: str, value: Any, spelled: Spelling) -> None:
    """Refuse an option that the method does not have.

    Raises:
        UnknownNameError: no method has it; says the nearest that this one has.
        ArgumentError: another method has it.
    """
    known = _options_of(method)
    if option in known:
        return
    having = [name for name in METHODS if option in _options_of(name)]
    if known and not having:
        raise UnknownNameError.of(f"{spelled.begin}method_options: {method}: option", option, known)
    way_out = f", or give a method that has it: {', '.join(having)}" if having else ""
    raise ArgumentError(
        f"{spelled.begin}{spelled.method_option(option, value)}: {spelled.method(method)} has no such "
        f"option; leave it out{way_out}"
    )


def _options_of(method: str) -> list[str]:
    return [p for p in signature(METHODS[method]).parameters if p not in ("space", "seed")]
