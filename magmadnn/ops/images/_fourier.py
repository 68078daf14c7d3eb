"""Convolutions as products of Fourier transforms: for large filters.

With X and W the transforms of the padded images and of the filters along all axes of places, the transform
of the outputs is the sum over channels of X conj(W): for each frequency a product of matrices [n, c] and
[c, o], which is a real one of twice the sizes. The gradient of the inputs is such a convolution with the
filters turned; that of the filters is one with the outputs' gradient as filters and samples as channels. The
transforms are NumPy's (pocketfft), of one thread; the products are compiled.

A sum of k products costs log k in place of k: it takes filters of some 20 x 20 to pay. Errors in float32
are some 2e-7 of the largest result. What is not finite spreads over
its image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.graph.dim import Shape
from magmadnn.graph.node import with_name
from magmadnn.graph.op import (
    REQUIRED,
    Array,
    Draw,
    NoGradient,
    Op,
    OpKind,
    Sample,
    promote_floating,
)
from magmadnn.graph.signature import Attributes, OpWords, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.ops.arithmetic import negative
from magmadnn.ops.contraction import matmul
from magmadnn.ops.movement import concat, transpose
from magmadnn.ops.slicing import pad, slice_

from .windows import Counts, Pairs, beyond_plain

_SMOOTH = (2, 3, 5, 7)  # factors of lengths that are transformed fast
_WHY = "transforms are made after gradients are"


def check(words: OpWords, x: Any, w_shape: Shape, settled: Attributes) -> None:
    """Before a convolution is made so because somebody wants it.

    Raises:
        ArgumentError: if it cannot be, saying why.
    """
    if why := _obstacle(x, w_shape, settled):
        raise ArgumentError(
            f'{words.name}: algorithm "fft" takes float32 and float64 without strides, dilation or groups, '
            f'on images of known sizes; got {why}; use "auto" or "direct"'
        )


def _obstacle(x: Any, w_shape: Shape, settled: Attributes) -> str:
    """What is against it; empty where nothing is."""
    if why := beyond_plain(settled):
        return why
    if x.dtype.name not in ("float32", "float64"):
        return str(x.dtype.name)
    known = all(isinstance(n, int) and n > 0 for n in (*x.shape[1:], *w_shape))
    return "" if known else f"images {shape_text(x.shape)}"


def convolution(x: Any, w: Any, settled: Attributes) -> Any:
    """The convolution of x [n, *places, c] with w [*size, c, o]; None where it cannot be made so."""
    if x.dtype != w.dtype or _obstacle(x, w.shape, settled):
        return None
    padding: Pairs = settled["padding"]
    if any(before < 0 or after < 0 for before, after in padding):
        return None
    axes = len(padding)
    whole = pad(x, ((0, 0), *padding, (0, 0))) if any(map(any, padding)) else x
    places = tuple(int(n) for n in whole.shape[1:-1])
    lengths = tuple(_fast(n) for n in places)
    images = _frequencies(whole, lengths=lengths)  # [f, n, 2 c]
    turned = transpose(w, (axes, *range(axes), axes + 1))  # [c, *size, o]
    filters = _frequencies(turned, lengths=lengths)  # [f, c, 2 o]
    o = int(w.shape[-1])
    each = ("slice", None, None, 1)
    real = slice_(filters, index=(each, each, ("slice", 0, o, 1)))
    imaginary = slice_(filters, index=(each, each, ("slice", o, 2 * o, 1)))
    rows = [concat([real, negative(imaginary)], 2), concat([imaginary, real], 2)]
    product = with_name(matmul(images, concat(rows, 1)), "fft")
    found = _from_frequencies(product, lengths=lengths)
    counts = (n - k + 1 for n, k in zip(places, w.shape[:-2], strict=True))
    return slice_(found, index=(each, *(("slice", 0, int(n), 1) for n in counts), each))


def filters(x: Any, g: Any, settled: Attributes) -> Any:
    """The gradient of the filters for outputs' gradient g: samples as channels; None where it cannot be.

    The number of samples need not be known: it is summed over.
    """
    if x.dtype != g.dtype or _obstacle(x, (*settled["size"], x.shape[-1], g.shape[-1]), settled):
        return None
    padding: Pairs = settled["padding"]
    axes = len(padding)
    whole = pad(x, ((0, 0), *padding, (0, 0))) if any(map(any, padding)) else x
    lengths = tuple(_fast(int(n)) for n in whole.shape[1:-1])
    c, o = int(x.shape[-1]), int(g.shape[-1])
    images = transpose(_frequencies(whole, lengths=lengths), (0, 2, 1))  # [f, 2 c, n]
    outputs = _frequencies(g, lengths=lengths)  # [f, n, 2 o]
    each = ("slice", None, None, 1)

    def part(rows: int, columns: int) -> Any:
        """One of the four products of real and imaginary parts, [f, c, o]."""
        index = (
            each,
            ("slice", rows * c, (rows + 1) * c, 1),
            ("slice", columns * o, (columns + 1) * o, 1),
        )
        return slice_(product, index=index)

    product = with_name(matmul(images, outputs), "fft")
    total = concat([part(0, 0) + part(1, 1), part(1, 0) - part(0, 1)], 2)
    found = _from_frequencies(total, lengths=lengths)  # [c, *lengths, o]
    size = (("slice", 0, int(k), 1) for k in settled["size"])
    return transpose(slice_(found, index=(each, *size, each)), (*range(1, axes + 1), 0, axes + 1))


def _fast(n: int) -> int:
    """The next length that is a product of small factors."""
    while True:
        rest = n
        for factor in _SMOOTH:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return n
        n += 1


# --- the ops --------------------------------------------------------------------------------------


def _count(lengths: Counts) -> int:
    """Frequencies of real numbers: half of the last axis, and the one in the middle."""
    return math.prod(lengths[:-1]) * (lengths[-1] // 2 + 1)


def _wide(x: Array) -> Array:
    """In a dtype that is transformed: float32, or float64."""
    return x if x.dtype.name in ("float32", "float64") else x.astype(np.float64)


def _forward(x: Array, lengths: Counts) -> Array:
    x, axes = _wide(x), tuple(range(1, x.ndim - 1))
    found = np.fft.rfftn(x, lengths, axes)
    parts = np.moveaxis(found, 0, -2).reshape(_count(lengths), len(x), x.shape[-1])
    return np.concatenate([parts.real, parts.imag], axis=-1).astype(x.dtype, copy=False)


def _back(y: Array, lengths: Counts) -> Array:
    y, o = _wide(y), y.shape[-1] // 2
    complex_ones = (y[..., :o] + 1j * y[..., o:]).astype(np.result_type(y.dtype, np.complex64))
    shape = (*lengths[:-1], lengths[-1] // 2 + 1, y.shape[1], o)
    parts = np.moveaxis(complex_ones.reshape(shape), -2, 0)
    return np.fft.irfftn(parts, lengths, tuple(range(1, len(lengths) + 1))).astype(
        y.dtype, copy=False
    )


def _reference(x: Array, lengths: Counts) -> Array:
    """By the sums of the definition, axis after axis."""
    found: Any = np.zeros((len(x), *lengths, x.shape[-1]), complex)
    found[(slice(None), *(slice(0, n) for n in x.shape[1:-1]))] = x
    for axis, n in enumerate(lengths, 1):
        k = np.arange(n)
        matrix = np.exp(-2j * np.pi * np.outer(k, k) / n)
        found = np.moveaxis(np.tensordot(matrix, found, (1, axis)), 0, axis)
    found = np.moveaxis(found[..., : lengths[-1] // 2 + 1, :], 0, -2)
    found = found.reshape(-1, len(x), x.shape[-1])
    return np.concatenate([found.real, found.imag], -1)


def _back_reference(y: Array, lengths: Counts) -> Array:
    """By the sums of the definition, with the frequencies that real numbers leave out."""
    o, last = y.shape[-1] // 2, lengths[-1]
    half = (y[..., :o] + 1j * y[..., o:]).reshape(*lengths[:-1], last // 2 + 1, y.shape[1], o)
    found = np.moveaxis(half, -2, 0)
    for axis, n in enumerate(lengths[:-1], 1):
        k = np.arange(n)
        matrix = np.exp(2j * np.pi * np.outer(k, k) / n) / n
        found = np.moveaxis(np.tensordot(matrix, found, (1, axis)), 0, axis)
    k = np.arange(last // 2 + 1)
    weight = np.where((k == 0) | (2 * k == last), 1, 2) / last
    matrix = np.exp(2j * np.pi * np.outer(np.arange(last), k) / last) * weight
    return np.moveaxis(np.tensordot(matrix, found, (1, len(lengths))), 0, len(lengths)).real


def _shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    (x,) = specs
    return (_count(attributes["lengths"]), x.shape[0], 2 * x.shape[-1])


def _back_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    (y,) = specs
    o = y.shape[-1]
    return (y.shape[1], *attributes["lengths"], o // 2)


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 5, 3),), {"lengths": (7,)})
    yield Sample((draw(2, 4, 5, 3),), {"lengths": (6, 5)})


def _back_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((_forward(draw(2, 5, 3), (7,)),), {"lengths": (7,)})
    yield Sample((_forward(draw(2, 4, 5, 3), (6, 6)),), {"lengths": (6, 6)})


_frequencies = Op(
    name="_frequencies",
    args=("x",),
    formula="x [n, *places, c] -> its transform along places [frequencies, n, real and imaginary parts of c]",
    kind=OpKind.OTHER,
    shapes=_shape,
    dtypes=promote_floating,
    numpy=_forward,
    vjp=NoGradient(why=_WHY),
    reference=_reference,
    samples=_samples,
    attributes={"lengths": REQUIRED},
)

_from_frequencies = Op(
    name="_from_frequencies",
    args=("y",),
    formula="what has the transform y [frequencies, n, real and imaginary parts of o]: [n, *lengths, o]",
    kind=OpKind.OTHER,
    shapes=_back_shape,
    dtypes=promote_floating,
    numpy=_back,
    vjp=NoGradient(why=_WHY),
    reference=_back_reference,
    samples=_back_samples,
    attributes={"lengths": REQUIRED},
)
