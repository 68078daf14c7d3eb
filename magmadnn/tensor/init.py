"""Initial values: `md.init.glorot_uniform()` and the like.

An initialiser is a frozen record of its settings. Called with a shape, a dtype, a seed and a stream it
gives an array. Random ones are counter-based (`magmadnn.ops.philox`): an element depends on seed, stream
and its index only, so neither on the device nor on what was drawn before. Variables have streams of
their own, named after them.

Fans: a weight of shape [in, out] has fan_in = in and fan_out = out; a filter of shape
[height, width, in, out] (any number of axes before the last two) has both times height * width. A vector
of n has fan_in = fan_out = n, a single value 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from magmadnn.calls import check_calls, checked_call
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from magmadnn.graph.own_names import check_name
from magmadnn.graph.signature import shape_text
from magmadnn.memory import as_dtype, is_floating
from magmadnn.ops import philox
from magmadnn.tensor._normals import normal_quantile, normals

Array = NDArray[Any]
Shape = tuple[int, ...]

_OWN = f"{__name__.split('.', maxsplit=1)[0]}."
_REGISTRY: dict[str, type[Initializer]] = {}
_TWO_SIGMA = 0.022750131948179207  # the normal distribution function at -2


@dataclass(frozen=True)
class Initializer(ABC):
    """A rule for initial values. Derive from it, as a frozen dataclass, for one of your own.

    A derived class is known by its name from then on (see `by_name`), which must not be one of magmadnn's
    own; fields hold numbers, or tuples of them, so that they can be kept as JSON.
    """

    floating: ClassVar[bool] = False  # whether integers make no sense

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):
            name = cls.__name__
            check_name(f"initialiser {name}", name, cls, _REGISTRY, "give yours another name")
            _REGISTRY[name] = cls
        each, *others = (_place_of(cls, name) for name in ("each", "make", "__call__"))
        if min(others) < each:  # what it inherits draws something else than it does by itself
            cls.each = Initializer.each  # type: ignore[method-assign]

    @abstractmethod
    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """The values, in any dtype; they are converted afterwards."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, seed: int, stream: int) -> Array:
        """An array of initial values.

        Args:
            shape: sizes of the axes.
            dtype: element type of the result.
            seed: of the random numbers.
            stream: tells uses of one seed apart (see `magmadnn.ops.philox.stream_of`).

        Raises:
            DTypeError: if the dtype is no floating-point one and the rule needs one.
            ShapeError: if the rule does not fit the shape.
            ArgumentError: if the dtype cannot hold a value.
        """
        dtype = as_dtype(dtype)
        if self.floating and not is_floating(dtype):
            raise DTypeError(
                f"init.{self!r}: expected a floating-point dtype, got {dtype.name}; "
                "use uniform, constant or mask for integers"
            )
        values = self.make(tuple(shape), dtype, seed, stream)
        if values.dtype == dtype:
            return values  # nothing is converted, so nothing is lost
        with np.errstate(all="ignore"):
            result = values.astype(dtype, copy=False)
            lost = np.isfinite(values) & ~np.isfinite(result)
            if not is_floating(dtype):
                lost |= result != values
        if lost.any():
            raise ArgumentError(f"init.{self!r}: {dtype.name} cannot hold {values[lost][0]}")
        return result

    def each(
        self, shape: Sequence[int], dtype: DTypeLike, seeds: Sequence[int], stream: int
    ) -> Array:
        """The arrays of several seeds, [seeds, ...]: what a call gives for each of them."""
        return np.stack([self(shape, dtype, seed, stream) for seed in seeds])

    def config(self) -> dict[str, Any]:
        """Name and settings, as JSON can hold them; `from_config` goes back."""
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {"name": type(self).__name__, **settings}


def _place_of(cls: type[Any], name: str) -> int:
    """Which of a class's ancestors gives it a method: 0 for itself."""
    return next(place for place, one in enumerate(cls.__mro__) if name in vars(one))


def is_alike(one: Initializer, other: Initializer) -> bool:
    """Whether both give the same values to the last bit; of a user's class only one and the same does."""
    if one is other:
        return True
    if type(one) is not type(other) or not type(one).__module__.startswith(_OWN):
        return False
    return repr(one) == repr(other)  # which tells -0.0 from 0.0


def by_name(name: str, **settings: Any) -> Initializer:
    """The initialiser called `name`, with its defaults where a setting is left out.

    Raises:
        UnknownNameError: if there is none of that name, or it has no such setting.
        ArgumentError: if a setting is missing or wrong.
    """
    if name not in _REGISTRY:
        raise UnknownNameError.of("initialiser", name, _REGISTRY)
    cls = _REGISTRY[name]
    known = [f.name for f in fields(cls)]
    for key in settings:
        if key not in known:
            raise UnknownNameError.of(f"init.{name}: setting", key, known)
    made: Initializer = checked_call(cls)(**settings)
    return made


def from_config(config: dict[str, Any]) -> Initializer:
    """The initialiser that `Initializer.config` describes; errors as for `by_name`."""
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    return by_name(str(settings.pop("name", "")), **settings)


def of(init: Initializer | str) -> Initializer:
    """An initialiser, given itself or its name.

    Raises:
        ArgumentError: if it is neither.
    """
    if isinstance(init, Initializer):
        return init
    if isinstance(init, str):
        return by_name(init)
    raise ArgumentError(
        f"init: expected an initialiser such as md.init.normal() or its name, got {init!r}"
    )


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """fan_in and fan_out of a weight: how many inputs an output sums, and the reverse."""
    if len(shape) < 2:
        n = shape[0] if shape else 1
        return n, n
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]


# --- no randomness ---------------------------------------------------------------------------


@dataclass(frozen=True)
class constant(Initializer):
    """Every element is `value`."""

    value: float

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        return np.full(shape, self.value)


@dataclass(frozen=True)
class zeros(Initializer):
    """0 everywhere."""

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        return np.zeros(shape, dtype)

    def each(
        self, shape: Sequence[int], dtype: DTypeLike, seeds: Sequence[int], stream: int
    ) -> Array:
        """See `Initializer`."""
        return np.zeros((len(seeds), *shape), as_dtype(dtype))


@dataclass(frozen=True)
class none(zeros):
    """No values in particular; new memory holds zeros here, so that nothing stale is ever seen."""


@dataclass(frozen=True)
class ones(Initializer):
    """1 everywhere."""

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        return np.ones(shape, dtype)


@dataclass(frozen=True)
class diagonal(Initializer):
    """`values`, one number or as many as there are, on the main diagonal of the last two axes."""

    values: float | tuple[float, ...]

    def __post_init__(self) -> None:
        if np.iterable(self.values):
            object.__setattr__(self, "values", tuple(float(x) for x in self.values))

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        _check_matrix(self, shape)
        count = min(shape[-2:])
        if isinstance(self.values, tuple) and len(self.values) != count:
            raise ShapeError(
                f"init.diagonal: got {len(self.values)} values for shape {shape_text(shape)}, "
                f"which has {count} on its diagonal"
            )
        result = np.zeros(shape)
        result[..., np.arange(count), np.arange(count)] = self.values
        return result


@dataclass(frozen=True)
class identity(Initializer):
    """1 on the main diagonal of the last two axes, 0 elsewhere."""

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        _check_matrix(self, shape)
        return np.broadcast_to(np.eye(*shape[-2:], dtype=dtype), shape).copy()


# --- plain distributions ---------------------------------------------------------------------


@dataclass(frozen=True)
class uniform(Initializer):
    """Evenly distributed between low and high; integers from low up to, not including, high."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ArgumentError(f"init.uniform: low {self.low} must not be above high {self.high}")

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        count = math.prod(shape)
        if is_floating(dtype):
            precise: type[np.floating[Any]] = np.float64 if dtype == np.float64 else np.float32
            u = philox.uniform(seed, stream, count, precise).reshape(shape)
            return np.asarray(precise(self.low) + precise(self.high - self.low) * u)
        u = philox.uniform(seed, stream, count).reshape(shape)
        return np.floor(self.low + (self.high - self.low) * u)

    def each(
        self, shape: Sequence[int], dtype: DTypeLike, seeds: Sequence[int], stream: int
    ) -> Array:
        """See `Initializer`."""
        if (found := as_dtype(dtype)) != np.float32:
            return super().each(shape, found, seeds, stream)
        u = philox.uniform_each(seeds, stream, math.prod(shape), found)
        low, width = np.float32(self.low), np.float32(self.high - self.low)
        return np.asarray(low + width * u).reshape(len(seeds), *shape)


@dataclass(frozen=True)
class normal(Initializer):
    """Normally distributed with `mean` and standard deviation `std`."""

    mean: float = 0.0
    std: float = 1.0
    floating: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_at_least_zero(self, "std", self.std)

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        count = math.prod(shape)
        return normals(seed, stream, count, dtype, self.mean, self.std).reshape(shape)


@dataclass(frozen=True)
class truncated_normal(Initializer):
    """Normally distributed, but never more than 2 std from mean (std is that before the cut)."""

    mean: float = 0.0
    std: float = 1.0
    floating: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_at_least_zero(self, "std", self.std)

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        u = philox.uniform(seed, stream, math.prod(shape)).reshape(shape)
        between = _TWO_SIGMA + u * (1 - 2 * _TWO_SIGMA)
        return self.mean + self.std * normal_quantile(between)


@dataclass(frozen=True)
class mask(Initializer):
    """`value` with probability p, 0 otherwise."""

    p: float
    value: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ArgumentError(f"init.mask: p must be a probability from 0 to 1, got {self.p}")

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        u = philox.uniform(seed, stream, math.prod(shape)).reshape(shape)
        return np.where(u < self.p, self.value, 0.0)


# --- for weights: the spread follows from the fans -------------------------------------------


@dataclass(frozen=True)
class _UniformByFans(Initializer):
    floating: ClassVar[bool] = True
    variance: ClassVar[staticmethod[[int, int], float]]

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        return self._of(shape).make(shape, dtype, seed, stream)

    def each(
        self, shape: Sequence[int], dtype: DTypeLike, seeds: Sequence[int], stream: int
    ) -> Array:
        """See `Initializer`."""
        if as_dtype(dtype) != np.float32:
            return super().each(shape, dtype, seeds, stream)
        return self._of(tuple(shape)).each(shape, dtype, seeds, stream)

    def _of(self, shape: Shape) -> uniform:
        limit = math.sqrt(3 * self.variance(*_counted(shape)))
        return uniform(-limit, limit)


@dataclass(frozen=True)
class _NormalByFans(Initializer):
    floating: ClassVar[bool] = True
    variance: ClassVar[staticmethod[[int, int], float]]

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        std = math.sqrt(self.variance(*_counted(shape)))
        return normal(0.0, std).make(shape, dtype, seed, stream)


def _glorot(fan_in: int, fan_out: int) -> float:
    return 2 / (fan_in + fan_out)


def _he(fan_in: int, fan_out: int) -> float:
    return 2 / fan_in


def _lecun(fan_in: int, fan_out: int) -> float:
    return 1 / fan_in


def _magma(fan_in: int, fan_out: int) -> float:
    return 2 / (3 * fan_in)


@dataclass(frozen=True)
class glorot_uniform(_UniformByFans):
    """Within +-sqrt(6 / (fan_in + fan_out)).

    Source: Glorot and Bengio, AISTATS 2010, eq. (16).
    """

    variance = staticmethod(_glorot)


@dataclass(frozen=True)
class glorot_normal(_NormalByFans):
    """Normal with variance 2 / (fan_in + fan_out): Glorot and Bengio, AISTATS 2010, eq. (12)."""

    variance = staticmethod(_glorot)


@dataclass(frozen=True)
class he_uniform(_UniformByFans):
    """Within +-sqrt(6 / fan_in), for ReLU: He et al., ICCV 2015, eq. (10) as a uniform one."""

    variance = staticmethod(_he)


@dataclass(frozen=True)
class he_normal(_NormalByFans):
    """Normal with variance 2 / fan_in, for ReLU: He et al., ICCV 2015, eq. (10)."""

    variance = staticmethod(_he)


@dataclass(frozen=True)
class lecun_uniform(_UniformByFans):
    """Within +-sqrt(3 / fan_in): LeCun et al., "Efficient BackProp", 1998, eq. (16)."""

    variance = staticmethod(_lecun)


@dataclass(frozen=True)
class lecun_normal(_NormalByFans):
    """Normal with variance 1 / fan_in: LeCun et al., "Efficient BackProp", 1998, eq. (16)."""

    variance = staticmethod(_lecun)


@dataclass(frozen=True)
class magma_uniform(_UniformByFans):
    """Within +-sqrt(2 / fan_in): what MagmaDNN's own fully connected layers begin with."""

    variance = staticmethod(_magma)


@dataclass(frozen=True)
class orthogonal(Initializer):
    """`gain` times a random matrix with orthonormal columns, or rows where there are fewer rows.

    Axes before the last are taken together as rows. The matrix is Q of A = QR for a normal A, with signs
    such that R's diagonal is positive, which makes it uniform among all such.

    Source: Saxe, McClelland and Ganguli, ICLR 2014; Mezzadri, Notices AMS 54 (2007), section 5.
    """

    gain: float = 1.0
    floating: ClassVar[bool] = True

    def make(self, shape: Shape, dtype: np.dtype[Any], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        _check_matrix(self, shape)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        long, short = max(rows, columns), min(rows, columns)
        a = philox.normal(seed, stream, long * short).reshape(long, short)
        q, r = np.linalg.qr(a)
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return self.gain * (q if rows >= columns else q.T).reshape(shape)


def _counted(shape: Shape) -> tuple[int, int]:
    """The fans, at least 1, since a weight without elements has none to be spread."""
    fan_in, fan_out = fans(shape)
    return max(fan_in, 1), max(fan_out, 1)


def _check_matrix(init: Initializer, shape: Shape) -> None:
    if len(shape) < 2:
        raise ShapeError(
            f"init.{type(init).__name__}: expected at least two axes, got {shape_text(shape)}"
        )


def _check_at_least_zero(init: Initializer, setting: str, value: float) -> None:
    if not value >= 0:
        raise ArgumentError(
            f"init.{type(init).__name__}: {setting} must be at least 0, got {value}"
        )


check_calls(*_REGISTRY.values(), kinds=("float",))
