"""Exported networks with loops over time: for any number of steps, bit for bit what predict gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from tests.training.exported import NEEDS_C, STRICT_C, Exported, assert_equal, nan_like, run

RNG = np.random.default_rng(6)
FEATURES, UNITS = 3, 5


class Lstm(md.layers.Layer):
    """Hidden states of an LSTM: [batch, time, features] -> [batch, time, units], or the last one."""

    units: int = UNITS
    reverse: bool = False
    last: bool = False

    def build(self, x: md.Operation) -> None:
        self.w = self.parameter("w", (x.shape[-1], 4 * self.units), "glorot_uniform", x.dtype)
        self.u = self.parameter("u", (self.units, 4 * self.units), "glorot_uniform", x.dtype)
        self.b = self.parameter("b", (4 * self.units,), "ones", x.dtype)

    def forward(self, x: md.Operation) -> md.Operation:
        begin = md.ops.broadcast_to(np.zeros(1, x.dtype), (x.shape[0], self.units))

        def step(cell: Any, x: Any) -> tuple[Any, Any]:
            h, c = cell
            i, f, g, o = md.ops.split(x @ self.w + h @ self.u + self.b, 4, axis=-1)
            c = md.ops.sigmoid(f) * c + md.ops.sigmoid(i) * md.ops.tanh(g)
            h = md.ops.sigmoid(o) * md.ops.tanh(c)
            return (h, c), h

        by_time = md.ops.transpose(x, (1, 0, 2))
        (h, _), kept = md.scan(step, (begin, begin), by_time, reverse=self.reverse)
        return h if self.last else md.ops.transpose(kept, (1, 0, 2))


class Smoothed(md.layers.Layer):
    """A loop in a loop, carried values that change places, and what was carried: [batch, time, n] alike."""

    def forward(self, x: md.Operation) -> md.Operation:
        by_time = md.ops.transpose(x, (1, 0, 2))
        zero = by_time[0] * 0.0

        def outer(carried: Any, now: Any) -> tuple[Any, Any]:
            one, other = carried
            inner, _ = md.scan(lambda a, b: (a * 0.5 + b * now, ()), one, by_time)
            return (other, inner), one - other

        _, kept = md.scan(outer, (zero, zero + 1.0), by_time, reverse=True)
        return md.ops.transpose(kept, (1, 0, 2)) + x


def network(*parts: Any, time: Any = "time", dtype: str = "float32") -> md.Model:
    return md.Model([md.layers.Input((time, FEATURES), dtype=dtype), *parts], seed=2)


def layers(name: str) -> list[Any]:
    """New layers of a network."""
    return {
        "all": lambda: [Lstm(), md.layers.Dense(2)],
        "last": lambda: [Lstm(last=True), md.layers.Dense(4, activation="softmax")],
        "backward": lambda: [Lstm(reverse=True)],
        "two": lambda: [Lstm(), Lstm(reverse=True, units=7, last=True)],
        "nested": lambda: [Smoothed(), md.layers.Dense(2)],
    }[name]()


@NEEDS_C
@pytest.mark.parametrize(  # each network in one dtype, all of them with --all
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if turn == k % 2 else pytest.mark.long)
        for k, name in enumerate(["all", "last", "backward", "two", "nested"])
        for turn, dtype in enumerate(["float32", "float64"])
    ],
)
def test_any_length(name: str, dtype: str, tmp_path: Path) -> None:
    model = network(*layers(name), dtype=dtype)
    file = model.export(tmp_path / "net.o", batch_size=8)[0]
    there = Exported(file, "net")
    for samples, steps in [(1, 1), (3, 2), (8, 7), (19, 31), (2, 100)]:
        x = RNG.normal(size=(samples, steps, FEATURES)).astype(dtype)
        expected = model.predict(x, batch_size=8)
        found = nan_like(expected)
        assert there.predict([x], found, [steps]) == 0
        assert_equal(found, expected)
        room = np.full(there.scratch_bytes(samples, steps), 0xA5, np.uint8)
        again = nan_like(expected)
        assert there.predict([x], again, [steps], room) == 0
        assert_equal(again, expected)


@NEEDS_C
def test_a_length_that_is_known(tmp_path: Path) -> None:
    model = network(*layers("all"), time=9)
    there = Exported(model.export(tmp_path / "net.o")[0], "net")
    x = RNG.normal(size=(6, 9, FEATURES)).astype(np.float32)
    found = nan_like(model.predict(x))
    assert there.predict([x], found) == 0
    assert_equal(found, model.predict(x))


@NEEDS_C
def test_an_lstm_is_what_numpy_makes_of_it(tmp_path: Path) -> None:
    """In float64, written with other formulas, from a C program's own memory."""
    layer = Lstm(last=True)
    model = network(layer, dtype="float64")
    model.export(tmp_path / "net.o")
    (tmp_path / "main.c").write_text(PROGRAM)
    run([*STRICT_C, "main.c", "net.o", "-o", "main"], tmp_path)
    w, u, b = (np.asarray(v.value) for v in (layer.w, layer.u, layer.b))
    for samples, steps in [(2, 1), (5, 13), (3, 64)]:
        x = RNG.normal(size=(samples, steps, FEATURES))
        h = c = np.zeros((samples, UNITS))
        for t in range(steps):
            i, f, g, o = np.split(
                np.concatenate([x[:, t], h], 1) @ np.concatenate([w, u]) + b, 4, 1
            )
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
        given = np.array([samples, steps], np.int64).tobytes() + x.tobytes()
        found = np.frombuffer(run(["./main"], tmp_path, given), np.float64).reshape(samples, UNITS)
        np.testing.assert_allclose(found, h, rtol=0, atol=1e-13)
        assert found.tobytes() == model.predict(x).tobytes()


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

int main(void) {
    int64_t n[2];
    if (fread(n, sizeof *n, 2, stdin) != 2) return 10;
    size_t count = n[0] * n[1] * 3;
    double *x = malloc(count * sizeof *x), *y = malloc(n[0] * NET_Y_SIZE * sizeof *y);
    if (fread(x, sizeof *x, count, stdin) != count) return 11;
    if (net_predict(x, n[0], n[1], y) != NET_OK) return 12;
    fwrite(y, sizeof *y * NET_Y_SIZE, n[0], stdout);
    free(x), free(y);
    return 0;
}
"""
