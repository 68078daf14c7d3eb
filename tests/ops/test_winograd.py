"""Convolutions of 3 x 3 filters with a quarter of the products, against direct sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import ArgumentError
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.program import Program
from magmadnn.ops.images import _winograd
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation

Array = np.ndarray[Any, np.dtype[Any]]
EPS = 2.0**-24  # half a unit in the last place of float32


def amplified(x: Array, w: Array, padding: Any, form: _winograd.Form) -> Array:
    """The algorithm on magnitudes: what errors of the operands' last places become at most."""
    matrices = {n: getattr(_winograd, n) for n in ("_inputs", "_taps", "_outputs")}
    with pytest.MonkeyPatch.context() as patch:
        for name, made in matrices.items():
            patch.setattr(_winograd, name, lambda *given, made=made: abs(made(*given)))
        patch.setattr(_winograd, "_squared", lambda m: np.kron(m, m))
        image, filters = md.variable("x", abs(x)), md.variable("w", abs(w))
        return np.asarray(_winograd.convolution(image, filters, padding, form).numpy())


def sums(c: int, form: _winograd.Form) -> int:
    """Roundings on the way of an element: both transforms, the product, and the last transform."""
    return form.tile**2 + 9 + c + form.tile**2


ERRORS = {"winograd": 3e-5, "winograd_2x2": 3e-6}  # of the largest result


@pytest.mark.parametrize("algorithm", ERRORS)
@pytest.mark.parametrize(
    ("places", "c", "o", "padding"),
    [
        ((8, 8), 16, 8, ((0, 0), (0, 0))),
        ((13, 13), 40, 33, ((1, 1), (1, 1))),
        ((9, 22), 7, 12, ((0, 2), (1, 0))),
        ((3, 3), 5, 5, ((0, 0), (0, 0))),
        ((14, 14), 128, 130, ((1, 1), (1, 1))),
        ((4, 5), 3, 2, ((4, 3), (2, 5))),
    ],
)
def test_against_direct_sums(places: Any, c: int, o: int, padding: Any, algorithm: str) -> None:
    form, most = _winograd.FORMS[algorithm], ERRORS[algorithm]
    rng = np.random.default_rng(c)
    x = rng.standard_normal((2, *places, c)).astype(np.float32)
    w = rng.standard_normal((3, 3, c, o)).astype(np.float32)
    image, filters = md.variable("x", x), md.variable("w", w)
    settings = {"padding": padding, "algorithm": algorithm}
    y = ops.convolution(image, filters, **settings)
    reference = np.asarray(
        ops.convolution(x.astype(float), w.astype(float), padding=padding), np.float64
    )
    found = native(y)
    assert stacks(y, form) == 1
    assert np.all(abs(found - reference) <= sums(c, form) * EPS * amplified(x, w, padding, form))
    assert abs(found - reference).max() < most * abs(reference).max()

    g = rng.standard_normal(y.shape).astype(np.float32)
    by_x, by_w = md.grad(y, [image, filters], md.variable("g", g))
    wide = {"strides": (1, 1), "padding": padding, "dilation": (1, 1), "groups": 1}
    exact = [a.astype(float) for a in (x, w, g)]
    wanted_x = REGISTRY["_convolution_inputs"].numpy(exact[2], exact[1], places=places, **wide)
    wanted_w = REGISTRY["_convolution_filters"].numpy(exact[0], exact[2], size=(3, 3), **wide)
    assert stacks(by_x, form) == stacks(by_w, form) == 1
    assert abs(native(by_x) - wanted_x).max() < most * abs(wanted_x).max()
    assert abs(native(by_w) - wanted_w).max() < 3.4 * most * abs(wanted_w).max()


def native(made: Operation) -> Array:
    (found,) = Executable([made.node], executor="native", check=True).run({})
    return np.asarray(found)


def stacks(made: Operation, form: _winograd.Form = _winograd.FORMS["winograd"]) -> int:
    """Products of stacks of a matrix for each place of a tile in a plan."""
    plan = native_plan(Program.of([made.node]))
    products = [w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.GEMM]
    return sum(node.ndim == 3 and node.shape[0] == form.tile**2 for node in products)


def layer(c: int, o: int, places: int = 16, dtype: str = "float32", **settings: Any) -> Operation:
    x = md.placeholder("x", ("batch", places, places, c), dtype)
    w = md.variable("w", np.zeros((3, 3, c // settings.get("groups", 1), o), dtype))
    made: Operation = ops.convolution(x, w, **{"padding": 1, **settings})
    return made


def test_the_choice_follows_sizes() -> None:
    """Many channels on both sides, whole tiles but for some places, float32."""
    assert stacks(layer(128, 128)) == stacks(layer(64, 256)) == stacks(layer(512, 96, 7)) == 1
    assert stacks(layer(192, 384, 13)) == stacks(layer(256, 256, 13)) == 1  # 1.51 times the outputs
    for other in (
        layer(64, 64), layer(512, 32), layer(128, 128, 5), layer(128, 128, 13), layer(512, 512, 9),
        layer(128, 128, 16, "float64"),
        layer(128, 128, strides=2), layer(128, 128, dilation=2), layer(256, 256, groups=2),
        layer(128, 128, algorithm="direct"),
    ):  # fmt: skip
        assert stacks(other) == 0
    assert stacks(layer(3, 5, algorithm="winograd")) == 1


def test_a_plan_for_a_device_has_none() -> None:
    """There a library chooses, and products may have the digits of TF32."""
    plan = native_plan(Program.of([layer(128, 128).node]), rounding=False, libraries=frozenset())
    assert all(w.region.nodes[0].ndim < 3 for w in plan.work if w.region.kind is RegionKind.GEMM)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"strides": 2}, r"got strides \(2, 2\)"),
        ({"dilation": (1, 2)}, r"got dilation \(1, 2\)"),
        ({"groups": 2}, "got 2 groups"),
        ({"dtype": "float64"}, "got float64"),
    ],
)
def test_what_it_does_not_take_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        layer(8, 8, algorithm="winograd", **settings)
    with pytest.raises(ArgumentError, match=r"must be one of .*, got 'fourier'"):
        layer(8, 8, algorithm="fourier")
    with pytest.raises(ArgumentError, match=r'conv2d: algorithm must be one of "auto"'):
        md.layers.Conv2D(8, 3, algorithm="Winograd")


def test_a_network_trains_alike() -> None:
    """Ten steps by both algorithms: losses differ by roundings only."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 12, 12, 3)).astype(np.float32)
    y = rng.integers(0, 4, 40)

    def losses(algorithm: str) -> list[float]:
        model = md.Model(
            [
                md.layers.Input((12, 12, 3)),
                md.layers.Conv2D(16, 3, padding="same", activation="relu", algorithm=algorithm),
                md.layers.Conv2D(16, 3, activation="relu", algorithm=algorithm),
                md.layers.GlobalAveragePooling2D(),
                md.layers.Dense(4),
            ],
            loss="cross_entropy",
            optimizer=md.optim.SGD(0.1),
            seed=1,
        )
        return list(model.fit(x, y, batch_size=20, epochs=5, verbose=0)["loss"])

    direct, fewer = losses("direct"), losses("winograd")
    assert direct[-1] < direct[0]
    np.testing.assert_allclose(fewer, direct, rtol=1e-4)
    assert fewer != direct
