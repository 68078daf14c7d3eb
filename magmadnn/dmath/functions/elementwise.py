"""Functions of elements, alone or of several arrays that broadcast; and where their results lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import ArgumentError, ShapeError

# By number of operands: names of the array API standard; NumPy and CuPy have each under the same name.
UNARY = (
    "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag "
    "isfinite isinf "
    "isnan log log10 log1p log2 logical_not negative positive real reciprocal round sign signbit sin sinh "
    "sqrt square tan tanh trunc"
).split()
BINARY = (
    "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign "
    "divide equal "
    "floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor "
    "maximum minimum multiply nextafter not_equal pow remainder subtract"
).split()
ACTIVATIONS = "elu gelu leaky_relu relu sigmoid silu softplus".split()


# What libraries that do not follow the standard yet call some of these.
_OLDER = {
    **{f"a{name}": f"arc{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")},
    "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "pow": "power",
}


def function_of(name: str, xp: Any = np) -> Callable[..., Any]:
    """The function on local arrays."""
    if name in ACTIVATIONS:
        return _activation(name, xp)
    known = name if hasattr(xp, name) else _OLDER[name]
    found: Callable[..., Any] = getattr(xp, known)
    if name in ("real", "imag"):  # which are views
        return lambda x: found(x).copy()
    return found


@lru_cache(maxsize=64)
def _activation(name: str, xp: Any) -> Callable[..., Any]:
    def wide(x: Any) -> Any:
        return x if x.dtype.kind in "fV" else x.astype(xp.float64)

    def softplus(x: Any) -> Any:
        return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))

    def sigmoid(x: Any) -> Any:
        small = xp.exp(-xp.abs(x))
        return xp.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)

    def gelu(x: Any) -> Any:
        # The form with tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
        return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    table: dict[str, Callable[..., Any]] = {
        "relu": lambda x: xp.maximum(x, 0),
        "leaky_relu": lambda x, slope=0.01: xp.where(wide(x) > 0, wide(x), wide(x) * slope),
        "elu": lambda x, alpha=1.0: xp.where(
            x > 0, wide(x), alpha * xp.expm1(xp.minimum(wide(x), 0))
        ),
        "sigmoid": lambda x: sigmoid(wide(x)),
        "silu": lambda x: wide(x) * sigmoid(wide(x)),
        "softplus": lambda x: softplus(wide(x)),
        "gelu": lambda x: gelu(wide(x)),
    }
    return table[name]


def result_dtype(
    name: str, kinds: tuple[Any, ...], settings: Mapping[str, Any] | None = None
) -> np.dtype[Any]:
    """The dtype of a function's result, from dtypes of arrays, and Python's numbers as they are.

    `settings`: further arguments of the function, which have to be such as it takes.

    Raises:
        TypeError, OverflowError: for operands that the function does not take.
    """
    more = tuple(sorted(settings.items())) if settings else ()
    return _result_dtype(name, kinds, tuple(map(type, kinds)), more)


@lru_cache(maxsize=4096)
def _result_dtype(
    name: str, kinds: tuple[Any, ...], types: tuple[type, ...], settings: tuple[Any, ...]
) -> np.dtype[Any]:
    """The same; `types` tell 1, 1.0 and True apart, which are equal keys."""
    operands = [np.ones(1, k) if isinstance(k, np.dtype) else k for k in kinds]
    if name in ACTIVATIONS and any(np.iscomplexobj(x) for x in operands):
        raise TypeError(f"{name} is a function of real numbers")  # maximum orders complex ones
    with np.errstate(all="ignore"):
        made: np.dtype[Any] = np.asarray(function_of(name)(*operands, **dict(settings))).dtype
    return made


def broadcast_shape(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a function's result.

    Raises:
        ShapeError: if shapes do not broadcast.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise ShapeError(
            f"{name}: shapes {listed} do not broadcast: sizes of an axis, from the last, are equal or 1"
        ) from None


def induced(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Where an operand has to lie that broadcasts to an array in `layout`: each of its blocks wherever it
    is needed.
    """
    lost = len(layout.shape) - len(shape)
    if lost == 0 and shape == layout.shape:
        return layout
    merged = [i < lost or shape[i - lost] != n for i, n in enumerate(layout.shape)]
    return _merged(layout, tuple(merged), shape, lost)


@lru_cache(maxsize=512)
def _merged(layout: Layout, merged: tuple[bool, ...], shape: tuple[int, ...], lost: int) -> Layout:
    spans = [[0] if m else range(g) for m, g in zip(merged, layout.grid, strict=True)]
    holders = []
    for place in product(*spans):
        around = [
            range(g) if m else [p] for m, g, p in zip(merged, layout.grid, place, strict=True)
        ]
        found = {w for at in product(*around) for w in layout.holders[layout.block_at(at)]}
        holders.append(tuple(sorted(found)))
    cuts = tuple((0, 1) if merged[i] else layout.cuts[i] for i in range(lost, len(layout.shape)))
    return Layout(shape, cuts, tuple(holders), layout.workers)


def common(name: str, layouts: Sequence[Layout], itemsize: int = 8) -> Layout:
    """Where a result lies: as the operand of its shape that is spread most, the first of several."""
    shape = broadcast_shape(name, [layout.shape for layout in layouts])
    best: Layout | None = None
    for layout in layouts:
        if layout.shape == shape and (best is None or (best.replicated and not layout.replicated)):
            best = layout
    return best if best is not None else resolve("auto", shape, layouts[0].workers, itemsize)


def apply(
    name: str,
    operands: Sequence[Any],
    layout: Layout | None = None,
    out: Parts | None = None,
    **settings: Any,
) -> Parts:
    """A function of elements, of arrays and Python's numbers.

    Args:
        name: of the function.
        operands: `Parts` or numbers; one `Parts` at least.
        layout: of the result; None for `common`.
        out: an array to write to. Operands that are other views of it are read as they were before.
        settings: further arguments of the function.
    """
    arrays = [x for x in operands if isinstance(x, Parts)]
    team = arrays[0].team
    if out is not None:
        layout = out.layout
    layout = layout or common(name, [x.layout for x in arrays])
    aligned = [
        remap(x, induced(layout, x.shape), share=_may_share(x, out)) if isinstance(x, Parts) else x
        for x in operands
    ]
    kinds = tuple(x.dtype if isinstance(x, Parts) else x for x in operands)
    function, dtype = function_of(name, team.xp), result_dtype(name, kinds, settings)
    if name == "pow" and dtype.kind in "iu":
        _check_exponents(operands[1])
    made: dict[int, Any] = {}
    if out is not None:
        out.data.version += 1
    for block in layout.held[team.rank]:
        local = [_block(x, layout, block) if isinstance(x, Parts) else x for x in aligned]
        value = team.xp.asarray(function(*local, **settings))
        if out is None:
            shape = tuple(high - low for low, high in layout.boxes[block])
            if value.shape != shape:
                value = team.xp.broadcast_to(value, shape).copy()
            made[block] = value.copy() if any(value is x for x in local) else value
        else:
            out.blocks[block][...] = value
    return Parts(team, layout, dtype, made) if out is None else out


def _may_share(x: Parts, out: Parts | None) -> bool:
    """Whether blocks of an operand may be read where they lie: not if they change as others are written."""
    return out is None or x is out or x.data is not out.data


def _check_exponents(exponents: Any) -> None:
    """Refuse negative powers of integers; on all workers alike."""
    if not isinstance(exponents, Parts):
        found = exponents < 0
    elif exponents.dtype.kind != "i":
        found = False
    else:
        team = exponents.team
        mine = any(bool(team.on_host((x < 0).any())) for x in exponents.blocks.values())
        found = any(team.comm.exchange(mine))
    if found:
        raise ArgumentError("pow: integers have no negative powers here: x.astype('float64') has")


def _block(x: Parts, layout: Layout, block: int) -> Any:
    """The operand's block that goes with a block of the result."""
    place, rest = [], block
    for count in reversed(layout.grid):
        rest, at = divmod(rest, count)
        place.append(at)
    place.reverse()
    lost = len(layout.grid) - len(x.layout.grid)
    own = [
        0 if x.shape[i] != layout.shape[lost + i] else place[lost + i]
        for i in range(len(x.layout.grid))
    ]
    return x.blocks[x.layout.block_at(own)]
