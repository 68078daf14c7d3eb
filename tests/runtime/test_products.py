"""Products of programs that are measured between their steps, on memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.llvm.gemm.cuts import BETWEEN, RULE, cuts
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import compiled_count
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.tune.chosen_blocks import Tuner, search_all
from magmadnn.compiler.tune.file import Record, Records
from magmadnn.compiler.tune.products import product_of
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.storage.checkpoint import parameters_sha256

SHAPES = {
    "a matrix": ((131, 797), (797, 97)),
    "a stack": ((3, 131, 797), (3, 797, 97)),
    "one factor for all": ((3, 131, 797), (797, 97)),
}


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Makes a tuner that measures after each run, over one file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def made(seconds: float = 100.0) -> Tuner:
        tuner = Tuner(Records(host()), host(), seconds, share=1e9, after=0.0)
        monkeypatch.setattr("magmadnn.runtime.cpu.tasks.tuner", lambda: tuner)
        return tuner

    return made


def measured() -> dict[str, Record]:
    return {words: r for words, r in Records(host()).read().items() if r.microseconds}


Case = tuple[list[Any], dict[Any, Any]]


def program(name: str) -> Case:
    """Products with epilogues that read a column, a row and a matrix, and store two results."""
    draw = np.random.default_rng(5)
    (*first, rows, _), (*_, columns) = SHAPES[name]
    shapes = (*SHAPES[name], (rows, 1), (columns,), (*first, rows, columns))
    nodes = [md.placeholder(f"x{k}", shape, "float32") for k, shape in enumerate(shapes)]
    a, b, column, row, full = nodes
    middle = ops.tanh(a @ b * 0.1 + row)
    outputs = [middle.node, (middle * full + column).node]
    drawn = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    return outputs, dict(zip((n.node for n in nodes), drawn, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_an_empty_and_a_full_file_give_the_same_bits(tuned: Any, name: str) -> None:
    """By rule, measuring, with what was measured, and with a tile as a search chooses it."""
    outputs, feeds = program(name)
    found = []

    def runs(tuner: Tuner) -> Iterator[Tuner]:
        executable = Executable(outputs, executor="native")
        for _ in range(2000):
            found.append(executable.run(feeds))
            yield tuner

    assert next(runs(tuned(0.0))).spent == 0
    compiled = compiled_count()
    assert any(measured() and tuner.spent > 0 for tuner in runs(tuned()))
    assert compiled_count() == compiled  # what is measured are the program's own kernels
    assert next(runs(tuned())).spent == 0
    records = Records(host())
    for words, record in search_all(records, host(), 60.0):
        assert record is not None
        assert len(record.microseconds) >= 8
        tile = next(way for way in record.microseconds if BETWEEN in way)
        records.add({words: Record(tile, record.microseconds)})
    assert next(runs(tuned())).spent == 0
    for other in found[1:]:
        for one, more in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, more)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_was_found_reaches_every_part(
    monkeypatch: pytest.MonkeyPatch, tuned: Any, name: str, threads: int
) -> None:
    outputs, feeds = program(name)
    plan = native_plan(Program.of(outputs))
    laid_out = Instance(plan, {}, threads, prepared=False)
    for array in laid_out.arrays.values():
        if array.flags.writeable:
            array[...] = 7.0  # what is measured writes other numbers
    for node, given in feeds.items():
        laid_out.arrays[node][...] = given

    class Last:
        """A search that finds that the last way is the best."""

        def __init__(self, runs: Any, *_: Any, **__: Any) -> None:
            self.runs = runs

        def steps(self) -> Iterator[Record | None]:
            for run in self.runs.values():
                run()
                yield None
            yield Record([*self.runs][-1], {RULE: 2.0, [*self.runs][-1]: 1.0})

    tuned()
    monkeypatch.setattr("magmadnn.compiler.tune.chosen_blocks.Search", Last)
    tasks = laid_out.tasks(threads)
    made = [t for phase in range(plan.phase_count) for group in tasks.phase(phase) for t in group]
    (waiting,) = tasks._untried
    assert waiting.nbytes >= sum(array.nbytes for array in feeds.values())  # of all parts
    kept = [(array.tobytes(), array) for array in laid_out.arrays.values()]
    for _ in range(50):
        tasks.tune()
    assert all(before == array.tobytes() for before, array in kept)
    ((words, record),) = measured().items()
    gemm, values = product_of(words) or pytest.fail(words)
    word = cuts(gemm, host(), values["row1"], values["k"])[record.choice]
    lowered = {id(task): tasks.work_of[id(task)].lowered for task in made}
    slots = {id(task): found.kernel.slots for task in made if (found := lowered[id(task)])}
    products = [task for task in made if "cuts" in slots[id(task)]]
    assert len(products) >= (3 if name == "a stack" else threads)
    for task in products:
        assert task.arguments[slots[id(task)].index("cuts")] == word != 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_measuring_changes_no_parameter(tuned: Any, optimizer: str) -> None:
    """Updates are written in place by the products that are measured."""
    md.set_threads(2)  # more would leave too little of each product to be worth measuring
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(131, 797)).astype(np.float32), draw.integers(0, 5, 131)

    def trained(seconds: float) -> tuple[str, float]:
        tuner = tuned(seconds)
        model = md.Model(
            [md.layers.Input((797,)), md.layers.Dense(97, activation="tanh"), md.layers.Dense(5)],
            loss="cross_entropy", optimizer=optimizer, seed=5,
        )  # fmt: skip
        model.fit(x, y, batch_size=131, epochs=200, verbose=0)
        return parameters_sha256(model.values().items()), tuner.spent

    hashes, spent = zip(*(trained(seconds) for seconds in (0.0, 100.0, 100.0, 100.0)), strict=True)
    assert len(measured()) == 2
    assert spent[0] == spent[-1] == 0 < spent[1]
    assert len({*hashes}) == 1
