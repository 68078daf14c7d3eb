"""Methods by name."""

from __future__ import annotations

from inspect import signature
from typing import Any

from magmadnn.errors import ArgumentError, UnknownNameError, quoted
from magmadnn.search.spaces.space import Space

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


def method_of(
    name: str, space: Space, seed: int, trials: int | None, options: dict[str, Any]
) -> Method:
    """The method called `name`.

    Raises:
        UnknownNameError: if there is none of that name, or it has no such option.
        ArgumentError: if it cannot search this space, or an option is out of range.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"search: method must be a name such as 'random', got {quoted(name)}")
    if name not in METHODS:
        raise UnknownNameError.of("search: method", name, METHODS)
    known = [p for p in signature(METHODS[name]).parameters if p not in ("space", "seed")]
    for option in options:
        if option not in known and not known:
            raise ArgumentError(
                f"search: method_options: {name} has none, got {option!r}; leave it out, or give another "
                "method"
            )
        if option not in known:
            raise UnknownNameError.of(f"search: method_options: {name}: option", option, known)
    if name == "halving" and trials is not None:
        options = {"trials": trials, **options}
    return METHODS[name](space, seed, **options)
