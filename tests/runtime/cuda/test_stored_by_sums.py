"""Elements computed for a reduction over rows, and stored by it for others: one launch, the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.fused.columns import ColumnsVariant
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder, topological
from magmadnn.memory import as_dtype
from magmadnn.ops.slicing import unslice
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running import graphs
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.merging import stored_by_sums
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

PLACES = (
    ("slice", None, None, 1), ("slice", 0, 48, 2), ("slice", 2, 90, 3), ("slice", None, None, 1),
)  # fmt: skip
UNIT = np.finfo(np.float32).eps


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The matrices that reductions store, by name, as graphs are made."""
    found: list[str] = []
    real = stored_by_sums.stored_by_sums

    def counted(items: Sequence[Item], chip: Any) -> list[Item]:
        made = real(items, chip)
        launches = [item.what for item in made if isinstance(item.what, Launch)]
        variants = [one.variant for one in launches if isinstance(one.variant, ColumnsVariant)]
        found.extend(one.name for variant in variants for one in variant.kernel.put)
        return made

    monkeypatch.setattr(graphs, "stored_by_sums", counted)
    return found


def cut_and_summed(
    shape: tuple[int, ...], dtype: str, two: bool, apart: bool = False
) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """What is added and cut, sums of it and of its products; random operands, one with places `apart`."""
    draw = np.random.default_rng(3)
    names = ("a", "b", "y", "x", "z")
    of = {n: placeholder(n, Spec(shape, as_dtype(dtype))) for n in names}
    if apart:
        of["b"] = placeholder("b", Spec((3, 24, 30, shape[-1]), as_dtype(dtype)))
    feeds = {
        node: draw.standard_normal([int(n) for n in node.shape]).astype(as_dtype(dtype))
        for node in of.values()
    }
    a, b, y, x, z = (Operation(node) for node in of.values())
    if apart:
        b = unslice(b, index=PLACES, shape=shape)
    cut = ops.where(y > 0, a + b, 0.0)
    axes = tuple(range(len(shape) - 1))
    wide = [ops.cast(one, "float32") for one in (cut, x, z)]
    made = [ops.sum(wide[0], axis=axes), ops.sum((wide[1] - 0.25) * wide[0], axis=axes)]
    if two:
        made.append(ops.sum((wide[2] + 0.5) * wide[0], axis=axes))
    return [one.node for one in (cut, *made)], feeds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("two", [False, True])
def test_what_is_added_and_cut_is_stored_by_its_sums(
    device: str, dtype: str, two: bool, stored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, feeds = cut_and_summed((3, 2753, 32), dtype, two)
    with on(device):
        together = Executable(made, executor="native", device="cuda").run(feeds)
        count = len(stored)
        monkeypatch.setattr(graphs, "stored_by_sums", lambda items, chip: list(items))
        apart = Executable(made, executor="native", device="cuda").run(feeds)
    assert count == 1
    for one, other in zip(together, apart, strict=True):
        assert one.tobytes() == other.tobytes()
    a, b, y, x, *_ = (array.astype(np.float64) for array in feeds.values())
    cut = np.where(y > 0, a + b, 0).astype(np.float32).astype(as_dtype(dtype))
    np.testing.assert_array_equal(together[0], cut)
    products = (x - 0.25) * cut.astype(np.float64)
    allowed = 8 * UNIT * np.sqrt(8259) * np.abs(products).max()
    assert np.abs(together[2] - products.sum((0, 1))).max() <= allowed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_places_with_zeros_between_them_are_read_by_index(
    device: str, dtype: str, stored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, feeds = cut_and_summed((3, 48, 90, 32), dtype, False, apart=True)
    with on(device):
        together = Executable(made, executor="native", device="cuda").run(feeds)
        count = len(stored)
        monkeypatch.setattr(graphs, "stored_by_sums", lambda items, chip: list(items))
        apart = Executable(made, executor="native", device="cuda").run(feeds)
    assert count == 1
    for one, other in zip(together, apart, strict=True):
        assert one.tobytes() == other.tobytes()
    a, b, y, *_ = (array.astype(np.float64) for array in feeds.values())
    wide = np.zeros(a.shape)
    wide[:, ::2, 2::3] = b
    cut = np.where(y > 0, a + wide, 0).astype(np.float32).astype(as_dtype(dtype))
    np.testing.assert_array_equal(together[0], cut)


def _rows_again(c: Any, x: Any) -> list[Any]:
    """Sums that read the matrix a second time: a row, an element, rows that are moved."""
    parts = (c[5:6], c[8258:8259], c[8258:8259, 3:4], ops.pad(c[1:], ((0, 1), (0, 0))))
    return [c, *(ops.sum(c * part, axis=0) for part in parts)]


def _of_a_vector(c: Any, x: Any) -> list[Any]:
    """Sums of a matrix whose elements are computed as those of a vector, one operand with zeros in front."""
    count = int(c.shape[0]) * int(c.shape[1])
    flat = ops.where(x > 0, ops.reshape(c, (count,)) + ops.pad(x[64:], ((64, 0),)), 0.0)
    return [flat, ops.sum(ops.reshape(flat, c.shape), axis=0)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("build", [_rows_again, _of_a_vector])
def test_what_is_read_elsewhere_too_is_stored_before(
    device: str, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another block of rows may not have stored what a reduction reads there."""
    shape = (8259, 32)
    draw = np.random.default_rng(4)
    sizes = {"a": shape, "b": shape, "y": shape, "x": (shape[0] * shape[1],)}
    if build is _of_a_vector:
        sizes.pop("y")
    of = {n: placeholder(n, Spec(size, as_dtype("float32"))) for n, size in sizes.items()}
    feeds = {
        v: draw.standard_normal([int(n) for n in v.shape]).astype("float32") for v in of.values()
    }
    values = {n: Operation(v) for n, v in of.items()}
    c = (
        values["a"]
        if "y" not in values
        else ops.where(values["y"] > 0, values["a"] + values["b"], 0.0)
    )
    made = [one.node for one in build(c, values["x"])]
    used = {v: feeds[v] for v in topological(made) if v in feeds}
    with on(device):
        found = Executable(made, executor="native", device="cuda").run(used)
        monkeypatch.setattr(graphs, "stored_by_sums", lambda items, chip: list(items))
        apart = Executable(made, executor="native", device="cuda").run(used)
    for one, other in zip(found, apart, strict=True):
        assert one.tobytes() == other.tobytes()
