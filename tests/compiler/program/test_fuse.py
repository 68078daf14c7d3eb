"""fuse: which nodes become one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.formulas import compilable
from magmadnn.compiler.kernels.rows import NARROW_ROW
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.simplify import decompose, simplify
from magmadnn.compiler.regions.fusion.fuse import fuse
from magmadnn.compiler.regions.region import Region
from magmadnn.errors import ShapeError
from magmadnn.graph import Node
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.compiler.native_draw import draw
from tests.compiler.native_programs import PROGRAMS
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed, variable


def fused(program: Program) -> tuple[list[Region], Layouts]:
    return fuse(simplify(decompose(simplify(program))), compilable)


def regions(*outputs: Node) -> list[str]:
    return [str(region) for region in fused(Program.of(outputs))[0]]


def agrees(outputs: list[Node], feeds: dict[Node, Any]) -> None:
    """Fused and unfused values are equal but for some roundings."""
    wanted, got = (Executable(outputs, executor=e).run(feeds) for e in ("reference", "native"))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=64 * 2**-23, atol=64 * 2**-23)


# --- what becomes one -----------------------------------------------------------------------------


def test_pointwise_chains() -> None:
    x, y = placed("x", BATCH, 7), placed("y", 7)
    assert regions(ops.tanh(x * 2.0 + y) - x) == ["rows[batch, 7] multiply add tanh subtract"]


def test_softmax_cross_entropy_and_its_gradient() -> None:
    x, labels = placed("x", BATCH, 5), placed("labels", BATCH, dtype=np.int64)
    loss = ops.mean(ops.take_class(ops.log_softmax(x), labels))
    made = regions(loss, gradient(loss, [x])[0])
    assert sum(r.startswith("rows[batch, 5]") for r in made) == 1
    assert not any(r.startswith("call") for r in made)


def test_a_number_of_rows_is_made_with_a_scalar_that_is_broadcast() -> None:
    x, s = placed("x", 5, 7), placed("s")
    given = {x: np.arange(35, dtype=np.float32).reshape(5, 7), s: np.float32(3)}
    agrees([ops.sum(x, -1) * ops.broadcast_to(s, (5,))], given)


def test_what_is_done_to_a_product_belongs_to_it() -> None:
    x, w, b = placed("x", BATCH, 7), variable("w", ramp(7, 5)), variable("b", ramp(5))
    assert regions(ops.relu(x @ w + b)) == ["gemm[batch, 5] matmul add relu"]


def test_a_reduction_over_rows_and_what_follows() -> None:
    x, b = placed("x", BATCH, 7), variable("b", ramp(7))
    assert regions(b - 0.1 * ops.sum(x, 0)) == ["columns[7] sum multiply subtract"]
    assert regions(ops.max(placed("y", 5, 7), 0)) == ["columns[7] max"]


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (7,), (1, 7)])
def test_a_reduction_over_all_axes(shape: tuple[int, ...]) -> None:
    x = placed("x", *shape)
    assert all(r.startswith("rows[") for r in regions(ops.mean(x), ops.max(x)))
    agrees([ops.mean(x), ops.max(x)], {x: ramp(*shape) + 0.3})


def test_a_single_column_is_summed_as_one_row() -> None:
    x = placed("x", BATCH, 1)
    assert regions(ops.sum(x, 0)) == ["rows[batch] sum"]
    agrees([ops.sum(x, 0)], {x: ramp(37, 1) + 0.3})


def test_single_numbers_that_are_ready_together() -> None:
    a, b, c = (placed(name) for name in "abc")
    made = regions(ops.exp(a), ops.tanh(b), c * 2.0)
    assert len(made) == 1 and made[0].startswith("rows[1]")


def test_numbers_that_updates_need_do_not_delay_outputs() -> None:
    a, b = placed("a"), variable("b", np.float32(2))
    plan = native_plan(Program.of([ops.exp(a)], [(b, b * 2.0)]))
    assert [len(work.region.nodes) for work in plan.work] == [1, 1]
    assert len(plan.in_place) == 1


def test_what_waits_for_the_same_sums_reads_a_matrix_once() -> None:
    """As gradients of two normalisations that are added; what waits for another sum stays apart."""
    x, y, z, g = (placed(name, 30, 7) for name in "xyzg")
    one, other = (ops.subtract(a * ops.sum(g * a, axis=0), g) for a in (x, y))
    both = "rows[30, 7] multiply subtract multiply subtract"
    assert regions(one, other) == ["columns[7] multiply sum multiply sum", both]
    last = ops.subtract(z * ops.sum(z * 2.0, axis=0), g)
    apart = "rows[30, 7] multiply subtract"
    assert sorted(r for r in regions(one, other, last) if r.startswith("rows")) == [apart, both]
    unread = [a * ops.sum(g * a, axis=0) for a in (x, y)]
    assert regions(*unread)[1:] == ["rows[30, 7] multiply"] * 2  # g is not read


def test_what_is_summed_over_rows_of_a_product_and_read_again_is_not_stored() -> None:
    """As in the gradient of attention's softmax; what waits for the sums has to read both factors."""
    x, w, p = placed("x", 30, 9), placed("w", 9, 70), placed("p", 30, 70)
    g: Any = x @ w
    sums = ops.sum(g * p, axis=-1, keepdims=True)
    softmax = p * (g - sums)
    apart = ["gemm[30, 70] matmul", "rows[30, 70] multiply sum subtract multiply"]
    assert regions(softmax) == apart
    given = {x: ramp(30, 9), w: ramp(9, 70), p: np.float32(0.3) + ramp(30, 70)}
    agrees([softmax], given)
    assert regions(g * sums) == ["gemm[30, 70] matmul multiply", "rows[30, 70] sum multiply"]
    assert regions(softmax, g * p)[0] == "gemm[30, 70] matmul multiply"  # which is wanted


def test_a_sum_computes_what_is_rounded_and_widened_for_it_alone() -> None:
    x, w = placed("x", 30, 7), placed("w", 7)
    rounded = ops.cast(ops.cast(ops.relu(x * w), dtype="bfloat16"), dtype="float32")
    made = regions(ops.sum(rounded * x, axis=0))
    assert made == ["columns[7] multiply relu cast multiply sum"]


# --- matrices of few columns ----------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 5, NARROW_ROW - 1])
def test_matrices_of_few_columns_are_one_row(columns: int) -> None:
    x, y, s = placed("x", BATCH, columns), placed("y", BATCH, columns), placed("s", 1)
    z = ops.exp(x * s) - y
    assert regions(z) == [f"rows[{BATCH * columns}] multiply exp subtract"]
    agrees([z], {x: ramp(11, columns), y: ramp(11, columns) + 0.1, s: ramp(1)})


def test_what_stays_a_matrix_of_few_columns() -> None:
    """What a row has in common, other strides, a number of a row; and long rows are long enough."""
    x, y, row = placed("x", BATCH, 5), placed("y", BATCH, 7), placed("row", 5)
    feeds = {x: ramp(11, 5), y: ramp(11, 7), row: ramp(5)}
    for z in (x * row, x * y[:, :5], x * y[:, :1], ops.exp(x) / ops.sum(x, 1, keepdims=True)):
        assert regions(z)[-1].startswith("rows[batch, 5]")
        agrees([z], {n: a for n, a in feeds.items() if n in Program.of([z]).nodes()})
    assert regions(ops.exp(placed("x", BATCH, NARROW_ROW))) == [f"rows[batch, {NARROW_ROW}] exp"]


# --- what stays apart -----------------------------------------------------------------------------


def test_other_matrices() -> None:
    x = placed("x", BATCH, 7)
    assert len(regions(ops.exp(x), ops.exp(ops.concat([x, x])))) == 3


def test_a_value_seen_in_another_order_is_stored_first() -> None:
    """A region does not take in one whose values it reads flipped."""
    x = placed("x", 5, 7)
    y = ops.exp(x)
    turned = ops.flip(y, 0)
    z = turned - ops.max(turned, 1, keepdims=True)
    assert len(regions(z + y)) > 1
    agrees([z + y], {x: ramp(5, 7)})


def test_a_product_does_not_take_in_what_it_multiplies() -> None:
    x, w = placed("x", BATCH, 5), variable("w", ramp(5, 5))
    h = ops.tanh(x)
    assert regions((h @ w) * h) == ["rows[5*batch] tanh", "gemm[batch, 5] matmul multiply"]
    agrees([(h @ w) * h], {x: ramp(11, 5)})


def test_a_column_reduction_does_not_take_in_its_operand() -> None:
    x = placed("x", 1, 7)
    y = ops.exp(x)
    agrees([ops.sum(y, 0) + y, ops.sum(y, 0) * 2.0], {x: ramp(1, 7)})


def test_a_row_sum_broadcast_along_columns() -> None:
    """In a square, x - sum(x, 1) takes the sums along the rows, not one for each row."""
    x = placed("x", 5, 5)
    agrees([x - ops.sum(x, 1), x - ops.sum(x, 1, keepdims=True)], {x: ramp(5, 5) + 0.3})


def test_stacks_of_products_are_products() -> None:
    x, y = placed("x", 5, 5), placed("y", 3, 5, 5)
    assert regions(ops.matmul(y, x) + 1.0) == ["gemm[15, 5] matmul add"]
    assert regions(ops.matmul(x, y) + 1.0) == ["gemm[3, 5, 5] matmul add"]


def test_elements_of_a_product_may_be_divided_into_more_axes() -> None:
    x, w, b = placed("x", BATCH, 7), placed("w", 7, 6), placed("b", BATCH, 2, 3)
    y = ops.reshape(ops.matmul(x, w), (BATCH * 2, 3))
    assert regions(ops.relu(ops.reshape(y, (BATCH, 2, 3)) + b)) == [
        "gemm[batch, 6] matmul", "rows[6*batch] add relu",
    ]  # fmt: skip
    flat = ops.matmul(ops.reshape(placed("z", BATCH, 2, 7), (BATCH * 2, 7)), placed("v", 7, 3))
    assert regions(ops.relu(ops.reshape(flat, (BATCH, 2, 3)) + b)) == [
        "gemm[2*batch, 3] matmul add relu"
    ]


def test_an_extreme_of_what_may_be_empty_looks_before_it_runs() -> None:
    x = placed("x", 3, BATCH)
    assert regions(ops.max(x, 1)) == ["rows[3, batch] max"]
    agrees([ops.max(x, 1), ops.softmax(x, 1), ops.softmax(x, 0)], {x: ramp(3, 7)})
    (found,) = Executable([ops.softmax(x, 1)], executor="native").run({x: ramp(3, 0)})
    assert found.shape == (3, 0)  # an op may choose from nothing where nobody reads what it chose
    for node, words in (
        (ops.max(x, 1), "max: axis 1"),
        (ops.min(ops.transpose(x), 0), "min: axis 0"),
    ):
        with pytest.raises(ShapeError, match=f"{words} of x .* is empty"):
            Executable([node], executor="native").run({x: ramp(3, 0)})


def test_unknown_dtypes_are_calls() -> None:
    for dtype in ("float16", "int8"):
        assert regions(placed("x", 7, dtype=np.dtype(dtype)) * 2)[0].startswith("call")
    assert regions(ops.power(placed("i", 7, dtype=np.int32), 2))[0].startswith("call")


def test_formulas_do_not_grow_without_bound() -> None:
    y = placed("x", 7)
    for _ in range(20):
        y = y * y + y
    assert len(regions(y)) > 1


def test_kernels_read_a_sensible_number_of_arrays() -> None:
    total = placed("x0", BATCH, 7)
    for k in range(1, 40):
        total = total + placed(f"x{k}", BATCH, 7)
    assert len(regions(total)) >= 3


# --- order ----------------------------------------------------------------------------------------


def check_order(program: Program) -> None:
    """Every region comes after those it reads: there is no cycle; every node is in one region."""
    made, layouts = fused(program)
    done: set[Node] = set()
    homes = {node for region in made for node in region.nodes}
    for region in made:
        own = set(region.nodes)
        assert not own & done
        outside = {layouts.bases[i] for n in region.nodes for i in n.inputs} - own
        assert outside & homes <= done
        done |= own


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_cycles_in_training_steps(name: str) -> None:
    check_order(PROGRAMS[name]())


def test_no_cycles_in_random_programs() -> None:
    for seed in range(330, 370):
        check_order(draw(seed).program)


def test_a_way_out_and_back_keeps_regions_apart() -> None:
    """exp -> product -> + exp: the sum may join the product, but not exp."""
    x, w = placed("x", 5, 5), variable("w", ramp(5, 5))
    y = ops.exp(x)
    z = ops.sum(ops.concat([y, y]), 0)
    check_order(Program.of([y * z, y + z]))
    check_order(Program.of([(y @ w) * y + ops.tanh(y)]))
    agrees([y * z, y + z, (y @ w) * y + ops.tanh(y)], {x: ramp(5, 5)})
