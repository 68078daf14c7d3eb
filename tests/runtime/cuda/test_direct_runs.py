"""Runs with sizes and variables that compute on operands of the device where they lie (`run_into`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_memory
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder, variable
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running import direct
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.tensor import Operation, Tensor, Variable
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

pytestmark = needs_compiler
DTYPE = np.dtype(np.float64)
BATCH = Dim.symbol("batch")


def given(name: str, *shape: Any) -> Node:
    return placeholder(name, Spec(shape, DTYPE))


def held(name: str, values: np.ndarray, kind: Kind = Kind.DEVICE) -> Variable:
    return Variable(name, tensor(values, kind))


def tensor(values: np.ndarray, kind: Kind = Kind.DEVICE) -> Tensor:
    made = Tensor(values.shape, None, values.dtype, kind, 0)
    made.write(values)
    return made


class Case:
    """Programs of operands x, [batch, 32], and y, [batch, 64], and of variables."""

    def __init__(self, kind: Kind = Kind.DEVICE) -> None:
        draw = np.random.default_rng(4)
        self.x, self.y = given("x", BATCH, 32), given("y", BATCH, 64)
        self.weights = held("weights", draw.normal(size=(32, 64)), kind)
        self.total = held("total", np.zeros((32, 64)), kind)
        self.mean = held("mean", np.zeros(64), kind)
        x, y = Operation(self.x), Operation(self.y)
        product = md.ops.tanh(md.ops.matmul(x, self.weights))
        both = product + y
        mean = 0.5 * self.mean + 0.5 * md.ops.mean(both, axis=0)
        gradient = md.ops.matmul(md.ops.transpose(x), both)
        weights = self.weights - 0.01 * gradient
        self.programs: dict[str, tuple[list[Any], list[tuple[Any, Any]]]] = {
            "outputs": ([both, product, md.ops.sum(both)], []),
            "sums": ([both], [(self.total, self.total + gradient)]),
            "no outputs": ([], [(self.total, self.total + gradient), (self.mean, mean)]),
            "read before": ([md.ops.sum(self.mean * both)], [(self.mean, mean)]),
            "swapped": ([both], [(self.weights, self.total + 1), (self.total, weights)]),
            "an operand": ([x, both], [(self.mean, mean)]),
            "its new value": ([mean, both], [(self.mean, mean)]),
            "a variable": ([self.mean, both], [(self.mean, mean)]),
        }

    @property
    def variables(self) -> list[Variable]:
        return [self.weights, self.total, self.mean]

    def executable(self, name: str, **way: Any) -> Executable:
        outputs, updates = self.programs[name]
        pairs = [(target.node, new.node) for target, new in updates]
        return Executable([getattr(o, "node", o) for o in outputs], pairs, training=True, **way)


class Block:
    """Memory with places at multiples of 256 bytes, or beside them."""

    def __init__(self) -> None:
        self._memory = MemoryManager(1 << 20, np.uint8, Kind.DEVICE, 0)
        self._at = 0

    def place(self, nbytes: int, beside: int = 0) -> int:
        start = self._memory.device_pointer(write=True)
        self._at += -(-(nbytes + beside) // 256) * 256
        assert self._at <= 1 << 20
        return start + self._at - (-(-(nbytes + beside) // 256) * 256) + beside

    def put(self, values: np.ndarray, beside: int = 0) -> OnDevice:
        place = self.place(values.nbytes, beside)
        device_memory(0).copy_to_device(
            place, np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        )
        return OnDevice(values.shape, values.dtype, place, 0, self)


def compare(name: str, place: Callable[[int, Block, np.ndarray], Any], beside: int = 0,
            kind: Kind = Kind.DEVICE) -> int:  # fmt: skip
    """Some runs against NumPy's; how many computed where operands lie."""
    draw = np.random.default_rng(8)
    with emulated_device():
        one, other = Case(kind), Case(Kind.HOST)
        made = one.executable(name, executor="native", device="cuda")
        known = other.executable(name)
        for number, rows in enumerate([16, 16, 8, 16, 5]):
            block = Block()
            x, y = draw.normal(size=(rows, 32)), draw.normal(size=(rows, 64))
            fed = {
                node: v for node, v in ((one.x, x), (one.y, y)) if node in made.program.placeholders
            }
            wanted = known.run({n: v for n, v in ((other.x, x), (other.y, y))
                                if n in known.program.placeholders})  # fmt: skip
            fed = {node: place(number, block, v) for node, v in fed.items()}
            goals = [block.place(max(w.nbytes, 1), beside) for w in wanted]
            assert made.run_into(fed, goals)
            for goal, want in zip(goals, wanted, strict=True):
                got = np.empty(want.shape)
                device_memory(0).copy_to_host(got.reshape(-1).view(np.uint8), goal)
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
            for mine, its in zip(one.variables, other.variables, strict=True):
                np.testing.assert_allclose(
                    mine.value.read(), its.value.read(), rtol=1e-12, atol=1e-12
                )
            if number == 2:
                for mine, its in zip(one.variables, other.variables, strict=True):
                    new = draw.normal(size=mine.shape)
                    mine.value.write(new)
                    its.value.write(new)
        return made.cuda.direct_runs


NAMES = ["outputs", "sums", "no outputs", "read before", "swapped", "an operand", "its new value"]


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_numpy(name: str) -> None:
    assert compare(name, lambda number, block, values: block.put(values)) == 5


def test_what_an_update_writes_is_copied_before() -> None:
    assert compare("a variable", lambda number, block, values: block.put(values)) == 0


@pytest.mark.parametrize("kind", [Kind.HOST, Kind.MANAGED])
@pytest.mark.parametrize("name", ["sums", "swapped"])
def test_variables_may_be_elsewhere(name: str, kind: Kind) -> None:
    found = compare(name, lambda number, block, values: block.put(values), kind=kind)
    assert found == (0 if kind is Kind.HOST and name == "swapped" else 5)


def test_operands_may_lie_badly() -> None:
    """On the host, or at no multiple of 256 bytes, now and then."""

    def place(number: int, block: Block, values: np.ndarray) -> Any:
        is_x = values.shape[1] == 32
        if number == 1 and is_x:
            return values
        return block.put(values, 8 if number == 3 else 0)

    assert compare("sums", place) == 4


def test_goals_may_lie_badly() -> None:
    assert compare("outputs", lambda number, block, values: block.put(values), 8) == 0


def test_many_launches_are_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_MOST_LAUNCHES", 0)
    assert compare("sums", lambda number, block, values: block.put(values)) == 0


def test_a_variable_that_has_moved_is_found() -> None:
    class Moving:
        tensor = None

    with emulated_device():
        place, x = Moving(), given("x", BATCH, 32)
        weights = variable("weights", Spec((32, 64), DTYPE), place)  # type: ignore[arg-type]
        product = md.ops.matmul(Operation(x), Operation(weights)).node
        made = Executable([product], executor="native", device="cuda")
        before = []
        for scale in (1.0, 2.0, 3.0):
            block = Block()
            place.tensor = tensor(np.full((32, 64), scale))
            before.append(place.tensor)
            goal = block.place(4 * 64 * 8)
            assert made.run_into({x: block.put(np.ones((4, 32)))}, [goal])
            got = np.empty((4, 64))
            device_memory(0).copy_to_host(got.reshape(-1).view(np.uint8), goal)
            np.testing.assert_array_equal(got, 32 * scale)
        assert made.cuda.direct_runs == 3


def test_memory_is_given_back() -> None:
    with emulated_device():
        case, block = Case(), Block()
        made = case.executable("outputs", executor="native", device="cuda")
        fed = {case.x: block.put(np.ones((4, 32))), case.y: block.put(np.ones((4, 64)))}
        goals = [block.place(4 * 64 * 8) for _ in range(3)]
        made.run_into(fed, goals)
        runner: CudaRunner = made.cuda
        assert (
            runner.nbytes > 0 and runner.has_run({"batch": 4}) and not runner.has_run({"batch": 5})
        )
        runner.give_back()
        assert runner.nbytes == 0
        assert made.run_into(fed, goals) and runner.direct_runs == 2
