"""Methods by name."""

from __future__ import annotations

from typing import Any

from magmadnn.calls import checked_call
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
    if name == "halving" and trials is not None:
        options = {"trials": trials, **options}
    return checked_call(METHODS[name])(space, seed, **options)
