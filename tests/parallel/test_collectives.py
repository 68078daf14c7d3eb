"""Collectives as ops: each against NumPy on all ranks' values, gradients as adjoints, in every executor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import adjoints
from magmadnn.ops.ranks.leading_axis import with_leading_axis
from magmadnn.runtime import Executable
from tests.comm.test_launch import launched

Array = np.ndarray[Any, np.dtype[Any]]
RANKS = (1, 2, 3, 5)


def whole(ranks: int, *shape: int) -> Array:
    """Values of all ranks, [ranks, *shape]."""
    return np.random.default_rng(ranks).normal(size=(ranks, *shape))


def shares(x: Array, axis: int) -> list[Array]:
    return np.split(x, len(x), axis=axis)


# name, attributes, shape of x on each rank of P, and what all ranks get, from the values of all: written with
# NumPy on the stack of them
CASES: list[tuple[str, dict[str, Any], Callable[[int], tuple[int, ...]], Callable[[Array], Any]]] = [
    ("all_reduce", {}, lambda p: (2, 3), lambda x: [x.sum(0)] * len(x)),
    ("all_reduce", {"op": "mean"}, lambda p: (2, 3), lambda x: [np.average(x, 0)] * len(x)),
    ("all_reduce", {"op": "max"}, lambda p: (7,), lambda x: [x.max(0)] * len(x)),
    ("all_reduce", {"op": "min"}, lambda p: (), lambda x: [x.min(0)] * len(x)),
    ("all_gather", {}, lambda p: (2, 3), lambda x: [x.reshape(-1, 3)] * len(x)),
    ("all_gather", {"axis": -1}, lambda p: (2, 3), lambda x: [np.hstack(list(x))] * len(x)),
    ("reduce_scatter", {}, lambda p: (2 * p, 3), lambda x: list(x.sum(0).reshape(len(x), 2, 3))),
    ("reduce_scatter", {"axis": 1}, lambda p: (2, p), lambda x: list(x.sum(0).T[:, :, None])),
    ("own_part", {"axis": 1}, lambda p: (2, p), lambda x: [y[:, r : r + 1] for r, y in enumerate(x)]),
    ("broadcast", {}, lambda p: (5,), lambda x: [x[0]] * len(x)),
    ("reduce_to", {}, lambda p: (5,), lambda x: [x.sum(0), *[0 * x[0]] * (len(x) - 1)]),
    (
        "all_to_all",
        {"split_axis": 0, "concat_axis": 1},
        lambda p: (p, 2, 3),
        lambda x: [np.concatenate([x[s, r : r + 1] for s in range(len(x))], axis=1) for r in range(len(x))],
    ),
]  # fmt: skip
ON_HOST = ("broadcast", "reduce_to")  # on GPUs too
NAMES = [f"{name} {more}" for name, more, *_ in CASES]


@pytest.mark.parametrize("executor", ["native", "reference", "as on GPUs"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_collectives_give_what_numpy_does(case: Any, executor: str) -> None:
    name, attributes, shape, expected = case
    is_as_on_gpus = executor == "as on GPUs"
    for ranks in RANKS:
        x = whole(ranks, *shape(ranks))
        wanted = expected(x)

        def rank(comm: Any, x: Array = x, ranks: int = ranks) -> Array:
            given = placeholder("x", Spec(x.shape[1:], np.dtype("float64")))
            y = getattr(md.ops, name)(given + 0.0, ranks=ranks, **attributes)
            if is_as_on_gpus:
                made = with_leading_axis(Program((y + 0.0,), ()), comm.rank)
                program = Executable(made, check=True)
                names = {getattr(n.op, "name", "") for n in program.program.nodes()}
                stays = name in ON_HOST or (attributes.get("op") in ("max", "min") and ranks > 1)
                assert (name in names) == stays
            else:
                program = Executable([y + 0.0], executor=executor, check=True)
            with md.comm.bound(comm):
                found = program.run({given: x[comm.rank]})[0]
            assert found.shape == y.shape
            return found

        for found, one in zip(md.comm.simulate(ranks, rank), wanted, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-15 * ranks, atol=1e-15 * ranks)


LINEAR = [case for case in CASES if case[1].get("op") not in ("max", "min")]


@pytest.mark.parametrize("case", LINEAR, ids=[f"{name} {more}" for name, more, *_ in LINEAR])
def test_gradients_of_the_sum_of_losses_are_adjoints(case: Any) -> None:
    """<g, op(x)> = <gradient, x>, summed over ranks: ops that are linear in the values of all ranks."""
    name, attributes, shape, expected = case
    for ranks in RANKS:
        x = whole(ranks, *shape(ranks))
        forward = expected(x)
        g = [np.random.default_rng(r).normal(size=y.shape) for r, y in enumerate(forward)]

        def rank(comm: Any, x: Array = x, g: Any = g, ranks: int = ranks) -> Array:
            given = placeholder("x", Spec(x.shape[1:], np.dtype("float64")))
            seed = placeholder("g", Spec(g[0].shape, np.dtype("float64")))
            y = getattr(md.ops, name)(given, ranks=ranks, **attributes)
            (back,) = adjoints({y: seed}, [given])
            assert back is not None
            with md.comm.bound(comm):
                return Executable([back]).run({given: x[comm.rank], seed: g[comm.rank]})[0]

        found = md.comm.simulate(ranks, rank)
        left = sum(float(np.vdot(a, b)) for a, b in zip(g, forward, strict=True))
        right = sum(float(np.vdot(a, b)) for a, b in zip(found, x, strict=True))
        assert abs(left - right) < 1e-13 * x.size


def test_gradient_of_max_goes_to_the_ranks_that_have_it() -> None:
    x = np.array([[1.0, 5.0, 2.0], [4.0, 5.0, 0.0], [3.0, 1.0, 2.0]])

    def rank(comm: Any) -> Array:
        given = md.placeholder("x", (3,), "float64")
        y = md.ops.all_reduce(given, ranks=3, op="max", loss="same")
        (back,) = md.grad(md.ops.sum(y * np.array([1.0, 2.0, 4.0])), [given])
        with md.comm.bound(comm):
            return np.asarray(back.eval({given: x[comm.rank]}).numpy())

    wanted = [[0, 1, 2], [1, 1, 0], [0, 0, 2]]
    np.testing.assert_array_equal(md.comm.simulate(3, rank), wanted)


def test_two_layers_split_over_ranks_have_the_gradients_of_one_rank() -> None:
    """Columns of the first weights and rows of the second on each rank: y = all_reduce(tanh(x A_r) B_r)."""
    draw = np.random.default_rng(0)
    x, a, b = draw.normal(size=(5, 4)), draw.normal(size=(4, 6)), draw.normal(size=(6, 2))
    h = np.tanh(x @ a)
    y = h @ b  # loss = sum(y^2) / 2
    inner = (y @ b.T) * (1 - h * h)
    wanted = inner @ a.T, x.T @ inner, h.T @ y

    def rank(comm: Any) -> list[Array]:
        r, p = comm.rank, comm.size
        n = 6 // p
        part = slice(r * n, r * n + n)
        given = [
            md.placeholder(k, v.shape, "float64")
            for k, v in (("x", x), ("a", a[:, part]), ("b", b[part]))
        ]
        out = md.ops.tanh(md.ops.summed_gradient(given[0], ranks=p) @ given[1]) @ given[2]
        total = md.ops.all_reduce(out, ranks=p, loss="same")
        back = md.grad(md.ops.sum(total * total) / 2, given)
        fed = dict(zip(given, (x, a[:, part], b[part]), strict=True))
        with md.comm.bound(comm):
            return [np.asarray(g.eval(fed).numpy()) for g in back]  # fmt: skip

    for ranks in (1, 2, 3):
        found = md.comm.simulate(ranks, rank)
        for one in found:
            np.testing.assert_allclose(one[0], wanted[0], rtol=1e-12)
        np.testing.assert_allclose(np.hstack([f[1] for f in found]), wanted[1], rtol=1e-12)
        np.testing.assert_allclose(np.vstack([f[2] for f in found]), wanted[2], rtol=1e-12)


def test_shares_come_back_whole_where_the_loss_is_the_same() -> None:
    """own_part and all_gather are each other's gradients where all ranks compute one loss."""
    x = np.random.default_rng(1).normal(size=(6, 2))

    def rank(comm: Any) -> Array:
        given = md.placeholder("x", (6, 2), "float64")
        own = md.ops.own_part(given, ranks=comm.size, loss="same")
        back = md.ops.all_gather(own * own, ranks=comm.size, loss="same")
        (gradient,) = md.grad(md.ops.sum(back * back), [given])
        with md.comm.bound(comm):
            return np.asarray(gradient.eval({given: x}).numpy())

    for found in md.comm.simulate(3, rank):
        np.testing.assert_allclose(found, 4 * x**3, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64"])
def test_dtypes_stay(dtype: str) -> None:
    def rank(comm: Any) -> bool:
        x = md.placeholder("x", (4,), dtype)
        y = md.ops.all_reduce(x, ranks=2)
        with md.comm.bound(comm):
            value = y.eval({x: np.arange(4).astype(y.dtype) * (comm.rank + 1)})
        return y.dtype.name == dtype and np.asarray(value).tolist() == [0, 3, 6, 9]

    assert md.comm.simulate(2, rank) == [True, True]


def test_16_bits_on_the_wire() -> None:
    def rank(comm: Any) -> Array:
        x = md.placeholder("x", (3,), "float32")
        y = md.ops.all_reduce(x, ranks=2, wire="bfloat16")
        with md.comm.bound(comm):
            return np.asarray(y.eval({x: np.array([1.0, 1 + 2.0**-10, 3.0], "float32")}).numpy())

    np.testing.assert_array_equal(md.comm.simulate(2, rank), [[2, 2, 6]] * 2)


def test_several_collectives_of_a_step_come_in_one_order_on_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values that do not depend on each other: threads of a rank that share a phase must not swap them."""
    monkeypatch.setattr("magmadnn.runtime.cpu.native.thread_count", lambda: 3)

    def rank(comm: Any) -> list[float]:
        x = md.placeholder("x", (64, 64), "float32")
        parts = [md.ops.all_reduce(x * k, ranks=4) for k in range(1, 7)]
        total = md.ops.sum(md.ops.stack(parts), axis=(1, 2))
        with md.comm.bound(comm):
            return list(
                total.eval({x: np.full((64, 64), 1.0 + comm.rank, "float32")}).numpy().tolist()
            )

    assert md.comm.simulate(4, rank) == [[10.0 * 4096 * k for k in range(1, 7)]] * 4


def test_a_step_trains_with_gradients_that_are_summed_inside() -> None:
    """A hand-made data parallel step of the compiled executor: many batches, parameters stay equal."""
    rows = np.random.default_rng(3).normal(size=(8, 5)).astype("float32")

    def rank(comm: Any) -> bytes:
        w = md.variable("w", np.zeros(5, "float32"))
        x = md.placeholder("x", ("n", 5), "float32")
        loss = md.ops.sum((x @ w - 1.0) ** 2)
        (gradient,) = md.grad(loss, [w])
        fresh = w - 0.01 * md.ops.all_reduce(gradient, ranks=comm.size)
        program = Executable([loss.node], [(w.node, fresh.node)], training=True, executor="native")
        with md.comm.bound(comm):
            for _ in range(5):
                program.run({x.node: np.array_split(rows, comm.size)[comm.rank]})
        return w.numpy().tobytes()

    alone = np.frombuffer(md.comm.simulate(1, rank)[0], "float32")
    for ranks in (2, 3):
        found = md.comm.simulate(ranks, rank)
        assert len(set(found)) == 1
        np.testing.assert_allclose(np.frombuffer(found[0], "float32"), alone, rtol=1e-5)


def test_nan_of_one_rank_is_named_on_all() -> None:
    def rank(comm: Any) -> str:
        x = md.placeholder("x", (2,), "float64")
        y = md.ops.all_reduce(md.ops.log(x), ranks=3)
        program = Executable([y.node], executor="reference")
        with md.comm.bound(comm), pytest.raises(md.errors.NumericError) as caught:
            program.run({x.node: np.array([1.0, -1.0 if comm.rank == 1 else 2.0])}, guard=True)
        return str(caught.value)

    found = md.comm.simulate(3, rank)
    assert found[1].startswith("log: the result has NaN")
    assert all(f.startswith("rank 1 of 3 stopped the step: NumericError: log:") for f in found[::2])


REFUSED = [
    (lambda x: md.ops.all_reduce(x), "all_reduce: ranks is missing"),
    (lambda x: md.ops.all_reduce(x, ranks=0), "ranks must be a whole number of at least 1, got 0"),
    (lambda x: md.ops.all_reduce(x, group="", ranks=2), "group must be the name of a group"),
    (lambda x: md.ops.all_reduce(x, ranks=2, op="product"), "op 'product'"),
    (lambda x: md.ops.all_reduce(x, ranks=2, loss="mean"), "loss 'mean'"),
    (lambda x: md.ops.all_reduce(x, ranks=2, wire="int8"), "wire 'int8'"),
    (
        lambda x: md.ops.reduce_scatter(x, ranks=2),
        "axis 0 has 7 rows, no multiple of ranks=2: pad it",
    ),
    (lambda x: md.ops.all_gather(x, ranks=2, axis=2), "there is no axis 2"),
    (lambda x: md.ops.broadcast(x, ranks=2, root=2), "root must be a rank from 0 to 1, got 2"),
    (lambda x: md.ops.all_reduce(md.ops.cast(x, "int32"), ranks=2, op="mean"), "cast x to float32"),
    (lambda x: md.ops.all_reduce(x > 0, ranks=2), "op 'sum' of bool is not defined"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refusals(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(md.errors.MagmaDNNError, match=re.escape(words)):
        call(md.placeholder("x", (7, 3), "float32"))


def test_groups_that_are_not_there() -> None:
    x = md.placeholder("x", (2,), "float32")
    y = md.ops.all_reduce(x, group="rows", ranks=1)
    with pytest.raises(
        md.errors.CommunicationError, match="no communicator is bound to group 'rows'"
    ):
        y.eval({x: np.ones(2, "float32")})
    with md.comm.bound({"rows": md.comm.SerialCommunicator()}):
        assert y.eval({x: np.ones(2, "float32")}).numpy().tolist() == [1, 1]
    z = md.ops.all_reduce(x, ranks=2)
    with pytest.raises(
        md.errors.CommunicationError, match=r"made for ranks=2 .* the communicator has 1"
    ):
        z.eval({x: np.ones(2, "float32")})
    with pytest.raises(md.errors.ArgumentError, match="must be a communicator"):
        md.comm.bound({"rows": 3}).__enter__()


def test_graphs_that_differ_between_ranks_are_named() -> None:
    def rank(comm: Any) -> None:
        x = md.placeholder("x", (4 + comm.rank,), "float32")
        with md.comm.bound(comm):
            md.ops.all_reduce(x, ranks=2).eval({x: np.ones(4 + comm.rank, "float32")})

    with pytest.raises(md.errors.CommunicationError, match=r"calls differ: .*test_collectives.py"):
        md.comm.simulate(2, rank)


SCRIPT = """
x = md.placeholder("x", (3,), "float32")
y = md.ops.all_gather(md.ops.all_reduce(x, ranks=2) * (1 + comm.rank), ranks=2)
given = {x: np.arange(3, dtype="float32") + comm.rank}
assert y.eval(given).numpy().tolist() == [1.0, 3.0, 5.0, 2.0, 6.0, 10.0]
"""


def test_over_mpi(tmp_path: Path) -> None:
    code, _, errors, _ = launched(tmp_path, 2, SCRIPT)
    assert code == 0, errors
