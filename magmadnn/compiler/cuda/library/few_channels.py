"""Convolutions of few channels by kernels of our own, where a library's have more to set up than to compute.

Each thread computes a few neighbouring channels of one place, with all filters in shared memory. Gradients
for filters are sums over all places: blocks of rows give parts, which a second kernel adds in a fixed order.
How sums are cut follows from sizes alone.

Many models, each with images and filters of its own, are one launch, with a model for each row of blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from magmadnn.backends.cuda.engine import ConvolutionNode
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch, Variant
from magmadnn.compiler.kernels.formula import ITEM_BYTES

MOST_INPUTS, MOST_OUTPUTS = 8, 16  # channels
_MOST_WEIGHTS = 4096  # elements of all filters, which lie in shared memory
_THREADS, _MOST_THREADS = 128, 1024
_PARTS = 512  # of sums over all places, at most
_OUTPUTS, _LANES = 8, 32  # of a block of the kernel that adds parts
_TOGETHER = 4  # channels that are loaded at once
_MOST_MODELS = (1 << 16) - 1  # rows of blocks
_AHEAD = 14  # columns whose loads begin together


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
    fits = fits and found.taps * found.outputs <= _MOST_WEIGHTS
    fits = fits and found.taps * (y[3] // _together(y[3])) <= _MOST_THREADS
    fits = fits and models <= _MOST_MODELS
    # Numbers of elements are counted with 32 bits.
    return found if fits and max(map(math.prod, call.shapes)) < 1 << 31 else None


def _together(channels: int) -> int:
    """How many neighbouring channels are loaded at once: a power of two that divides all."""
    return math.gcd(channels, _TOGETHER)


@dataclass(frozen=True)
class FewForward:
    """y = the convolution of x with w, and a bias, another result and ReLU where they are wanted.

    Slots: `images`; `x` [images, *places, channels]; `w` [outputs, *size, channels]; `bias` [outputs] and
    `added`, of y's shape, where there are some; `result`, y.

    Attributes:
        of: sizes.
        biased, adds, positive: whether there is a bias; something that is added; ReLU.
    """

    of: Few
    biased: bool
    adds: bool
    positive: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        ends = ("bias",) * self.biased + ("added",) * self.adds
        return ("images", "x", "w", *ends, "result")

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (tall, wide) = of.places, of.windows, of.size
        each, o, c = _together(of.outputs), of.outputs, of.channels
        ends = "".join(
            f"    total[i] += {source};\n"
            for wanted, source in (
                (self.adds, f"added[(i64)place * {o} + group * {each} + i]"),
                (self.biased, f"bias[group * {each} + i]"),
                (self.positive, ""),
            )
            if wanted and source
        )
        ends += "    if (total[i] < 0) total[i] = 0;\n" if self.positive else ""
        each_model = {"bias": f"{of.outputs}", "added": "y"}
        ends_of = {slot: each_model[slot] for slot in self.slots[3:-1]}
        own = of.of_model(x="x", w="w", **ends_of, result="y")
        return f"""{_head(name, self.slots, item, of.filter_bytes)}
{own}{_each_weight(of)}    filters[e % {of.taps} * {o} + e / {of.taps}] = w[e];
  __syncthreads();
  const u32 at = blockIdx.x * {_THREADS} + threadIdx.x;
  if (at >= (u32)images * {rows * columns * (o // each)}u) return;
  const u32 group = at % {o // each}, place = at / {o // each};
  const int top = (int)(place / {columns} % {rows}) * {of.strides[0]} - {of.padding[0]};
  const int left = (int)(place % {columns}) * {of.strides[1]} - {of.padding[1]};
  const {item} *const image = x + (i64)(place / {rows * columns}) * {height * width * c};
  {item} total[{each}] = {{}};
#pragma unroll 1
  for (int r = 0; r < {tall}; ++r) {{
    const int row = top + r * {of.dilation[0]};
    if ((u32)row >= {height}u) continue;
#pragma unroll
    for (int s = 0; s < {wide}; ++s) {{
      const int column = left + s * {of.dilation[1]};
      const bool inside = {of.inside("column")};
      const {item} *const from = image + (row * {width} + (inside ? column : 0)) * {c};
      const {item} *const filter = filters + (r * {wide} + s) * {c * o} + group * {each};
#pragma unroll
      for (int k = 0; k < {c}; ++k) {{
        const {item} a = inside ? from[k] : {item}(0);
        const Vec<{item}, {each}> b = load<{each}>(filter + k * {o});
#pragma unroll
        for (int i = 0; i < {each}; ++i) total[i] = fma(a, b.at[i], total[i]);
      }}
    }}
  }}
#pragma unroll
  for (int i = 0; i < {each}; ++i) {{
{ends}    result[(i64)place * {o} + group * {each} + i] = total[i];
  }}
}}
"""


@dataclass(frozen=True)
class FewInputs:
    """x = the sum over windows that see a place of y times the filter's element: the gradient for inputs.

    Slots: `images`; `w` [outputs, *size, channels]; `y` [images, *windows, outputs]; `result`, x.

    Attributes:
        of: sizes.
    """

    of: Few
    slots = ("images", "w", "y", "result")

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (tall, wide) = of.places, of.windows, of.size
        o, c = of.outputs, of.channels
        near, wide_load = _together(o), _together(c)
        own = of.of_model(w="w", y="y", result="x")
        return f"""{_head(name, self.slots, item, of.filter_bytes)}
{own}{_each_weight(of)}    filters[(e % {of.taps} / {c} * {o} + e / {of.taps}) * {c} + e % {c}] = w[e];
  __syncthreads();
  const u32 at = blockIdx.x * {_THREADS} + threadIdx.x;
  if (at >= (u32)images * {height * width}u) return;
  const int low = (int)(at / {width} % {height}) + {of.padding[0]};
  const int right = (int)(at % {width}) + {of.padding[1]};
  const {item} *const image = y + (i64)(at / {height * width}) * {rows * columns * o};
  {item} total[{c}] = {{}};
#pragma unroll 1
  for (int r = 0; r < {tall}; ++r) {{
    const int above = low - r * {of.dilation[0]}, row = above / {of.strides[0]};
    if (above < 0 || above % {of.strides[0]} != 0 || row >= {rows}) continue;
#pragma unroll
    for (int s = 0; s < {wide}; ++s) {{
      const int before = right - s * {of.dilation[1]}, column = before / {of.strides[1]};
      const bool inside = before >= 0 && before % {of.strides[1]} == 0 && column < {columns};
      const {item} *const from = image + (row * {columns} + (inside ? column : 0)) * {o};
      const {item} *const filter = filters + (r * {wide} + s) * {c * o};
#pragma unroll
      for (int k = 0; k < {o}; k += {near}) {{
        const Vec<{item}, {near}> given = load<{near}>(from + k);
#pragma unroll
        for (int j = 0; j < {near}; ++j) {{
          const {item} a = inside ? given.at[j] : {item}(0);
#pragma unroll
          for (int i = 0; i < {c}; i += {wide_load}) {{
            const Vec<{item}, {wide_load}> b = load<{wide_load}>(filter + (k + j) * {c} + i);
#pragma unroll
            for (int v = 0; v < {wide_load}; ++v) total[i + v] = fma(a, b.at[v], total[i + v]);
          }}
        }}
      }}
    }}
  }}
#pragma unroll
  for (int i = 0; i < {c}; ++i) result[(i64)at * {c} + i] = total[i];
}}
"""


@dataclass(frozen=True)
class FewFilters:
    """Parts of w = for each filter and tap the sum over windows of x times y: the gradient for filters.

    Slots: `images`; `each`, rows of windows of a block; `x` [images, *places, channels]; `y` [images,
    *windows, outputs]; `result` [blocks, *size, channels, outputs].

    A thread has a tap and a few filters; several have the same of different rows, and are added in order.

    Attributes:
        of: sizes.
    """

    of: Few
    slots = ("images", "each", "x", "y", "result")

    @property
    def owners(self) -> int:
        """How many threads of a block sum different elements: each has a tap and a few filters."""
        return self.of.taps * (self.of.outputs // _together(self.of.outputs))

    @property
    def lanes(self) -> int:
        """How many threads share the work of one such sum, each with other rows of windows."""
        return max(2 * _THREADS // self.owners, 1)

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps; those beyond `owners` times `lanes` have nothing to do."""
        return -(-self.owners * self.lanes // 32) * 32

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: a sum of each thread that has one."""
        return self.lanes * self.of.filter_bytes

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (_, wide) = of.places, of.windows, of.size
        each, o, c = _together(of.outputs), of.outputs, of.channels
        count = of.taps * o
        own = of.of_model(x="x", y="y", result=f"(i64)gridDim.x * {count}")
        return f"""{_head(name, self.slots, item, self.shared_bytes)}
{own}  const u32 lane = threadIdx.x / {self.owners}, own = threadIdx.x % {self.owners};
  const u32 group = own % {o // each}, tap = own / {o // each};
  const int k = tap % {c}, s = tap / {c} % {wide}, r = tap / {c * wide};
  {item} total[{each}] = {{}};
  const i64 first = (i64)blockIdx.x * each, all = images * {rows};
  const i64 last = first + each < all ? first + each : all;
  if (lane < {self.lanes})
    for (i64 window = first + lane; window < last; window += {self.lanes}) {{
      const int row = (int)(window % {rows}) * {of.strides[0]} - {of.padding[0]} + r * {of.dilation[0]};
      if ((u32)row >= {height}u) continue;
      const {item} *const from = x + (window / {rows} * {height} + row) * {width * c} + k;
      const {item} *const beside = y + window * {columns * o} + group * {each};
      const int left = s * {of.dilation[1]} - {of.padding[1]};
#pragma unroll {min(of.windows[1], _AHEAD)}
      for (int q = 0; q < {columns}; ++q) {{
        const int column = q * {of.strides[1]} + left;
        const bool inside = {of.inside("column")};
        const {item} given = from[(inside ? column : 0) * {c}], a = inside ? given : {item}(0);
        const Vec<{item}, {each}> b = load<{each}>(beside + q * {o});
#pragma unroll
        for (int i = 0; i < {each}; ++i) total[i] = fma(a, b.at[i], total[i]);
      }}
    }}
  if (lane < {self.lanes})
#pragma unroll
    for (int i = 0; i < {each}; ++i)
      filters[lane * {count} + tap * {o} + group * {each} + i] = total[i];
  __syncthreads();
  for (u32 e = threadIdx.x; e < {count}; e += blockDim.x) {{
    {item} sum = filters[e];
#pragma unroll
    for (int other = 1; other < {self.lanes}; ++other) sum += filters[other * {count} + e];
    result[(i64)blockIdx.x * {count} + e] = sum;
  }}
}}
"""


@dataclass(frozen=True)
class FewSums:
    """The sums of parts, in a fixed order, as filters [outputs, taps].

    Slots: `parts`, how many; `x` [parts, taps, outputs]; `result`.

    Attributes:
        dtype: of the elements.
        taps, outputs: of filters.
        is_many: as in `Few`.
    """

    dtype: str
    taps: int
    outputs: int
    is_many: bool = False
    slots = ("parts", "x", "result")

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: a sum of each thread that has one."""
        return _OUTPUTS * _LANES * ITEM_BYTES[self.dtype]

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        item, count = MEMORY[self.dtype], self.taps * self.outputs
        own = (
            f"  x += (i64)blockIdx.y * parts * {count};\n  result += (i64)blockIdx.y * {count};\n"
            if self.is_many
            else ""
        )
        return f"""{_head(name, self.slots, item, self.shared_bytes)}
{own}  const u32 lane = threadIdx.x / {_OUTPUTS}, e = blockIdx.x * {_OUTPUTS} + threadIdx.x % {_OUTPUTS};
  {item} total = 0;
  if (e < {count}u)
#pragma unroll 8
    for (i64 part = lane; part < parts; part += {_LANES}) total += x[part * {count} + e];
  filters[threadIdx.x] = total;
  __syncthreads();
  if (lane != 0 || e >= {count}u) return;
#pragma unroll
  for (int other = 1; other < {_LANES}; ++other) total += filters[other * {_OUTPUTS} + threadIdx.x];
  result[e % {self.outputs} * {self.taps} + e / {self.outputs}] = total;
}}
"""


def _each_weight(of: Few) -> str:
    """A loop of a block over all elements of filters, many of which are on their way at once."""
    return f"""#pragma unroll {min(-(-of.taps * of.outputs // _THREADS), _AHEAD)}
  for (u32 e = threadIdx.x; e < {of.taps * of.outputs}u; e += {_THREADS})
"""


def _head(name: str, slots: tuple[str, ...], item: str, shared_bytes: int) -> str:
    """The beginning of a function; `filters` is its shared memory."""
    integers = ("images", "each", "parts")
    kinds = ", ".join(
        f"i64 {slot}"
        if slot in integers
        else f"{'' if slot == 'result' else 'const '}{item} *{slot}"
        for slot in slots
    )
    return f"""extern "C" __global__ void {name}({kinds}) {{
  SHARED_MEMORY({shared_bytes})
{BEGIN}  {item} *const filters = ({item} *)memory;"""


# --- launches -------------------------------------------------------------------------------------


def forward(few: Few, call: ConvolutionNode, models: int = 0) -> Launch:
    """The convolution, with what follows it; `models` as for `few_of`."""
    variant = FewForward(few, bool(call.bias), bool(call.added), call.positive)
    values = {"x": call.x, "w": call.w, "bias": call.bias, "added": call.added, "result": call.y}
    threads = math.prod(call.shapes[2][:3]) * (few.outputs // _together(few.outputs))
    return _of_places(variant, few, threads, call, values, models)


def inputs(few: Few, call: ConvolutionNode, models: int = 0) -> Launch:
    """The gradient for inputs."""
    values = {"w": call.w, "y": call.y, "result": call.x}
    threads = math.prod(call.shapes[0][:3])
    return _of_places(FewInputs(few), few, threads, call, values, models)


def _of_places(
    variant: Variant,
    few: Few,
    threads: int,
    call: ConvolutionNode,
    values: dict[str, int],
    models: int,
) -> Launch:
    values["images"] = call.shapes[0][0]
    arguments = tuple(values[slot] for slot in variant.slots)
    grid = (-(-threads // _THREADS), max(models, 1), 1)
    return Launch(variant, grid, (_THREADS, 1, 1), arguments, few.filter_bytes)


def part_bytes(few: Few, call: ConvolutionNode, models: int = 0) -> int:
    """Memory of the parts that gradients for filters are summed from."""
    return max(models, 1) * _cut(few, call, models)[0] * few.filter_bytes


def _cut(few: Few, call: ConvolutionNode, models: int) -> tuple[int, int]:
    """How many blocks give parts of a model's sums, and rows of windows of each."""
    rows = call.shapes[2][0] * few.windows[0]
    each = -(-rows // max(_PARTS // max(models, 1), 1))
    return -(-rows // each), each


def filters(few: Few, call: ConvolutionNode, parts: int, models: int = 0) -> tuple[Launch, Launch]:
    """The gradient for filters: parts, which are written to an address, and their sums."""
    blocks, each = _cut(few, call, models)
    first, count = FewFilters(few), max(models, 1)
    given = (call.shapes[0][0], each, call.x, call.y, parts)
    last = FewSums(few.dtype, few.taps, few.outputs, few.is_many)
    grid = (-(-few.taps * few.outputs // _OUTPUTS), count, 1)
    return (
        Launch(first, (blocks, count, 1), (first.threads, 1, 1), given, first.shared_bytes),
        Launch(last, grid, (_OUTPUTS * _LANES, 1, 1), (blocks, parts, call.w), last.shared_bytes),
    )
