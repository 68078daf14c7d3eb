from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from statistics import NormalDist
from typing import Any

import mpmath
import numpy as np
import pytest

from magmadnn import errors
from magmadnn.memory import DTYPES
from magmadnn.ops import philox
from magmadnn.tensor import _normals, init
from magmadnn.tensor._normals import normal_quantile
from magmadnn.tensor.lazy import LazyTensor

SHAPE = (131, 257)
ALL: list[init.Initializer] = [
    init.constant(2.5), init.zeros(), init.none(), init.ones(), init.diagonal(3.0),
    init.diagonal((1.0, 2.0, 3.0)), init.identity(), init.uniform(-0.5, 2.0), init.normal(1.0, 0.25),
    init.truncated_normal(-1.0, 0.5), init.mask(0.3, 2.0), init.glorot_uniform(), init.glorot_normal(),
    init.he_uniform(), init.he_normal(), init.lecun_uniform(), init.lecun_normal(),
    init.magma_uniform(), init.orthogonal(1.5),
]  # fmt: skip
NEEDS_MATRIX = (init.diagonal, init.identity, init.orthogonal)


def test_the_list_is_complete() -> None:
    assert {type(i).__name__ for i in ALL} == {
        n for n, cls in init._REGISTRY.items() if cls.__module__ == "magmadnn.tensor.init"
    }


@pytest.mark.parametrize("rule", ALL, ids=repr)
def test_values_depend_on_seed_stream_and_settings_only(rule: init.Initializer) -> None:
    shape = (3, 5)
    one = rule(shape, "float32", 1, 2)
    assert (one.shape, one.dtype) == (shape, np.float32)
    philox.uniform(9, 9, 100)  # what is drawn elsewhere does not matter
    assert np.array_equal(one, rule(shape, "float32", 1, 2))
    random = type(rule).__name__ not in {
        "constant", "zeros", "none", "ones", "diagonal", "identity",
    }  # fmt: skip
    for seed, stream in ((2, 2), (1, 3)):
        assert np.array_equal(one, rule((3, 5), "float32", seed, stream)) != random


@pytest.mark.parametrize("rule", [i for i in ALL if not isinstance(i, NEEDS_MATRIX)], ids=repr)
def test_elements_depend_on_their_index_and_the_fans_only(rule: init.Initializer) -> None:
    long = rule((6, 5, 4, 7, 3), "float64", 3, 4).reshape(-1)
    if not hasattr(rule, "variance"):
        short = rule((7,), "float64", 3, 4)
        assert np.array_equal(long[:7], short)
    again = rule((5, 6, 4, 7, 3), "float64", 3, 4).reshape(-1)
    assert np.array_equal(long, again)


@pytest.mark.parametrize("rule", ALL, ids=repr)
def test_json_round_trip(rule: init.Initializer) -> None:
    config = json.loads(json.dumps(rule.config()))
    assert init.from_config(config) == rule
    with pytest.raises(FrozenInstanceError):
        rule.anything = 1


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_rules_that_take_every_dtype(name: str) -> None:
    dtype = DTYPES[name]
    for rule in (init.zeros(), init.none(), init.ones(), init.identity(), init.mask(0.5)):
        values = rule((4, 6), dtype, 0, 0)
        assert values.dtype == dtype
        assert set(values.astype(float).flat) <= {0.0, 1.0}
    assert np.array_equal(init.identity()((2, 3, 4), dtype, 0, 0)[1], np.eye(3, 4, dtype=dtype))


# --- distributions: means and spreads within 5 standard errors -------------------------------


def check_moments(values: np.ndarray, mean: float, std: float, kurtosis: float) -> None:
    """Mean and variance of n values: standard errors std / sqrt(n), var sqrt((kurtosis - 1) / n)."""
    values, n = values.astype(np.float64), values.size
    assert abs(values.mean() - mean) < 5 * std / math.sqrt(n)
    assert abs(values.var() - std**2) < 5 * std**2 * math.sqrt((kurtosis - 1) / n)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform(dtype: str) -> None:
    values = init.uniform(-0.5, 2.0)(SHAPE, dtype, 5, 0)
    check_moments(values, 0.75, 2.5 / math.sqrt(12), 1.8)
    assert values.min() >= -0.5
    assert values.max() <= 2.0
    low = init.uniform(-0.5, 2.0)(SHAPE, "bfloat16", 5, 0).astype(np.float32)
    assert low.min() >= -0.5
    assert low.max() <= 2.0


def test_uniform_integers() -> None:
    values = init.uniform(-3, 4)(SHAPE, "int8", 5, 0)
    counts = np.unique_counts(values)
    assert counts.values.tolist() == list(range(-3, 4))
    expected = values.size / 7
    assert np.all(np.abs(counts.counts - expected) < 5 * math.sqrt(expected))
    with pytest.raises(errors.ArgumentError, match="uint8 cannot hold -"):
        init.uniform(-3, 4)(SHAPE, "uint8", 5, 0)


def test_normal() -> None:
    values = init.normal(1.0, 0.25)(SHAPE, "float64", 5, 0)
    check_moments(values, 1.0, 0.25, 3)
    third = np.mean(((values - 1) / 0.25) ** 3)
    assert abs(third) < 5 * math.sqrt(15 / values.size)
    share = np.mean(np.abs(values - 1) < 0.25)  # 68.27% within one standard deviation
    assert abs(share - 0.682689) < 5 * math.sqrt(0.6827 * 0.3173 / values.size)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_many_normal_numbers_are_the_few_ones(dtype: str) -> None:
    """By kernel and threads, in parts: 37 numbers behind the last whole one."""
    shape, seed, stream = (_normals.MANY + 37,), -(2**40) - 5, 2**63 + 7
    made = init.normal(1.0, 0.25)(shape, dtype, seed, stream)
    wanted = 1.0 + 0.25 * philox.normal(seed, stream, shape[0])
    assert made.dtype == dtype
    assert np.array_equal(made, wanted.astype(dtype))


def test_many_normal_numbers_are_drawn_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "uniform", None)
    assert np.isfinite(init.he_normal()((256, 257), "float32", 1, 2)).all()


@pytest.mark.parametrize("count", [3, _normals.MANY])
def test_normal_numbers_beyond_a_dtype(count: int) -> None:
    with pytest.raises(errors.ArgumentError, match="float32 cannot hold"):
        init.normal(0.0, 1e300)((count,), "float32", 1, 2)


def test_truncated_normal() -> None:
    values = init.truncated_normal(-1.0, 0.5)(SHAPE, "float64", 5, 0)
    assert np.abs(values + 1).max() <= 1.0
    # mpmath: moments of a normal cut at +-2, over its mass there
    mass = 1 - 2 * mpmath.ncdf(-2)
    second = float(mpmath.quad(lambda x: x**2 * mpmath.npdf(x), [-2, 2]) / mass)
    fourth = float(mpmath.quad(lambda x: x**4 * mpmath.npdf(x), [-2, 2]) / mass)
    check_moments(values, -1.0, 0.5 * math.sqrt(second), fourth / second**2)


def test_mask() -> None:
    values = init.mask(0.3, 2.0)(SHAPE, "float32", 5, 0)
    assert set(np.unique(values)) == {0, 2}
    assert abs(np.mean(values == 2) - 0.3) < 5 * math.sqrt(0.3 * 0.7 / values.size)
    assert not init.mask(0.0)(SHAPE, "int8", 0, 0).any()
    assert init.mask(1.0)(SHAPE, "bool", 0, 0).all()


FANS = {(131, 257): (131, 257), (3, 5, 7, 101): (105, 1515), (1009,): (1009, 1009), (): (1, 1)}
SPREADS: list[tuple[init.Initializer, Any]] = [
    (init.glorot_uniform(), lambda i, o: math.sqrt(6 / (i + o))),
    (init.glorot_normal(), lambda i, o: math.sqrt(2 / (i + o))),
    (init.he_uniform(), lambda i, o: math.sqrt(6 / i)),
    (init.he_normal(), lambda i, o: math.sqrt(2 / i)),
    (init.lecun_uniform(), lambda i, o: math.sqrt(3 / i)),
    (init.lecun_normal(), lambda i, o: math.sqrt(1 / i)),
    (init.magma_uniform(), lambda i, o: math.sqrt(2 / i)),
]


@pytest.mark.parametrize(("rule", "spread"), SPREADS, ids=[repr(r) for r, _ in SPREADS])
@pytest.mark.parametrize("shape", [s for s in FANS if s], ids=str)
def test_spreads_follow_from_the_fans(
    rule: init.Initializer, spread: Any, shape: tuple[int, ...]
) -> None:
    assert init.fans(shape) == FANS[shape]
    values, size = rule(shape, "float64", 5, 0), spread(*FANS[shape])
    if "uniform" in repr(rule):
        check_moments(values, 0, size / math.sqrt(3), 1.8)
        assert np.abs(values).max() <= size
        assert np.abs(values).max() > size * 0.98
    else:
        check_moments(values, 0, size, 3)


def test_fans_of_a_single_value_and_of_nothing() -> None:
    assert init.fans(()) == (1, 1)
    for rule, _ in SPREADS:
        assert np.isfinite(rule((), "float64", 0, 0))
        assert rule((0, 3), "float64", 0, 0).shape == (0, 3)


@pytest.mark.parametrize("shape", [(7, 7), (11, 5), (5, 11), (3, 2, 7), (2, 2, 13)], ids=str)
def test_orthogonal(shape: tuple[int, ...]) -> None:
    q = init.orthogonal(1.5)(shape, "float64", 5, 0).reshape(-1, shape[-1]) / 1.5
    product = q @ q.T if q.shape[0] < q.shape[1] else q.T @ q
    # each entry is a sum of at most 13 products of numbers below 1
    assert np.abs(product - np.eye(len(product))).max() < 8 * np.finfo(float).eps * math.sqrt(13)


def test_orthogonal_has_no_preferred_sign() -> None:
    """Householder's QR alone would make every first diagonal entry negative."""
    first = [init.orthogonal()((3, 3), "float64", seed, 0)[0, 0] for seed in range(200)]
    assert 60 < sum(x > 0 for x in first) < 140


def test_diagonal() -> None:
    values = init.diagonal([1, 2, 3])((2, 3, 4), "int32", 0, 0)
    assert np.array_equal(values[1], np.pad(np.diag([1, 2, 3]), ((0, 0), (0, 1))))
    assert np.array_equal(init.diagonal(2.5)((3, 3), "float32", 0, 0), 2.5 * np.eye(3))


def test_normal_quantile() -> None:
    p = np.linspace(0.0227, 0.9773, 1001)
    expected = np.array([NormalDist().inv_cdf(float(x)) for x in p])
    eps = np.finfo(float).eps
    assert np.abs(normal_quantile(p) - expected).max() < 8 * eps
    for x in (1e-9, 0.003, 0.0750001, 0.3, 0.6, 0.99, 1 - 1e-9):
        with mpmath.workdps(40):
            exact = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(x) - 1)
            error = abs(float(normal_quantile(np.array(x)) - exact))
        assert error < 8 * eps * max(abs(float(exact)), 1)


# --- names and mistakes ----------------------------------------------------------------------


def test_by_name_and_of() -> None:
    assert init.by_name("uniform", low=0.0) == init.uniform(0.0, 1.0)
    assert init.of("he_normal") == init.he_normal()
    rule = init.normal(std=0.1)
    assert init.of(rule) is rule


def test_a_rule_of_ones_own_is_known_by_name() -> None:
    from dataclasses import dataclass

    try:

        @dataclass(frozen=True)
        class ramp(init.Initializer):
            step: float = 1.0

            def make(self, shape: Any, dtype: Any, seed: int, stream: int) -> np.ndarray:
                return self.step * np.arange(math.prod(shape)).reshape(shape)

        assert init.by_name("ramp", step=0.5)((2, 2), "float32", 0, 0).tolist() == [
            [0, 0.5],
            [1, 1.5],
        ]
        assert init.from_config(ramp(2.0).config()) == ramp(2.0)
    finally:
        init._REGISTRY.pop("ramp", None)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: init.by_name("glorot"), errors.UnknownNameError, "initialiser 'glorot' is not known"),
        (lambda: init.by_name("orthogonel"), errors.UnknownNameError, "did you mean 'orthogonal'"),
        (lambda: init.by_name("normal", stdd=1), errors.UnknownNameError, "did you mean 'std'"),
        (lambda: init.by_name("constant"), errors.CallError, "argument 'value' is missing"),
        (lambda: init.of(3), errors.ArgumentError, "or its name, got 3"),
        (lambda: init.uniform(2, 1), errors.ArgumentError, "low 2 must not be above high 1"),
        (lambda: init.normal(0, -1), errors.ArgumentError, "std must be at least 0, got -1"),
        (lambda: init.truncated_normal(std=math.nan), errors.ArgumentError, "got nan"),
        (lambda: init.mask(1.5), errors.ArgumentError, "probability from 0 to 1, got 1.5"),
        (lambda: init.identity()((3,), "float32", 0, 0), errors.ShapeError, "at least two axes"),
        (lambda: init.orthogonal()((), "float32", 0, 0), errors.ShapeError, "at least two axes"),
        (lambda: init.diagonal((1.0, 2.0))((3, 3), "float32", 0, 0), errors.ShapeError, "got 2 values"),
        (lambda: init.normal()((3,), "int8", 0, 0), errors.DTypeError, "floating-point dtype, got int8"),
        (lambda: init.he_normal()((3,), "bool", 0, 0), errors.DTypeError, "got bool"),
        (lambda: init.constant(300)((3,), "int8", 0, 0), errors.ArgumentError, "int8 cannot hold 300"),
        (lambda: init.constant(0.5)((3,), "int8", 0, 0), errors.ArgumentError, "int8 cannot hold 0.5"),
        (lambda: init.constant(1e39)((3,), "float32", 0, 0), errors.ArgumentError, "cannot hold 1e"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "rule",
    [
        init.zeros(), init.ones(), init.constant(0.25), init.uniform(-0.5, 0.75), init.normal(0.5, 2.0),
        init.glorot_uniform(), init.he_uniform(), init.he_normal(), init.orthogonal(),
    ],
)  # fmt: skip
def test_arrays_of_several_seeds(rule: init.Initializer, dtype: str) -> None:
    seeds, stream = [3, 0, 2**64 - 1], philox.stream_of("kernel")
    found = rule.each((13, 7), dtype, seeds, stream)
    for seed, own in zip(seeds, found, strict=True):
        alone = rule((13, 7), dtype, seed, stream)
        assert own.dtype == alone.dtype
        assert own.tobytes() == alone.tobytes()


def test_values_in_place_of_initial_ones() -> None:
    held, drawn = (LazyTensor("w", (3,), np.dtype(np.float32), init.ones()) for _ in range(2))
    tensor = drawn.tensor
    for one in (held, drawn):
        one.hold(np.arange(3, dtype=np.float32))
        assert one.drawn
        assert one.read().tolist() == [0, 1, 2]
    assert tensor.tolist() == [0, 1, 2]  # who has it sees the new ones
    held.write(np.ones(3, np.float32))
    assert held.tensor.tolist() == [1, 1, 1]
