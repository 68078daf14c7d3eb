"""Fewer and shorter calls among ranks: the same values, and what is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.comm import bound, simulate
from magmadnn.graph import Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.placing import Shard
from magmadnn.graph.program import Program
from magmadnn.ops.ranks.leading_axis import among_ranks, with_leading_axis
from magmadnn.parallel.placements import step as placed_step
from magmadnn.parallel.placements.distribute import Distribution
from magmadnn.parallel.placements.fewer_calls import in_buckets, narrower, parts_first
from magmadnn.tensor import Operation

RANKS = 3


def values_of(outputs: Any, x: Node, rows: Any) -> list[list[np.ndarray]]:
    """What each of three ranks computes from its rows."""

    def run(comm: Any) -> list[np.ndarray]:
        with bound(comm):
            return [Operation(o).eval({Operation(x): rows[comm.rank]}).numpy() for o in outputs]

    return simulate(RANKS, run)


def names(program: Program) -> list[str]:
    found = [getattr(node.op, "name", "") for node in program.nodes()]
    return [name for name in found if name in KINDS]


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "own_part", "_among_ranks")


def test_a_part_of_a_sum_is_a_sum_of_parts() -> None:
    """Also behind functions, products and reductions; not where the whole sum is needed too."""
    x = placeholder("x", Spec((6, 4), np.dtype(np.float64)))
    draw = np.random.default_rng(3)
    rows, weights = draw.normal(size=(RANKS, 6, 4)), draw.normal(size=(4, 5))
    total = ops.all_reduce(Operation(x), ranks=RANKS)
    given = {"ranks": RANKS, "loss": "same"}
    part = ops.own_part(ops.exp(ops.reshape(total, (6, 2, 2))), axis=0, **given)
    after = ops.own_part(ops.matmul(ops.tanh(Operation(x)), weights), axis=0, **given)
    before = Program((part.node, after.node))
    found = parts_first(before)
    assert names(before).count("all_reduce") == 1
    assert sorted(names(found)) == ["own_part", "reduce_scatter"]
    products = [n for n in found.nodes() if getattr(n.op, "name", "") == "matmul"]
    assert [n.shape for n in products] == [(2, 5)]  # of its rows alone
    for one, other in zip(
        values_of(before.outputs, x, rows), values_of(found.outputs, x, rows), strict=True
    ):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)
    both = Program((part.node, total.node))
    assert names(parts_first(both)).count("all_reduce") == 1


def test_what_cannot_be_cut_stays_whole() -> None:
    """A reshape whose first axis has fewer places than ranks."""
    x = placeholder("x", Spec((2, 3), np.dtype(np.float64)))
    total = ops.all_reduce(Operation(x), ranks=RANKS)
    part = ops.own_part(ops.reshape(total, (6,)), ranks=RANKS, loss="same")
    before = Program((part.node,))
    assert parts_first(before) is before


def test_sums_travel_in_buckets() -> None:
    """Those that only updates wait for, up to the limit; bits are the same."""
    x = placeholder("x", Spec((6, 4), np.dtype(np.float64)))
    own = Operation(x)
    waited = ops.all_reduce(own * 3.0, ranks=RANKS)
    sums = [ops.all_reduce(ops.sum(own * waited, axis=0), ranks=RANKS)]
    sums += [ops.all_reduce(own[k] + 1.0, ranks=RANKS) for k in range(3)]
    targets = [md.variable(f"v{k}", np.zeros(4)).node for k in range(4)]
    program = Program((own.node,), tuple((t, s.node) for t, s in zip(targets, sums, strict=True)))

    def of_rank(rank: int) -> Program:
        return with_leading_axis(program, rank)

    apart = of_rank(0)
    assert [len(calls(in_buckets(apart, limit))) for limit in (1, 64, 1 << 20)] == [5, 3, 2]
    rows = np.random.default_rng(4).normal(size=(RANKS, 6, 4))
    expected = values_of([v for _, v in apart.updates], x, rows)
    for limit in (64, 1 << 20):
        found = values_of([v for _, v in in_buckets(apart, limit).updates], x, rows)
        for one, other in zip(found, expected, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)


def calls(program: Program) -> list[Node]:
    return [node for node in program.nodes() if node.op is among_ranks]


def test_what_was_rounded_to_halves_travels_so() -> None:
    """Behind movements too; sums of products of halves with a wire, stored as float32."""
    rows, inner = 6, 4
    x = placeholder("x", Spec((rows, inner), np.dtype(np.float32)))
    half = ops.cast(ops.cast(Operation(x), "bfloat16"), "float32")
    moved = ops.transpose(half).node
    narrow = narrower(moved)
    assert narrow is not None and narrow.dtype.name == "bfloat16" and narrow.shape == (inner, rows)
    assert narrower(x) is None and narrower((half + 1.0).node) is None
    own = placeholder("own", Spec((rows // RANKS, inner), np.dtype(np.float32)))
    found = Distribution(Program((moved,)), {x: (Shard(0), own)}, RANKS)
    assert [(s.op, s.itemsize) for s in found.sent()] == [("all_gather", 2)]
    batch = placeholder("x", Spec((Dim.symbol("batch"), 600), np.dtype(np.float32)))
    kernel = placeholder("w", Spec((600, 3), np.dtype(np.float32)))
    part = placeholder("w", Spec((200, 3), np.dtype(np.float32)))
    halves = [ops.cast(ops.cast(Operation(n), "bfloat16"), "float32") for n in (batch, kernel)]
    product = Program((ops.matmul(*halves).node,))
    for wire, dtypes in ((None, ["float32"]), ("bfloat16", ["bfloat16"])):
        given: Any = {"stays": [kernel], "wire": wire}
        placed = Distribution(product, {kernel: (Shard(0), part)}, RANKS, **given)
        call = calls(with_leading_axis(placed.program, 0))
        assert [c.inputs[0].dtype.name for c in call] == dtypes
        assert [c.dtype.name for c in call] == ["float32"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_classifier_sends_no_more_than_it_needs(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels, rows, a sum for two layers each way, logits; the loss is computed by all alike."""
    sent: list[list[str]] = []

    class Watched(Distribution):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            sent.append([one.op for one in self.sent()])

    monkeypatch.setattr(placed_step, "Distribution", Watched)
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(32, 6, 6, 2)), draw.integers(0, 8, 32)

    def model() -> Any:
        layers = md.layers
        net = [layers.Input((6, 6, 2)), layers.Conv2D(4, 3, activation="tanh"), layers.Flatten()]
        net += [layers.Dense(n, activation="tanh") for n in (16, 12)]
        return md.Model(
            [*net, layers.Dense(8)], loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1,
            precision="float64",
        )  # fmt: skip

    def run(comm: Any) -> Any:
        net = model()
        way = md.parallel.Hybrid(communicator=comm)
        net.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=False, parallel=way)
        return net.values()

    alone = model()
    alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=False, parallel=False)
    for values in simulate(ranks, run):
        for name, value in alone.values().items():
            np.testing.assert_allclose(values[name], value, rtol=1e-12, atol=1e-13)
    shared = [one for one in sent if "reduce_scatter" in one]
    assert len(shared) == ranks
    for one in shared:  # the last two are of the convolution's kernel and bias
        expected = ["all_gather", "all_gather", "all_reduce", "all_gather", "all_reduce"]
        assert one == [*expected, "reduce_scatter", "all_reduce", "all_reduce"]


def test_the_sum_that_is_ready_last_travels_by_itself() -> None:
    """That of the first layer, which updates come last to; the others of its bucket are large."""
    sizes = (4, 5, 1 << 18, 6)
    values = [placeholder(f"x{n}", Spec((n,), np.dtype(np.float32))) for n in sizes]
    sums = [ops.all_reduce(Operation(one) + 1.0, ranks=RANKS) for one in values]
    targets = [md.variable(f"v{n}", np.zeros(n, np.float32)).node for n in sizes]
    program = Program((values[0],), tuple((t, s.node) for t, s in zip(targets, sums, strict=True)))
    found = in_buckets(with_leading_axis(program, 0))
    lengths = [node.inputs[0].shape for node in found.nodes() if node.op is among_ranks]
    assert sorted(sum(shape) for shape in lengths) == [4 + 5, 6 + (1 << 18)]
