"""Zeros, where a function would sum over nothing."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

from .surroundings import launch_of


@dataclass(frozen=True)
class Zeros:
    """Bytes that become 0. Slots: `count` of them; `result`, where."""

    slots = ("count", "result")

    def text(self, name: str) -> str:
        """The function."""
        return f"""extern "C" __global__ void {name}(i64 count, unsigned char *result) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) result[at] = 0;
}}
"""


def zeros(nbytes: int, result: int) -> Launch:
    """A launch that makes bytes 0."""
    return launch_of(Zeros(), nbytes, {"count": nbytes, "result": result})
