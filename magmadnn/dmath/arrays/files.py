"""Arrays in .npy files: each worker reads and writes its own blocks, and nothing passes the client."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.making import first_holders
from magmadnn.dmath.arrays.parts import Parts, empty
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.layouts.layout import Box, Layout
from magmadnn.errors import FileError, shown
from magmadnn.memory.dtypes import as_dtype


def load(
    team: Team,
    layout: Layout,
    dtype: np.dtype[Any],
    path: str,
    stored: str,
    begin: int,
    is_fortran: bool,
) -> Parts:
    """The array in a file. Collective.

    Args:
        team: the workers.
        layout: of the array.
        dtype: of the result.
        path: of the file, whose header has been looked at.
        stored: dtype in the file.
        begin: where values begin, in bytes.
        is_fortran: whether the first index runs fastest.

    Raises:
        FileError: a worker cannot read it; names the worker.
    """
    made, problem = empty(team, layout, dtype), ""
    known = as_dtype(stored) if stored == "bfloat16" else np.dtype(stored)
    try:
        if made.blocks and prod(layout.shape):
            order: Any = "F" if is_fortran else "C"
            mapped = np.memmap(path, known, "r", begin, layout.shape or (1,), order)
            whole = mapped if layout.shape else mapped.reshape(())
            for number, block in made.blocks.items():
                values = np.asarray(whole[_index(layout.boxes[number])])
                if known == np.bool_:
                    values = values.view(np.uint8) != 0
                block[...] = team.on_device(np.ascontiguousarray(values).astype(dtype, copy=False))
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    _agree(team, problem, "load", f"cannot read {shown(path)}")
    return made


def save(x: Parts, path: str, begin: int) -> None:
    """Write the values of an array into a file that is as large as they need. Collective.

    Raises:
        FileError: a worker cannot write; names the worker.
    """
    team, layout, problem = x.team, first_holders(x.layout), ""
    try:
        held = [n for n in layout.held[team.rank] if x.blocks[n].size]
        if held:
            mapped = np.memmap(path, x.dtype, "r+", begin, layout.shape or (1,))
            whole = mapped if layout.shape else mapped.reshape(())
            for number in held:
                whole[_index(layout.boxes[number])] = _values(team, x.blocks[number])
            mapped.flush()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    _agree(team, problem, "save", f"cannot write {shown(path)}")


def _values(team: Team, block: Array) -> Array:
    return team.on_host(team.xp.ascontiguousarray(block))


def _index(box: Box) -> tuple[Any, ...]:
    return (*(slice(low, high) for low, high in box), ...)


def _agree(team: Team, problem: str, call: str, what: str) -> None:
    """Raise the problem that one of the workers has, on all of them."""
    for worker, found in enumerate(team.comm.exchange(problem)):
        if found:
            raise FileError(
                f"{call}: worker {worker} {what}: {found}: workers need the file on a disk that all reach"
            )
