"""The kernel that puts rows where they belong: rows that came to the device in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Launch

_WARPS = 8  # of a block
_BLOCKS = 1024
_AT_ONCE = 4  # loads of a thread that wait together
_UNITS = {16: "Vec<u64, 2>", 8: "u64", 4: "u32", 2: "unsigned short", 1: "u8"}
_ALIGNMENT = 16  # of each part of a record


@dataclass(frozen=True)
class PutRows:
    """results[k][number[i]] = field k of record i, by a warp each.

    A record has the number of a row, 8 bytes, and then that row of some arrays; each begins at a multiple of
    16 bytes. Slots: `records, record_bytes, source`, then `bytes, result` for each array.

    Attributes:
        units: bytes that are copied together, for each array.
    """

    units: tuple[int, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        fields = [f"{name}{k}" for k in range(len(self.units)) for name in ("bytes", "result")]
        return ("records", "record_bytes", "source", *fields)

    def text(self, name: str) -> str:
        """The function."""
        kinds = ["i64 records", "i64 record_bytes", "const u8 *source"]
        for k in range(len(self.units)):
            kinds += [f"i64 bytes{k}", f"u8 *result{k}"]
        body = [
            f"  const int lane = threadIdx.x % {WARP};",
            f"  const i64 warps = (i64)gridDim.x * {_WARPS};",
            f"  i64 at = (i64)blockIdx.x * {_WARPS} + threadIdx.x / {WARP};",
            "  for (; at < records; at += warps) {",
            "    const u8 *from = source + at * record_bytes;",
            "    const i64 row = *(const i64 *)from;",
            f"    from += {_ALIGNMENT};",
        ]
        for k, size in enumerate(self.units):
            unit = _UNITS[size]
            body += [
                "    {",
                f"      const {unit} *x = (const {unit} *)from;",
                f"      {unit} *y = ({unit} *)(result{k} + row * bytes{k});",
                f"      #pragma unroll {_AT_ONCE}",
                f"      for (i64 i = lane; i < bytes{k} / {size}; i += {WARP}) y[i] = x[i];",
                f"      from += (bytes{k} + {_ALIGNMENT - 1}) / {_ALIGNMENT} * {_ALIGNMENT};",
                "    }",
            ]
        lines = "\n".join([*body, "  }"])
        return f'extern "C" __global__ void {name}({", ".join(kinds)}) {{\n{BEGIN}{lines}\n}}\n'


def record_of(nbytes: Sequence[int]) -> tuple[int, list[int]]:
    """Bytes of a record with rows of so many bytes each, and where these begin in it."""
    places, end = list[int](), _ALIGNMENT
    for size in nbytes:
        places.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return end, places


def put_rows(records: int, source: int, fields: Sequence[tuple[int, int]]) -> Launch:
    """The launch for records at an address and arrays, each by the bytes of a row and where the array begins.

    All begin where any unit may.
    """
    sizes = [nbytes for nbytes, _ in fields]
    units = tuple(next(unit for unit in _UNITS if nbytes % unit == 0) for nbytes in sizes)
    blocks = min(max(-(-records // _WARPS), 1), _BLOCKS)
    arguments = (records, record_of(sizes)[0], source, *(n for field in fields for n in field))
    return Launch(PutRows(units), (blocks, 1, 1), (WARP * _WARPS, 1, 1), arguments)
