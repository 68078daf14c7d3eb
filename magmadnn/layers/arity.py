"""How many inputs a method of a layer takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import Signature, signature
from types import MethodType
from typing import Any


def signature_of(method: Callable[..., Any]) -> Signature:
    """What a method takes, without `self`."""
    function = getattr(method, "__func__", None)
    return signature(method) if function is None else _signature_of_bound(function)


def takes(method: Callable[..., Any], count: int) -> bool:
    """Whether it is known already that a method takes so many inputs."""
    function = getattr(method, "__func__", None)
    return function is not None and _function_takes(function, count)


@lru_cache(maxsize=256)
def _function_takes(function: Callable[..., Any], count: int) -> bool:
    try:
        _signature_of_bound(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def _signature_of_bound(function: Callable[..., Any]) -> Signature:
    return signature(MethodType(function, object))
