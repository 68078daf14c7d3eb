"""Text in CUDA C++ that these kernels share."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.compiler.cuda.text.prelude import BEGIN

from .sizes import THREADS, Few

_AHEAD = 14  # elements whose loads begin together


def each_weight(of: Few) -> str:
    """A loop of a block over all elements of filters, many of which are on their way at once."""
    return f"""#pragma unroll {min(-(-of.taps * of.outputs // THREADS), _AHEAD)}
  for (u32 e = threadIdx.x; e < {of.taps * of.outputs}u; e += {THREADS})
"""


def weights_as_they_lie(of: Few) -> str:
    """The same loop with filters [*size, channels, outputs], whose elements lie so in shared memory too."""
    return f"{each_weight(of)}    filters[e] = w[e];\n"


def head(
    name: str,
    slots: tuple[str, ...],
    item: str,
    shared_bytes: int,
    written: tuple[str, ...] = ("result",),
) -> str:
    """The beginning of a function; `filters` is its shared memory, `index` has numbers of one byte."""
    integers = ("images", "each", "parts")
    types = {slot: "u8" if slot == "index" else item for slot in slots}
    kinds = ", ".join(
        f"i64 {slot}"
        if slot in integers
        else f"{'' if slot in written else 'const '}{types[slot]} *{slot}"
        for slot in slots
    )
    return f"""extern "C" __global__ void {name}({kinds}) {{
  SHARED_MEMORY({shared_bytes})
{BEGIN}  {item} *const filters = ({item} *)memory;"""


def stores(item: str, width: int, elements: Sequence[tuple[int, str]]) -> str:
    """Lines that store numbers at places from `to` on, `width` neighbours together.

    Args:
        item: their type.
        width: how many there are in a row of each group, which begins at a multiple of that.
        elements: places, in order, and numbers as text.
    """
    lines = ""
    for first in range(0, len(elements), width):
        at, _ = elements[first]
        values = ", ".join(text for _, text in elements[first : first + width])
        lines += f"  store<{width}>(to + {at}, Vec<{item}, {width}>{{{{{values}}}}});\n"
    return lines
