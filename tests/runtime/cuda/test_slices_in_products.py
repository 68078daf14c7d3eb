"""Products whose first factor is a slice of longer sequences: read where it lies, as a stack of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.runtime.cuda.devices import DEVICES, on

RNG = np.random.default_rng(11)
Make = Callable[[Operation], Operation]
SLICES: dict[str, tuple[tuple[int, ...], Make]] = {
    "middle": ((5, 34, 68), lambda x: x[:, 1:-1]),
    "every second": ((5, 63, 68), lambda x: x[:, ::2]),
    "some columns": ((5, 60, 76), lambda x: x[:, 3:, 4:72]),
    "columns at an odd place": ((5, 60, 71), lambda x: x[:, 3:, 1:70]),
    "every second sequence": ((9, 66, 68), lambda x: x[::2, :-2]),
}


def fed(shape: tuple[Any, ...], name: str) -> tuple[Operation, Any]:
    """A placeholder, and small whole numbers whose sums are exact."""
    sizes = tuple(5 if n is BATCH else n for n in shape)
    node = placeholder(name, Spec(shape, np.dtype(np.float32)))
    return Operation(node), RNG.integers(-4, 5, sizes).astype(np.float32)


def copies(*made: Any) -> int:
    program = Program.of([one.node if isinstance(one, Operation) else one for one in made])
    plan = native_plan(program, check=True, rounding=False, libraries=frozenset())
    return sum(work.region.kind is RegionKind.MOVE for work in plan.work)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_library", [False, True])
@pytest.mark.parametrize("columns", [7, 96])
@pytest.mark.parametrize("how", SLICES)
def test_values(
    how: str, columns: int, by_library: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, view = SLICES[how]
    (x, a), (b, bias) = fed(shape, "x"), fed((columns,), "b")
    seen = view(x)
    w, factor = fed((seen.shape[-1], columns), "w")
    plain, cut = seen @ w, ops.relu(seen @ w + b)
    beside = ops.concat([seen @ w * 2, ops.broadcast_to(b, (*seen.shape[:-1], columns))], axis=-1)
    assert [copies(plain), copies(cut)] == [0, 0]
    if by_library:
        monkeypatch.setattr(launches, "choose_shared", lambda *_: None)
    (exact,) = Executable([seen.node], executor="reference").run({x.node: a})
    exact = exact @ factor
    wanted = [exact, np.maximum(exact + bias, 0)]
    wanted += [np.concatenate([exact * 2, np.broadcast_to(bias, exact.shape)], -1)]
    with on(device):
        for made, right in zip((plain, cut, beside), wanted, strict=True):
            step = Executable([made.node], executor="native", device="cuda")
            given = {x.node: a, w.node: factor, b.node: bias}
            needed = Program.of([made.node]).nodes()
            (found,) = step.run({node: v for node, v in given.items() if node in needed})
            np.testing.assert_array_equal(found, right)
            assert "0 calls of NumPy" in step.text({})
            if by_library and made is not beside:
                rows = exact.shape[1]
                assert f"cuBLASLt product 5 of {rows} x {columns}" in step.text({})


@pytest.mark.parametrize("device", DEVICES)
def test_any_number_of_sequences(device: str) -> None:
    (x, _), (w, factor) = fed((BATCH, 36, 64), "x"), fed((64, 33), "w")
    made = ops.sum(x[:, 2:-2] @ w, axis=1)
    assert copies(made) == 0
    with on(device):
        step = Executable([made.node], executor="native", device="cuda")
        for count in (5, 1, 0, 3):
            a = RNG.integers(-4, 5, (count, 36, 64)).astype(np.float32)
            (found,) = step.run({x.node: a, w.node: factor})
            np.testing.assert_array_equal(found, (a[:, 2:-2] @ factor).sum(axis=1))


def test_others_are_copied() -> None:
    """Many columns, few or short rows of a sequence or such as leave much of a tile, sequences backwards, and
    what is also transposed."""

    def made(shape: tuple[int, ...], columns: int, view: Make) -> Operation:
        seen = view(fed(shape, "x")[0])
        return seen @ fed((seen.shape[-1], columns), "w")[0]

    for shape, columns, view in (
        ((5, 34, 64), 257, lambda x: x[:, 1:-1]),
        ((5, 33, 64), 64, lambda x: x[:, 1:-1]),
        ((5, 35, 64), 33, lambda x: x[:, 1:-1]),
        ((5, 131, 64), 64, lambda x: x[:, 1:-1]),
        ((5, 113, 64), 64, lambda x: x[:, 1:-1]),
        ((5, 34, 63), 64, lambda x: x[:, 1:-1]),
        ((5, 34, 64), 64, lambda x: x[::-1, 1:-1]),
        ((5, 34, 64), 64, lambda x: x[:, :0:-1]),
        ((64, 34, 5), 64, lambda x: ops.transpose(x)[:, 1:-1]),
    ):
        assert copies(made(shape, columns, view)) == 1
    (x, _), (w, _) = fed((5, 34, 64), "x"), fed((64, 64), "w")
    loss = ops.sum(ops.relu(x[:, 1:-1] @ w))
    assert copies(loss, *gradient(loss.node, [w.node])) == 1
    assert copies(x[:, 1:-1] @ w) == 0
    for shape, columns in (((5, 35, 64), 32), ((5, 116, 64), 64), ((5, 460, 64), 256)):
        assert copies(made(shape, columns, lambda x: x[:, 1:-1])) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_random_graphs_with_such_operands(device: str) -> None:
    """Slices in several products, with formulas before and behind them, pads and sums of what they give."""
    found = 0
    with on(device):
        for seed in range(8):
            rng = np.random.default_rng(seed)
            count, length, depth = (
                rng.integers(2, 6),
                rng.choice((34, 40, 65)),
                rng.integers(64, 80),
            )
            (x, a), nodes = fed((int(count), int(length), int(depth)), "x"), {}
            nodes[x.node] = a
            whole = ops.relu(x) if rng.random() < 0.5 else x
            step = 1 if rng.random() < 0.7 else 2
            first, last = int(rng.integers(0, 3)), int(rng.integers(0, 2))
            seen = whole[:, first : int(length) - last : step] if step == 1 else whole[:, first:]
            made = []
            for name in ("v", "w")[: rng.integers(1, 3)]:
                columns = int(rng.integers(1, 90))
                w, factor = fed((int(depth), columns), name)
                b, bias = fed((columns,), f"{name}b")
                nodes |= {w.node: factor, b.node: bias}
                y = seen @ w
                if rng.random() < 0.6:
                    y = ops.relu(y + b)
                if rng.random() < 0.4:
                    y = ops.pad(y, ((0, 0), (1, 2), (0, 0)))
                made.append(ops.sum(y, axis=(0, 1)) if rng.random() < 0.4 else y)
            outputs = [one.node for one in made]
            needed = Program.of(outputs).nodes()
            given = {node: v for node, v in nodes.items() if node in needed}
            wanted = Executable(outputs, executor="reference").run(given)
            got = Executable(outputs, executor="native", device="cuda").run(given)
            for one, other in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
            found += not copies(*made)
    assert found > 2
