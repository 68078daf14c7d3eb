"""Which convolutions are computed by kernels of our own, and how rows are shared out among threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from magmadnn.backends.cuda.engine import ConvolutionNode
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.kernels.formula import ITEM_BYTES

MOST_INPUTS, MOST_OUTPUTS = 8, 16  # channels
MOST_WEIGHTS = 4096  # elements of all filters, which lie in shared memory
THREADS = 128
MOST_THREADS = 1024
_MOST_MODELS = (1 << 16) - 1  # rows of blocks
MOST_TAPS = 11  # of a row of a filter, that a thread takes at once


@dataclass(frozen=True)
class Few:
    """A convolution along two axes without groups, but for the number of images.

    Attributes:
        dtype: float32 or float64.
        places: of an image: height and width;
        windows: of a result.
        size: of a filter.
        channels: of an image; outputs: of a result.
        strides, padding, dilation: of each axis; the padding before it.
        is_many: whether it is that of many models, whose arrays lie one behind the other: row y of a launch's
            blocks is model y.
    """

    dtype: str
    places: tuple[int, int]
    windows: tuple[int, int]
    size: tuple[int, int]
    channels: int
    outputs: int
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    is_many: bool = False

    @property
    def taps(self) -> int:
        """Elements of one filter: height times width times the channels of an image."""
        return math.prod(self.size) * self.channels

    @property
    def item(self) -> str:
        """The C++ type of elements in memory."""
        return MEMORY[self.dtype]

    def inside(self, column: str) -> str:
        """Whether a column of a window is one of the image's, as an expression."""
        reach = (self.windows[1] - 1) * self.strides[1] + (self.size[1] - 1) * self.dilation[1]
        if not self.padding[1] and reach < self.places[1]:
            return "true"
        return f"(u32){column} < {self.places[1]}u"

    def of_model(self, **slots: str) -> str:
        """Lines that move pointers to a block's model: each as x, w or y lies, or by so many elements."""
        if not self.is_many:
            return ""
        steps = {
            "x": f"images * {math.prod(self.places) * self.channels}",
            "w": f"{self.taps * self.outputs}",
            "y": f"images * {math.prod(self.windows) * self.outputs}",
        }
        moves = ((slot, steps.get(kind, kind)) for slot, kind in slots.items())
        return "".join(f"  {slot} += (i64)blockIdx.y * ({step});\n" for slot, step in moves)

    def columns_read(self, windows: int, taps: int) -> list[int]:
        """Columns of an image that neighbouring taps of neighbouring windows read, from the first one on."""
        step, apart = self.strides[1], self.dilation[1]
        return sorted({q * step + s * apart for q in range(windows) for s in range(taps)})

    @property
    def filter_bytes(self) -> int:
        """Bytes of all filters together, which a block has in shared memory."""
        return self.taps * self.outputs * ITEM_BYTES[self.dtype]


def few_of(call: ConvolutionNode, models: int = 0) -> Few | None:
    """A call as such a convolution; None where it is none, or has more channels.

    Args:
        call: that of one model.
        models: how many there are; 0 where it is no convolution of many models.
    """
    x, w, y = call.shapes
    if len(x) != 4 or call.groups != 1 or call.dtype != call.stored or any(call.pitches):
        return None
    if call.dtype not in ("float32", "float64"):
        return None
    before = (call.padding[0][0], call.padding[1][0])
    found = Few(
        call.dtype, (x[1], x[2]), (y[1], y[2]), (w[1], w[2]), x[3], y[3],
        (call.strides[0], call.strides[1]), before, (call.dilation[0], call.dilation[1]),
        is_many=models > 0,
    )  # fmt: skip
    fits = x[3] <= MOST_INPUTS and y[3] <= MOST_OUTPUTS
    fits = fits and found.taps * found.outputs <= MOST_WEIGHTS
    fits = fits and found.taps * (y[3] // together(y[3])) <= MOST_THREADS
    fits = fits and models <= _MOST_MODELS
    # Numbers of elements are counted with 32 bits.
    return found if fits and max(map(math.prod, call.shapes)) < 1 << 31 else None


def largest_divisor(count: int, most: int) -> int:
    """The largest number up to `most` that divides another one; 1 at least."""
    return max(n for n in range(1, max(most, 1) + 1) if count % n == 0)


def taps_at_once(wide: int, most: int = MOST_TAPS) -> int:
    """How many neighbours of a row of a filter with `wide` elements a thread takes at once."""
    return largest_divisor(wide, min(wide, most, MOST_TAPS))


def together(channels: int) -> int:
    """How many neighbouring channels are loaded at once: a power of two that divides all."""
    return math.gcd(channels, 4)
