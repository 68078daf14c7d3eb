"""Convolutions of channels-last images, and the two products that their gradients are.

With x `[n, *places, c]`, w `[*size, c / groups, o]` and y `[n, *windows, o]`:

    convolution            y[n, p, o] = sum over t, i of x[n, p * stride + t * dilation - pad, i] w[t, i, o]
    _convolution_inputs    the sum over p, t, o of y w at the place p * stride + t * dilation - pad
    _convolution_filters   the sum over n, p of x y, for each tap t, input i and output o

Each is linear in both operands and the gradient of the others, so gradients of any order are these three.
`_taps.py` computes them by NumPy, `_products.py` says which products of matrices they are when compiled,
`_winograd.py` which ones that take fewer multiplications, `_fourier.py` how large filters become products of
transforms, and `_calls.py` which calls of a library, where the
target has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, Draw, Op, OpKind, Sample, promote
from magmadnn.graph.operators import public
from magmadnn.graph.placing.axes import Axes
from magmadnn.graph.signature import Attributes, OpWords, is_integer, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.ops._arguments import as_shape, shape_of, words_of
from magmadnn.ops.slicing import slice_

from . import _calls, _fourier, _models, _phases, _products, _taps, _winograd
from .interleaving import interleave
from .windows import Counts, check_image, counts_of, counts_of_windows, one_of, pads_of, reach_of

# --- settings -------------------------------------------------------------------------------------


def _settings(
    words: OpWords,
    places: Shape,
    size: Shape,
    strides: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    algorithm: Any,
) -> dict[str, Any]:
    axes = len(places)
    steps = counts_of(words, "strides", strides, axes)
    apart = counts_of(words, "dilation", dilation, axes)
    reach = reach_of(_known(words, size), apart)
    if not is_integer(groups) or groups < 1:
        raise ArgumentError(f"{words.name}: groups must be an integer from 1, got {groups!r}")
    return {
        "strides": steps,
        "padding": pads_of(words, padding, places, reach, steps),
        "dilation": apart,
        "groups": int(groups),
        "algorithm": one_of(words, "algorithm", algorithm, ALGORITHMS),
    }


def _known(words: OpWords, size: Shape) -> Counts:
    if not all(isinstance(k, int) and k >= 1 for k in size):
        raise ShapeError(
            f"{words.name}: w needs filters of known sizes from 1, got {shape_text(size)}"
        )
    return tuple(int(k) for k in size)  # type: ignore[arg-type]


def _check_filters(words: OpWords, image: Spec, w: Spec, channels: str) -> None:
    axes = check_image(words, image)
    if w.ndim != axes + 2:
        raise ShapeError(
            f"{words.name}: w must be [{', '.join(['size'] * axes)}, c / groups, o], got "
            f"{shape_text(w.shape)} for {words.operand(0)} {shape_text(image.shape)}"
        )


def _check_channels(words: OpWords, c: Any, w: Shape, groups: int, x: Shape) -> None:
    if w[-2] * groups != c:
        each = f" in each of {groups} groups" if groups > 1 else ""
        raise ShapeError(
            f"{words.name}: x has {c} channels, but w takes {w[-2]}{each}: "
            f"x {shape_text(x)}, w {shape_text(w)}"
        )
    if isinstance(w[-1], int) and w[-1] % groups:
        raise ShapeError(f"{words.name}: {w[-1]} filters do not divide into {groups} groups")


def _canonical(words: OpWords, specs: Sequence[Spec], **settings: Any) -> dict[str, Any]:
    x, w = specs
    _check_filters(words, x, w, "x")
    settled = _settings(words, x.shape[1:-1], w.shape[:-2], **settings)
    _check_channels(words, x.shape[-1], w.shape, settled["groups"], x.shape)
    if (algorithm := settled["algorithm"]) in _winograd.FORMS:
        _winograd.check(words, x, w.shape, algorithm, without_algorithm(settled))
    if settled["algorithm"] == "fft":
        _fourier.check(words, x, w.shape, without_algorithm(settled))
    return settled


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    x, w = (spec.shape for spec in specs)
    return (x[0], *counts_of_windows(x[1:-1], w[:-2], attributes), w[-1])


# --- algorithms -----------------------------------------------------------------------------------

ALGORITHMS = ("auto", "direct", *_winograd.FORMS, "fft")


def without_algorithm(settled: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that say what is computed."""
    return {name: value for name, value in settled.items() if name != "algorithm"}


def _any_algorithm(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that has no need to know the algorithm."""

    def called(*operands: Any, **settled: Any) -> Any:
        return function(*operands, **without_algorithm(settled))

    return called


def _by_winograd(x: Any, w: Any, algorithm: str, **settled: Any) -> Any:
    """The convolution by fewer products; None where they do not pay, or are not wanted."""
    form = _winograd.form_of(x, w.shape, algorithm, settled)
    return None if form is None else _winograd.convolution(x, w, settled["padding"], form)


def _for_one_sample(x: Any, w: Any, algorithm: str, **settled: Any) -> Any:
    """The sums of a small image's windows, where fewer products pay for many images only; else None."""
    few = _winograd.pays_for_many_only(x, w.shape, algorithm, settled)
    return _products.convolution(x, w, **settled) if few else None


def _by_fft(x: Any, w: Any, algorithm: str, **settled: Any) -> Any:
    """The convolution by Fourier transforms; None where they are not wanted."""
    return _fourier.convolution(x, w, settled) if algorithm == "fft" else None


def _filters_by_fft(x: Any, g: Any, algorithm: str, **settled: Any) -> Any:
    return _fourier.filters(x, g, settled) if algorithm == "fft" else None


def _filters_by_winograd(x: Any, g: Any, size: Shape, algorithm: str, **settled: Any) -> Any:
    w_shape = (*size, x.shape[-1] // settled["groups"], g.shape[-1])
    form = _winograd.form_of(x, w_shape, algorithm, settled)
    return None if form is None else _winograd.filters(x, g, settled["padding"], form)


# --- the ops --------------------------------------------------------------------------------------


def _reference(x: Array, w: Array, **attributes: Any) -> Array:
    specs = [Spec(a.shape, a.dtype) for a in (x, w)]
    settings = {**convolution.attributes, **attributes}
    settled = _canonical(convolution.words, specs, **settings)
    counts = counts_of_windows(x.shape[1:-1], w.shape[:-2], settled)
    return _taps.reference(x, w, counts, **without_algorithm(settled))


def _inputs_nodes(g: Any, w: Any, algorithm: str, **settled: Any) -> Any:
    """One convolution without strides; or of each phase of the inputs, or of all phases at once."""
    known = all(isinstance(n, int) for n in settled["places"])
    strided = known and max(settled["strides"]) > 1
    parts = {p.phase: p for p in _phases.phases_of(w.shape[:-2], **settled)} if strided else {}
    if not parts:
        return _turned_convolution(g, w, algorithm, **settled)
    geometry = {name: settled[name] for name in ("places", "strides")}
    way = {name: settled[name] for name in ("strides", "dilation", "groups")}
    if _phases.pay_together(parts.values(), w.shape[:-2], w.shape[-2], **way):
        return _phases.together(g, w, **geometry, padding=settled["padding"])
    made = [
        _turned_convolution(
            g,
            slice_(w, index=part.taps),
            "direct",
            places=part.places,
            strides=(1,) * len(part.places),
            padding=part.padding,
            dilation=part.dilation,
            groups=settled["groups"],
        )
        for part in parts.values()
    ]
    return interleave(made, phases=tuple(parts), **geometry)


def _turned_convolution(
    g: Any, w: Any, algorithm: str, dilation: Counts, groups: int, **geometry: Any
) -> Any:
    spread, turned = _products.spread_and_turned(g, w, dilation=dilation, groups=groups, **geometry)
    return convolution(
        spread,
        turned,
        strides=1,
        padding=0,
        dilation=dilation,
        groups=groups,
        algorithm=algorithm,
    )


def _vjp(g: Any, y: Any, x: Any, w: Any, **settled: Any) -> tuple[Any, Any]:
    return (
        convolution_inputs(g, w, places=x.shape[1:-1], **settled),
        convolution_filters(x, g, size=w.shape[:-2], **settled),
    )


def _inputs_vjp(u: Any, y: Any, g: Any, w: Any, places: Any, **settled: Any) -> tuple[Any, Any]:
    return (
        convolution(u, w, **settled),
        convolution_filters(u, g, size=w.shape[:-2], **settled),
    )


def _filters_vjp(v: Any, y: Any, x: Any, g: Any, size: Any, **settled: Any) -> tuple[Any, Any]:
    return (
        convolution_inputs(g, v, places=x.shape[1:-1], **settled),
        convolution(x, v, **settled),
    )


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 7, 3), draw(3, 3, 4)))
    yield Sample((draw(2, 5, 6, 3), draw(3, 2, 3, 4)), {"padding": "same"})
    yield Sample((draw(1, 7, 6, 2), draw(3, 3, 2, 3)), {"strides": (2, 3), "padding": (1, 2)})
    yield Sample((draw(2, 6, 7, 2), draw(2, 3, 2, 3)), {"dilation": 2, "padding": ((0, 1), (2, 0))})
    yield Sample((draw(2, 5, 5, 4), draw(2, 2, 2, 6)), {"groups": 2, "strides": 2})
    yield Sample((draw(2, 5, 5, 3), draw(3, 3, 1, 3)), {"groups": 3, "padding": "same"})
    yield Sample((draw(2, 3, 4, 3), draw(1, 1, 3, 5)))
    yield Sample((draw(1, 3, 4, 3, 2), draw(2, 2, 2, 2, 3)))


_1D = {"strides": (2,), "padding": ((1, 0),), "dilation": (1,), "groups": 1}
_2D = {"strides": (1, 2), "padding": ((1, 1), (0, 2)), "dilation": (2, 1), "groups": 2}
_DEPTHWISE = {"strides": (2, 1), "padding": ((0, 1), (1, 1)), "dilation": (1, 1), "groups": 3}


def _names(kind: str, specs: Sequence[Spec], groups: int) -> tuple[Any, ...]:
    """Axes of images [n, *places, c] or [n, *windows, o], or of filters [*size, c, o]; n alone of groups."""
    places = (None,) * (max(s.ndim for s in specs) - 2)
    c, o = ("c", "o") if groups == 1 else (None, None)
    return {"x": ("n", *places, c), "y": ("n", *places, o), "w": (*places, c, o)}[kind]


def _split_axes(operands: str, result: str) -> Callable[..., Axes]:
    """Samples, channels and filters can be shared out among ranks; what is not in the result is summed."""

    def axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
        groups = attributes["groups"]
        each = tuple(_names(kind, specs, groups) for kind in operands)
        return Axes(each, _names(result, specs, groups), adds=True)

    return axes


convolution: Op = Op(
    name="convolution",
    args=("x", "w"),
    formula="x [n, *places, c] with w [*size, c / groups, o] -> [n, *windows, o]",
    kind=OpKind.CONTRACTION,
    shapes=_shapes,
    dtypes=promote,
    numpy=_any_algorithm(_taps.convolution),
    vjp=_vjp,
    reference=_reference,
    samples=_samples,
    attributes={"strides": 1, "padding": "valid", "dilation": 1, "groups": 1, "algorithm": "auto"},
    canonical=_canonical,
    axes=_split_axes("xw", "y"),
    contracts="add",
    decompose=_any_algorithm(_products.convolution),
    by_library={
        "tf32": _any_algorithm(partial(_calls.convolution, tensor_float=True)),
        "fprop": _any_algorithm(_calls.convolution),
        "one sample": _for_one_sample,
        "winograd": _by_winograd,
        "fft": _by_fft,
    },
    stacked=_models.stacked_as(lambda: convolutions, shares=True),
    notes='Channels last, filters not turned round. `padding` is "valid", "same" (as TensorFlow defines it), '
    "or places before and after each axis: a number, one for each axis, or pairs. Filter k of the o takes "
    "the channels of its group: of `groups` equal parts. `algorithm` is for processors: "
    '"direct" sums the products of each window, "winograd" (3 x 3 filters in float32, without strides, '
    'dilation or groups) takes a quarter of them, "winograd_2x2" (likewise) 4 of 9 and is as exact as they, '
    '"fft" (likewise without, in float32 and float64) multiplies Fourier transforms, for large filters, and '
    '"auto" chooses "winograd" where there are many '
    "channels; "
    "on a GPU the library chooses.",
)

convolution_inputs: Op = Op(
    name="_convolution_inputs",
    args=("g", "w"),
    formula="the transpose of the convolution with w: what it adds to each place of x, for outputs g",
    kind=OpKind.CONTRACTION,
    shapes=lambda words, specs, attributes: (
        specs[0].shape[0],
        *attributes["places"],
        specs[1].shape[-2] * attributes["groups"],
    ),
    dtypes=promote,
    numpy=_any_algorithm(_taps.inputs),
    vjp=_inputs_vjp,
    reference=_any_algorithm(_taps.inputs_reference),
    samples=lambda draw: [
        Sample((draw(2, 3, 4), draw(3, 3, 4)), {"places": (6,), **_1D}),
        Sample((draw(2, 4, 4, 6), draw(2, 3, 2, 6)), {"places": (4, 7), **_2D}),
        Sample((draw(2, 2, 5, 3), draw(3, 3, 1, 3)), {"places": (5, 5), **_DEPTHWISE}),
    ],
    attributes={
        **dict.fromkeys(("places", "strides", "padding", "dilation", "groups"), REQUIRED),
        "algorithm": "auto",
    },
    axes=_split_axes("yw", "x"),
    contracts="add",
    decompose=_inputs_nodes,
    by_library={"dgrad": _any_algorithm(_calls.inputs)},
    stacked=_models.stacked_as(lambda: convolutions_inputs, shares=True),
)

convolution_filters: Op = Op(
    name="_convolution_filters",
    args=("x", "g"),
    formula="for each tap, input and filter the sum over windows of x times g",
    kind=OpKind.CONTRACTION,
    shapes=lambda words, specs, attributes: (
        *attributes["size"],
        specs[0].shape[-1] // attributes["groups"],
        specs[1].shape[-1],
    ),
    dtypes=promote,
    numpy=_any_algorithm(_taps.filters),
    vjp=_filters_vjp,
    reference=_any_algorithm(_taps.filters_reference),
    samples=lambda draw: [
        Sample((draw(2, 6, 3), draw(2, 3, 4)), {"size": (3,), **_1D}),
        Sample((draw(2, 4, 7, 4), draw(2, 4, 4, 6)), {"size": (2, 3), **_2D}),
        Sample((draw(2, 5, 5, 3), draw(2, 2, 5, 3)), {"size": (3, 3), **_DEPTHWISE}),
    ],
    attributes={
        **dict.fromkeys(("size", "strides", "padding", "dilation", "groups"), REQUIRED),
        "algorithm": "auto",
    },
    axes=_split_axes("xy", "w"),
    contracts="add",
    decompose=_any_algorithm(_products.filters),
    by_library={
        "tf32": _any_algorithm(partial(_calls.filters, tensor_float=True)),
        "wgrad": _any_algorithm(_calls.filters),
        "winograd": _filters_by_winograd,
        "fft": _filters_by_fft,
    },
    stacked=_models.stacked_as(lambda: convolutions_filters, shares=False),
)


# --- of many models -------------------------------------------------------------------------------


def _models_vjp(g: Any, y: Any, x: Any, w: Any, **settled: Any) -> tuple[Any, Any]:
    return (
        convolutions_inputs(g, w, places=x.shape[2:-1], **settled),
        convolutions_filters(x, g, size=w.shape[1:-2], **settled),
    )


def _models_inputs_vjp(
    u: Any, y: Any, g: Any, w: Any, places: Any, **settled: Any
) -> tuple[Any, Any]:
    return (
        convolutions(u, w, **settled),
        convolutions_filters(u, g, size=w.shape[1:-2], **settled),
    )


def _models_filters_vjp(
    v: Any, y: Any, x: Any, g: Any, size: Any, **settled: Any
) -> tuple[Any, Any]:
    return (
        convolutions_inputs(g, v, places=x.shape[2:-1], **settled),
        convolutions(x, v, **settled),
    )


convolutions: Op = _models.of_models(
    convolution, "_convolutions", ("x", "w"), _models_vjp, "fprop", _models.convolution
)
convolutions_inputs: Op = _models.of_models(
    convolution_inputs,
    "_convolutions_inputs",
    ("g", "w"),
    _models_inputs_vjp,
    "dgrad",
    _models.inputs,
)
convolutions_filters: Op = _models.of_models(
    convolution_filters,
    "_convolutions_filters",
    ("x", "g"),
    _models_filters_vjp,
    "wgrad",
    _models.filters,
)


@public
def convolution_transposed(
    x: Any, w: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1, groups: int = 1
) -> Any:
    """The transpose of a convolution: x [n, places..., c], w [size..., o / groups, c] -> [n, outputs..., o].

    Each place of x adds its multiple of the filters to the outputs, `strides` apart. `outputs` is
    `(places - 1) * stride + reach` with `padding="valid"`, less the padding where that is given in
    numbers, and `places * stride` with "same"; `reach` is `(size - 1) * dilation + 1`.

    Raises:
        ArgumentError, ShapeError: if settings and operands do not fit, or the padding leaves no outputs.
    """
    words = words_of("convolution_transposed", "x", "w")
    shape, filters = shape_of(x), shape_of(w)
    if len(shape) < 3 or len(filters) != len(shape):
        raise ShapeError(
            f"{words.name}: x must be [n, places..., c] and w [size..., o / groups, c], got x "
            f"{shape_text(shape)}, w {shape_text(filters)}"
        )
    axes = len(shape) - 2
    steps = counts_of(words, "strides", strides, axes)
    apart = counts_of(words, "dilation", dilation, axes)
    reach = reach_of(_known(words, filters[:-2]), apart)
    if filters[-1] != shape[-1]:
        raise ShapeError(
            f"{words.name}: x has {shape[-1]} channels, but w takes {filters[-1]}: x {shape_text(shape)}, "
            f"w {shape_text(filters)}"
        )
    if not is_integer(groups) or groups < 1 or shape[-1] % groups:
        raise ArgumentError(
            f"{words.name}: groups must be an integer from 1 that divides {shape[-1]} channels, "
            f"got {groups!r}"
        )
    places = tuple(
        n * step if padding == "same" else (n - 1) * step + span
        for n, step, span in zip(shape[1:-1], steps, reach, strict=True)
    )
    pads = pads_of(words, padding, places, reach, steps)
    if padding != "same":
        for axis, (n, pair) in enumerate(zip(places, pads, strict=True), 1):
            if isinstance(n, int) and n and n <= sum(pair):
                raise ShapeError(
                    f"{words.name}: padding {pair} takes away all {n} outputs along axis {axis} of x "
                    f"{shape_text(shape)}: give less"
                )
        places = tuple(n - (a + b) for n, (a, b) in zip(places, pads, strict=True))
    return convolution_inputs(
        x,
        w,
        places=as_shape(words, places),
        strides=steps,
        padding=pads,
        dilation=apart,
        groups=int(groups),
    )
