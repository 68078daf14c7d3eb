"""Which kernels stand around which function of the device's library."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from magmadnn.compiler.kernels.library import Library

from .geqrf import around_geqrf, around_orgqr
from .getrf import around_getrf, around_getrs, bytes_of_exchanges
from .potrf import around_potrf
from .sgesv import around_sgesv, bytes_of_refinement
from .spectra import around_gesdd, around_syevd, bytes_of_eigen, bytes_of_singular
from .surroundings import Around, piece
from .trsm import around_trsm

# by the name in the op's record (`LibraryCall.function`)
AROUND: dict[str, Callable[[Library, dict[str, int]], Around]] = {
    "geqrf": around_geqrf,
    "gesdd": around_gesdd,
    "sgesv": around_sgesv,
    "getrf": around_getrf,
    "getrs": around_getrs,
    "orgqr": around_orgqr,
    "potrf": around_potrf,
    "syevd": around_syevd,
    "trsm": around_trsm,
}
# bytes of `MatrixNode.pieces`, of those that have some
PIECES: dict[str, Callable[[Library, dict[str, int]], tuple[int, ...]]] = {
    "gesdd": bytes_of_singular,
    "sgesv": bytes_of_refinement,
    "getrf": bytes_of_exchanges,
    "getrs": bytes_of_exchanges,
    "syevd": bytes_of_eigen,
}

_REAL = ("float32", "float64")


def can_call(kernel: Library) -> bool:
    """Whether the device's library is called for a function of this name, of real numbers."""
    return kernel.function in AROUND and kernel.dtype in _REAL


def pieces(kernel: Library, values: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each piece of memory that a call has besides, for values of its slots."""
    if kernel.function not in PIECES:
        return ()
    return PIECES[kernel.function](kernel, _counted(values))


def around(kernel: Library, values: Mapping[str, int], own: tuple[int, ...] = ()) -> Around | None:
    """The kernels around a call, for values of its slots and of `INFO`; None where there are no elements.

    Args:
        kernel: the call.
        values: of its slots.
        own: addresses of `pieces`.
    """
    known = _counted(values)
    if not known["count"]:
        return None
    known |= {piece(number): address for number, address in enumerate(own)}
    return AROUND[kernel.function](kernel, known)


def _counted(values: Mapping[str, int]) -> dict[str, int]:
    matrices = values["row1"] - values["row0"]
    count = matrices * values["rows"] * values["columns"]
    return {**values, "matrices": matrices, "count": count}
