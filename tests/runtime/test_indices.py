"""An index that is out of range is an error that changes nothing, and a right one costs no copies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from magmadnn import ops, placeholder, variable
from magmadnn.errors import DataError
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.indices import Indices
from tests.runtime.cuda.devices import DEVICES, on

ROWS, CLASSES = 11, 7
X = np.random.default_rng(2).standard_normal((ROWS, CLASSES)).astype(np.float32)
T = np.random.default_rng(3).integers(0, CLASSES, ROWS)

WAYS: dict[str, Callable[[Any], Any]] = {
    "fed": lambda t: t,
    "reversed": lambda t: t[::-1],
    "computed": lambda t: t * 1 + 0 * t,
}


def _step(way: str) -> tuple[Executable, Any, Any]:
    """A run that stores into a variable, whose classes come by some way."""
    t, v = placeholder("t", (ROWS,), "int64"), variable("v", X)
    picked = ops.take_class(ops.log_softmax(v), WAYS[way](t))
    new = v - ops.expand_dims(picked, -1)
    return Executable([], [(v.node, new.node)], training=True, executor="native"), t.node, v


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [-1, CLASSES, np.iinfo(np.int64).max])
def test_a_wrong_one_raises_and_changes_nothing(way: str, wrong: int) -> None:
    step, fed, v = _step(way)
    classes = T.copy()
    classes[4] = wrong
    with pytest.raises(DataError, match=f"index {wrong} at"):
        step.run({fed: classes})
    assert np.array_equal(v.value.read(), X)
    step.run({fed: T})
    assert not np.array_equal(v.value.read(), X)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["take_class", "one_hot"])
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("int32", marks=pytest.mark.long), "bool"]
)
@pytest.mark.parametrize("device", ["cpu", *DEVICES])
def test_of_an_unknown_number_of_classes(way: str, name: str, dtype: str, device: str) -> None:
    """Kernels for any number of them, on both back ends; a wrong class is an error."""
    x, t = placeholder("x", ("n", "k"), dtype), placeholder("t", ("n",), "int64")
    classes = WAYS[way](t)
    made = (
        ops.take_class(x, classes)
        if name == "take_class"
        else ops.one_hot(classes, x.shape[1], dtype=dtype)
    )
    with nullcontext() if device == "cpu" else on(device):
        where = "cpu" if device == "cpu" else "cuda"
        run = Executable([made.node], executor="native", device=where, check=True)
        for rows, count in [(1, 1), (11, 7), (3, 300), (11, 8)]:
            values = 9 * np.random.default_rng(rows).standard_normal((rows, count))
            values = (values > 2) if dtype == "bool" else values.astype(dtype)
            places = np.random.default_rng(count).integers(0, count, rows)
            picked = (places[::-1] if way == "reversed" else places) % count
            fed = {x.node: values, t.node: places}
            (found,) = run.run(fed)
            wanted = (
                values[np.arange(rows), picked] if name == "take_class" else np.eye(count)[picked]
            )
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, wanted)
            for wrong in (-1, count):
                bad = {**fed, t.node: np.where(np.arange(rows) == rows // 2, wrong, places)}
                with pytest.raises(DataError, match=f"{name}: index {wrong} at"):
                    run.run(bad)
        assert "numpy" not in run.text({"n": 3, "k": 5})


@pytest.mark.parametrize(("way", "copied"), [("fed", 0), ("reversed", 0), ("computed", 1)])
def test_old_values_are_kept_only_where_kernels_alone_know_the_indices(
    way: str, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Instance] = []
    remember = Instance._remember

    def seen(self: Instance) -> None:
        kept.append(self)
        remember(self)

    monkeypatch.setattr(Instance, "_remember", seen)
    step, fed, _ = _step(way)
    step.run({fed: T})
    assert len(kept) == copied


def test_what_is_looked_at() -> None:
    t = placeholder("t", (ROWS,), "int64")
    padded = ops.pad(t, ((0, 1),), -1)  # a constant among them is out of range
    cases = [
        (ops.one_hot(t, CLASSES), False),
        (ops.one_hot(t, CLASSES - 1), True),
        (ops.one_hot(padded, CLASSES), True),
        (ops.one_hot(ops.concat([t, t]), CLASSES), False),
        (ops.take(placeholder("x", (CLASSES, 2)), t), False),  # its kernel tells by itself
    ]
    assert T.max() == CLASSES - 1
    for value, wrong in cases:
        program = Program.of([value.node])
        fed = {t.node: T} | {n: X[:, :2] for n in program.nodes() if n.name == "x"}
        assert Indices(program).may_be_wrong(fed, {}) == wrong
    assert not Indices(Program.of([ops.one_hot(t, 3).node])).may_be_wrong({t.node: T[:0]}, {})
