"""Arguments of the parts of a kernel: numbers, places in shared memory, addresses, names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SharedAddress:
    """A place in shared memory, in bytes."""

    offset: int


@dataclass(frozen=True)
class GlobalAddress:
    """Bytes from the address that is parameter `number`."""

    number: int
    offset: int = 0


@dataclass(frozen=True)
class Named:
    """What the kernel calls so."""

    name: str


Argument = int | SharedAddress | GlobalAddress | Named


def text_of(argument: Argument) -> str:
    """An argument in CUDA C++."""
    if isinstance(argument, SharedAddress):
        return f"At{{memory + {argument.offset}}}"
    if isinstance(argument, GlobalAddress):
        return f"At{{p{argument.number} + {argument.offset}}}"
    return argument.name if isinstance(argument, Named) else f"{argument}ll"
