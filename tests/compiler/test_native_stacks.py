"""Products of stacks of matrices and sums by letters: compiled products against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.listing import costs_of
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from tests.compiler.sample_programs import BATCH

RNG = np.random.default_rng(9)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
Shapes = tuple[tuple[Any, ...], ...]

STACKS: list[Shapes] = [
    ((3, 5, 7), (7, 4)), ((BATCH, 5, 7), (7, 4)), ((BATCH, 5, 7), (BATCH, 7, 4)),
    ((5, 7), (3, 1, 7, 2)), ((2, 3, 5, 7), (3, 7, 4)), ((BATCH, 1, 7), (BATCH, 7, 1)),
    ((7,), (7, 3)), ((2, 5, 7), (7,)), ((7,), (7,)), ((7,), (3, 7, 2)), ((3, 1, 7), (BATCH, 1, 7, 4)),
]  # fmt: skip
LETTERS: list[tuple[str, Shapes]] = [
    ("ij,jk->ik", ((5, 7), (7, 3))),
    ("bij,bkj->bik", ((BATCH, 5, 7), (BATCH, 3, 7))),
    ("bhid,bhjd->bhij", ((BATCH, 2, 5, 7), (BATCH, 2, 3, 7))),
    ("bthd,bshd->bhts", ((BATCH, 5, 2, 7), (BATCH, 3, 2, 7))),
    ("ijk,jl->kil", ((3, 5, 7), (5, 2))),
    ("abc,cd->", ((2, 3, 5), (5, 4))),
    ("ijk,i->kj", ((3, 5, 7), (3,))),
    ("i,j->ij", ((5,), (7,))),
    ("i,i->", ((5,), (5,))),
    ("i,i->i", ((BATCH,), (BATCH,))),
    ("ij,ij->", ((5, 7), (5, 7))),
    ("...i, i", ((2, 3, 5), (5,))),
    ("ij->j", ((5, 7),)),
]
SEVERAL: list[tuple[str, Shapes, int]] = [  # and the most products in a step
    ("ij,jk,kl->il", ((5, 7), (7, 11), (11, 2)), 7 * 11 * 2),
    ("ij,jk,kl->il", ((2, 7), (7, 11), (11, 5)), 2 * 7 * 11),
    ("bi,bj,ij->b", ((BATCH, 3), (BATCH, 5), (3, 5)), 600 * 15),
    ("bi,ij,jk,bk->b", ((BATCH, 3), (3, 5), (5, 2), (BATCH, 2)), 600 * 6),
    ("i,j,k->kij", ((3,), (5,), (2,)), 30),
    ("bij,bjk,kl->bil", ((BATCH, 3, 5), (BATCH, 5, 2), (2, 7)), 600 * 42),
]


def nodes_of(shapes: Shapes, dtype: str) -> list[Node]:
    return [placeholder(f"x{k}", Spec(s, np.dtype(dtype))) for k, s in enumerate(shapes)]


def drawn(nodes: list[Node], batch: int) -> dict[Node, Any]:
    """Positive numbers, so that an error is relative to the result."""
    shapes = {n: bind_shape(n.shape, {"batch": batch}) for n in nodes}
    return {n: RNG.uniform(0.5, 1.5, s).astype(n.dtype) for n, s in shapes.items()}


def check(
    nodes: list[Node], root: Any, terms: int, batches: tuple[int, ...] = (1, 6)
) -> list[RegionKind]:
    """Both executors on some sizes of the batch; gives the kinds of kernels."""
    native, reference = (Executable([root], executor=e) for e in ("native", "reference"))
    for batch in batches:
        feeds = drawn(nodes, batch)
        (a,), (b,) = native.run(feeds), reference.run(feeds)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2 * terms * EPS[root.dtype.name])
    return [w.region.kind for w in native.native.plan.work]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", STACKS, ids=str)
def test_products_of_stacks(shapes: Shapes, dtype: str) -> None:
    x, w = nodes = nodes_of(shapes, dtype)
    assert check(nodes, ops.matmul(x, w), 7) == [RegionKind.GEMM]


@pytest.mark.parametrize(("letters", "shapes"), LETTERS)
def test_sums_by_letters(letters: str, shapes: Shapes) -> None:
    nodes = nodes_of(shapes, "float32")
    kinds = check(nodes, ops.einsum(letters, *nodes), 120)
    assert RegionKind.CALL not in kinds
    assert kinds.count(RegionKind.GEMM) == (len(shapes) == 2)


TRANSPOSED: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "left": (lambda x, w: ops.swapaxes(x, 1, 2) @ w, ((BATCH, 7, 5), (BATCH, 7, 4))),
    "right": (lambda x, w: x @ ops.swapaxes(w, 1, 2), ((BATCH, 5, 7), (BATCH, 4, 7))),
    "both": (lambda x, w: ops.transpose(x) @ ops.transpose(w), ((7, 5, 3), (4, 7, 3))),
    "heads": (
        lambda x, w: ops.transpose(x, (0, 2, 1, 3)) @ ops.transpose(w, (0, 2, 3, 1)),
        ((BATCH, 7, 4, 5), (BATCH, 8, 4, 5)),
    ),
    "reversed": (lambda x, w: x[:, ::-1] @ w[:, :, ::-1], ((BATCH, 5, 7), (BATCH, 7, 4))),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_factors_may_lie_otherwise(name: str) -> None:
    make, shapes = TRANSPOSED[name]
    nodes = nodes_of(shapes, "float32")
    kinds = check(nodes, make(*nodes), 7)
    assert kinds[-1] is RegionKind.GEMM
    assert RegionKind.CALL not in kinds


FOLDED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "left": (lambda x, y: x @ y, (BATCH - 1, BATCH)),
    "right": (lambda x, y: y @ x, (BATCH, 5)),
    "left, transposed": (lambda x, y: ops.transpose(x) @ y, (5, BATCH)),
    "right, transposed": (lambda x, y: y @ ops.transpose(x), (BATCH, BATCH - 1)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_factors_with_an_axis_of_one_element(name: str) -> None:
    """Strides along such an axis may be any number: for a batch of 2 they are 4 and 20 bytes here."""
    make, shape = FOLDED[name]
    x, y = nodes_of(((1, 5, BATCH - 1), shape), "float32")
    folded = ops.transpose(ops.reshape(ops.transpose(x, (0, 2, 1)), (BATCH - 1, 5)))
    assert check([x, y], make(folded, y), 6, (2, 3, 6)) == [RegionKind.GEMM]


def test_what_is_done_to_elements_is_part_of_the_product() -> None:
    nodes = nodes_of(((BATCH, 5, 7), (7, 4), (4,), (BATCH, 5, 1)), "float32")
    x, w, b, scale = nodes
    assert check(nodes, ops.tanh(x @ w + b) * scale + 1.0, 12) == [RegionKind.GEMM]
    nodes = nodes_of(((BATCH, 5, 7), (BATCH, 7, 4), (4,), (BATCH, 5, 4)), "float32")
    x, w, b, other = nodes
    assert check(nodes, ops.relu(x @ w + b) * other, 12) == [RegionKind.GEMM]


def test_bits_do_not_depend_on_threads() -> None:
    shapes = ((37, 64, 48), (37, 48, 65), (37, 64, 65))
    nodes = nodes_of(shapes, "float32")
    x, w, other = nodes
    plan = native_plan(Program.of([ops.tanh(x @ w) + other, ops.matmul(x, w[0])]))
    feeds = drawn(nodes, 1)
    one = Instance(plan, {}, 1).run(feeds, guard=False)
    assert one is not None
    for threads in (2, 3, 7):
        many = Instance(plan, {}, threads).run(feeds, guard=False)
        assert many is not None
        assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))


@pytest.mark.parametrize(("letters", "shapes", "most"), SEVERAL)
def test_sums_of_several_operands_go_pair_by_pair(letters: str, shapes: Shapes, most: int) -> None:
    """Every pair is a product with a kernel, and no pair takes more products than the best order does."""
    nodes = nodes_of(shapes, "float32")
    root = ops.einsum(letters, *nodes)
    kinds = check(nodes, root, 300)
    assert RegionKind.CALL not in kinds
    assert kinds.count(RegionKind.GEMM) == len(shapes) - 1
    plan = native_plan(Program.of([root]))
    sizes = {"batch": 600}
    assert max(costs_of(plan, work, sizes)[0] for work in plan.work) <= 2 * most


@pytest.mark.parametrize(
    ("shapes", "turned"),
    [
        (((3, 131, 197), (3, 197, 297)), ""),
        (((3, 131, 197), (3, 197, 297)), "a"),
        (((2, 35, 197), (197, 601)), "b"),
        (((4, 301, 64), (4, 64, 301)), "ab"),
    ],
    ids=str,
)
def test_few_large_products_are_cut_for_threads_with_equal_bits(
    shapes: tuple[Any, Any], turned: str
) -> None:
    drawn = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    laid = [
        a.swapaxes(-1, -2).copy() if k in turned else a for k, a in zip("ab", drawn, strict=True)
    ]
    nodes = [placeholder(k, Spec(a.shape, a.dtype)) for k, a in zip("ab", laid, strict=True)]
    x, w = (ops.swapaxes(n, -1, -2) if n.name in turned else n for n in nodes)
    plan = native_plan(Program.of([ops.tanh(ops.matmul(x, w) * 0.1)]))
    found = {}
    for threads in (1, 2, 5, 16):
        instance = Instance(plan, {}, threads)
        (found[threads],) = instance.run(dict(zip(nodes, laid, strict=True)), guard=False) or [None]
        phases = instance.tasks(threads)
        tasks = [t for n in range(plan.phase_count) for group in phases.phase(n) for t in group]
        # One for each matrix without cuts; wide tiles, as of AVX-512, leave room for two parts of each.
        assert len(tasks) >= min(0.75 * threads, 2 * shapes[0][0])
    wanted = np.tanh(np.matmul(drawn[0].astype(float), drawn[1].astype(float)) * 0.1)
    np.testing.assert_allclose(found[1], wanted, rtol=0, atol=2.0**-17)
    for threads in (2, 5, 16):
        np.testing.assert_array_equal(found[threads], found[1])
