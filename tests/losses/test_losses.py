"""Losses: values against loops over Python floats, gradients against differences, shapes, weights, names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from magmadnn import losses, ops
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    DTypeError,
    GraphError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.tensor import grad, placeholder
from magmadnn.training.model.plain.codec import Custom, decode, encode
from tests.mistakes import error_of

EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-23}  # float16 computes in float32


# --- formulas, one sample at a time, in Python floats --------------------------------------------


def mean(values: Any) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def log_probabilities(z: Any) -> list[float]:
    top = max(z)
    total = math.log(math.fsum(math.exp(a - top) for a in z))
    return [a - top - total for a in z]


def cross_entropy_of(z: Any, q: Any, smoothing: float = 0.0, weight: Any = None) -> float:
    k = len(z)
    weight = [1.0] * k if weight is None else weight
    smoothed = [(1 - smoothing) * a + smoothing / k for a in q]
    return -math.fsum(
        w * a * p for w, a, p in zip(weight, smoothed, log_probabilities(z), strict=True)
    )


def binary_of(z: float, t: float) -> float:
    p = 1 / (1 + math.exp(-z))
    return -t * math.log(p) - (1 - t) * math.log1p(-p)


def huber_of(r: float, delta: float) -> float:
    return r * r / 2 if abs(r) <= delta else delta * (abs(r) - delta / 2)


def pairs(function: Callable[[float, float], float]) -> Callable[[Any, Any], float]:
    """The mean over a sample's elements."""
    return lambda p, t: mean(
        function(float(a), float(b)) for a, b in zip(np.ravel(p), np.ravel(t), strict=True)
    )


def one_hot(k: int, t: Any) -> list[float]:
    return [float(i == t) for i in range(k)]


@dataclass(frozen=True)
class Case:
    """A loss, what it is tried on, and its formula for one sample."""

    name: str
    loss: losses.Loss
    sample: tuple[int, ...]  # shape of one sample of the predictions
    targets: Callable[[np.random.Generator, int], Any]
    formula: Callable[[Any, Any], float]

    def draw(self, batch: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(batch)
        return 2 * rng.normal(size=(batch, *self.sample)), self.targets(rng, batch)


def numbers(*shape: int) -> Callable[[np.random.Generator, int], Any]:
    return lambda rng, n: rng.normal(size=(n, *shape))


def bits(*shape: int) -> Callable[[np.random.Generator, int], Any]:
    return lambda rng, n: rng.integers(0, 2, size=(n, *shape))


def classes(k: int, *shape: int) -> Callable[[np.random.Generator, int], Any]:
    return lambda rng, n: rng.integers(0, k, size=(n, *shape))


def shares(k: int) -> Callable[[np.random.Generator, int], Any]:
    return lambda rng, n: rng.dirichlet(np.ones(k), size=n)


CASES = [
    Case("class numbers", losses.CrossEntropy(), (5,), classes(5),
         lambda z, t: cross_entropy_of(z, one_hot(5, t))),
    Case("smoothed", losses.CrossEntropy(label_smoothing=0.13), (5,), classes(5),
         lambda z, t: cross_entropy_of(z, one_hot(5, t), 0.13)),
    Case("probabilities", losses.CrossEntropy(), (3,), shares(3), cross_entropy_of),
    Case("probabilities, smoothed", losses.CrossEntropy(0.2), (3,), shares(3),
         lambda z, t: cross_entropy_of(z, t, 0.2)),
    Case("sequence of classes", losses.CrossEntropy(), (3, 5), classes(5, 3),
         lambda z, t: mean(cross_entropy_of(a, one_hot(5, b)) for a, b in zip(z, t, strict=True))),
    Case("binary", losses.BinaryCrossEntropy(), (), bits(), pairs(binary_of)),
    Case("binary, several outputs", losses.BinaryCrossEntropy(), (2, 3), bits(2, 3), pairs(binary_of)),
    Case("squared", losses.MeanSquaredError(), (3,), numbers(3), pairs(lambda p, t: (p - t) ** 2)),
    Case("squared, one number", losses.MeanSquaredError(), (), numbers(),
         pairs(lambda p, t: (p - t) ** 2)),
    Case("absolute", losses.MeanAbsoluteError(), (2, 3), numbers(2, 3), pairs(lambda p, t: abs(p - t))),
    Case("huber", losses.Huber(0.7), (3,), numbers(3), pairs(lambda p, t: huber_of(p - t, 0.7))),
    Case("hinge, 0 and 1", losses.Hinge(), (3,), bits(3),
         pairs(lambda z, t: max(0.0, 1 - z * (2 * t - 1)))),
    Case("hinge, -1 and 1", losses.Hinge(), (3,), lambda rng, n: 2 * rng.integers(0, 2, (n, 3)) - 1,
         pairs(lambda z, t: max(0.0, 1 - z * t))),
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_values_of_any_batch_in_one_graph(case: Case, dtype: str) -> None:
    x = placeholder("x", (None, *case.sample), dtype)
    shape = case.draw(2)[1].shape[1:]
    kind = "int64" if case.draw(2)[1].dtype.kind in "iu" else dtype
    t = placeholder("t", (None, *shape), kind)
    per_sample, total = case.loss.per_sample(x, t), case.loss(x, t)
    for batch in (1, 5, 7):
        p, truth = case.draw(batch)
        p = p.astype(dtype).astype(np.float64)
        if kind == dtype:
            truth = truth.astype(dtype).astype(np.float64)
        expected = [case.formula(a, b) for a, b in zip(p, truth, strict=True)]
        feeds = {x: p.astype(dtype), t: truth.astype(kind)}
        got = per_sample.numpy(feeds)
        assert got.shape == (batch,)
        assert got.dtype == ("float64" if dtype == "float64" else "float32")
        # values are of order 1 and come from some ten operations
        tolerance = 32 * EPS[dtype] * (1 + np.abs(p).max())
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
        assert total.shape == ()
        assert float(total.eval(feeds)) == pytest.approx(mean(expected), abs=tolerance)


@every_case
def test_gradients(case: Case) -> None:
    p, truth = case.draw(3)
    x = placeholder("x", p.shape, "float64")
    total = case.loss(x, truth)
    found = grad(total, x).numpy({x: p})
    step = 2.0**-17
    for place in np.ndindex(p.shape):
        moved = np.zeros_like(p)
        moved[place] = step
        numeric = (float(total.eval({x: p + moved})) - float(total.eval({x: p - moved}))) / (
            2 * step
        )
        # third derivatives are below 1: truncation step**2; rounding 8 eps |loss| / step
        assert found[place] == pytest.approx(numeric, abs=step**2 + 64 * 2.0**-52 / step)


# --- digits at the extremes ----------------------------------------------------------------------


def test_cross_entropy_of_a_hopeless_sample_is_finite() -> None:
    z = np.array([[1e4, 0.0, -1e4]], np.float32)
    assert float(losses.cross_entropy(z, np.array([2]))) == 2e4
    x = placeholder("x", z.shape)
    np.testing.assert_array_equal(
        grad(losses.cross_entropy(x, np.array([2])), x).numpy({x: z}), [[1, 0, -1]]
    )


@pytest.mark.parametrize(("z", "t", "expected"), [
    (60.0, 1, math.exp(-60)), (-60.0, 0, math.exp(-60)), (-900.0, 1, 900.0), (900.0, 0, 900.0),
])  # fmt: skip
def test_binary_cross_entropy_at_large_logits(z: float, t: int, expected: float) -> None:
    x = placeholder("x", (1,), "float64")
    loss = losses.binary_cross_entropy(x, np.array([t]))
    assert float(loss.eval({x: [z]})) == pytest.approx(expected, rel=1e-12, abs=0)
    slope = float(grad(loss, x).numpy({x: [z]})[0])
    away = math.exp(-abs(z)) if expected < 1 else 1.0  # how far the probability is from the target
    assert slope == pytest.approx((1 - 2 * t) * away, rel=1e-12, abs=0)


def test_huber_is_smooth_where_its_parts_meet() -> None:
    x = placeholder("x", (1,), "float64")
    loss = losses.huber(x, np.zeros(1), delta=0.5)
    slopes = [
        float(grad(loss, x).numpy({x: [r]})[0]) for r in (-0.6, -0.5, -0.4, 0.0, 0.4, 0.5, 0.6)
    ]
    np.testing.assert_allclose(
        slopes, [-0.5, -0.5, -0.4, 0.0, 0.4, 0.5, 0.5], atol=4 * EPS["float64"]
    )


# --- weights -------------------------------------------------------------------------------------


def test_weights_of_samples_average() -> None:
    rng = np.random.default_rng(3)
    p, t, w = rng.normal(size=(7, 3)), rng.normal(size=(7, 3)), rng.uniform(0.2, 3, 7)
    expected = np.average(((p - t) ** 2).mean(1), weights=w)
    assert float(losses.mse(p, t, w)) == pytest.approx(expected, rel=8 * EPS["float64"], abs=0)
    assert float(losses.mse(p, t, 5 * w)) == pytest.approx(expected, rel=8 * EPS["float64"], abs=0)
    assert float(losses.mse(p, t, w.reshape(7, 1))) == float(losses.mse(p, t, w))


def test_weights_that_are_all_zero_give_zero() -> None:
    p = np.array([1.5, 2.5])
    assert float(losses.mse(p, np.zeros(2), np.zeros(2))) == 0


def test_integer_weights_repeat_samples() -> None:
    rng = np.random.default_rng(4)
    z, t, w = rng.normal(size=(5, 3)), rng.integers(0, 3, 5), np.array([2, 1, 3, 0, 1])
    repeated = losses.cross_entropy(np.repeat(z, w, 0), np.repeat(t, w))
    assert float(losses.cross_entropy(z, t, w)) == pytest.approx(
        float(repeated), rel=8 * EPS["float64"], abs=0
    )


CLASS_WEIGHT = (0.5, 2.0, 1.25)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("sample_weight", [False, True])
def test_class_weights_divide_by_their_sum(smoothing: float, sample_weight: bool) -> None:
    rng = np.random.default_rng(5)
    z, t = rng.normal(size=(11, 3)), rng.integers(0, 3, 11)
    s = rng.uniform(0.5, 2, 11) if sample_weight else np.ones(11)
    above = sum(
        s[i] * cross_entropy_of(z[i], one_hot(3, t[i]), smoothing, CLASS_WEIGHT) for i in range(11)
    )
    below = sum(s[i] * CLASS_WEIGHT[t[i]] for i in range(11))
    weights = s if sample_weight else None
    for targets in (t, np.eye(3)[t]):  # both forms of a target agree
        loss = losses.cross_entropy(
            z, targets, weights, label_smoothing=smoothing, class_weight=CLASS_WEIGHT
        )
        assert float(loss) == pytest.approx(above / below, rel=16 * EPS["float64"], abs=0)


def test_class_weights_of_sequences_count_every_step() -> None:
    rng = np.random.default_rng(6)
    z, t = rng.normal(size=(5, 7, 3)), rng.integers(0, 3, (5, 7))
    flat = losses.cross_entropy(z.reshape(35, 3), t.reshape(35), class_weight=CLASS_WEIGHT)
    assert float(losses.cross_entropy(z, t, class_weight=CLASS_WEIGHT)) == pytest.approx(
        float(flat), rel=16 * EPS["float64"], abs=0
    )


# --- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [losses.mse, losses.mae, losses.huber, losses.binary_cross_entropy]
)
def test_a_column_matches_a_vector(loss: Any) -> None:
    rng = np.random.default_rng(7)
    p, t = rng.normal(size=(5, 1)), rng.integers(0, 2, 5)
    same = float(loss(p, t.reshape(5, 1)))
    assert float(loss(p, t)) == same
    assert float(loss(p[:, 0], t.reshape(5, 1))) == same


def test_class_numbers_may_be_a_column_or_booleans() -> None:
    rng = np.random.default_rng(8)
    z, t = rng.normal(size=(5, 2)), rng.integers(0, 2, 5)
    same = float(losses.cross_entropy(z, t))
    assert float(losses.cross_entropy(z, t.reshape(5, 1))) == same
    assert float(losses.cross_entropy(z, t.astype(bool))) == same
    assert float(losses.cross_entropy(z, np.eye(2, dtype=int)[t])) == pytest.approx(same)


ones = np.ones
MISTAKES: list[tuple[str, Callable[[], Any], type[MagmaDNNError], str]] = [
    ("columns", lambda: losses.mse(ones((5, 3)), ones((5, 2))), ShapeError,
     ("mean_squared_error: targets must have the shape (5, 3) of predictions, got (5, 2): "
     "axis 1 is 2 but 3 in predictions")),
    ("rows", lambda: losses.mae(ones(5), ones(7)), ShapeError,
     ("mean_absolute_error: targets must have the shape (5,) of predictions, got (7,): "
     "axis 0 is 7 but 5 in predictions")),
    ("axes", lambda: losses.huber(ones((5, 3)), ones(5)), ShapeError,
     ("huber: targets must have the shape (5, 3) of predictions, got (5,): "
     "the number of axes is 1 but 2 in predictions; if they are class numbers, use cross_entropy")),
    ("scalar", lambda: losses.mse(np.float64(1), np.float64(2)), ShapeError,
     "mean_squared_error: predictions need a batch axis, got a scalar"),
    ("integers", lambda: losses.mse(ones(5, int), ones(5)), DTypeError,
     "mean_squared_error: predictions must be floating-point, got int64; cast them"),
    ("one class", lambda: losses.cross_entropy(ones((5, 1)), ones(5, int)), ShapeError,
     ("cross_entropy: predictions must be (batch, ..., classes) with at least 2 classes, got (5, 1); "
     "for one output use binary_cross_entropy")),
    ("class shape", lambda: losses.cross_entropy(ones((5, 3)), ones((5, 2))), ShapeError,
     ("cross_entropy: targets must be class numbers (5,) or probabilities (5, 3) for predictions (5, 3), "
     "got (5, 2)")),
    ("class dtype", lambda: losses.cross_entropy(ones((5, 3)), ones(5)), DTypeError,
     "cross_entropy: targets (5,) are class numbers and must be integers, got float64; cast them"),
    ("class weights", lambda: losses.cross_entropy(ones((5, 3)), ones(5, int), class_weight=[1, 2]),
     ShapeError, "cross_entropy: class_weight has 2 numbers, but predictions (5, 3) have 3 classes"),
    ("negative class weight", lambda: losses.CrossEntropy(class_weight=(1, -2)), ArgumentError,
     "cross_entropy: class_weight must be finite numbers of at least 0, not all 0, got (1.0, -2.0)"),
    ("text as class weight", lambda: losses.CrossEntropy(class_weight=("a",)), ArgumentError,
     "cross_entropy: class_weight must be one number per class, got ('a',)"),
    ("smoothing", lambda: losses.CrossEntropy(1.0), ArgumentError,
     "cross_entropy: label_smoothing must be at least 0 and below 1, got 1.0"),
    ("delta", lambda: losses.Huber(-1.0), ArgumentError,
     "huber: delta must be above 0 and finite, got -1.0"),
    ("weights", lambda: losses.mse(ones(5), ones(5), ones(3)), ShapeError,
     "weighted mean: weights must have the shape (5,) of values, got (3,): axis 0 is 3 but 5 in values"),
    ("name", lambda: losses.by_name("cross_entrpy"), UnknownNameError,
     "loss 'cross_entrpy' is not known: did you mean 'cross_entropy'? known are "),
    ("kind", lambda: losses.as_loss(3), ArgumentError,
     "loss: expected a name, a loss such as md.losses.Huber(0.5), or a function, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistakes(call: Callable[[], Any], kind: type[MagmaDNNError], text: str) -> None:
    found, message = error_of(call)
    assert found is kind
    assert message.startswith(text) if text.endswith(" ") else message == text
    assert "\n" not in message


def test_sizes_are_checked_when_the_graph_is_made() -> None:
    x, t = placeholder("x", (None, 3)), placeholder("t", ("other", 3))
    kind, message = error_of(lambda: losses.mse(x, t))
    assert kind is ShapeError
    assert message.endswith("axis 0 is other but batch in predictions")


def test_a_label_outside_the_classes_is_found() -> None:
    x, t = placeholder("x", (None, 3)), placeholder("t", (None,), "int64")
    loss = losses.cross_entropy(x, t)
    with pytest.raises(
        DataError, match=r"index 3 at \(1,\) is outside 0 to 2 \(in cross_entropy\)"
    ):
        loss.eval({x: ones((2, 3)), t: [0, 3]})


# --- names and settings --------------------------------------------------------------------------

NAMES = {
    "cross_entropy": losses.CrossEntropy,
    "binary_cross_entropy": losses.BinaryCrossEntropy,
    "mean_squared_error": losses.MeanSquaredError,
    "mse": losses.MeanSquaredError,
    "mean_absolute_error": losses.MeanAbsoluteError,
    "mae": losses.MeanAbsoluteError,
    "huber": losses.Huber,
    "hinge": losses.Hinge,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_classes_and_functions_mean_the_same(name: str) -> None:
    loss = losses.by_name(name)
    assert loss == NAMES[name]()
    assert losses.as_loss(name) == losses.as_loss(NAMES[name]) == losses.as_loss(loss) == loss
    assert losses.as_loss(getattr(losses, name)) == loss
    assert losses.by_name(loss.name) == loss


def test_functions_apply_their_loss() -> None:
    p, t = ones((5, 3)), np.array([0, 2, 1, 0, 2])
    assert float(losses.cross_entropy(p, t)) == pytest.approx(math.log(3))
    assert float(losses.huber(p[:, 0], t, delta=0.25)) == float(losses.Huber(0.25)(p[:, 0], t))


@pytest.mark.parametrize("loss", [
    losses.CrossEntropy(0.1, (1.0, 2.5)), losses.CrossEntropy(), losses.BinaryCrossEntropy(),
    losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(0.3), losses.Hinge(),
])  # fmt: skip
def test_settings_survive_json(loss: losses.Loss) -> None:
    assert decode(json.loads(json.dumps(encode(loss))), Custom()) == loss


def test_every_loss_is_tested() -> None:
    public = {
        c for c in vars(losses).values() if isinstance(c, type) and issubclass(c, losses.Loss)
    }
    assert (
        public - {losses.Loss, losses.FunctionLoss}
        == set(NAMES.values())
        == {type(c.loss) for c in CASES}
    )


# --- losses of one's own -------------------------------------------------------------------------


@dataclass(frozen=True)
class LogCosh(losses.Loss):
    scale: float

    def per_sample(self, predictions: Any, targets: Any) -> Any:
        r = (predictions - targets) / self.scale
        return ops.mean(ops.log((ops.exp(r) + ops.exp(-r)) / 2), axis=1)


def test_a_class_of_ones_own_is_known_by_name() -> None:
    loss = LogCosh(2.0)
    kind, message = error_of(lambda: losses.by_name("log_cosh"))
    assert kind is ArgumentError
    assert message == "loss log_cosh: scale must be given; use LogCosh(...), not the name"
    assert decode(encode(loss), Custom([LogCosh])) == loss
    assert float(loss(np.full((5, 3), 2.0), ones((5, 3)))) == pytest.approx(
        math.log(math.cosh(0.5))
    )


def test_a_class_of_ones_own_that_is_called_like_ours_changes_ours_in_nothing() -> None:
    before = losses.by_name("huber")
    with pytest.raises(ArgumentError, match="known by the name 'huber'"):

        @dataclass(frozen=True)
        class Huber(losses.Loss):
            def per_sample(self, predictions: Any, targets: Any) -> Any:
                return ops.mean(predictions, axis=1)

    assert losses.by_name("huber") == before

    @dataclass(frozen=True)
    class Huber(losses.Loss):  # type: ignore[no-redef]
        names = ("my_huber",)

        def per_sample(self, predictions: Any, targets: Any) -> Any:
            return ops.mean(predictions, axis=1)

    assert losses.by_name("huber") == before
    assert type(losses.by_name("my_huber")) is Huber
    saved = encode(Huber())
    with pytest.raises(CheckpointError, match="the model needs Huber; hand it over"):
        decode(saved, Custom([]))
    assert type(decode(saved, Custom([Huber]))) is Huber
    assert decode(encode(before), Custom([Huber])) == before


def cubed(p: Any, t: Any) -> Any:
    return ops.abs(p - t) ** 3


def test_a_function_with_a_value_per_element() -> None:
    loss = losses.as_loss(cubed)
    x = placeholder("x", (5, 3), "float64")
    p, t = np.random.default_rng(9).normal(size=(2, 5, 3))
    each = (abs(p - t) ** 3).mean(1)
    w = np.arange(1.0, 6.0)
    assert loss.name == "cubed"
    np.testing.assert_allclose(loss.per_sample(x, t).numpy({x: p}), each, rtol=1e-14)
    assert float(loss(x, t).eval({x: p})) == pytest.approx(each.mean())
    assert float(loss(x, t, w).eval({x: p})) == pytest.approx(np.average(each, weights=w))


def test_a_function_with_a_scalar_refuses_weights() -> None:
    loss = losses.as_loss(lambda p, t: ops.mean(cubed(p, t)))
    x = placeholder("x", (None, 3))
    assert loss(x, 0.5).shape == ()
    kind, message = error_of(lambda: loss(x, 0.5, ones(5)))
    assert kind is ArgumentError
    assert message == (
        "loss <lambda>: gives shape (), so samples cannot be weighted or listed: "
        "return one value per sample, shape (batch,)"
    )


def test_a_function_must_stay_in_the_graph() -> None:
    x = placeholder("x", (None, 3))
    kind, message = error_of(lambda: losses.as_loss(lambda p, t: 1.5)(x, x))
    assert kind is GraphError
    assert "expected an Operation, got float" in message


def test_weighted_mean_of_plain_numbers() -> None:
    values = np.array([1.0, 2.0, 4.0])
    assert float(losses.weighted_mean(values)) == pytest.approx(7 / 3)
    assert float(losses.weighted_mean(values, np.array([1.0, 0.0, 3.0]))) == 13 / 4
    assert float(losses.weighted_mean(values, np.ones(3), np.array([1.0, 2.0, 4.0]))) == 1.0


def test_larger_errors_cost_more() -> None:
    for name in ("mse", "mae", "huber"):
        costs = [float(losses.by_name(name)(np.array([r]), np.zeros(1))) for r in (0.1, 0.7, 1.9)]
        assert all(a < b for a, b in pairwise(costs))
