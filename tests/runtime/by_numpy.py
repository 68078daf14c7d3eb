"""A network with a step that NumPy computes, which somebody looks at; shared by tests of both back ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.graph import NoGradient, Op, OpKind, Sample, by_signature, promote

RNG = np.random.default_rng(3)
X = RNG.normal(size=(211, 7)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def by_numpy(look: Callable[[np.ndarray], None]) -> Op:
    """An op without a kernel: twice x, after somebody has looked at x."""

    def double(x: np.ndarray) -> np.ndarray:
        look(x)
        return 2 * x

    return Op(
        name="double_by_numpy",
        args=("x",),
        formula="2 x",
        kind=OpKind.OTHER,
        shapes=by_signature("... n -> ... n"),
        dtypes=promote,
        numpy=double,
        vjp=NoGradient("nothing before it is trained"),
        reference=lambda x: x + x,
        samples=lambda draw: [Sample((draw(3),))],
    )


def network(look: Callable[[np.ndarray], None], **options: Any) -> md.Model:
    x = md.layers.Input((7,))
    hidden = md.layers.Dense(11, activation="tanh")(by_numpy(look)(x))
    return md.Model(
        inputs=[x], outputs=[md.layers.Dense(2)(hidden)], loss="cross_entropy", seed=1,
        optimizer=md.optim.Adam(0.01), **options,
    )  # fmt: skip


def trained(model: md.Model, **options: Any) -> md.Model:
    model.fit(X, Y, batch_size=16, epochs=3, verbose=False, **options)
    return model


def failing_at(call: int, error: BaseException) -> Callable[[np.ndarray], None]:
    calls: list[int] = []

    def look(x: np.ndarray) -> None:
        calls.append(len(x))
        if len(calls) == call:
            raise error

    return look
