"""Modules: the text of several kernels that are compiled together, and what their code depends on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.kernels.own import written_by
from magmadnn.compiler.kernels.rows import Rows

from .fused.cut_columns import choose_columns
from .fused.cut_rows import choose_rows
from .fused.draw import choose_draw
from .fused.moves import choose_add_picked, choose_move, choose_pick
from .text.halves import HALVES_TEXT
from .text.prelude import PRELUDE
from .text.variant import Chip, Launch, Variant

_CHOICES: dict[type[Any], Callable[[Any, Mapping[str, int], Chip], Launch | None]] = {
    Rows: choose_rows,
    Columns: choose_columns,
    Draw: choose_draw,
    Move: choose_move,
    Pick: choose_pick,
    AddPicked: choose_add_picked,
}

OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


def can_emit(kernel: Kernel) -> bool:
    """Whether there is CUDA C++ for a description of this kind."""
    return _choice(type(kernel)) is not None


def choose(kernel: Kernel, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """A kernel's variant and launch for values of its slots; None where nothing is to be done."""
    choice = _choice(type(kernel))
    assert choice is not None
    return choice(kernel, values, chip)


def _choice(kind: Any) -> Callable[[Any, Mapping[str, int], Chip], Launch | None] | None:
    """What chooses variants of kernels of a class; None where there is no CUDA C++ for them."""
    found: Callable[[Any, Mapping[str, int], Chip], Launch | None] | None = _CHOICES.get(kind)
    return found or written_by(kind, f"{__package__}.fused", "choose")


def symbol(number: int) -> str:
    """The name of kernel `number` of a module."""
    return f"kernel_{number}"


def module_text(variants: Sequence[Variant]) -> str:
    """The text of a module; its functions are called `symbol(0)`, `symbol(1)`, ..."""
    libraries = dict.fromkeys(text for v in variants for text in getattr(v, "libraries", ()))
    texts = (v.text(symbol(k)) for k, v in enumerate(variants))
    return "\n".join((PRELUDE, HALVES_TEXT, *libraries, *texts))


def generators() -> list[Path]:
    """The files that code depends on: descriptions of kernels, and everything that prints them."""
    here = Path(__file__).resolve().parent
    folders = (here, here.parent / "kernels")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@functools.cache
def _sources() -> str:
    """A hash of the source of the generators: other source, other code."""
    total = hashlib.sha256()
    for path in generators():
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def key_of(variants: Sequence[Variant], *versions: str) -> str:
    """The name of the cache's entry for a module: kernels, architecture and versions, these generators."""
    parts = ("cuda", repr(tuple(variants)), *OPTIONS, *versions, _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
