"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magmadnn.errors import UnknownNameError
from magmadnn.search.spaces.space import Space

from .method import Method
from .plain_methods import GridSearch, RandomSearch

METHODS: dict[str, Callable[..., Method]] = {
    "grid": GridSearch,
    "random": RandomSearch,
}


def method_of(name: str, space: Space, seed: int, options: dict[str, Any]) -> Method:
    """The method called `name`.

    Raises:
        UnknownNameError: if there is none of that name.
        ArgumentError: if it cannot search this space, or does not take an option.
    """
    if name not in METHODS:
        raise UnknownNameError.of("search: method", name, METHODS)
    return METHODS[name](space, seed, **options)
