"""Own matrix products on a GPU, each against float64: what `test_sanitizer.py` runs under compute-sanitizer.

Each way of storing the operands, each arithmetic, edges that divide nothing, all of k at once and in parts,
all that is done to elements, and chains in which kernels begin before those in front of them have ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_engine
from magmadnn.compiler.cuda.gemm.gemm import choose_gemm
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.memory import Kind, MemoryManager
from magmadnn.runtime.cuda.code import chip_of
from magmadnn.runtime.cuda.running.graphs import graph_of
from magmadnn.runtime.cuda.schedule.launch import Item
from tests.compiler.cuda.test_gemm import biased, multiplied, placed, positive, slots, updated

SIZES = [(37, 41, 23), (48, 36, 68), (33, 10, 50), (100, 72, 112)]
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "float64": 1e-13}


class Placed:
    """Arrays of a product on the device."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.memory: dict[int, MemoryManager] = {}
        for array in arrays.values():  # two names may be of one array
            if id(array) not in self.memory:
                held = MemoryManager(max(array.nbytes, 1), np.uint8, Kind.DEVICE)
                held.copy_from(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                self.memory[id(array)] = held

    def address(self, name: str) -> int:
        return self.memory[id(self.arrays[name])].device_pointer(write=True)

    def span(self, name: str) -> tuple[int, int]:
        start = self.address(name)
        return start, start + max(self.arrays[name].nbytes, 1)

    def fetched(self, name: str) -> np.ndarray:
        array, host = (
            self.arrays[name],
            MemoryManager(self.arrays[name].nbytes, np.uint8, Kind.HOST),
        )
        host.copy_from(self.memory[id(array)])
        return host.host().view(array.dtype).reshape(array.shape).copy()


def item_of(
    gemm: Gemm, sizes: tuple[int, int, int], there: Placed, tensor_float: bool
) -> Item | None:
    """The launch of an own kernel; None where there is none for it."""
    values = slots(gemm, there.arrays, sizes)
    for name in there.arrays:
        if name in values:
            values[name] = there.address(name)
    launch = choose_gemm(gemm, values, chip_of(device_engine(0)), tensor_float)
    if launch is None:
        return None
    variant: Any = launch.variant
    reads = [there.span(s) for s in ("a", "b", *(o.name for o in variant.operands))]
    return Item(launch, tuple(reads), tuple(there.span(r.name) for r in variant.results))


def expected_of(finish: str, arrays: dict[str, np.ndarray], gemm: Gemm) -> dict[str, np.ndarray]:
    """The results, by the names of their arrays."""
    product = multiplied(gemm, arrays)
    x = arrays.get("x0", np.zeros(1)).astype(np.float64)
    if finish == "biased":
        return {"c": 1 / (1 + np.exp(-(product + x)))}
    if finish == "updated":
        return {"y0": x - arrays["x1"].astype(np.float64) * product}
    if finish == "positive":
        return {"c": np.where(product > 0, product * x[:, None], 0)}
    return {"c": product}


FINISHES: dict[str, Any] = {
    "bare": lambda dtype: None, "biased": biased, "updated": updated, "positive": positive,
}  # fmt: skip


def main() -> None:
    """Run all; raises AssertionError where one is wrong."""
    found = 0
    for arithmetic in TOLERANCE:
        dtype = "float64" if arithmetic == "float64" else "float32"
        items, made = [], []
        for number, sizes in enumerate(SIZES):
            for ta, tb in [(False, False), (False, True), (True, False), (True, True)]:
                finish = list(FINISHES)[(number + 2 * ta + tb) % len(FINISHES)]
                gemm = Gemm(dtype, ta, tb, epilogue=FINISHES[finish](dtype))
                arrays = placed(gemm, sizes, seed=number)
                expected = expected_of(finish, arrays, gemm)
                there = Placed(arrays)
                item = item_of(gemm, sizes, there, arithmetic == "tf32")
                if item is not None:
                    items.append(item)
                    made.append((gemm, sizes, finish, there, expected))
        engine = device_engine(0)
        graph_of(engine, items).launch()
        engine.wait()
        for gemm, sizes, finish, there, expected in made:
            for name, right in expected.items():
                got = there.fetched(name)
                off = np.linalg.norm(got - right) / np.linalg.norm(right)
                assert off < TOLERANCE[arithmetic], (arithmetic, gemm, sizes, finish, name, off)
        found += len(made)
        chain(arithmetic, dtype)
    print(f"{found} products are right")
    assert found >= 3 * len(SIZES) * 3


def chain(arithmetic: str, dtype: str) -> None:
    """Products that read what those in front of them wrote: A0 B -> C0, C0 B -> C1, ..."""
    n, links = 48, 6
    rng = np.random.default_rng(5)
    arrays = {"a": np.asarray(rng.standard_normal((37, n)), dtype)}
    arrays["b"] = np.asarray(rng.standard_normal((n, n)) / np.sqrt(n), dtype)
    for k in range(links):
        arrays[f"c{k}"] = np.full((37, n), np.nan, dtype)
    whole, gemm, items, source = Placed(arrays), Gemm(dtype), [], "a"
    for k in range(links):
        one = {"a": arrays[source], "b": arrays["b"], "c": arrays[f"c{k}"]}
        there = Placed({})
        there.arrays, there.memory = one, whole.memory
        item = item_of(gemm, (37, n, n), there, arithmetic == "tf32")
        assert item is not None
        items.append(item)
        source = f"c{k}"
    engine = device_engine(0)
    graph_of(engine, items).launch()
    engine.wait()
    right = arrays["a"].astype(np.float64)
    for _ in range(links):
        right = right @ arrays["b"].astype(np.float64)
    off = np.linalg.norm(whole.fetched(source) - right) / np.linalg.norm(right)
    assert off < links * TOLERANCE[arithmetic], (arithmetic, "chain", off)


if __name__ == "__main__":
    main()
