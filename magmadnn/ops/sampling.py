"""Random numbers as graph nodes, counter-based: see `philox.py`.

A node's numbers depend on its seed, the counter that it is given and the element's index, and on nothing
else, so every back end and every split of the work draws the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError
from magmadnn.graph.op import REQUIRED, Array, NoGradient, Op, OpKind, Sample
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, by_signature, is_integer
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import as_dtype, is_floating

from . import philox
from ._arguments import as_shape, dtype_attribute, shape_of
from ._pointwise import HALF
from .arithmetic import cast, floor, greater_equal, multiply, subtract, where
from .elementary import cos, log, sqrt

_ONE_COUNTER = by_signature("->")  # the counter has no axes


def _canonical(
    words: OpWords, specs: Sequence[Spec], shape: Any, dtype: Any, seed: Any
) -> dict[str, Any]:
    dtype = dtype_attribute(words, dtype)
    if not is_floating(dtype):
        raise DTypeError(f"{words.name}: dtype must be a floating-point type, got {dtype.name}")
    if not is_integer(seed):
        raise ArgumentError(f"{words.name}: seed must be an integer, got {seed!r}")
    return {"shape": as_shape(words, shape), "dtype": dtype, "seed": int(seed)}


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    _ONE_COUNTER(words, specs, attributes)
    return attributes["shape"]


def _dtypes(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    if dtypes[0].kind not in "iu":
        raise DTypeError(f"{words.name}: counter is {dtypes[0].name}, expected int64; cast it")
    return attributes["dtype"]


def _stream(counter: Array) -> int:
    """The 64 bits of the counter, as an unsigned number."""
    return int(counter) & 0xFFFF_FFFF_FFFF_FFFF


def _uniform_numpy(counter: Array, shape: Any, dtype: Any, seed: int) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    return philox.uniform(seed, _stream(counter), count, dtype).reshape(shape)


def _uniform_nodes(counter: Any, shape: Any, dtype: Any, seed: int) -> Any:
    """Of half precision: as many of the first bits of a float32 as it has digits."""
    if dtype not in HALF:
        return None
    unit = float(2 ** philox.DIGITS[dtype])
    bits = floor(multiply(random_uniform(counter, shape, "float32", seed), unit))
    return cast(multiply(bits, 1 / unit), dtype)


def _uniform_reference(counter: Array, shape: Any, dtype: Any = "float32", seed: int = 0) -> Array:
    """One element at a time, each from its place in the stream."""
    stream = _stream(counter)
    drawn = [
        float(philox.uniform(seed, stream, 1, as_dtype(dtype), start=i)[0])
        for i in range(int(np.prod(shape)))
    ]
    return np.array(drawn).reshape(shape)


random_uniform = Op(
    name="random_uniform",
    args=("counter",),
    formula="uniform random numbers in [0, 1) of a shape, for a seed and a counter",
    kind=OpKind.RANDOM,
    shapes=_shapes,
    dtypes=_dtypes,
    numpy=_uniform_numpy,
    vjp=NoGradient("random numbers do not depend on an operand"),
    reference=_uniform_reference,
    samples=lambda draw: [
        Sample((np.int64(3),), {"shape": (5, 7), "dtype": "float32", "seed": 1}),
        Sample((np.int64(-(2**62) + 11),), {"shape": (3,), "dtype": "float64", "seed": 7}),
        Sample((np.int64(2**40),), {"shape": (11,), "dtype": "float16"}),
        Sample((np.int64(2**40),), {"shape": (11,), "dtype": "bfloat16"}),
    ],
    attributes={"shape": REQUIRED, "dtype": "float32", "seed": 0},
    canonical=_canonical,
    draws="uniform",
    decompose=_uniform_nodes,
    any_size=True,
    notes=(
        "counter: int64 scalar, the number of the stream (its 64 bits, unsigned). Equal counters give "
        "equal numbers; one use that draws many times has 32 bits of its name's hash above 32 bits that "
        "count its draws (`philox.stream_of`)."
    ),
)


@public
def dropout(x: Any, rate: float, counter: Any, *, seed: int = 0) -> Any:
    """`x / (1 - rate)` where a random number is not below `rate`, 0 elsewhere.

    Inverted dropout: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, JMLR 15 (2014), section 10.

    Args:
        x: any shape, floating-point.
        rate: probability of a zero, from 0 up to but not including 1.
        counter: int64 scalar; a new value gives a new mask (see `random_uniform`).
        seed: of the generator.

    Raises:
        ArgumentError: if the rate is outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout: rate must be at least 0 and below 1, got {rate}")
    drawn = random_uniform(counter, shape_of(x), "float32", seed)
    return where(greater_equal(drawn, rate), multiply(x, 1.0 / (1.0 - rate)), 0)


@public
def random_normal(counter: Any, shape: Any, dtype: Any = "float32", *, seed: int = 0) -> Any:
    """Standard normal random numbers: `sqrt(-2 log(1 - u)) cos(2 pi v)` of uniform u, v in [0, 1).

    Box and Muller, Ann. Math. Statist. 29 (1958), eq. (1). Of 24 random bits, those of float32, the largest
    number is 5.8; half precision is drawn in float32 and rounded.

    Args:
        counter: int64 scalar; a new value gives new numbers (see `random_uniform`).
        shape: of the result.
        dtype: floating-point.
        seed: of the generator.
    """
    wide = "float32" if as_dtype(dtype) in HALF else dtype
    u = random_uniform(counter, shape, wide, seed)
    v = random_uniform(counter, shape, wide, seed ^ _SECOND)
    drawn = multiply(sqrt(multiply(log(subtract(1.0, u)), -2.0)), cos(multiply(v, 2.0 * math.pi)))
    return drawn if wide == dtype else cast(drawn, dtype)


_SECOND = 1 << 62  # makes a seed that of another generator
